"""The folder `X.partial/`, in which one process at a time builds `X`; repeating an interrupted call resumes it."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from mlxbert.durable_files import DamagedError, acquire_lock, read_record, remove_empty, write_record, writing
from mlxbert.errors import ArgumentError
from mlxbert.mac_files import is_from_system, is_system_file

MANIFEST = "manifest.json"
LOCK = "lock"
_HASH = re.compile(r"[0-9a-f]{64}")


class PartialFolder:
    """The folder of unfinished work, with the manifest of the call that does the work.

    Args:
        manifest: The settings of the call; a later call resumes the work only if its settings are the same.
    """

    names: ClassVar[str]  # a regular expression that matches the names of all files and folders of the work
    work: ClassVar[tuple[str, ...]]  # globs of the files that are useless to a call with another manifest
    begun: ClassVar[str]  # a glob; if no file matches it, there is nothing to resume
    hint: ClassVar[str]  # the hint for a call that finds the work of another call

    def __init__(self, target: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = target.with_name(target.name + ".partial")
        self.manifest: dict[str, Any] = json.loads(json.dumps(manifest))

    @contextmanager
    def locked(self, *, overwrite: bool) -> Iterator[str | None]:
        """Locks the folder for this process, and removes work that this call cannot resume.

        Args:
            overwrite: Whether to remove even the work of another call, instead of raising an error.

        Yields:
            A description of the other call's work, if such work was removed; otherwise `None`.
        """
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.iterdir():  # the folder is removed at the end, with everything in it
                if not is_from_system(path) and not self._is_own(path.name.removesuffix(".unfinished")):
                    raise ArgumentError(
                        f"{self.folder}: contains {path.name}, which mlxbert did not write",
                        hint="move that file, or choose another output",
                    )
            lock = acquire_lock(
                self.folder / LOCK, "run", hint="wait until that run has finished, or choose another output"
            )
        try:
            with lock:
                with writing(self.folder):
                    removed = self._claim(overwrite)
                yield removed
        finally:
            if not (self.folder / LOCK).exists():
                remove_empty(self.folder)

    def _is_own(self, name: str) -> bool:
        return name in (MANIFEST, LOCK) or re.fullmatch(self.names, name) is not None

    def _claim(self, overwrite: bool) -> str | None:
        path, saved = self.folder / MANIFEST, None
        try:
            saved = read_record(path)
        except FileNotFoundError:
            difference = f"{MANIFEST} is missing"
        except (OSError, DamagedError) as problem:
            difference = f"{problem}"
        else:
            equal = comparable(saved) == comparable(self.manifest)
            difference = "" if equal else differences(saved, self.manifest) or "other options"
        begun = path.exists() and self._has_begun() and self.resumable(saved or {})
        message = f"the unfinished work of another run ({difference})" if begun and difference else None
        if message is not None and not overwrite:
            raise ArgumentError(f"{self.folder}: contains {message}", hint=self.hint)
        if difference or not begun:
            self.clear()
            write_record(path, self.manifest)
        return message

    def _has_begun(self) -> bool:
        return not all(is_system_file(path.name) for path in self.folder.glob(self.begun))

    def resumable(self, manifest: Mapping[str, Any]) -> bool:
        """Whether work with this manifest can be resumed at all."""
        return True

    def clear(self) -> None:
        for pattern in self.work:
            for path in self.folder.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes the folder once the work is done: the manifest first, so that no call resumes the rest."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def comparable(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a manifest in a form that can be compared: the hashes under `sha256` become a list without names."""
    hashes = manifest.get("sha256")
    return {**manifest, "sha256": [*hashes.values()]} if isinstance(hashes, dict) else manifest


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Describes the differences between a saved manifest and this call's: `lr is 2e-05, was 5e-05`."""
    before, now = _flat(saved), _flat(current)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    phrases = [
        f"another {name}"
        if any(_HASH.search(str(values.get(name))) for values in (before, now))
        else f"{name} is {now.get(name)!r:.60}, was {before.get(name)!r:.60}"
        for name in names
    ]
    if data := _other_data(saved.get("sha256"), current.get("sha256")):
        phrases.insert(0, f"the training data differ, because {', '.join(data)}")
    return "; ".join(phrases[:6])


def _other_data(saved: Any, current: Any) -> list[str]:
    """Describes how the data differs from the saved call's, judged by hashes: `train.csv has changed`."""
    before, now = (hashes if isinstance(hashes, dict) else {} for hashes in (saved, current))
    changed = {*before.values()} ^ {*now.values()}
    phrases = [
        f"{name} is new" if name not in before else
        f"{name} is no longer there" if name not in now else
        f"{name} {'have' if name.endswith('records') else 'has'} changed"
        for name in {**before, **now} if {before.get(name), now.get(name)} & changed
    ]  # fmt: skip
    return phrases or (["the files are in another order"] if [*before.values()] != [*now.values()] else [])


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens nested mappings into one; leaves out the hashes of the data."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {} if name == "sha256" else _flat(value)
        else:
            flat[name] = value
    return flat
