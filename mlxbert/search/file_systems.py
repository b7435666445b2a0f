"""Handles differences between file systems: spellings of paths, and a Mac's hidden files, packages and cloud files.

A Mac's file system ignores case and Unicode forms when it compares names, but preserves both.
"""

import fcntl
import os
import stat
import sys
import unicodedata
from contextlib import suppress

ON_MAC = sys.platform == "darwin"
IN_THE_CLOUD = "in the cloud"
FORBIDDEN = "forbidden by macOS"
_PATH_OF: int | None = getattr(fcntl, "F_GETPATH", None)  # macOS only: the path of an open file as spelled on disk
_MAX_PATH = 1024  # bytes of the buffer that F_GETPATH fills
_DATALESS = 0x40000000  # SF_DATALESS in <sys/stat.h>: only the name is on this disk, reading downloads the content
# Folders that the Finder shows as one file and that hold no text: applications and their parts; libraries and projects
# of media and of Apple's office applications; disk images and virtual machines; files of Xcode. Packages with text
# (.textbundle, .scriv, .playground, .rtfd) are not listed.
_PACKAGES = frozenset((
    *("app", "appex", "bundle", "dsym", "framework", "kext", "mdimporter", "prefpane", "qlgenerator"),
    *("saver", "vst", "vst3", "xcframework", "xpc"),
    *("aplibrary", "imovielibrary", "musiclibrary", "photolibrary", "photoslibrary", "theater", "tvlibrary"),
    *("band", "fcpbundle", "key", "logicx", "numbers", "pages"),
    *("backupbundle", "pvm", "sparsebundle", "utm", "vmwarevm", "xcarchive", "xcodeproj", "xcworkspace"),
))  # fmt: skip


def composed(text: str) -> str:
    """Normalizes a text to NFC, because file names may be decomposed (NFD), while typed text is composed."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def canonical_path(path: str | os.PathLike[str]) -> str:
    """Returns the canonical spelling of a path: links are resolved and, on a Mac, names are spelled as on disk.

    Names that do not exist keep their spelling. An invalid path is only made absolute.
    """
    try:
        target = os.path.realpath(path)
    except ValueError:
        return os.path.abspath(path)
    return target if _PATH_OF is None or "\0" in target else _as_on_disk(target, _PATH_OF)


def _as_on_disk(path: str, command: int) -> str:
    """Spells the names of a path, which must have no links, as on disk.

    Only folders are opened: closing a file would release SQLite's locks on it, and opening it may download it.
    """
    parent, name = os.path.split(path)
    if not name:
        return path
    with suppress(OSError):  # no permission to open the folder
        if os.path.isdir(path):
            return _path_of(path, command)
    parent = _as_on_disk(parent, command)
    return os.path.join(parent, _name_on_disk(parent, name))


def _path_of(folder: str, command: int) -> str:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        path: bytes = fcntl.fcntl(descriptor, command, bytes(_MAX_PATH))
    finally:
        os.close(descriptor)
    return os.fsdecode(path.rstrip(b"\0"))


def _name_on_disk(folder: str, name: str) -> str:
    """Spells a file name as its folder lists it."""
    try:
        os.lstat(os.path.join(folder, name))
        names = os.listdir(folder)
    except OSError:
        return name
    folded = composed(name).casefold()
    return name if name in names else next((listed for listed in names if composed(listed).casefold() == folded), name)


def is_in_the_cloud(state: os.stat_result) -> bool:
    """Whether a file or folder is a placeholder of iCloud Drive, Dropbox, Google Drive or OneDrive on a Mac."""
    return bool(getattr(state, "st_flags", 0) & _DATALESS)


def is_hidden(state: os.stat_result) -> bool:
    """Whether a Mac hides a file or folder with a flag, such as `~/Library`."""
    return bool(getattr(state, "st_flags", 0) & stat.UF_HIDDEN)


def is_package(name: str) -> bool:
    """Whether a folder with this name is a package without text, such as `Mail.app`. Only a Mac has packages."""
    return ON_MAC and os.path.splitext(name)[1][1:].lower() in _PACKAGES
