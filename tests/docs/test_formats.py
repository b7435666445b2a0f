"""Every row of the tables of formats in the documentation, read and written."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.formats.files import open_weights
from tests.docs.pages import rows
from tests.helpers import frozen, tf_files, torch_files
from tests.helpers.tiny import random_network, save, tensors_of, tiny_config

pytestmark = pytest.mark.usefixtures("measurement")

PAGE = "docs/formats.md"
WIDE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}  # what quantizing needs: whole groups
TENSORS = tensors_of(random_network(tiny_config()))
Arrays = Mapping[str, mx.array]


def write_torch(folder: Path) -> Arrays:
    parts, members = [], {}
    for number, (name, array) in enumerate(TENSORS.items()):
        raw = np.array(array.astype(mx.float32))
        strides = [int(np.prod(raw.shape[axis + 1 :])) for axis in range(raw.ndim)]
        of = torch_files.storage(torch_files.text(str(number)), "FloatStorage", raw.size)
        parts += [torch_files.text(name), torch_files.tensor(raw.shape, strides, of=of)]
        members[f"data_{number}"] = raw.tobytes()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(torch_files.archive(torch_files.state(*parts), **members))  # type: ignore[arg-type]
    return TENSORS


def write_numpy(folder: Path) -> Arrays:
    (folder / "model.safetensors").unlink()
    mx.savez(str(folder / "weights.npz"), **TENSORS)
    return TENSORS


def write_tensorflow(folder: Path) -> Arrays:
    for path in folder.iterdir():
        path.unlink()
    tf_files.copy_checkpoint("bert-pretraining", folder)
    return {name: mx.array(array) for name, array in tf_files.frozen("bert-pretraining", "tensors").items()}


def write_onnx(folder: Path) -> Arrays:
    pytest.importorskip("onnx")
    (folder / "model.safetensors").unlink()
    shutil.copyfile(frozen.GOLDENS / "onnx" / "bert.onnx", folder / "model.onnx")
    expected = frozen.arrays(frozen.GOLDENS / "onnx" / "bert.safetensors")
    return {name: array for name, array in expected.items() if name != "cls.predictions.decoder.bias"}


IN: dict[str, Callable[[Path], Arrays]] = {
    "safetensors": lambda folder: TENSORS,
    "torch": write_torch,
    "NumPy": write_numpy,
    "TensorFlow 1": write_tensorflow,
    "ONNX": write_onnx,
}


@pytest.mark.parametrize("name", IN)
def test_a_format_of_the_table_is_read(name: str, tmp_path: Path) -> None:
    expected = IN[name](save(tmp_path, TENSORS))
    found = open_weights(tmp_path).arrays()
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[key], array).item() for key, array in expected.items())


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A folder whose matrices are wide enough to be quantized."""
    from tests.helpers.tiny import CONFIG

    network = random_network(tiny_config(**WIDE, embedding_size=32))
    return save(tmp_path / "wide", tensors_of(network), CONFIG | WIDE)


def test_the_tables_have_no_other_rows() -> None:
    assert [cells[0] for cells in rows(PAGE, "in")] == [*IN, "MLX, quantized"]
    assert [cells[0] for cells in rows(PAGE, "out")] == ["unchanged", "another dtype", "shards", "quantized"]


def test_a_model_is_written_as_it_is_and_in_shards(wide: Path, tmp_path: Path) -> None:
    source = open_weights(wide).arrays()
    for name, size in (("whole", "5GB"), ("shards", "20KB")):
        mlxbert.convert(wide, tmp_path / name, max_shard_size=size)
        found = open_weights(tmp_path / name).arrays()
        assert found.keys() == source.keys()
        assert all(mx.array_equal(found[key], source[key]).item() for key in source)
    assert not list((tmp_path / "whole").glob("model-*")) and len(list((tmp_path / "shards").glob("model-*"))) > 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_model_is_written_in_another_dtype(wide: Path, tmp_path: Path, dtype: str) -> None:
    source = open_weights(wide).arrays()
    result = mlxbert.convert(wide, tmp_path / "out", dtype=dtype)
    found = open_weights(tmp_path / "out").arrays()
    assert all(mx.array_equal(found[key], source[key].astype(getattr(mx, dtype))).item() for key in source)
    assert all(array.dtype == getattr(mx, dtype) for array in found.values()) and result.difference.agree


@pytest.mark.parametrize("bits", [4, 8])
def test_a_model_is_written_and_read_quantized(wide: Path, tmp_path: Path, bits: int) -> None:
    result = mlxbert.convert(wide, tmp_path / "out", quantize=bits, group_size=32)
    stored = open_weights(tmp_path / "out").arrays()
    words = "bert.embeddings.word_embeddings"
    assert {f"{words}.weight", f"{words}.scales", f"{words}.biases"} <= stored.keys()
    assert json.loads((tmp_path / "out/config.json").read_text())["quantization"] == {"group_size": 32, "bits": bits}
    original = open_weights(wide).arrays()[f"{words}.weight"]
    meant = open_checkpoint(tmp_path / "out").arrays(mx.float32)["embeddings.word_embeddings.weight"]
    apart = mx.abs(meant - original).max().item()
    assert isinstance(apart, float) and 0 < apart < 2 * mx.abs(original).max().item() / (2**bits - 1)
    assert result.difference.agree
