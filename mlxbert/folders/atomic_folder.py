"""The output folder of `convert`, `save` and `vocabulary`.

The folder is written under the name `NAME.partial` and renamed when it is complete. It replaces an existing folder only
if mlxbert wrote all of its files. The configuration is written last, so that no program mistakes an unfinished folder
for a model.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlxbert.durable_files import acquire_lock, identity, remove_empty, remove_folder, sha256, to_path
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.mac_files import is_from_system, is_system_file
from mlxbert.paths import kind_of

# The manifests of convert, save and vocabulary.
MANIFEST, SAVED, VOCABULARY = "conversion.json", "saved.json", "vocabulary.json"
MARKER = ".unfinished"  # a file in an incomplete folder
_HINT = "choose another folder"


def check_target(target: str | Path, source: Path | None, overwrite: bool) -> Path:
    """Checks that the target may be written, before anything is read.

    Raises an error if the target has content that may not be replaced, or if it is the folder of the source. If the
    source is not known yet, the caller calls `check_location` later.

    Returns:
        The path of the target with links resolved.
    """
    if not isinstance(target, str | Path):
        raise ArgumentError(f"`folder` is {target!r:.60}, expected the path of a folder to write")
    try:
        target = to_path(target, "folder")
        exists = target.is_symlink() or target.exists()
        if exists and not target.is_dir():
            kind = kind_of(target.stat().st_mode) if target.exists() else "a broken link"
            raise ArgumentError(f"{target}: is {kind}, expected a folder that does not exist yet")
        if source is not None:
            check_location(target, source)
        if exists and any(target.iterdir()):
            if _manifest(target) is None:
                raise ArgumentError(f"{target}: already exists and was not written by mlxbert", hint=_HINT)
            if not overwrite:
                raise ArgumentError(f"{target}: already exists", hint="`overwrite=True` replaces the folder")
            _check_unchanged(target, target)
        return target.resolve()
    except OSError as problem:
        raise MlxbertError(f"{target}: cannot be written ({problem.strerror})") from None
    except (RuntimeError, ValueError) as problem:  # no such user, a loop of links, a null character
        raise ArgumentError(f"{str(target)!r:.200}: is not a valid path ({problem})") from None


def check_location(target: Path, source: Path) -> None:
    """Raises `ArgumentError` if the target is the source, lies inside it or contains it, or is the current folder."""
    inside, outside = target.resolve(), source.resolve()
    if (same := identity(inside) == identity(outside)) or identity(outside) in map(identity, inside.parents):
        relation = "is" if same else "is inside"
        raise ArgumentError(f"{target}: {relation} the folder of the source", hint="choose a folder outside the source")
    if identity(inside) in map(identity, outside.parents):
        raise ArgumentError(f"{target}: contains the folder of the source")
    if identity(inside) == identity(Path.cwd()):  # replacing it would leave the process in a removed folder
        raise ArgumentError(f"{target}: is the current folder", hint="choose a new folder inside the current folder")


def _manifest(folder: Path) -> Path | None:
    """Returns the path of the manifest that `convert`, `save` or `vocabulary` wrote into a folder, if any."""
    return next((folder / name for name in (MANIFEST, SAVED, VOCABULARY) if (folder / name).is_file()), None)


def _check_unchanged(folder: Path, shown_as: Path) -> None:
    """Raises `ArgumentError` if a folder has files that mlxbert did not write or that have changed since.

    Messages show the path `shown_as` instead of the path of the folder.
    """
    manifest = _manifest(folder)
    assert manifest is not None
    try:
        written = dict(json.loads(manifest.read_bytes())["written"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArgumentError(f"{shown_as / manifest.name}: mlxbert did not write this file", hint=_HINT) from None
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.is_dir() and not path.is_symlink()) or name in (manifest.name, MARKER) or is_from_system(path):
            continue
        if name not in written or sha256(path) != written[name]:
            reason = "has changed since mlxbert wrote it" if name in written else "mlxbert did not write"
            raise ArgumentError(
                f"{shown_as}: contains {name!r}, which {reason}", hint=f"move this file away, or {_HINT}"
            )


def check_link_targets(target: Path, files: Iterable[Path]) -> None:
    """Raises `ArgumentError` if files of the source are links into the target, which would be replaced."""
    for path in files:
        if identity(target) in map(identity, path.resolve().parents):
            raise ArgumentError(
                f"{target}: the source contains {path}, which is a link into the folder to write", hint=_HINT
            )


@contextmanager
def unfinished_folder(target: Path, source: Path, overwrite: bool) -> Iterator[Path]:
    """Creates the folder that will be renamed to the target, and removes it if the body of the `with` block fails.

    The target is checked once more (see `check_target`).
    """
    partial = target.with_name(target.name + ".partial")
    marker = partial / MARKER
    try:
        if partial.exists() and not marker.is_file() and any(partial.iterdir()):
            raise ArgumentError(f"{partial}: already exists and was not written by mlxbert", hint=_HINT)
        partial.mkdir(parents=True, exist_ok=True)
        with acquire_lock(marker, "conversion"):
            try:
                _clear(partial)
                check_target(target, source, overwrite)  # another process may have written it meanwhile
                yield partial
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as problem:
        raise MlxbertError(
            f"{problem.filename2 or problem.filename or partial}: {problem.strerror or problem}"
        ) from None
    finally:
        remove_empty(partial)


def written_files(partial: Path) -> list[Path]:
    """Returns the sorted paths of the files written so far, without the file that marks the folder as unfinished."""
    inside = (path for path in partial.rglob("*") if path.name != MARKER and not is_system_file(path.name))
    return sorted(path for path in inside if path.is_file())


def _clear(partial: Path) -> None:
    """Removes the files that a killed process left in an unfinished folder."""
    for path in partial.iterdir():
        if path.is_dir() and not path.is_symlink():
            remove_folder(path)
        elif path.name != MARKER:
            path.unlink(missing_ok=True)


def move(partial: Path, target: Path) -> None:
    """Renames a finished folder to its target; the old content of the target is removed only afterwards."""
    old = None
    if _manifest(target) is not None:
        old = Path(tempfile.mkdtemp(".replaced", f"{target.name}.", target.parent))
        os.replace(target, old)
    try:
        if old is not None:
            _check_unchanged(old, target)
        os.replace(partial, target)
    except (OSError, ArgumentError):
        if old is not None:
            os.replace(old, target)
        raise
    (target / MARKER).unlink()  # last, because only the marker lets an interrupted move be cleaned up
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
