"""Kills and full disks at every call with which a piece of work changes files.

A kill leaves the files as they are at that moment, without the locks of the process. So a copy of the folder is taken
at the call, and the work is resumed in the copy: nothing has to be started or killed.
"""

import importlib
import importlib.util
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import MlxbertError
from mlxbert.rooms import ROOMS
from tests.helpers.damage import damage

_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
_WRITING = os.O_WRONLY | os.O_RDWR
_NO_SPACE = OSError(28, "No space left on device")


def _equal(found: Any, expected: Any) -> None:
    assert found == expected


@dataclass(frozen=True)
class Writer:
    """Work that writes files, and that resumes what an interrupted call of it has left."""

    prepare: Callable[[Path], Any]  # makes what it reads
    write: Callable[[Any, Path], object]  # takes that, and the folder to write to
    result: Callable[[Path], Any]  # reads what it has written to a folder
    target: str = ""  # what exists once the work is done, below the folder; empty if it exists before
    check: Callable[[Any, Any], None] = _equal  # the result, and that of undisturbed work
    begin: Callable[[Any, Path], object] = lambda inputs, folder: None  # what the folder holds before the work
    look: Callable[[Any, Path], object] = lambda inputs, folder: None  # what holds after every fault
    errors: bool = True  # whether it opens its files in Python, where an error can be raised
    refused: tuple[str, ...] = ()  # files of unfinished work, as patterns: damaged, they are refused
    mended: tuple[str, ...] = ()  # those which are written again

    def finish(self, inputs: Any, folder: Path) -> Any:
        """Resumes the work, unless it is done; returns the result."""
        if not (self.target and (folder / self.target).exists()):
            self.write(inputs, folder)
            assert not [*folder.glob("*.partial")]
        return self.result(folder)


def room_writers() -> dict[str, Writer]:
    """Returns the writers of the rooms that are there, each from `tests/<room>/writers.py`."""
    names = [f"tests.{room}.writers" for room in ROOMS if importlib.util.find_spec(f"tests.{room}")]
    rooms = [importlib.import_module(name) for name in names if importlib.util.find_spec(name)]
    return {name: writer for room in rooms for name, writer in room.WRITERS.items()}


def model_files(folder: Path) -> dict[str, bytes]:
    """Returns the files of the model in `out`, without the mark that a kill leaves in a finished folder."""
    unlike = (".unfinished", "conversion.json")
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir() if path.name not in unlike}


@dataclass
class _Watch:
    """Calls that change files below a folder."""

    folder: Path
    at: Callable[[int], object] = lambda number: None  # called before each change
    full: int | None = None  # the number of the change from which on the disk has no room
    count: int = 0
    busy: bool = field(default=False, repr=False)

    def step(self, *, grows: bool) -> None:
        if self.busy:
            return
        self.busy = True
        try:
            self.at(self.count)
        finally:
            self.busy = False
        self.count += 1
        if grows and self.full is not None and self.count > self.full:
            raise _NO_SPACE


_watch: _Watch | None = None


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if _watch is None or _watch.busy:
        return
    if event in _CHANGES or (event == "open" and isinstance(given[2], int) and given[2] & _WRITING):
        path = given[0] if isinstance(given[0], str | bytes) else str(given[0])
        name = os.fsdecode(path)
        if not os.path.isabs(name) or name.startswith(str(_watch.folder)):
            _watch.step(grows=event in ("open", "os.mkdir"))


sys.addaudithook(_hook)


def changing() -> None:
    """Counts a change that Python does not announce, such as a statement of a database."""
    if _watch is not None:
        _watch.step(grows=False)


@contextmanager
def watched(folder: Path, **given: Any) -> Iterator[_Watch]:
    """Counts the changes of files below a folder."""
    global _watch
    _watch = watch = _Watch(folder, **given)
    sync = os.fsync

    def flush(descriptor: Any) -> None:
        watch.step(grows=True)
        sync(descriptor)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", flush)
            yield watch
    finally:
        _watch = None


