"""The weights of a folder in every format: which of them, and which files, are read; data is let go afterwards."""

import gc
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mlxbert.machine.device import mx
from mlxbert.weights.formats import safetensors
from mlxbert.weights.formats.torch import reader
from mlxbert.weights.formats.weight_files import open_weights
from mlxbert.weights.hub import needed_files
from tests.helpers import tf_files, torch_files
from tests.helpers.rooms import needs

TENSORS = {"a.weight": mx.arange(6, dtype=mx.float32).reshape(2, 3), "b": mx.ones((4,))}
SHARDS = {"a.weight": "2.part", "b": "1.part"}


def _index(folder: Path, name: str) -> None:
    (folder / name).write_text(json.dumps({"weight_map": SHARDS}), encoding="utf-8")


def _safetensors(folder: Path, tensors: Mapping[str, mx.array], name: str = "model.safetensors") -> None:
    mx.save_safetensors(str(folder / f"{name}.safetensors"), dict(tensors))
    (folder / f"{name}.safetensors").rename(folder / name)


def _safetensors_shards(folder: Path) -> None:
    _index(folder, safetensors.INDEX)
    for tensor, name in SHARDS.items():
        _safetensors(folder, {tensor: TENSORS[tensor]}, name)


def _torch(folder: Path, tensors: Mapping[str, mx.array], name: str = "pytorch_model.bin") -> None:
    (folder / name).write_bytes(torch_files.saved(dict(tensors)))


def _torch_shards(folder: Path) -> None:
    _index(folder, "pytorch_model.bin.index.json")
    for tensor, name in SHARDS.items():
        _torch(folder, {tensor: TENSORS[tensor]}, name)


# How a folder is written; the files of it that are read, in their order.
FORMATS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "safetensors": (lambda folder: _safetensors(folder, TENSORS), ["model.safetensors"]),
    "safetensors in shards": (_safetensors_shards, ["2.part", "model.safetensors.index.json", "1.part"]),
    "PyTorch": (lambda folder: _torch(folder, TENSORS), ["pytorch_model.bin"]),
    "PyTorch in shards": (_torch_shards, ["2.part", "pytorch_model.bin.index.json", "1.part"]),
    "NumPy": (lambda folder: mx.savez(str(folder / "w.npz"), **TENSORS), ["w.npz"]),
    "TensorFlow": (
        lambda folder: tf_files.copy_checkpoint("bert-pretraining", folder),
        [f"{tf_files.STEM}.{name}" for name in ("index", *(f"data-0000{number}-of-00003" for number in range(3)))],
    ),
}
ALL = [pytest.param(name, marks=needs("export") if name == "TensorFlow" else ()) for name in FORMATS]


@pytest.mark.parametrize("name", ALL)
def test_all_files_that_are_read_are_named_once(name: str, tmp_path: Path) -> None:
    """And nothing stays mapped of what was read; what is mapped is told by Linux."""
    FORMATS[name][0](tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    weights = open_weights(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in weights.files] == FORMATS[name][1]
    if sys.platform == "linux" and not name.startswith("safetensors"):
        mx.eval([weights.arrays()[tensor] for tensor in weights.tensors])
        gc.collect()
        assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")


@needs("export")
def test_formats_are_tried_in_one_order(tmp_path: Path) -> None:
    mx.save_safetensors(str(tmp_path / safetensors.SINGLE), {"w": mx.zeros(2)})
    (tmp_path / reader.SINGLE).write_bytes(torch_files.archive())
    mx.savez(str(tmp_path / "weights.npz"), w=mx.zeros(2))
    tf_files.write_index(tmp_path, {"w": tf_files.entry()})
    first = {
        "safetensors": safetensors.SINGLE,
        "PyTorch": reader.SINGLE,
        "NumPy archive": "weights.npz",
        "TensorFlow 1": f"{tf_files.STEM}.index",
    }
    for format, file in first.items():
        names = [path.name for path in tmp_path.iterdir()]
        (chosen,) = open_weights(tmp_path).headers
        assert (open_weights(tmp_path).format, chosen.name) == (format, file)
        on_the_hub = needed_files.needed_files("org/name", ["config.json", *names], lambda name: {})
        assert on_the_hub[1] == file  # the same of a repository
        for path in tmp_path.glob(file.replace(".index", ".*")):
            path.unlink()
