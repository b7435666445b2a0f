"""`mlxbert bench`: what is measured, and that it is measured."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.bench import measure, thresholds, worker
from mlxbert.bench.measure import bench, lengths
from mlxbert.cli.views.bench import line
from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.nn import gpu
from tests.helpers.program import call, terminal


def test_the_mixed_lengths_are_always_the_same_and_within_the_model() -> None:
    assert lengths(512) == lengths(512) and len({*lengths(512)}) > 50
    assert max(lengths(512)) <= 512 and max(lengths(27)) == 27 and min(lengths(27)) >= 4


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"jax.*torch"):
        bench(against="jax")
    with pytest.raises(ArgumentError, match="rounds is 0"):
        bench(rounds=0)
    call("bench", "--against", "jax").fails(2, "jax", "torch")
    call("bench", "--model", "/nowhere").fails(1, "/nowhere")


@pytest.fixture
def _metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.nn.ops.on_gpu", lambda: True)
    monkeypatch.setattr(gpu, "on_metal", lambda: True)
    monkeypatch.setattr(thresholds, "KEYS", (64, 256))
    monkeypatch.setattr(thresholds, "BLOCKS", (4, 5))
    monkeypatch.setattr(thresholds, "_HEADS", 1)
    monkeypatch.setattr(thresholds, "_CALLS", 1)


@pytest.mark.usefixtures("_metal")
def test_where_padding_and_blocks_pay_is_measured() -> None:
    found = thresholds.thresholds(mx.float32, tokens=64, runs=1)
    for name, sizes, built_in in (("padding", [64, 256], gpu.PADDED_FROM), ("blocks", [4, 5], gpu.BLOCKS_FROM)):
        one = found[name]
        assert [*one["speedup"]] == sizes and all(ratio > 0 for ratio in one["speedup"].values())
        assert one["used_from"] == built_in and one["pays_from"] == thresholds.pays_from(one["speedup"])


@pytest.mark.usefixtures("_metal")
@pytest.mark.parametrize(("make", "size"), [(thresholds._padding, 64), (thresholds._blocks, 5)])
def test_both_ways_that_are_compared_compute_the_same(make: Any, size: int) -> None:
    q, (one, other) = make(mx.float32, 64, size)
    assert np.array(other(q)) == pytest.approx(np.array(one(q)), abs=1e-4)
    mx.export_to_dot(sink := io.StringIO(), one(q))
    mx.export_to_dot(changed := io.StringIO(), other(q))
    assert sink.getvalue() != changed.getvalue()


@pytest.mark.parametrize(
    ("speedups", "size"), [({4: 0.5, 8: 1.1, 16: 2.0}, 8), ({4: 1.1, 8: 0.9, 16: 1.2}, 16), ({4: 2.0, 8: 1.0}, None)]
)
def test_from_where_on_something_pays(speedups: dict[int, float], size: int | None) -> None:
    assert thresholds.pays_from(speedups) == size


class Fake:
    """A process that measures nothing."""

    def __init__(self, **facts: Any) -> None:
        sizes = {"most": 8, "per_token": 1, "per_score": 1, "spans": [None], "limit": 1.0, "dtype": "float16"}
        self.start, self.facts = 0.1, {**sizes, "machine": {}, **facts}

    def ask(self, shape: Any) -> dict[str, Any]:
        return {"seconds": 1.0, "memory": 1}


@pytest.mark.parametrize("measured", [None, {"padding": {}}])
def test_thresholds_are_in_the_report_where_there_is_a_gpu(
    measured: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_PAUSE", 0)
    found = measure._measured({"mlxbert": Fake(thresholds=measured)}, 1)  # type: ignore[dict-item]
    assert found.get("thresholds") == measured and ("thresholds" in found) == (measured is not None)


@pytest.mark.slow
def test_the_peak_is_that_of_this_process() -> None:
    code = "from mlxbert.bench.worker import peak_memory; print(peak_memory())"
    held = bytearray(2**29)
    held[:: 2**12] = b"x" * (2**29 // 2**12)  # a child of a large process would begin with its peak
    assert 2**20 < int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) < 2**28


@pytest.mark.slow
def test_torch_is_measured_without_the_blas_of_mlxbert() -> None:
    heavy = {"mlx.core", "mlxbert.machine.blas", "mlxbert.machine.device"}
    code = f"import sys, mlxbert.bench.worker; print({heavy} & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert found.strip() == "set()"


@pytest.mark.slow
def test_a_model_is_measured_beside_torch(tiny_folder: Path) -> None:
    pytest.importorskip("torch")
    found = bench(tiny_folder, against="torch", rounds=1, dtype="float32", device="cpu")
    assert [one["shape"] for one in found["speeds"]] == ["32 x 32", "mixed"]  # what the model takes
    assert "thresholds" not in found  # of GPUs
    mixed = found["speeds"][-1]
    model = mlxbert.load(tiny_folder)
    assert mixed["tokens"] == sum(lengths(model.config.max_length))
    for side in ("mlxbert", "torch"):
        assert 0 < mixed[side]["slowest"] <= mixed[side]["tokens_per_second"] <= mixed[side]["fastest"]
        assert found["memory"][side] > 2**20 and 0 < found["start"][side] < 600
    ratio = mixed["mlxbert"]["tokens_per_second"] / mixed["torch"]["tokens_per_second"]
    assert mixed["ratio"] == pytest.approx(ratio, abs=0.01)
    assert mixed["mlxbert"]["share"] == pytest.approx(mixed["mlxbert"]["gflops"] / found["limit"], abs=0.01)
    assert (
        line(found).count("|") == 11
        and line(found).count("\N{EN DASH}") == 2
        and f"({mixed['ratio']:.2f})" in line(found)
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_training_is_measured_beside_torch(dtype: str, tiny_folder: Path) -> None:
    pytest.importorskip("torch")
    found = bench(tiny_folder, against="torch", train=True, rounds=1, dtype=dtype, device="cpu")
    assert (
        found["train"] and found["dtype"] == dtype and [one["shape"] for one in found["speeds"]] == ["32 x 32", "mixed"]
    )
    mixed = found["speeds"][-1]
    assert mixed["tokens"] == sum(lengths(mlxbert.load(tiny_folder).config.max_length)[:32])  # one batch
    for side in ("mlxbert", "torch"):
        step = mixed[side]
        assert step["tokens_per_second"] == pytest.approx(mixed["tokens"] / step["seconds"], rel=0.05)
        assert step["network"] + step["update"] == pytest.approx(step["seconds"], abs=2e-4)
        assert step["network"] > 0 < step["update"] and step["busy"] > 0 and found["memory"][side] > 2**20
    assert mixed["ratio"] == pytest.approx(mixed["torch"]["seconds"] / mixed["mlxbert"]["seconds"], rel=0.05)


@pytest.mark.slow
def test_a_step_of_training_counts_three_times_the_products_of_a_pass(tiny_folder: Path) -> None:
    facts = [worker._ours(tiny_folder, "float32", "cpu", train)[1]() for train in (False, True)]
    for name in ("per_token", "per_score"):
        assert facts[1][name] == 3 * facts[0][name] > 0


@pytest.mark.slow
def test_the_terminal_shows_where_the_time_of_a_step_goes(tiny_folder: Path) -> None:
    outcome, shown = terminal("bench", "--train", "--rounds", "1", "--model", str(tiny_folder))
    assert outcome.status == 0 and "update" in shown and "cores wait" in shown
    assert "| cpu |" not in shown  # the row of a table of encoders


@pytest.mark.slow
def test_the_terminal_shows_a_table_and_a_line_to_paste(tiny_folder: Path) -> None:
    outcome, shown = terminal("bench", "--rounds", "1", "--model", str(tiny_folder))
    assert outcome.status == 0 and "mixed" in shown and "GFLOP/s" in shown and "float32" in shown


@pytest.mark.slow
def test_a_worker_that_fails_says_why(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.bench.measure.save", lambda model, folder: folder.mkdir())
    with pytest.raises(mlxbert.MlxbertError, match=r"mlxbert failed: .*config\.json"):
        bench(tiny_folder, rounds=1)
