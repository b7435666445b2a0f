"""The folder of unfinished work: `DIR.partial/`, with the manifest of its command, and the state of each run.

```
DIR.partial/
  lock  manifest.json       which command works here
  runs/000/                 state.json, state-….safetensors, best-….safetensors while it trains
  runs/000/result.json      when it is done, with weights.safetensors
  model/                    the finished model, before it becomes DIR
  corpus/  valid/           of pre-training: token ids
```
"""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.files import DamagedError, acquire_lock, check_hash, read_record, write_record
from mlxbert.folders.destination import SYSTEM_FILES
from mlxbert.training.checkpoint import Store, load_arrays, reading, save_arrays
from mlxbert.training.optimizer import Arrays

_LOG = logging.getLogger("mlxbert")
_MANIFEST, _RESULT, _WEIGHTS = "manifest.json", "result.json", "weights.safetensors"
_OURS = {"lock", _MANIFEST, f"{_MANIFEST}.unfinished", "runs", "model", "corpus", "valid", *SYSTEM_FILES}


class Workspace:
    """The folder in which a command works.

    Args:
        target: The folder that will hold the model.
        manifest: What a command must have in common with an interrupted one to resume it.
        overwrite: Whether unfinished work of another command is removed.
    """

    def __init__(self, target: Path, manifest: Mapping[str, Any], *, overwrite: bool) -> None:
        self.folder = target.with_name(target.name + ".partial")
        self._manifest, self._overwrite = json.loads(json.dumps(manifest)), overwrite

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Locks the folder for this process.

        Raises:
            ArgumentError: Another process works in it, or it holds the work of another command.
            MlxbertError: It cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.iterdir():
                if path.name not in _OURS:
                    raise ArgumentError(
                        f"{self.folder}: holds {path.name}, which mlxbert did not write",
                        hint="move that file, or choose another output",
                    )
            lock = acquire_lock(self.folder / "lock", "run", hint="wait until it is done, or choose another output")
        except OSError as problem:
            raise MlxbertError(f"{self.folder}: cannot be written ({problem.strerror})") from None
        with lock:
            self._claim()
            yield

    def _claim(self) -> None:
        path = self.folder / _MANIFEST
        kept = not self._overwrite and any(self.folder.glob("runs/*/*.json"))
        try:
            found: Any = read_record(path) if path.is_file() else None
        except (OSError, DamagedError) as problem:
            if kept:
                raise CheckpointError(
                    f"{self.folder}: holds unfinished work of an unknown command: {problem}",
                    hint="overwrite=True removes that work",
                ) from None
            found = None
        if _compared(found) == _compared(self._manifest):
            return
        if found is not None and kept:
            raise ArgumentError(
                f"{self.folder}: holds the unfinished work of another command: {differences(found, self._manifest)}",
                hint="repeat that command to resume it; overwrite=True removes its work",
            )
        for name in ("runs", "model"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        try:
            write_record(path, self._manifest)
        except OSError as problem:
            raise MlxbertError(f"{path}: cannot be written ({problem.strerror})") from None

    def store(self, run: int) -> Store:
        """Where the state of a run is."""
        return Store(self._run(run), self._owner(run))

    def _run(self, run: int) -> Path:
        return self.folder / "runs" / f"{run:03}"

    def _owner(self, run: int) -> object:
        """What the files of a run belong to."""
        return [_compared(self._manifest), run]

    def finish(self, run: int, result: Mapping[str, Any], weights: Arrays) -> None:
        """Keeps the result of a run and its best weights, and removes its state.

        Raises:
            MlxbertError: They cannot be written.
        """
        folder = self._run(run)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            digest = save_arrays(folder / _WEIGHTS, weights)
            write_record(folder / _RESULT, {**result, _WEIGHTS: digest}, self._owner(run))
        except OSError as problem:
            raise MlxbertError(f"{folder}: cannot be written ({problem.strerror})") from None
        for path in folder.iterdir():
            if path.name not in (_WEIGHTS, _RESULT):
                path.unlink()

    def is_finished(self, run: int) -> bool:
        """Whether a run is done.

        Raises:
            CheckpointError: Its result or its weights are damaged.
        """
        if not (self._run(run) / _RESULT).is_file():
            return False
        with reading(self._run(run), "result"):
            check_hash(self._run(run) / _WEIGHTS, self._stored(run)[_WEIGHTS])
        return True

    def result(self, run: int) -> dict[str, Any]:
        """The result of a run that is done.

        Raises:
            CheckpointError: It is damaged.
        """
        with reading(self._run(run), "result"):
            return {name: value for name, value in self._stored(run).items() if name != _WEIGHTS}

    def weights(self, run: int) -> Arrays:
        """The best weights of a run that is done.

        Raises:
            CheckpointError: They are damaged.
        """
        with reading(self._run(run), "result"):
            return load_arrays(self._run(run) / _WEIGHTS, self._stored(run)[_WEIGHTS])

    def _stored(self, run: int) -> dict[str, Any]:
        return read_record(self._run(run) / _RESULT, self._owner(run))

    @contextmanager
    def model(self) -> Iterator[Path]:
        """An empty folder for the finished model."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir()
            yield folder
        except OSError as problem:
            raise MlxbertError(
                f"{folder}: cannot be written ({problem.strerror}); the trained weights are kept",
                hint="make room and repeat the command: it resumes",
            ) from None

    def remove(self) -> None:
        """Removes the folder: the work is done. The manifest goes first, so that nobody resumes from the rest."""
        (self.folder / _MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def clean_up(output: str | Path) -> None:
    """Removes what is left of a run that was killed after its result had become `target`.

    The work is recognized by its manifest, which the result holds, too. Work that is not done is kept, and so is a
    folder in which another process works.

    Args:
        output: The folder that holds the model; what cannot be one is left to the check of the target.
    """
    try:
        target = Path(output).expanduser().resolve()
        folder = target.with_name(target.name + ".partial")
        manifest = read_record(folder / _MANIFEST)
        result = json.loads((target / "training.json").read_bytes())
        runs = [(folder / "runs" / f"{run:03}" / _RESULT).is_file() for run in range(len(manifest["variants"]))]
        moved = all(runs) and not (folder / "model").exists()
        if not moved or _compared({name: result[name] for name in manifest}) != _compared(manifest):
            return
        with acquire_lock(folder / "lock", "run"):
            shutil.rmtree(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArgumentError):
        return
    _LOG.warning("%s is complete; the last run was interrupted before it removed %s, which is done now", target, folder)


def _compared(manifest: Any) -> Any:
    """A manifest as it is compared: the data by their hashes, in their order, whatever the paths to them are."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("sha256"), dict):
        return manifest
    return {**manifest, "sha256": [*manifest["sha256"].values()]}


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs between two manifests, in words: `lr is 2e-05, was 5e-05`."""
    there, here = _flat(found), _flat(wanted)
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    words = [
        f"other {name}"
        if name in ("model", "teacher")
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
