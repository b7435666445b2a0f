"""The folders of training: `DIR.partial/` for unfinished work, and the folder of a trained model.

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
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.durable_files import acquire_lock, check_hash, read_record, remove_folder, to_path, write_record, writing
from mlxbert.errors import ArgumentError
from mlxbert.export import card
from mlxbert.export.card import Scores
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.heads import has_own
from mlxbert.nn.sparse_embedder import SparseEmbedder
from mlxbert.nn.token_embedder import TokenEmbedder
from mlxbert.resumable_folder import LOCK, MANIFEST, PartialFolder, comparable
from mlxbert.tasks.training_record import RECORD
from mlxbert.train.base_model import BaseModel
from mlxbert.train.files.trained_model import write_trained
from mlxbert.train.loop.adamw import Arrays
from mlxbert.train.loop.saved_run import RunStore, load_arrays, reading, save_arrays
from mlxbert.train.lora_adapters import Adapters

_LOG = logging.getLogger("mlxbert")
_RESULT, _WEIGHTS = "result.json", "weights.safetensors"


class Workspace(PartialFolder):
    """The folder of the unfinished work of a training call."""

    names = "runs|model|corpus|valid"
    work = ("runs", "model")
    begun = "runs/*/*.json"
    hint = "repeat the earlier command to resume its work, or use `overwrite=True` to remove its work"

    def store(self, run: int) -> RunStore:
        return RunStore(self._run(run), self._owner(run))

    def _run(self, run: int) -> Path:
        return self.folder / "runs" / f"{run:03}"

    def _owner(self, run: int) -> object:
        """Returns the value that identifies the run in its files."""
        return [comparable(self.manifest), run]

    def finish(self, run: int, result: Mapping[str, Any], weights: Arrays) -> None:
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
        with reading(self._run(run), "result"):
            return load_arrays(self._run(run) / _WEIGHTS, self._stored(run)[_WEIGHTS])

    def _stored(self, run: int) -> dict[str, Any]:
        return read_record(self._run(run) / _RESULT, self._owner(run))

    @contextmanager
    def model(self) -> Iterator[Path]:
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        with writing(folder, kept="; the trained weights are kept"):
            folder.mkdir()
            yield folder


def clean_up(output: str | Path) -> None:
    """Removes the partial folder of a call that was killed after moving its result to `output`.

    The partial folder is removed only if its manifest is also part of the result. Unfinished work is kept, and so is a
    folder that another process uses. An invalid value of `output` is ignored, because a later check reports it.
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


@dataclass(frozen=True, kw_only=True)
class FolderContent:
    """The content of the folder of a trained model."""

    model: Model  # the trained model
    record: Mapping[str, Any]  # the content of `training.json`, except for the manifest
    card: Sequence[str]  # the lines of the model card
    scores: Scores  # what the model card tells the hub about the training
    # Additional keys of `config.json`. The value `None` removes a key.
    keys: Mapping[str, object] = field(default_factory=dict)
    # The embedder of a model that was trained for vectors; `None` for other models.
    embedder: Embedder | SparseEmbedder | TokenEmbedder | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # further fields of the event `Finished`, keyed by name
    # Called with the folder once the model is in it and can be loaded. The result is added to `record` and `facts`.
    complete: Callable[[Path], Mapping[str, Any]]


def write_folder(
    folder: Path,
    content: FolderContent,
    base: BaseModel,
    target: Path,
    manifest: Mapping[str, Any],
    line: str | None,
    adapters: Adapters | None,
) -> Mapping[str, Any]:
    """Writes the model and everything that belongs to it into an empty folder; returns what `complete` returns.

    Trained adapters are written instead of all weights.
    """
    facts: Mapping[str, Any] = {}

    def describe(folder: Path) -> Mapping[str, str]:
        nonlocal facts
        facts = content.complete(folder)
        lines = [*content.card, *([] if adapters is None else card.adapter_note(base.public_name))]
        embeds, config = content.embedder is not None, content.model.network.encoder.config
        own_layers = has_own(content.model.network.heads, config.labels) or (config.is_static and not embeds)
        library = card.library_of(own=own_layers, embeds=embeds) if adapters is None else "peft"
        mask = content.model.tokenizer.mask_token
        lines += card.examples(content.scores.task, target.name, library, mask or "[MASK]")
        if line is not None:
            own = dict.fromkeys(Path(word).name for word in shlex.split(line) if _is_absolute(word))
            places = f" (with your own paths of {', '.join(own)})" if own else ""
            lines += [f"The command that repeats the training{places}:", "", "```sh", _without_folders(line), "```", ""]
        text = card.trained(target.name, "\n".join(lines), library, base.name, base.files.path, content.scores)
        record = {**manifest, "python": sys.version.split()[0], **content.record, **facts}
        return {RECORD: json.dumps(record, indent=1, ensure_ascii=False) + "\n", "README.md": text}

    adapter = None if adapters is None else adapters.writer(content.model, base)
    write_trained(content.model, folder, describe, content.keys, content.embedder, adapter)
    return facts


def _without_folders(line: str) -> str:
    """Returns a command line in which absolute paths are file names: a published card must not show a home folder."""
    return shlex.join(Path(word).name if _is_absolute(word) else word for word in shlex.split(line))


def _is_absolute(word: str) -> bool:
    return word.startswith(("/", "~"))


def metrics_table(metrics: Mapping[str, float]) -> Iterable[str]:
    """Returns the lines of a Markdown table of metrics."""
    return ["| metric | value |", "|---|---|", *(f"| {name} | {value:.4f} |" for name, value in metrics.items()), ""]
