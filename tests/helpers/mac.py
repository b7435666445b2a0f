"""A folder that behaves like a Mac's disk: names in any case and Unicode form, flags of files, and `F_GETPATH`."""

import errno
import fcntl
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlxbert import mac_files
from mlxbert.rooms import ROOMS

HIDDEN, IN_THE_CLOUD = 0x8000, 0x40000000  # UF_HIDDEN and SF_DATALESS of <sys/stat.h>
_GETPATH = 50  # F_GETPATH
_TAKE_PATHS = ("stat", "lstat", "scandir", "listdir", "open", "readlink")
_opened: list[str] | None = None
_refused: dict[str, int] = {}


def _watch(event: str, values: tuple[Any, ...]) -> None:
    if event not in ("open", "os.scandir", "os.listdir") or not isinstance(values[0], str | bytes):
        return
    path = os.fsdecode(values[0])
    if _opened is not None:
        _opened.append(path)
    if path in _refused:
        raise PermissionError(_refused[path], os.strerror(_refused[path]), path)


def _start_watching() -> None:
    if not getattr(_watch, "added", False):
        sys.addaudithook(_watch)  # which stays until the process ends
        _watch.added = True  # type: ignore[attr-defined]


@contextmanager
def opened() -> Iterator[list[str]]:
    global _opened
    _start_watching()
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


@contextmanager
def refused(path: Path, number: int) -> Iterator[None]:
    """Makes a file or folder impossible to open within the context, by any function; the error is `number`."""
    _start_watching()
    _refused[str(path)] = number
    try:
        yield
    finally:
        del _refused[str(path)]


def decomposed(name: str) -> str:
    """Returns a name in the decomposed Unicode form, which some programs write on a Mac."""
    return unicodedata.normalize("NFD", name)


class MacDisk:
    """Makes a folder behave like a folder on a Mac's disk until the test ends."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Folders that macOS protects, whose status alone can be read, and those that permissions close.
        self.folder, self.denied, self.closed = folder, set[str](), set[str]()
        self._flags: dict[str, int] = {}
        self._real = {name: getattr(os, name) for name in _TAKE_PATHS}
        for name in _TAKE_PATHS:
            monkeypatch.setattr(os, name, self._call(name))
        real = fcntl.fcntl

        def get_path(descriptor: Any, command: int, argument: Any = 0) -> Any:
            if command != _GETPATH or sys.platform == "darwin":
                return real(descriptor, command, argument)
            return os.fsencode(self._real["readlink"](f"/proc/self/fd/{descriptor}")).ljust(len(argument), b"\0")

        monkeypatch.setattr(fcntl, "fcntl", get_path)
        if "search" in ROOMS:
            monkeypatch.setattr("mlxbert.search.file_systems._PATH_OF", _GETPATH)
            monkeypatch.setattr("mlxbert.search.file_systems.ON_MAC", True)
        monkeypatch.setattr(mac_files, "_ON_MAC", True)

    def flag(self, path: Path, flags: int) -> None:
        self._flags[str(path)] = flags

    def stored(self, path: Any) -> Any:
        """Returns a path in which each name is spelled as on the disk."""
        if isinstance(path, int) or not Path(os.fsdecode(path)).is_relative_to(self.folder):
            return path
        stored = self.folder
        for part in Path(os.fsdecode(path)).relative_to(self.folder).parts:
            stored /= self._among(stored, part)
        return str(stored)

    def _among(self, folder: Path, name: str) -> str:
        folded = decomposed(name).casefold()
        try:
            self._real["lstat"](folder / name)
            return name
        except FileNotFoundError:
            names = self._real["listdir"](folder)
        except OSError:
            return name
        return next((candidate for candidate in names if decomposed(candidate).casefold() == folded), name)

    def _call(self, name: str) -> Any:
        def call(path: Any = ".", *rest: Any, **more: Any) -> Any:
            path = self.stored(path)
            for number, paths in ((errno.EPERM, self.denied), (errno.EACCES, self.closed)):
                if name in ("scandir", "listdir", "open") and str(path) in paths:
                    raise PermissionError(number, os.strerror(number), path)
            found = self._real[name](path, *rest, **more)
            if name not in ("stat", "lstat") or isinstance(path, int) or str(path) not in self._flags:
                return found
            values = {field: getattr(found, field) for field in dir(found) if field.startswith("st_")}
            return SimpleNamespace(**values, st_flags=self._flags[str(path)])

        return call
