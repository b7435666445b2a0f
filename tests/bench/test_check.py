"""`doctor --check`: it finds a fault that is planted in a kernel and one in a family, and nothing else."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxbert.bench import check as module, reference
from mlxbert.bench.check import check
from mlxbert.bench.kernels import kernels
from mlxbert.config import EncoderConfig
from mlxbert.machine.device import mx
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.weights.families.mpnet import MPNET
from mlxbert.weights.families.registry import FAMILIES
from mlxbert.weights.formats.config_json import ConfigJson
from tests.helpers.program import call, terminal


@pytest.mark.slow
def test_planted_faults_are_named_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: mx.array) -> mx.array:
        return x * mx.sigmoid(1.72 * x)  # 1.702

    def read(found: ConfigJson) -> EncoderConfig:
        return dataclasses.replace(right(found), layer_norm_eps=0.012)  # 0.01

    right = MPNET.facts
    monkeypatch.setitem(ACTIVATIONS, "quick_gelu", wrong)
    monkeypatch.setitem(FAMILIES, "mpnet", dataclasses.replace(MPNET, facts=read))
    found = check("cpu")
    kernels = {(fault["name"], fault["dtype"]) for fault in found["faults"] if fault["group"] == "activations"}
    assert {("quick_gelu", "float32"), ("gradient of quick_gelu", "float32")} <= kernels
    assert {name for name, _ in kernels} == {"quick_gelu", "gradient of quick_gelu"}
    families = {fault["name"].split(",")[0] for fault in found["faults"] if fault["group"] == "families"}
    assert families == {"mpnet"}
    assert {fault["group"] for fault in found["faults"]} == {"activations", "families"}
    assert all(fault["hint"] for fault in found["faults"])


def test_a_fault_is_shown_with_its_workaround_and_ends_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    group = {"checks": 3, "faults": 1, "worst": 12.5}
    fault: dict[str, Any] = {
        **{"group": "attention", "name": "attention, head size 32", "dtype": "float16", "error": 0.05},
        **{"allowed": 0.004, "problem": None, "hint": "--dtype float32"},
    }
    speed = {"dtype": "float32", "gflops": 1.0, "copy_gb_per_s": 1.0, "first_pass_seconds": 1, "second_pass_seconds": 1}
    found = {
        **{"groups": dict.fromkeys(("attention", "families", "training", "built-in model"), group), "faults": [fault]},
        **{"speed": speed, "memory": 10**9, "seconds": 20.0},
    }
    monkeypatch.setattr(module, "check", lambda device: found)
    outcome = call("doctor", "--check")
    assert outcome.status == 1 and outcome.lines[0]["check"] == found
    assert "error: " in outcome.err and "all is well" not in outcome.err
    outcome, shown = terminal("doctor", "--check")
    assert (
        outcome.status == 1 and "attention, head size 32" in shown and "--dtype float32" in shown and "5.0e-02" in shown
    )
    found["faults"] = []
    assert call("doctor", "--check").status == 0


def test_what_fails_does_not_hide_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **named: Any) -> Any:
        raise RuntimeError("[METAL] no such kernel")

    monkeypatch.setattr(mx, "quantize", broken)
    monkeypatch.setattr(module, "golden_models", lambda: [])
    monkeypatch.setattr(module, "_speed", broken)
    monkeypatch.setattr(module, "kernels", lambda: [one for one in kernels() if one[0] in ("quantized", "dropout")])
    found = check("cpu")
    assert {fault["group"] for fault in found["faults"]} == {"quantized", "families", "speed"}
    assert found["speed"] is None
    assert all("no such kernel" in one["problem"] for one in found["faults"] if one["group"] != "families")
    assert found["groups"]["dropout"] == {"checks": 1, "faults": 0, "worst": 0.0}
    assert found["groups"]["training"]["faults"] == 0


@pytest.fixture
def goldens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of models that takes the place of that of the package; other things are not checked."""
    for place in (module, reference):
        monkeypatch.setattr(place, "GOLDENS", tmp_path)
    monkeypatch.setattr(module, "kernels", lambda: iter(()))
    monkeypatch.setattr(module, "_vector_error", lambda dtype: 0.0)
    return tmp_path


def test_without_models_there_is_a_fault(goldens: Path) -> None:
    found = [one for one in module._findings() if one.group == "families"]
    assert found and not any(one.ok for one in found) and str(goldens) in str(found[0].problem)


def test_damaged_models_are_faults_and_others_are_checked(goldens: Path) -> None:
    shutil.copytree(reference.__file__.replace("reference.py", "goldens/bert"), goldens / "bert")
    shutil.copytree(goldens / "bert", goldens / "other")
    (goldens / "other" / "Model.json").write_text("{")
    (goldens / "other" / "outputs.safetensors").unlink()
    found = {(one.name, one.dtype): one.ok for one in module._findings() if one.group in ("families", "training")}
    assert any(found.values()) and all(ok == name.startswith(("bert", "losses")) for (name, _), ok in found.items())
