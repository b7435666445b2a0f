"""Volumes of other systems: exFAT and FAT as on memory sticks, ext4 that ignores case."""

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
    """What a command writes; a command that is missing or fails skips the test."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} fails here: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


@contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Path]:
    """A volume of a kind, mounted below a folder; skips the test where that is not possible."""
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
    """Mounts a volume by the kernel, or exFAT by a program where the kernel does not know it."""
    if kind == "exfat" and "exfat" not in Path("/proc/filesystems").read_text().split():
        _run(["mount.exfat-fuse", device, place])
    else:
        _run(["mount", "-t", "ext4" if kind == "casefold" else kind, device, place])


def leave_attributes(folder: Path) -> None:
    """Gives each file an extended attribute; elsewhere than on a Mac, writes the file that keeps it."""
    if sys.platform != "darwin":
        return plant(folder)
    for path in folder.rglob("*"):
        if not path.name.startswith("._"):
            subprocess.run(["xattr", "-w", "mlxbert.test", "x", path], check=False)
