"""Writes the folder of a trained model: the model, `training.json`, and the model card."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.data.training_record import RECORD
from mlxbert.export import card
from mlxbert.export.card import Scores
from mlxbert.folders.save import write_trained
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.heads import has_own
from mlxbert.nn.sparse_embedder import SparseEmbedder
from mlxbert.nn.token_embedder import TokenEmbedder
from mlxbert.train.base_model import BaseModel
from mlxbert.train.lora_layers import Adapters


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
    """Writes the model and everything that belongs to it into an empty folder.

    Args:
        adapters: The trained adapters, which are written instead of all weights; `None` if there are none.

    Returns:
        The result of `FolderContent.complete`.
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
