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

from mlxbert.errors import ArgumentError
from mlxbert.files import acquire_lock, check_hash, read_record, remove_folder, to_path, write_record, writing
from mlxbert.partial_folder import LOCK, MANIFEST, PartialFolder, comparable
from mlxbert.training.loop.optimizer import Arrays
from mlxbert.training.loop.saved_run import RunStore, load_arrays, reading, save_arrays

_LOG = logging.getLogger("mlxbert")
_RESULT, _WEIGHTS = "result.json", "weights.safetensors"


class Workspace(PartialFolder):
    """The folder in which a run works."""

    names = "runs|model|corpus|valid"
    work = ("runs", "model")
    begun = "runs/*/*.json"
    hint = "repeat that command to resume it; overwrite=True removes its work"

    def store(self, run: int) -> RunStore:
        """Where the state of a run is."""
        return RunStore(self._run(run), self._owner(run))

    def _run(self, run: int) -> Path:
        return self.folder / "runs" / f"{run:03}"

    def _owner(self, run: int) -> object:
        """What the files of a run belong to."""
        return [comparable(self.manifest), run]

    def finish(self, run: int, result: Mapping[str, Any], weights: Arrays) -> None:
        """Keeps the result of a run and its best weights, and removes its state."""
        folder = self._run(run)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            digest = save_arrays(folder / _WEIGHTS, weights)
            write_record(folder / _RESULT, {**result, _WEIGHTS: digest}, self._owner(run))
        for path in folder.iterdir():
            if path.name not in (_WEIGHTS, _RESULT):
                path.unlink(missing_ok=True)  # macOS may remove `._x` together with `x`

    def is_finished(self, run: int) -> bool:
        """Whether a run is done."""
        if not (self._run(run) / _RESULT).is_file():
            return False
        with reading(self._run(run), "result"):
            check_hash(self._run(run) / _WEIGHTS, self._stored(run)[_WEIGHTS])
        return True

    def result(self, run: int) -> dict[str, Any]:
        """The result of a run that is done."""
        with reading(self._run(run), "result"):
            return {name: value for name, value in self._stored(run).items() if name != _WEIGHTS}

    def weights(self, run: int) -> Arrays:
        """The best weights of a run that is done."""
        with reading(self._run(run), "result"):
            return load_arrays(self._run(run) / _WEIGHTS, self._stored(run)[_WEIGHTS])

    def _stored(self, run: int) -> dict[str, Any]:
        return read_record(self._run(run) / _RESULT, self._owner(run))

    @contextmanager
    def model(self) -> Iterator[Path]:
        """An empty folder for the finished model."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        with writing(folder, kept="; the trained weights are kept"):
            folder.mkdir()
            yield folder


def clean_up(output: str | Path) -> None:
    """Removes what is left of a run that was killed after its result had become `target`.

    The work is recognized by its manifest, which the result holds, too. Work that is not done is kept, and so is a
    folder in which another process works.

    Args:
        output: The folder that holds the model; what cannot be one is left to the check of the target.
    """
    try:
        target = to_path(output, "output").resolve()
        folder = target.with_name(target.name + ".partial")
        manifest = read_record(folder / MANIFEST)
        result = json.loads((target / "training.json").read_bytes())
        runs = [(folder / "runs" / f"{run:03}" / _RESULT).is_file() for run in range(len(manifest["variants"]))]
        moved = all(runs) and not (folder / "model").exists()
        if not moved or comparable({name: result[name] for name in manifest}) != comparable(manifest):
            return
        with acquire_lock(folder / LOCK, "run"):
            remove_folder(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArgumentError):
        return
    _LOG.warning("%s is complete; the last run was interrupted before it removed %s, which is done now", target, folder)
