"""Volumes with other file systems: exFAT and FAT, as on memory sticks, and ext4 that ignores case."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.apple_double import plant

KINDS = ("exfat", "vfat", "casefold")
_MIB = 2**20
_FORMATS = {
    "exfat": ["mkfs.exfat"],
    "vfat": ["mkfs.vfat"],
    "casefold": ["mkfs.ext4", "-q", "-O", "casefold"],
}
_MAC_NAMES = {"exfat": "ExFAT", "vfat": "MS-DOS FAT32", "casefold": "APFS"}


def _run(command: Sequence[str | Path]) -> str:
    """Returns the output of a command; skips the test if the command is missing or fails."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} fails here: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


@contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Path]:
    """Mounts a new volume below a folder; skips the test if this is impossible."""
    place, image = folder / "volume", folder / ("image.dmg" if sys.platform == "darwin" else "image")
    place.mkdir()
    if sys.platform == "darwin":
        _run(["hdiutil", "create", "-size", "96m", "-fs", _MAC_NAMES[kind], "-volname", "MLXBERT", image])
        _run(["hdiutil", "attach", "-nobrowse", "-mountpoint", place, image])
        try:
            yield place
        finally:
            subprocess.run(["hdiutil", "detach", "-force", place], check=True, capture_output=True)
        return
    with image.open("wb") as file:
        file.truncate(96 * _MIB)
    _run([*_FORMATS[kind], image])
    device = _run(["losetup", "--find", "--show", image])
    try:
        _mount(kind, device, place)
        try:
            if kind == "casefold":
                (place / "folder").mkdir()
                _run(["chattr", "+F", place / "folder"])
            yield place / "folder" if kind == "casefold" else place
        finally:
            subprocess.run(["umount", place], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def _mount(kind: str, device: str, place: Path) -> None:
    """Mounts a volume with the kernel, or with a program if the kernel does not know exFAT."""
    if kind == "exfat" and "exfat" not in Path("/proc/filesystems").read_text().split():
        _run(["mount.exfat-fuse", device, place])
    else:
        _run(["mount", "-t", "ext4" if kind == "casefold" else kind, device, place])


def leave_attributes(folder: Path) -> None:
    """Gives each file an extended attribute on a Mac; on other systems, writes the `._x` file that holds it."""
    if sys.platform != "darwin":
        return plant(folder)
    for path in folder.rglob("*"):
        if not path.name.startswith("._"):
            subprocess.run(["xattr", "-w", "mlxbert.test", "x", path], check=False)
