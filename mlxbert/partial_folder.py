"""The folder `X.partial/` in which `X` is made: for one process at a time, and one call, which resumes its own work."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from mlxbert.errors import ArgumentError
from mlxbert.files import (
    DamagedError,
    acquire_lock,
    is_from_system,
    is_system_file,
    read_record,
    remove_empty,
    write_record,
    writing,
)

MANIFEST = "manifest.json"
LOCK = "lock"
_HASH = re.compile(r"[0-9a-f]{64}")


class PartialFolder:
    """The folder of unfinished work, with the manifest of its call.

    Args:
        target: What is made.
        manifest: What a call must have in common with an interrupted one to resume it.

    Attributes:
        names: The names of all that the work consists of in the folder: a regular expression.
        work: Globs of what only its own call can use.
        begun: A glob of files of which there is one if there is something to resume.
        hint: What to do about the work of another call.
    """

    names: ClassVar[str]
    work: ClassVar[tuple[str, ...]]
    begun: ClassVar[str]
    hint: ClassVar[str]

    def __init__(self, target: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = target.with_name(target.name + ".partial")
        self.manifest: dict[str, Any] = json.loads(json.dumps(manifest))

    @contextmanager
    def locked(self, *, overwrite: bool) -> Iterator[str | None]:
        """Locks the folder for this process, and removes what this call cannot resume.

        Args:
            overwrite: Whether the work of another call is removed, too.

        Yields:
            Whose work was removed, in words; `None` if there was none.
        """
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.iterdir():  # it is removed at the end
                if not is_from_system(path) and not self._is_own(path.name.removesuffix(".unfinished")):
                    raise ArgumentError(
                        f"{self.folder}: holds {path.name}, which mlxbert did not write",
                        hint="move that file, or choose another output",
                    )
            lock = acquire_lock(self.folder / LOCK, "run", hint="wait until it is done, or choose another output")
        try:
            with lock:
                with writing(self.folder):
                    dropped = self._claim(overwrite)
                yield dropped
        finally:
            if not (self.folder / LOCK).exists():
                remove_empty(self.folder)

    def _is_own(self, name: str) -> bool:
        return name in (MANIFEST, LOCK) or re.fullmatch(self.names, name) is not None

    def _claim(self, overwrite: bool) -> str | None:
        path, found = self.folder / MANIFEST, None
        try:
            found = read_record(path)
        except FileNotFoundError:
            other = "its manifest is missing"
        except (OSError, DamagedError) as problem:
            other = f"its manifest is damaged: {problem}"
        else:
            same = comparable(found) == comparable(self.manifest)
            other = "" if same else differences(found, self.manifest) or "other options"
        begun = path.exists() and self._has_begun() and self.resumable(found or {})
        said = f"the unfinished work of another run: {other}" if begun and other else None
        if said is not None and not overwrite:
            raise ArgumentError(f"{self.folder}: holds {said}", hint=self.hint)
        if other or not begun:
            self.clear()
            write_record(path, self.manifest)
        return said

    def _has_begun(self) -> bool:
        return not all(is_system_file(path.name) for path in self.folder.glob(self.begun))

    def resumable(self, manifest: Mapping[str, Any]) -> bool:
        """Whether any call could resume the work of this manifest."""
        return True

    def clear(self) -> None:
        """Removes the work."""
        for pattern in self.work:
            for path in self.folder.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes the folder: the work is done. The manifest goes first, so that nobody resumes from the rest."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def comparable(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """A manifest as it is compared: of the hashes of data by name, `sha256`, only the hashes, in their order."""
    hashes = manifest.get("sha256")
    return {**manifest, "sha256": [*hashes.values()]} if isinstance(hashes, dict) else manifest


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs between two manifests, in words: `lr is 2e-05, was 5e-05`."""
    there, here = _flat(found), _flat(wanted)
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    words = [
        f"another {name}"
        if any(_HASH.search(str(values.get(name))) for values in (there, here))
        else f"{name} is {here.get(name)!r:.60}, was {there.get(name)!r:.60}"
        for name in names
    ]
    if data := _other_data(found.get("sha256"), wanted.get("sha256")):
        words.insert(0, f"the training data differ: {', '.join(data)}")
    return "; ".join(words[:6])


def _other_data(found: Any, wanted: Any) -> list[str]:
    """In what the data differ, by their hashes: `train.csv has changed`."""
    there, here = (hashes if isinstance(hashes, dict) else {} for hashes in (found, wanted))
    other = {*there.values()} ^ {*here.values()}
    said = [
        f"{name} was not there" if name not in there else
        f"{name} is no longer there" if name not in here else
        f"{name} {'have' if name.endswith('records') else 'has'} changed"
        for name in {**there, **here} if {there.get(name), here.get(name)} & other
    ]  # fmt: skip
    return said or (["they are in another order"] if [*there.values()] != [*here.values()] else [])


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all mappings but the hashes of the data by their names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {} if name == "sha256" else _flat(value)
        else:
            flat[name] = value
    return flat
