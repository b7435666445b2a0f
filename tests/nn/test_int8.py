"""Dense layers in 8 bits: what they compute, which devices have them, and what refuses them."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.bench.device_check import golden_outputs
from mlxbert.bench.measure import bench
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.machine.cores import inference
from mlxbert.machine.device import mx, on_gpu
from mlxbert.nn import ops
from mlxbert.nn.cpu import int8
from mlxbert.nn.heads import Network
from mlxbert.optional_packages import install_command
from mlxbert.serve.service import read_facts

_FAMILIES = {family: head for family, head in [*golden_outputs.golden_models()][::-1]}
_TEXTS = ["A man is playing a guitar.", "The girl eats an apple.", "Rain falls on the roof of the old house."]


def problem() -> str | None:
    try:
        int8.check()
    except ArgumentError as refusal:
        return refusal.message
    return None


computes = pytest.mark.skipif(problem() is not None, reason=str(problem()))


def error(found: Any, wanted: Any) -> float:
    """The length of the difference as a share of the length of what is wanted."""
    found, wanted = np.array(found, np.float64), np.array(wanted, np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def hidden(network: Network, ids: mx.array, **options: Any) -> mx.array:
    with inference():
        output = network.encoder(ids, **options)
    mx.eval(vars(output))
    return output.last_hidden_state


@computes
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_differs_by_the_rounding_of_weights_and_inputs(bias: bool) -> None:
    layer = ops.Linear(64, 48, bias=bias)
    layer.weight = mx.random.normal((48, 64), key=mx.random.key(1))
    rounded = int8.Int8Linear(layer)
    assert rounded.parameters_rounded == 48 * 64 + 48 * bias
    x = mx.random.normal((3, 5, 64), key=mx.random.key(2))
    y = rounded(x)
    assert 0.001 < error(y, layer(x)) < 0.02  # 8 bits: steps of a 127th of the largest number
    assert np.array_equal(rounded(np.array(x)), np.array(y))
    for text, result in zip(x, y, strict=True):  # each text has a scale of its own
        assert np.array_equal(np.array(rounded(text)), np.array(result))


@computes
def test_a_row_of_zeros_and_a_text_of_zeros_give_the_bias() -> None:
    layer = ops.Linear(16, 4)
    layer.weight, layer.bias = mx.zeros((4, 16)), mx.arange(4).astype(mx.float32)
    assert np.array_equal(np.array(int8.Int8Linear(layer)(mx.zeros((1, 2, 16)))), [[[0, 1, 2, 3], [0, 1, 2, 3]]])


@computes
@pytest.mark.parametrize("shape", [(1, 9), (3, 7), (40, 24)], ids=str)
@pytest.mark.parametrize("family", _FAMILIES)
def test_every_family_computes_in_8_bits(family: str, shape: tuple[int, int], tmp_path: Path) -> None:
    folder = golden_outputs.write_model(family, _FAMILIES[family], tmp_path / "model")
    network = golden_outputs.load_network(folder, "float32")
    config = network.encoder.config
    ids = mx.random.randint(5, config.vocab_size, (shape[0], min(shape[1], config.max_length)), key=mx.random.key(1))
    wanted = hidden(network, ids)
    network.encoder.round_to_int8()
    assert 0 < error(hidden(network, ids), wanted) < 0.1
    assert error(hidden(network, ids, output_attentions=True), wanted) < 0.1
    left = [name for name, module in network.encoder.named_modules() if isinstance(module, ops.Linear)]
    assert not [name for name in left if name.startswith("layers.") and not name.endswith("router")]


@computes
@pytest.mark.usefixtures("all_cores")
def test_vectors_are_near_those_of_float32_on_all_cores() -> None:
    texts = [f"{text} {number}" for text in _TEXTS for number in range(30)]
    exact, rounded = (mlxbert.load(task="embed", dtype=dtype, device="cpu") for dtype in ("float32", "int8"))
    assert (exact.dtype, rounded.dtype) == ("float32", "int8")
    wanted = np.array(mlxbert.embed(exact, texts))
    assert (wanted * mlxbert.embed(rounded, texts)).sum(axis=1).min() > 0.97  # 0.982 for 2,758 sentences of STS-B
    assert (wanted[:3] * [mlxbert.embed(rounded, text) for text in texts[:3]]).sum(axis=1).min() > 0.97


@computes
def test_what_is_not_finite_stays_so() -> None:
    """Rounded to 8 bits, NaN is a number; where vectors are checked, it would not be found."""
    layer = int8.Int8Linear(ops.Linear(16, 4))
    x = np.ones((3, 2, 16), np.float32)
    x[0, 1, 5], x[2, 0, 0] = np.nan, np.inf
    found = layer(x)
    assert np.isnan(found[[0, 2]]).all() and np.isfinite(found[1]).all()
    broken = ops.Linear(16, 4)
    broken.weight = mx.full((4, 16), mx.nan)
    with pytest.raises(CheckpointError, match="not finite"):
        int8.Int8Linear(broken)


@computes
def test_there_are_no_gradients() -> None:
    layer = int8.Int8Linear(ops.Linear(16, 4))
    with pytest.raises(ArgumentError, match="no gradients"):
        mx.grad(lambda x: layer(x).sum())(mx.ones((2, 16)))


@computes
def test_the_facts_of_a_server_count_rounded_parameters() -> None:
    exact, rounded = (read_facts("m", mlxbert.load(dtype=dtype, device="cpu")) for dtype in ("float32", "int8"))
    assert rounded.parameters == exact.parameters and rounded.dtype == "int8"


@computes
def test_what_a_model_in_8_bits_cannot_do_is_refused(tmp_path: Path) -> None:
    model = mlxbert.load(dtype="int8", device="cpu")
    with pytest.raises(ArgumentError, match="int8, so its weights cannot be saved"):
        model.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(ArgumentError, match=r"int8.*cannot be measured"):
        bench("builtin", dtype="int8", device="cpu")
    with pytest.raises(ArgumentError, match="index is in int8"):
        mlxbert.open_index(tmp_path / "index.db", model=model)
    with pytest.raises(ArgumentError, match="'gpu', but dtype='int8'"):
        mlxbert.load(dtype="int8", device="gpu")
    config = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 8, "num_hidden_layers": 1}
    with pytest.raises(ArgumentError, match=r"int8.*new model"):
        mlxbert.new_model(config, "builtin", dtype="int8")
    table = tmp_path / "train.csv"
    table.write_text("text,label\n" + "".join(f"good {n},yes\nbad {n},no\n" for n in range(8)))
    with pytest.raises(ArgumentError, match=r"int8.*cannot be trained"):
        list(mlxbert.finetune("classify", train=table, output=tmp_path / "trained", dtype="int8", device="cpu"))


def test_other_devices_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "_instructions", lambda: frozenset(["fpu", "avx2"]))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    if sys.platform == "linux" and not on_gpu():
        with pytest.raises(ArgumentError, match=r"x86_64.*lacks.*avx512_vnni or avx_vnni"):
            mlxbert.load(dtype="int8")
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ArgumentError, match="only Linux computes"):
        int8.check()


def test_missing_packages_are_named_with_the_extra_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        if name == "onnx":
            raise ImportError("No module named 'onnx'")
        return import_module("json")

    monkeypatch.setattr(int8, "on_gpu", lambda: False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(int8, "_instructions", lambda: frozenset(["asimddp"]))
    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ArgumentError, match="needs the package onnx ") as refusal:
        int8.check()
    assert refusal.value.hint == install_command("int8")
