"""The folder that a conversion writes: there when it is whole, and in the place of nothing that is worth keeping.

It is made beside its place, as `NAME.partial`, and moved there in the end; its configuration is written last, so that
nothing takes an unfinished one for a model.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.files import acquire_lock, sha256

MANIFEST = "conversion.json"
MARK = ".unfinished"  # in the folder while it is made
_ANOTHER = "name another folder"
_OF_SYSTEMS = {".DS_Store"}  # what a Mac leaves in a folder that somebody looked into


def check_target(target: str | Path, source: Path, overwrite: bool) -> Path:
    """Refuses a place where something else is, or the source itself, before anything is read.

    Returns:
        Where that is, links followed.
    """
    if not isinstance(target, str | Path):
        raise ArgumentError(f"folder is {target!r:.60}, expected where to write")
    try:
        target = Path(target).expanduser()
        there = target.is_symlink() or target.exists()
        if there and not target.is_dir():
            said = "a file" if target.exists() else "a link to nothing"
            raise ArgumentError(f"{target}: is {said}, expected a folder that is not there yet")
        _check_place(target, source)
        if there and any(target.iterdir()):
            if not (target / MANIFEST).is_file():
                raise ArgumentError(f"{target}: is there already, and no conversion made it", hint=_ANOTHER)
            if not overwrite:
                raise ArgumentError(f"{target}: is there already", hint="--overwrite replaces it")
            _check_own(target, target)
        return target.resolve()
    except OSError as problem:
        raise MlxbertError(f"{target}: cannot be written ({problem.strerror})") from None
    except (RuntimeError, ValueError) as problem:  # no such user, a loop of links, a null character
        raise ArgumentError(f"{str(target)!r:.200}: cannot be a folder ({problem})") from None


def _check_place(target: Path, source: Path) -> None:
    """Refuses the model itself, what lies in it, and what it lies in."""
    inside, outside = target.resolve(), source.resolve()
    if inside == outside or outside in inside.parents:
        said = "is" if inside == outside else "lies in"
        raise ArgumentError(f"{target}: {said} the model that is converted", hint="name a folder outside of it")
    if inside in outside.parents:
        raise ArgumentError(f"{target}: the model that is converted lies in it")
    if inside == Path.cwd():  # it would be another one in the same place
        raise ArgumentError(f"{target}: is the folder that mlxbert runs in", hint="name one that is to be made in it")


def _check_own(folder: Path, called: Path) -> None:
    """Refuses to replace a folder in which lies what no conversion wrote; messages call it `called`."""
    try:
        written = dict(json.loads((folder / MANIFEST).read_bytes())["written"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArgumentError(f"{called / MANIFEST}: no conversion wrote this", hint=_ANOTHER) from None
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.is_dir() and not path.is_symlink()) or name in (MANIFEST, MARK) or path.name in _OF_SYSTEMS:
            continue
        if name not in written or sha256(path) != written[name]:
            said = "has changed since" if name in written else "no conversion wrote"
            raise ArgumentError(f"{called}: holds {name!r}, which {said}", hint=f"move it away, or {_ANOTHER}")


def check_apart(target: Path, files: Iterable[Path]) -> None:
    """Refuses to replace a folder that a model has its files from, by links.

    Args:
        target: What `check_target` gave.
        files: Of the model.
    """
    for path in files:
        if target in path.resolve().parents:
            raise ArgumentError(f"{target}: {path} of the model that is converted is a link into it", hint=_ANOTHER)


def check_space(target: Path, size: int) -> None:
    """Refuses a disk on which less is free than the weights will take.

    Args:
        target: What `check_target` gave.
        size: Bytes.
    """
    there = next(path for path in target.parents if path.exists())
    free = shutil.disk_usage(there).free
    if free < size:
        raise MlxbertError(f"{target}: the weights take {size:,} bytes, {free:,} are free on this disk")


@contextmanager
def made(target: Path, source: Path, overwrite: bool) -> Iterator[Path]:
    """The folder in which a target is made; what is in it goes when the work fails. See `check_target`."""
    partial = target.with_name(target.name + ".partial")
    mark = partial / MARK
    try:
        if partial.exists() and not mark.is_file() and any(partial.iterdir()):
            raise ArgumentError(f"{partial}: is there already, and no conversion made it", hint=_ANOTHER)
        partial.mkdir(parents=True, exist_ok=True)
        with acquire_lock(mark, "conversion"):
            try:
                _clear(partial)
                check_target(target, source, overwrite)  # another conversion may have come before
                yield partial
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as problem:
        raise MlxbertError(
            f"{problem.filename2 or problem.filename or partial}: {problem.strerror or problem}"
        ) from None


@contextmanager
def measurable(partial: Path) -> Iterator[Path]:
    """A folder with links to all that was written so far, for a configuration to lie beside it: a model to measure.

    In the folder that is made a configuration would make a finished model of it, to whoever comes by.
    """
    with tempfile.TemporaryDirectory(dir=partial, prefix=".") as place:
        view = Path(place)
        for path in [path for path in partial.rglob("*") if view not in path.parents and path.is_file()]:
            link = view / path.relative_to(partial)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        yield view


def _clear(partial: Path) -> None:
    """Takes out what a conversion left that was killed."""
    for path in partial.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARK:
            path.unlink()


def move(partial: Path, target: Path) -> None:
    """Puts a finished folder in its place; the one that was there is gone only when the new one is there.

    Raises:
        ArgumentError: Somebody put something into the one that was there.
    """
    old = None
    if (target / MANIFEST).is_file():
        old = Path(tempfile.mkdtemp(".replaced", f"{target.name}.", target.parent))
        os.replace(target, old)
    try:
        if old is not None:
            _check_own(old, target)
        os.replace(partial, target)
    except (OSError, ArgumentError):
        if old is not None:
            os.replace(old, target)
        raise
    (target / MARK).unlink()  # last: without it nobody would clean up what was left of it
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
