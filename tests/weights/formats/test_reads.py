"""The weights of a folder in every format: which files are read, and how often; data is let go when it was given."""

import gc
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mlxbert.machine.device import mx
from mlxbert.weights.formats import npz, safetensors
from mlxbert.weights.formats.files import open_weights
from mlxbert.weights.formats.onnx import reader as onnx_reader
from mlxbert.weights.formats.tensorflow import reader as tf_reader
from mlxbert.weights.formats.torch import content as torch_content
from tests.helpers import tf_files, torch_files
from tests.helpers.frozen import GOLDENS

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


def _torch_shards(folder: Path) -> None:
    _index(folder, "pytorch_model.bin.index.json")
    for tensor, name in SHARDS.items():
        (folder / name).write_bytes(torch_files.saved({tensor: TENSORS[tensor]}))


def _onnx(folder: Path) -> None:
    pytest.importorskip("onnx")
    (folder / "onnx").mkdir()
    shutil.copy(GOLDENS / "onnx" / "bert-new.onnx", folder / "onnx" / "model.onnx")
    shutil.copy(GOLDENS / "onnx" / "bert-new.onnx.data", folder / "onnx")


# How a folder is written; the files of it that are read, in their order; what parses one.
FORMATS: dict[str, tuple[Callable[[Path], object], list[str], tuple[Any, str]]] = {
    "safetensors": (
        lambda folder: _safetensors(folder, TENSORS),
        ["model.safetensors"],
        (safetensors, "parse_header"),
    ),
    "safetensors in shards": (
        _safetensors_shards,
        ["2.part", "model.safetensors.index.json", "1.part"],
        (safetensors, "parse_header"),
    ),
    "PyTorch": (
        lambda folder: (folder / "pytorch_model.bin").write_bytes(torch_files.saved(TENSORS)),
        ["pytorch_model.bin"],
        (torch_content, "read_pickle"),
    ),
    "PyTorch in shards": (
        _torch_shards,
        ["2.part", "pytorch_model.bin.index.json", "1.part"],
        (torch_content, "read_pickle"),
    ),
    "NumPy": (lambda folder: mx.savez(str(folder / "w.npz"), **TENSORS), ["w.npz"], (npz, "read_header")),
    "TensorFlow": (
        lambda folder: tf_files.copy_checkpoint("bert-pretraining", folder),
        [f"{tf_files.STEM}.{name}" for name in ("index", *(f"data-0000{number}-of-00003" for number in range(3)))],
        (tf_reader, "read_bundle"),
    ),
    "ONNX": (_onnx, ["onnx/model.onnx", "onnx/bert-new.onnx.data"], (onnx_reader, "_parse")),
}


@pytest.mark.parametrize("name", FORMATS)
def test_all_files_that_are_read_are_named_once(name: str, tmp_path: Path) -> None:
    FORMATS[name][0](tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert [path.relative_to(tmp_path).as_posix() for path in open_weights(tmp_path).files] == FORMATS[name][1]


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_parsed_once_for_its_header_and_once_for_all_tensors(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, files, (module, parser) = FORMATS[name]
    parse, calls = getattr(module, parser), []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return parse(*arguments)

    monkeypatch.setattr(module, parser, counted)
    write(tmp_path)
    weights = open_weights(tmp_path)
    assert calls
    for _ in range(3):
        found = {tensor: weights.arrays()[tensor] for tensor in weights.tensors}
        assert all(array.shape == weights.tensors[tensor].shape for tensor, array in found.items())
    headed = {path for path in files if not path.endswith(".json")} if "shards" in name else {files[0]}
    assert len(calls) <= 2 * len(headed)


@pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is told by Linux")
@pytest.mark.parametrize("name", [name for name in FORMATS if "safetensors" not in name])
def test_nothing_stays_mapped_of_what_was_read(name: str, tmp_path: Path) -> None:
    FORMATS[name][0](tmp_path)
    weights = open_weights(tmp_path)
    mx.eval([weights.arrays()[tensor] for tensor in weights.tensors])
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")
