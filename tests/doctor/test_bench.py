"""`mlxbert bench`: what is measured, and that it is measured."""

import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.doctor import bench as measure, worker
from mlxbert.doctor.bench import bench
from mlxbert.doctor.worker_job import OURS, PASSES, PEER, UPDATE, MeasuredLibrary, WorkerJob
from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.machine.kernel_cache import VARIABLE
from mlxbert.nn import gpu_attention
from mlxbert.weights.model_source import ModelRef
from tests.helpers.program import call, terminal

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import thresholds


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"jax.*torch"):
        bench(against="jax")
    with pytest.raises(ArgumentError, match="`rounds` is 0"):
        bench(rounds=0)
    call("bench", "--against", "jax").fails(2, "jax", "torch")
    call("bench", "--model", "/nowhere").fails(1, "/nowhere")


@pytest.fixture
def _metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.nn.ops.on_gpu", lambda: True)
    monkeypatch.setattr(gpu_attention, "on_metal", lambda: True)
    monkeypatch.setattr(thresholds, "KEYS", (64, 256))
    monkeypatch.setattr(thresholds, "BLOCKS", (4, 5))
    monkeypatch.setattr(thresholds, "_HEADS", 1)
    monkeypatch.setattr(thresholds, "_CALLS", 1)


@pytest.mark.usefixtures("_metal")
def test_where_padding_and_blocks_pay_is_measured() -> None:
    found = thresholds.thresholds(mx.float32, tokens=64, runs=1)
    for name, sizes, built_in in (
        ("padding", [64, 256], gpu_attention.PADDED_FROM),
        ("blocks", [4, 5], gpu_attention.BLOCKS_FROM),
    ):
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


def test_from_where_on_something_pays() -> None:
    found = [thresholds.pays_from({4: four, 8: eight, 16: 1.2}) for four, eight in ((0.5, 1.1), (1.1, 0.9))]
    assert found == [8, 16] and thresholds.pays_from({4: 2.0, 8: 1.0}) is None


class Fake:
    """A worker that measures nothing."""

    def __init__(self, seconds: float = 2.0, **facts: Any) -> None:
        sizes = {"per_token": 1, "per_score": 1, "spans": [None], "limit": 1.0, "dtype": "float16"}
        sizes |= {"kernels_kept": None}
        self.start, self.peak, self.facts = 0.1, 5, {**sizes, "machine": {}, "memory_of": "arrays", **facts}
        self.memory: dict[str, int] = {}
        self._seconds = seconds
        self.asked: list[tuple[int, float]] = []

    def ask(self, lengths: Sequence[int], least: float = 0.0) -> dict[str, float]:
        self.asked.append((len(lengths), least))
        self.memory = {"resident": 7, "footprint": sum(lengths)}
        return {"seconds": self._seconds}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fake]:
    """Workers of both sides in place of processes, without pauses."""
    found = {OURS: Fake(), PEER: Fake(5.0, peer={"torch": "2.13.0", "transformers": "5.23.0", "device": "mps"})}
    monkeypatch.setattr(measure, "_PAUSE", 0)
    heat = iter(("nominal", "heavy"))
    monkeypatch.setattr("mlxbert.doctor.mac_state.power_state", lambda: {"thermal_pressure": next(heat)})
    monkeypatch.setattr(measure, "_workers", lambda job, sides: nullcontext({side: found[side] for side in sides}))
    return found


JOB = WorkerJob("folder", OURS, "float16", "gpu")


def test_texts_and_updates_per_second_are_those_of_a_median_round(fakes: dict[str, Fake]) -> None:
    shapes = {"4 x 8": [8] * 4, "mixed": [3, 5]}
    encoding = measure._encoding(JOB, [OURS, PEER], shapes, 3, 8)
    even, mixed = encoding["speeds"]
    assert (even["texts"], even["tokens_per_text"], even["tokens"]) == (4, 8, 32)
    assert (mixed["texts"], mixed["tokens_per_text"], mixed["tokens"]) == (2, None, 8)
    assert even[OURS]["texts_per_second"] == 2 and even[OURS]["tokens_per_second"] == 16
    assert even[PEER]["texts_per_second"] == 0.8 and even["ratio"] == 2.5
    assert encoding["start_seconds"] == {OURS: 0.1, PEER: 0.1} and encoding["peer"]["device"] == "mps"
    first = [(4, measure._MIN_SECONDS)] * 4 + [(2, measure._MIN_SECONDS)] * 4  # a round warms up
    assert fakes[OURS].asked == first + [(1, 0.0)] * 1000
    del fakes[OURS].asked[:]
    training = measure._training(JOB, [OURS, PEER], {"4 x 8": [8] * 4}, 1)
    assert training["speeds"][0][OURS]["updates_per_second"] == 0.5 and training["speeds"][0]["ratio"] == 2.5
    assert training["first_update_seconds"] == {OURS: 2.0, PEER: 5.0}  # asked for first, and once
    assert fakes[OURS].asked == [(4, 0.0), (4, measure._MIN_SECONDS), (4, measure._MIN_SECONDS)]


