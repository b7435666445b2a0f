"""The folder of unfinished work, `DIR.partial/`, with the manifest of its command and the state of each run.

```
DIR.partial/
  lock  manifest.json       the command that uses the folder
  runs/000/                 during training: state.json, state-….safetensors, best-….safetensors
  runs/000/result.json      after training, with weights.safetensors
  model/                    the finished model, before it becomes DIR
  corpus/  valid/           for pre-training: token ids
```
"""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlxbert.data.training_record import RECORD
from mlxbert.durable_files import acquire_lock, check_hash, read_record, remove_folder, to_path, write_record, writing
from mlxbert.errors import ArgumentError
from mlxbert.partial_folder import LOCK, MANIFEST, PartialFolder, comparable
from mlxbert.train.loop.adamw import Arrays
from mlxbert.train.loop.saved_run import RunStore, load_arrays, reading, save_arrays

_LOG = logging.getLogger("mlxbert")
_RESULT, _WEIGHTS = "result.json", "weights.safetensors"


class Workspace(PartialFolder):
    """The folder of the unfinished work of a training call."""

    names = "runs|model|corpus|valid"
    work = ("runs", "model")
    begun = "runs/*/*.json"
    hint = "repeat the earlier command to resume its work, or use overwrite=True to remove its work"

    def store(self, run: int) -> RunStore:
        return RunStore(self._run(run), self._owner(run))

    def _run(self, run: int) -> Path:
        return self.folder / "runs" / f"{run:03}"

    def _owner(self, run: int) -> object:
        """Returns the value that identifies the run in its files."""
        return [comparable(self.manifest), run]

    def finish(self, run: int, result: Mapping[str, Any], weights: Arrays) -> None:
        """Stores the result and the best weights of a run, and removes the state of the run."""
        folder = self._run(run)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            digest = save_arrays(folder / _WEIGHTS, weights)
            write_record(folder / _RESULT, {**result, _WEIGHTS: digest}, self._owner(run))
        for path in folder.iterdir():
            if path.name not in (_WEIGHTS, _RESULT):
                path.unlink(missing_ok=True)  # macOS may remove `._x` together with `x`

    def is_finished(self, run: int) -> bool:
        if not (self._run(run) / _RESULT).is_file():
            return False
        with reading(self._run(run), "result"):
            check_hash(self._run(run) / _WEIGHTS, self._stored(run)[_WEIGHTS])
        return True

    def result(self, run: int) -> dict[str, Any]:
        with reading(self._run(run), "result"):
            return {name: value for name, value in self._stored(run).items() if name != _WEIGHTS}

    def weights(self, run: int) -> Arrays:
        """Reads the best weights of a finished run."""
        with reading(self._run(run), "result"):
            return load_arrays(self._run(run) / _WEIGHTS, self._stored(run)[_WEIGHTS])

    def _stored(self, run: int) -> dict[str, Any]:
        return read_record(self._run(run) / _RESULT, self._owner(run))

    @contextmanager
    def model(self) -> Iterator[Path]:
        """Yields an empty folder for the finished model."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        with writing(folder, kept="; the trained weights are kept"):
            folder.mkdir()
            yield folder


def clean_up(output: str | Path) -> None:
    """Removes the partial folder of a call that was killed after moving its result to `output`.

    The partial folder is removed only if its manifest is also part of the result. Unfinished work is kept, and so is a
    folder that another process uses.

    Args:
        output: The folder of the model. An invalid value is ignored here, because a later check reports it.
    """
    try:
        target = to_path(output, "output").resolve()
        folder = target.with_name(target.name + ".partial")
        manifest = read_record(folder / MANIFEST)
        result = json.loads((target / RECORD).read_bytes())
        finished = [(folder / "runs" / f"{run:03}" / _RESULT).is_file() for run in range(len(manifest["variants"]))]
        all_moved = all(finished) and not (folder / "model").exists()
        if not all_moved or comparable({name: result[name] for name in manifest}) != comparable(manifest):
            return
        with acquire_lock(folder / LOCK, "run"):
            remove_folder(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArgumentError):
        return
    _LOG.warning("%s is complete; removed %s, which an interrupted run left behind", target, folder)