class Survivor:
    """Work that has been done once without disturbance, to be disturbed.

    Args:
        writer: The work.
        folder: An empty folder.
    """

    def __init__(self, writer: Writer, folder: Path) -> None:
        self._writer, self._folder = writer, folder
        (folder / "inputs").mkdir(parents=True)
        self._inputs = writer.prepare(folder / "inputs")
        self._stored = list[int]()  # changes before which each file that is to be damaged exists once
        whole = self._place("whole")
        patterns = [*writer.refused, *writer.mended]

        def look(number: int) -> None:
            if patterns and all(len([*whole.glob(pattern)]) == 1 for pattern in patterns):
                self._stored.append(number)

        with watched(whole, at=look) as watch:
            writer.write(self._inputs, whole)
        self._changes, self._expected = watch.count, writer.result(whole)
        assert self._changes > 1

    def _place(self, name: str) -> Path:
        place = self._folder / name
        shutil.rmtree(place, ignore_errors=True)  # of a test that failed
        place.mkdir()
        self._writer.begin(self._inputs, place)
        return place

    def _some(self, most: int) -> list[int]:
        """Numbers of changes: all of them, or some in each part of the work."""
        if self._changes <= most:
            return [*range(self._changes)]
        rng = random.Random(self._changes)
        return sorted({int((part + rng.random()) * self._changes / most) for part in range(most)})

    def _copies(self, numbers: list[int]) -> list[Path]:
        """What kills at these changes leave."""
        place = self._place("killed")

        def copy(number: int) -> None:
            if number in numbers:
                shutil.copytree(place, self._folder / f"{number}", symlinks=True)

        with watched(place, at=copy):
            self._writer.write(self._inputs, place)
        shutil.rmtree(place)
        copies = [self._folder / str(number) for number in numbers if (self._folder / str(number)).exists()]
        assert copies
        return copies

    def kill(self, most: int) -> None:
        """Kills the work at that many changes at most; what is left resumes to the same result."""
        for left in self._copies(self._some(most)):
            self._writer.look(self._inputs, left)
            self._writer.check(self._writer.finish(self._inputs, left), self._expected)
            shutil.rmtree(left)

    def fill(self, most: int) -> None:
        """Leaves no room on the disk from a change on, for that many changes; with room, the work is resumed."""
        failed = 0
        for number in self._some(most):
            place = self._place(f"full-{number}")
            with watched(place, full=number):
                try:
                    self._writer.write(self._inputs, place)
                except MlxbertError as problem:
                    assert "No space left" in str(problem)
                    assert not (self._writer.target and (place / self._writer.target).exists())
                    failed += 1
                else:  # the disk was not needed any more
                    self._writer.check(self._writer.result(place), self._expected)
            self._writer.look(self._inputs, place)
            self._writer.check(self._writer.finish(self._inputs, place), self._expected)
            shutil.rmtree(place)
        assert failed

    def damage(self, pattern: str, kind: str, places: int) -> None:
        """Damages a file of unfinished work at some places: another result never comes of it."""
        unfinished, refused = self._folder / "unfinished", 0
        if not unfinished.exists():
            (left,) = self._copies([self._stored[len(self._stored) // 2]])
            left.rename(unfinished)
        for place in range(places):
            target = Path(shutil.copytree(unfinished, self._folder / "damaged", symlinks=True))
            (damaged,) = target.glob(pattern)
            damage(damaged, kind, random.Random(f"{pattern} {kind} {place}"))
            try:
                self._writer.check(self._writer.finish(self._inputs, target), self._expected)
            except MlxbertError as problem:
                assert problem.hint and str(target) in str(problem)
                assert not (target / self._writer.target).exists()
                refused += 1
            shutil.rmtree(target)
        if pattern in self._writer.mended:
            assert not refused
        elif not pattern.endswith(".json"):  # of JSON, a space may be changed
            assert refused == places
