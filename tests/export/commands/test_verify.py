"""`mlxbert verify`: exit status, one object for a pipe, tables in a terminal."""

import re
from pathlib import Path

import pytest

from mlxbert.machine.device import mx
from tests.helpers.program import TERMINALS, Terminal, call, change_config, change_weights, terminal, tiny_model


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "a")


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "b")


def drawn(*arguments: object, show: Terminal = terminal) -> tuple[int, list[str]]:
    """The exit status, and the lines that a terminal shows."""
    outcome, shown = show("verify", *map(str, arguments))
    assert outcome.err == ""
    return outcome.status, [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", shown).split("\n")]


def test_models_that_agree_or_differ(a: Path, b: Path) -> None:
    outcome = call("verify", str(a), str(b))
    assert (outcome.status, outcome.err) == (0, "")
    (found,) = outcome.lines
    assert found["agree"] is True and found["differences"] == found["notes"] == []
    assert (found["a"], found["b"]) == (str(a), str(b))
    assert found["tensors"]["compared"] == found["tensors"]["equal"] > 30
    assert found["outputs"]["tolerance"] == 1e-4
    change_config(b, layer_norm_eps=1e-5)
    outcome = call("verify", str(a), str(b))
    assert (outcome.status, outcome.err) == (1, "") and outcome.lines[0]["agree"] is False
    said = {"kind": "config", "name": "layer_norm_eps", "a": 1e-12, "b": 1e-5}
    assert outcome.lines[0]["differences"] == [said | {"text": "layer_norm_eps: 1e-12 in A; 1e-05 in B"}]


@TERMINALS
def test_at_a_terminal(show: Terminal, a: Path, b: Path) -> None:
    status, lines = drawn(a, a, show=show)
    assert status == 0 and lines[0] == "the models agree"
    assert "tensors" in lines and any(re.fullmatch("  hidden states, largest difference +0", line) for line in lines)
    change_config(b, layer_norm_eps=1e-5, hidden_dropout_prob=0.5)
    status, lines = drawn(a, b)
    assert status == 1 and lines[0] == "the models differ in 1 thing"
    assert lines[lines.index("config") + 1].strip() == "layer_norm_eps: 1e-12 in A; 1e-05 in B"
    assert "dropout.attention_output" in lines[lines.index("notes") + 1]
    change_weights(b, lambda arrays: arrays.update({name: array + 1 for name, array in arrays.items()}))
    (found,) = call("verify", str(a), str(b)).lines
    count = found["tensors"]["compared"]
    assert sum(one["kind"] == "tensor" for one in found["differences"]) == count  # whole in JSON
    _, lines = drawn(a, b)
    assert sum("numbers differ" in line for line in lines) == 3
    assert f"{count} of {count} tensors differ" in "\n".join(lines)


@pytest.mark.slow
def test_quantized_models_agree_in_what_they_are_used_for(tmp_path: Path) -> None:
    a, b = tiny_model(tmp_path / "a", hidden_size=64), tmp_path / "b"
    assert call("convert", str(a), str(b), "--quantize", "8", "--group-size", "32").status == 0
    status, lines = drawn(a, b)
    assert status == 0 and len(lines[0]) <= 80
    assert lines[0] == "the models agree in what they are used for"
    assert not any("allowed difference" in line for line in lines)
    assert any(line.startswith("  equal once rounded") for line in lines)
    assert call("verify", str(a), str(b)).lines[0]["outputs"]["tolerance"] is None
    status, lines = drawn(a, b, "--tolerance", "1e-6")
    assert status == 1 and lines[0] == "the models differ in 1 thing"


def test_outputs_that_are_no_numbers_are_not_listed(a: Path) -> None:
    change_weights(a, lambda arrays: arrays.update({name: array * mx.nan for name, array in arrays.items()}))
    status, lines = drawn(a, a)
    assert status == 0 and "outputs" not in lines and "tensors" in lines
    assert lines[0] == "the models agree, and neither computes numbers"


def test_a_tolerance(a: Path, b: Path) -> None:
    change_weights(b, lambda arrays: arrays.update({name: array.astype(mx.float16) for name, array in arrays.items()}))
    assert call("verify", str(a), str(b)).status == 0
    outcome = call("verify", str(a), str(b), "--tolerance", "1e-9")
    assert (outcome.status, outcome.lines[0]["differences"][0]["kind"]) == (1, "output")
    call("verify", str(a), str(b), "--tolerance", "nan").fails(2, "--tolerance")


def test_bad_input(a: Path, b: Path) -> None:
    call("verify", str(a / "none"), str(b)).fails(1, f"{a / 'none'}: no such folder", "hint: ")
    call("verify", str(a), str(b / "config.json")).fails(1, "is a file, expected a model folder")
    call("verify", str(a)).fails(2, "B")
    call("verify", str(a), "org/name", "--offline").fails(1, "org/name: the model is not in the cache")
    path = b / "model.safetensors"
    for size in (200, 0):
        path.write_bytes(path.read_bytes()[:size])
        outcome = call("verify", str(a), str(b))
        outcome.fails(1, str(path))
        assert outcome.out == ""
