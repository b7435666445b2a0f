"""Frozen models and outputs of transformers, and model folders made from them."""

import functools
import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mlxbert.goldens import golden_outputs
from mlxbert.goldens.golden_outputs import GOLDENS, Array, arrays
from mlxbert.machine.device import mx
from mlxbert.nn.heads import Network
from tests.helpers.tiny import VOCAB

_WORDS = re.compile(r"(embeddings\.(word|tok)_embeddings|embed_tokens|\bencoder)\.weight$")


def file_name(family: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", family)


@functools.cache
def _outputs(family: str) -> dict[str, mx.array]:
    return arrays(GOLDENS / file_name(family) / "outputs.safetensors")


def frozen_outputs(family: str, head: str, case: str) -> dict[str, Array]:
    start, outputs = f"{head}/{case}/", _outputs(family)
    return {name.removeprefix(start): np.array(array) for name, array in outputs.items() if name.startswith(start)}


def write_model(family: str, head: str, folder: Path) -> Path:
    return golden_outputs.write_model(file_name(family), head, folder)


@functools.cache
def frozen_network(family: str, head: str = "Model", dtype: str = "float32") -> Network:
    """Returns the network of a model, which tests share and none changes."""
    with tempfile.TemporaryDirectory() as folder:
        return golden_outputs.load_network(write_model(family, head, Path(folder)), dtype)


def add_vocabulary(folder: Path, size: int = 43) -> Path:
    """Adds a small BERT vocabulary to a model of any family; returns the folder."""
    (folder / "vocab.txt").write_text("\n".join(VOCAB[:size]) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}', encoding="utf-8")
    return folder


def tensors_in(folder: Path) -> dict[str, mx.array]:
    tensors = arrays(folder / "model.safetensors")
    mx.eval(tensors)
    return tensors


def write_tensors(folder: Path, tensors: dict[str, mx.array]) -> Path:
    mx.eval(tensors)  # the file that they may come from is about to be replaced
    (folder / "model.safetensors").unlink(missing_ok=True)  # a file that is overwritten is flushed to the disk
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert isinstance(config, dict)
    return config


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def change_config(folder: Path, **changes: Any) -> Path:
    return write_config(folder, read_config(folder) | changes)


def words_in(tensors: Iterable[str]) -> str:
    return next(name for name in tensors if _WORDS.search(name))


def prefix_in(tensors: Iterable[str]) -> str:
    """Returns the prefix in the names of the encoder's tensors."""
    words = words_in(tensors)
    return _WORDS.sub("", words)
