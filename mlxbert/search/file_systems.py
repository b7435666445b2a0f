"""What disks do to paths and files: one folder has many spellings, and a Mac hides, packs and evicts files.

A Mac's file system ignores case and Unicode forms in names but keeps both as they were written.
"""

import fcntl
import os
import stat
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path

ON_MAC = sys.platform == "darwin"
IN_THE_CLOUD = "in the cloud"
FORBIDDEN = "forbidden by macOS"
_TOP = "/"  # where a Mac has links of its own, such as `/tmp` to `/private/tmp`
_PATH_OF: int | None = getattr(fcntl, "F_GETPATH", None)  # a Mac's: the path of an open file as the disk has it
_LONGEST_PATH = 1024  # bytes, which F_GETPATH fills
_DATALESS = 0x40000000  # SF_DATALESS in <sys/stat.h>: only the name is on this disk, and a read downloads the rest
# Folders that the Finder shows as one file, and in which there is nothing to read: programs and their parts; libraries
# and projects of media and of Apple's office programs; disk images and virtual machines; what Xcode makes. Packages
# that hold texts (.textbundle, .scriv, .playground, .rtfd) are not among them.
_PACKAGES = frozenset((
    *("app", "appex", "bundle", "dsym", "framework", "kext", "mdimporter", "prefpane", "qlgenerator"),
    *("saver", "vst", "vst3", "xcframework", "xpc"),
    *("aplibrary", "imovielibrary", "musiclibrary", "photolibrary", "photoslibrary", "theater", "tvlibrary"),
    *("band", "fcpbundle", "key", "logicx", "numbers", "pages"),
    *("backupbundle", "pvm", "sparsebundle", "utm", "vmwarevm", "xcarchive", "xcodeproj", "xcworkspace"),
))  # fmt: skip


def composed(text: str) -> str:
    """A text in the Unicode form NFC: names of files may be decomposed (NFD), what a person types is composed."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def canonical_path(path: str | os.PathLike[str]) -> str:
    """The one spelling of a path: without links, and on a Mac in the case and Unicode form that the disk has.

    What does not exist keeps its spelling, below what does.
    """
    found = real_path(path)
    return found if _PATH_OF is None or "\0" in found else _as_on_disk(found, _PATH_OF)


def named_path(path: str | os.PathLike[str]) -> str:
    """The spelling of a path that an index keeps: a link stays what it is called, so that it may lead elsewhere later.

    On a Mac, names have the case and Unicode form that the disk has, and `/tmp`, `/var` and `/etc` are in `/private`.
    """
    absolute = os.path.abspath(path)
    return absolute if _PATH_OF is None or "\0" in absolute else _with_links(absolute)


def _with_links(path: str) -> str:
    """An absolute path as a Mac's disk spells it, with the links in it."""
    above = path, *map(str, Path(path).parents)
    link = next((one for one in above if os.path.islink(one) and not _is_of_macos(one)), None)
    if link is None:
        return canonical_path(path)
    folder, name = os.path.split(link)
    folder = _with_links(folder)
    depth = path[len(link) :].count("/")  # the last names are those below the link
    return os.path.join(folder, _name_on_disk(folder, name), *canonical_path(path).rsplit("/", depth)[1:])


def _is_of_macos(link: str) -> bool:
    """Whether a link is one of a Mac's own."""
    folder, name = os.path.split(link)
    return folder == _TOP and real_path(link).casefold() == os.path.join(_TOP, "private", name).casefold()


def real_path(path: str | os.PathLike[str]) -> str:
    """A path without links; no file or folder is opened. What can be no path is made absolute alone."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return os.path.abspath(path)


def _as_on_disk(path: str, command: int) -> str:
    """A path without links as the disk spells it.

    Only folders are opened: closing a file would end the locks that SQLite holds on it, and opening it may download it.
    """
    parent, name = os.path.split(path)
    if not name:
        return path
    with suppress(OSError):  # of a folder that may not be opened
        if os.path.isdir(path):
            return _path_of(path, command)
    parent = _as_on_disk(parent, command)
    return os.path.join(parent, _name_on_disk(parent, name))


def _path_of(folder: str, command: int) -> str:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        path: bytes = fcntl.fcntl(descriptor, command, bytes(_LONGEST_PATH))
    finally:
        os.close(descriptor)
    return os.fsdecode(path.rstrip(b"\0"))


def _name_on_disk(folder: str, name: str) -> str:
    """The name of a file as its folder lists it."""
    try:
        os.lstat(os.path.join(folder, name))
        names = os.listdir(folder)
    except OSError:
        return name
    folded = composed(name).casefold()
    return name if name in names else next((one for one in names if composed(one).casefold() == folded), name)


def is_in_the_cloud(state: os.stat_result) -> bool:
    """Whether a file or folder is a placeholder of iCloud Drive, Dropbox, Google Drive or OneDrive on a Mac."""
    return bool(getattr(state, "st_flags", 0) & _DATALESS)


def is_hidden(state: os.stat_result) -> bool:
    """Whether a Mac hides a file or folder by a flag, as `~/Library`."""
    return bool(getattr(state, "st_flags", 0) & stat.UF_HIDDEN)


def is_package(name: str) -> bool:
    """Whether a folder of this name is a package with nothing to read in it: on a Mac `Mail.app`."""
    return ON_MAC and os.path.splitext(name)[1][1:].lower() in _PACKAGES
