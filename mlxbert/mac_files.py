"""What macOS does to files: folders that its privacy settings close, and the files that it creates by itself."""

import errno
import sys
from pathlib import Path

from mlxbert.paths import IrregularError, open_regular

_ON_MAC = sys.platform == "darwin"
# macOS denies programs access to some folders, whatever the permissions: with EPERM, where permissions give EACCES.
PRIVACY = "System Settings > Privacy & Security > Files and Folders (or Full Disk Access): allow your terminal"
_SYSTEM_FILES = (".DS_Store", ".localized", "Icon\r")  # the settings of a folder's view in Finder
_APPLE_DOUBLE = "._"  # prefix of the name of an AppleDouble file, which holds extended attributes
_MAGIC = bytes.fromhex("00051607")  # the first bytes of an AppleDouble file


def is_forbidden(problem: BaseException) -> bool:
    """Whether an error comes from a Mac's privacy settings, which cause EPERM; file permissions cause EACCES."""
    return _ON_MAC and isinstance(problem, OSError) and problem.errno == errno.EPERM


def is_system_file(name: str) -> bool:
    """Whether macOS creates files of this name by itself.

    On volumes that cannot keep the extended attributes of `x` (exFAT, FAT, some network volumes), macOS keeps the
    attributes in a file `._x` next to `x`.
    """
    return name in _SYSTEM_FILES or name.startswith(_APPLE_DOUBLE)


def is_from_system(path: Path) -> bool:
    """Whether macOS created a file, so that it can be removed; the name decides, and for `._x` the content, too.

    A `._x` that no longer exists counts as removable, because macOS removes it with `x`. So does an empty one, because
    nothing is lost with it.
    """
    if not path.name.startswith(_APPLE_DOUBLE):
        return is_system_file(path.name)
    try:
        with open(path, "rb", opener=open_regular) as file:
            return file.read(len(_MAGIC)) in (b"", _MAGIC)
    except FileNotFoundError:
        return not path.is_symlink()
    except (IsADirectoryError, IrregularError):
        return False
