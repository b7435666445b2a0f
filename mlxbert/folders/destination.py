"""The folder that `convert` and `save` write: it appears when it is complete, and replaces nothing of anybody else.

It is made next to its place, as `NAME.partial`, and moved there at the end; its configuration is written last, so that
no program takes an unfinished folder for a model.
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

MANIFEST, SAVED = "conversion.json", "saved.json"  # what convert and save leave in their folders
MARK = ".unfinished"  # in the folder until it is complete
_ANOTHER = "name another folder"
_OF_SYSTEMS = {".DS_Store"}  # macOS leaves it in a folder that somebody opened


def check_target(target: str | Path, source: Path, overwrite: bool) -> Path:
    """Refuses a target that holds something else, or that is the source itself, before anything is read.

    Returns:
        The target, links resolved.
    """
    if not isinstance(target, str | Path):
        raise ArgumentError(f"folder is {target!r:.60}, expected the path of a folder to write")
    try:
        target = Path(target).expanduser()
        there = target.is_symlink() or target.exists()
        if there and not target.is_dir():
            said = "a file" if target.exists() else "a link to nothing"
            raise ArgumentError(f"{target}: is {said}, expected a folder that is not there yet")
        _check_place(target, source)
        if there and any(target.iterdir()):
            if _manifest(target) is None:
                raise ArgumentError(f"{target}: is there already, and mlxbert did not write it", hint=_ANOTHER)
            if not overwrite:
                raise ArgumentError(f"{target}: is there already", hint="overwrite=True replaces it")
            _check_own(target, target)
        return target.resolve()
    except OSError as problem:
        raise MlxbertError(f"{target}: cannot be written ({problem.strerror})") from None
    except (RuntimeError, ValueError) as problem:  # no such user, a loop of links, a null character
        raise ArgumentError(f"{str(target)!r:.200}: cannot be a folder ({problem})") from None


def _check_place(target: Path, source: Path) -> None:
    """Refuses the source itself, folders inside it, and folders that contain it."""
    inside, outside = target.resolve(), source.resolve()
    if inside == outside or outside in inside.parents:
        said = "is" if inside == outside else "is inside"
        raise ArgumentError(f"{target}: {said} the folder of the source", hint="name a folder outside of it")
    if inside in outside.parents:
        raise ArgumentError(f"{target}: contains the folder of the source")
    if inside == Path.cwd():  # replaced, it would be another folder with the same name
        raise ArgumentError(f"{target}: is the current folder", hint="name a new folder in it")


def _manifest(folder: Path) -> Path | None:
    """The manifest that `convert` or `save` left in a folder."""
    return next((folder / name for name in (MANIFEST, SAVED) if (folder / name).is_file()), None)


def _check_own(folder: Path, called: Path) -> None:
    """Refuses to replace a folder with files that mlxbert did not write; messages call the folder `called`."""
    manifest = _manifest(folder)
    assert manifest is not None
    try:
        written = dict(json.loads(manifest.read_bytes())["written"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArgumentError(f"{called / manifest.name}: mlxbert did not write this", hint=_ANOTHER) from None
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.is_dir() and not path.is_symlink()) or name in (manifest.name, MARK) or path.name in _OF_SYSTEMS:
            continue
        if name not in written or sha256(path) != written[name]:
            said = "has changed since mlxbert wrote it" if name in written else "mlxbert did not write"
            raise ArgumentError(f"{called}: contains {name!r}, which {said}", hint=f"move it away, or {_ANOTHER}")


def check_apart(target: Path, files: Iterable[Path]) -> None:
    """Refuses to replace a folder that files of the source are links into.

    Args:
        target: The result of `check_target`.
        files: The files of the source.
    """
    for path in files:
        if target in path.resolve().parents:
            raise ArgumentError(f"{target}: {path} of the source is a link into it", hint=_ANOTHER)


def check_space(target: Path, size: int) -> None:
    """Refuses a disk with less free space than the weights take.

    Args:
        target: The result of `check_target`.
        size: Of the weights in bytes.
    """
    there = next(path for path in target.parents if path.exists())
    free = shutil.disk_usage(there).free
    if free < size:
        raise MlxbertError(f"{target}: the weights take {size:,} bytes, {free:,} are free on this disk")


@contextmanager
def made(target: Path, source: Path, overwrite: bool) -> Iterator[Path]:
    """The folder in which a target is made, removed when the work fails. See `check_target`."""
    partial = target.with_name(target.name + ".partial")
    mark = partial / MARK
    try:
        if partial.exists() and not mark.is_file() and any(partial.iterdir()):
            raise ArgumentError(f"{partial}: is there already, and mlxbert did not write it", hint=_ANOTHER)
        partial.mkdir(parents=True, exist_ok=True)
        with acquire_lock(mark, "conversion"):
            try:
                _clear(partial)
                check_target(target, source, overwrite)  # another process may have been faster
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
    """A folder with links to everything that was written so far: with a configuration it is a model to measure.

    A configuration in the folder itself would make it look like a finished model.
    """
    with tempfile.TemporaryDirectory(dir=partial, prefix=".") as place:
        view = Path(place)
        for path in [path for path in partial.rglob("*") if view not in path.parents and path.is_file()]:
            link = view / path.relative_to(partial)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        yield view


def _clear(partial: Path) -> None:
    """Removes what a killed process left."""
    for path in partial.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARK:
            path.unlink()


def move(partial: Path, target: Path) -> None:
    """Moves a finished folder to its place; an older one is removed only when the new one is there.

    Raises:
        ArgumentError: The older one has changed.
    """
    old = None
    if _manifest(target) is not None:
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
    (target / MARK).unlink()  # last: without it nothing would clean up an interrupted move
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
