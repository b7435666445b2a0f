"""Imitates the files that macOS writes on volumes without extended attributes: `._x` next to each `x`."""

import os
from pathlib import Path
from typing import Any

import pytest

# The head of an AppleDouble file, and two entries without content: attributes, and the resource fork.
CONTENT = bytes.fromhex("00051607 00020000") + b"Mac OS X        " + bytes.fromhex("0002") + bytes(24)


def plant(folder: Path, *, opened: bool = True) -> None:
    """Writes a file `._x` next to each `x` in a folder; with `opened`, also a `.DS_Store` per folder, like Finder."""
    for path in [folder, *folder.rglob("*")]:
        if opened and path.is_dir() and not path.is_symlink():
            (path / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
        if path != folder and not path.name.startswith("._"):
            path.with_name(f"._{path.name}").write_bytes(CONTENT)


def imitate(monkeypatch: pytest.MonkeyPatch, volume: Path) -> None:
    """Makes `._x` follow `x`: it is moved and deleted with `x`. Each rename first writes all `._x` in `volume`."""
    unlink, rmdir, replace = os.unlink, os.rmdir, os.replace

    def vanish(path: Any, dir_fd: int | None) -> None:
        folder, name = os.path.split(os.fspath(path))
        if not name.startswith("._"):
            try:
                unlink(os.path.join(folder, f"._{name}"), dir_fd=dir_fd)
            except OSError:
                return

    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        vanish(path, dir_fd)

    def remove_folder(path: Any, *, dir_fd: int | None = None) -> None:
        rmdir(path, dir_fd=dir_fd)
        vanish(path, dir_fd)

    def move(source: Any, target: Any) -> None:
        plant(volume, opened=False)
        replace(source, target)
        vanish(source, None)
        Path(target).with_name(f"._{Path(target).name}").write_bytes(CONTENT)

    monkeypatch.setattr(os, "unlink", remove)
    monkeypatch.setattr(os, "remove", remove)
    monkeypatch.setattr(os, "rmdir", remove_folder)
    monkeypatch.setattr(os, "replace", move)
