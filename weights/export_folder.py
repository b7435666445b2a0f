"""The folder that a conversion writes: there when it is whole, and in the place of nothing that is worth keeping.

It is made beside its place, as `NAME.partial`, and moved there in the end; its configuration is written last, so that
nothing takes an unfinished one for a model.
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlxbert.errors import ArgumentError, MlxbertError

MANIFEST = "conversion.json"
MARK = ".unfinished"  # in the folder while it is made
_ANOTHER = "name another folder"


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
            raise ArgumentError(f"{target}: is a file, expected a folder that is not there yet")
        _check_place(target, source)
        if there and any(target.iterdir()):
            if not (target / MANIFEST).is_file():
                raise ArgumentError(f"{target}: is there already, and no conversion made it", hint=_ANOTHER)
            if not overwrite:
                raise ArgumentError(f"{target}: is there already", hint="--overwrite replaces it")
            _check_own(target)
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


def _check_own(target: Path) -> None:
    """Refuses to replace a folder in which lies what no conversion wrote."""
    try:
        written = json.loads((target / MANIFEST).read_bytes())["written"]
        own = {MANIFEST, *written}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArgumentError(f"{target / MANIFEST}: no conversion wrote this", hint=_ANOTHER) from None
    for path in sorted(target.rglob("*")):
        name = path.relative_to(target).as_posix()
        if name not in own and (path.is_symlink() or not path.is_dir()):
            raise ArgumentError(
                f"{target}: holds {name!r}, which no conversion wrote", hint=f"move it away, or {_ANOTHER}"
            )


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
        if partial.exists() and not mark.is_file():
            raise ArgumentError(f"{partial}: is there already, and no conversion made it", hint=_ANOTHER)
        partial.mkdir(parents=True, exist_ok=True)
        with mark.open("ab") as lock:  # goes with the process, however that ends
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArgumentError(f"{partial}: another conversion is working on it") from None
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
def whole(partial: Path) -> Iterator[Path]:
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
    """Puts a finished folder in its place; the one that was there is gone only when the new one is there."""
    (partial / MARK).unlink()
    if not (target / MANIFEST).is_file():
        os.replace(partial, target)
        return
    old = Path(tempfile.mkdtemp(".replaced", f"{target.name}.", target.parent))
    os.replace(target, old)
    try:
        os.replace(partial, target)
    except OSError:
        os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