def test_memory_is_measured_before_and_after_texts_of_many_lengths(fakes: dict[str, Fake]) -> None:
    encoding = measure._encoding(JOB, [OURS, PEER], {"4 x 8": [8] * 4}, 1, 512)
    more, (last, _) = encoding["many_lengths"], fakes[OURS].asked[-1]
    assert encoding["process_memory_bytes"] == {side: {"resident": 7, "footprint": 32} for side in fakes}
    assert more["process_memory_bytes"] == {side: {"resident": 7, "footprint": 512} for side in fakes} and last == 1
    assert (more["texts"], more["lengths"]) == (1000, 512)
    on_cpu = measure._encoding(dataclasses.replace(JOB, device="cpu"), [OURS], {"4 x 8": [8] * 4}, 1, 512)
    assert (on_cpu["many_lengths"]["texts"], on_cpu["many_lengths"]["lengths"]) == (100, 100)


@pytest.mark.parametrize("train", [False, True])
def test_the_facts_do_nothing_that_the_first_step_of_training_has_to_do(
    train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: Any = []

    def noted(name: str, result: dict[str, Any]) -> Any:
        return lambda *given: done.append(name) or result

    library = MeasuredLibrary(noted("step", {"seconds": 1.0}), noted("facts", {"dtype": "float32"}), lambda: 7)
    monkeypatch.setattr(worker, "torch_side", lambda job: library)
    monkeypatch.setattr(worker, "process_memory", lambda: {"resident": 9})
    monkeypatch.setattr("sys.stdin", ['{"lengths": [8], "least": 0}\n'] * 2)
    said: list[dict[str, Any]] = []
    worker._serve(WorkerJob("folder", PEER, "float32", "cpu", train), said.append)
    assert done == (["step", "facts", "step"] if train else ["step", "facts", "step", "step"])
    answer = {"seconds": 1.0, "memory": 7, "process_memory": {"resident": 9}}
    about = {"dtype": "float32", "memory_of": "process"}
    assert said == ([{}, answer, about, answer] if train else [{}, about, answer, answer])


@pytest.mark.parametrize(("files", "kept"), [(["a.ptx", "a.txt"], True), (["built-training"], False), ([], False)])
def test_kernels_of_earlier_processes_are_a_fact_of_cuda(
    files: list[str], kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fakes: dict[str, Fake]
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert worker.kernels_kept() is None  # a CPU
    monkeypatch.setattr("mlxbert.machine.device.on_cuda", lambda: True)
    assert worker.kernels_kept() is kept
    fakes[OURS].facts["kernels_kept"] = kept
    assert measure._training(JOB, [OURS, PEER], {"4 x 8": [8] * 4}, 1)["kernels_kept"] is kept
    monkeypatch.delenv(VARIABLE)
    assert worker.kernels_kept() is None  # MLX has a folder of its own


def test_shapes_that_the_model_does_not_take_are_left_out(tiny: mlxbert.Model) -> None:
    assert [*measure._shapes(PASSES, tiny.config)] == ["32 x 32"]
    assert "1 x 512" in measure._shapes(PASSES, mlxbert.load("builtin").config)
    with pytest.raises(mlxbert.MlxbertError, match="128 tokens"):
        measure._training(JOB, [OURS], measure._shapes([UPDATE], tiny.config), 1)


def test_training_that_fails_leaves_the_speeds_of_encoding(
    tiny_folder: Path, fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> dict[str, Any]:
        raise mlxbert.DeviceError("too little memory")

    monkeypatch.setattr(measure, "_training", fails)
    monkeypatch.setattr(measure, "_check_peer", lambda name: None)  # torch need not be installed
    found = bench(tiny_folder, against="torch", rounds=1)
    assert found["training"] == {"problem": "too little memory"} and found["peer"]["torch"] == "2.13.0"
    assert [one["shape"] for one in found["encoding"]["speeds"]] == ["32 x 32"]
    assert [found["power"][name]["thermal_pressure"] for name in ("start", "end")] == ["nominal", "heavy"]


@pytest.mark.parametrize("tf32", [False, True])
def test_both_sides_have_the_same_device_dtype_and_precision(
    tf32: bool, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxbert.machine.device.tf32", lambda: tf32)
    ref = ModelRef(tiny_folder, None, None, False, "bfloat16", "cpu")
    job, config = measure._prepare(ref, tmp_path / "saved", train=True)
    assert job == WorkerJob(str(tmp_path / "saved"), OURS, "bfloat16", "cpu", train=True, tf32=tf32)
    assert WorkerJob(**json.loads(job.to_json())) == job and config.hidden_size == 24
    assert "sequence_classifier" in mlxbert.load(job.folder).network.heads


def test_a_pass_is_repeated_until_it_took_long_enough() -> None:
    asked: list[Sequence[int]] = []

    def compute(lengths: Sequence[int]) -> dict[str, float]:
        asked.append(lengths)
        return {"seconds": 0.1 * len(asked), "network": 1.0}

    assert worker.repeated(compute, [8], 0.25) == pytest.approx({"seconds": 0.15, "network": 1.0}) and len(asked) == 2
    assert worker.repeated(compute, [8], 0.0)["seconds"] == pytest.approx(0.3) and len(asked) == 3


@pytest.mark.slow
def test_the_peak_is_that_of_this_process() -> None:
    code = (
        "from mlxbert.doctor.worker import peak_memory as peak, process_memory as now; print(peak(), now()['resident'])"
    )
    held = bytearray(2**29)
    held[:: 2**12] = b"x" * (2**29 // 2**12)  # a child of a large process would begin with its peak
    now, peak = map(int, subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split())
    assert 2**20 < now <= peak < 2**28


@pytest.mark.slow
def test_torch_is_measured_without_the_blas_of_mlxbert() -> None:
    heavy = {"mlx.core", "mlxbert.cpu.blas", "mlxbert.machine.device"}
    code = f"import sys, mlxbert.doctor.worker; print({heavy} & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert found.strip() == "set()"


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that a tiny model takes."""
    monkeypatch.setattr(measure, "PASSES", ((3, 8), (2, 30)))
    monkeypatch.setattr(measure, "UPDATE", (4, 16))


@pytest.mark.slow
@pytest.mark.usefixtures("_short")
@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_model_is_measured_beside_torch(dtype: str, tiny_folder: Path) -> None:
    pytest.importorskip("torch")
    found = bench(tiny_folder, against="torch", rounds=1, dtype=dtype, device="cpu")
    assert found["machine"]["device"] == found["peer"]["device"] == "cpu"
    encoding, training = found["encoding"], found["training"]
    assert [one["shape"] for one in encoding["speeds"]] == ["3 x 8", "2 x 30"]
    assert [one["shape"] for one in training["speeds"]] == ["4 x 16"]
    for speed, unit in ((encoding["speeds"][-1], "texts"), (training["speeds"][0], "updates")):
        for side in (OURS, PEER):
            one = speed[side]
            assert 0 < one["fastest_seconds"] <= one["seconds"] <= one["slowest_seconds"]
            assert one[f"{unit}_per_second"] > 0 < one["tokens_per_second"]
        assert training["kernels_kept"] is None
        assert speed["ratio"] == pytest.approx(speed[PEER]["seconds"] / speed[OURS]["seconds"], abs=0.01)
    for side in (OURS, PEER):
        assert encoding["peak_memory_bytes"][side] > 2**20 < training["peak_memory_bytes"][side]
        assert encoding["peak_memory_of"][side] == training["peak_memory_of"][side] == "process"
        for memory in (encoding, training, encoding["many_lengths"]):
            assert memory["process_memory_bytes"][side]["resident"] > 2**20
        assert 0 < encoding["start_seconds"][side] < 600 and 0 < training["first_update_seconds"][side] < 600
    assert encoding["dtype"] == training["dtype"] == dtype


@pytest.mark.slow
def test_torch_without_a_gpu_is_not_compared_with_mlxbert_on_one(tiny_folder: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("torch finds a GPU")
    with pytest.raises(mlxbert.MlxbertError, match="finds no GPU") as caught:
        measure._BenchWorker(WorkerJob(str(tiny_folder), PEER, "float16", "gpu"))
    assert caught.value.hint is not None and "device='cpu'" in caught.value.hint


@pytest.mark.slow
def test_a_step_of_training_counts_three_times_the_products_of_a_pass(tiny_folder: Path) -> None:
    before = mx.get_active_memory()
    facts = [
        worker._ours(WorkerJob(str(tiny_folder), OURS, "float32", "cpu", train)).facts() for train in (False, True)
    ]
    assert mx.get_peak_memory() < before + 2**20  # without the matrices of the limit, 4 MB each
    for name in ("per_token", "per_score"):
        assert facts[1][name] == 3 * facts[0][name] > 0


@pytest.mark.slow
def test_the_terminal_shows_a_table_and_a_row_to_paste(tiny_folder: Path) -> None:
    outcome, shown = terminal("bench", "--rounds", "1", "--model", str(tiny_folder))
    assert outcome.status == 0 and "texts/s" in shown and "| cpu | float32 |" in outcome.err
    assert "training was not measured: the benchmark needs inputs of 128 tokens" in outcome.err


@pytest.mark.slow
def test_a_worker_that_fails_says_why(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.doctor.bench.save", lambda model, folder: folder.mkdir())
    with pytest.raises(mlxbert.MlxbertError, match=r"config\.json"):
        bench(tiny_folder, rounds=1)
