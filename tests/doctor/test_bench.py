"""`mlxbert bench`: what is measured, of torch as of mlxbert, and what is shown of it; GPUs are imitated."""

import dataclasses
import importlib
import io
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

import mlxbert
from mlxbert.doctor import bench as measure, torch_peer, training_steps, worker
from mlxbert.doctor.bench import bench
from mlxbert.doctor.training_steps import Clock, Step, our_classifier, our_step, token_ids
from mlxbert.doctor.views import bench_line
from mlxbert.doctor.worker_job import OURS, PASSES, PEER, UPDATE, MeasuredLibrary, Spent, WorkerJob
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.machine.kernel_cache import VARIABLE
from mlxbert.model import Model
from mlxbert.nn import gpu_attention
from mlxbert.train.loop.training_run import Run
from mlxbert.weights.build import parameters
from mlxbert.weights.model_source import ModelRef
from tests.helpers.measured import measured
from tests.helpers.program import call, terminal


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"jax.*torch"):
        bench(against="jax")
    with pytest.raises(ArgumentError, match="`rounds` is 0"):
        bench(rounds=0)
    call("bench", "--against", "jax").fails(2, "jax", "torch")
    call("bench", "--model", "/nowhere").fails(1, "/nowhere")


@pytest.fixture
def thresholds(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark of where padding and blocks pay on a GPU, with few sizes."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    module = importlib.import_module("thresholds")
    monkeypatch.setattr("mlxbert.nn.ops.on_gpu", lambda: True)
    monkeypatch.setattr(gpu_attention, "on_metal", lambda: True)
    for name, value in {"KEYS": (64, 256), "BLOCKS": (4, 5), "_HEADS": 1, "_CALLS": 1}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_where_padding_and_blocks_pay_is_measured(thresholds: Any) -> None:
    found = thresholds.thresholds(mx.float32, tokens=64, runs=1)
    used_from = {"padding": gpu_attention.PADDED_FROM, "blocks": gpu_attention.BLOCKS_FROM}
    for name, sizes in (("padding", [64, 256]), ("blocks", [4, 5])):
        one = found[name]
        assert [*one["speedup"]] == sizes and all(ratio > 0 for ratio in one["speedup"].values())
        assert one["used_from"] == used_from[name] and one["pays_from"] == thresholds.pays_from(one["speedup"])
    pays = [thresholds.pays_from({4: four, 8: eight, 16: 1.2}) for four, eight in ((0.5, 1.1), (1.1, 0.9))]
    assert pays == [8, 16] and thresholds.pays_from({4: 2.0, 8: 1.0}) is None
    for make, size in ((thresholds._padding, 64), (thresholds._blocks, 5)):  # both ways compute the same
        q, (first, other) = make(mx.float32, 64, size)
        assert np.array(other(q)) == pytest.approx(np.array(first(q)), abs=1e-4)
        mx.export_to_dot(sink := io.StringIO(), first(q))
        mx.export_to_dot(changed := io.StringIO(), other(q))
        assert sink.getvalue() != changed.getvalue()


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


def test_speeds_are_those_of_a_median_round_and_memory_is_measured_around_many_lengths(fakes: dict[str, Fake]) -> None:
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
    encoding = measure._encoding(JOB, [OURS, PEER], {"4 x 8": [8] * 4}, 1, 512)
    more, (last, _) = encoding["many_lengths"], fakes[OURS].asked[-1]
    assert encoding["process_memory_bytes"] == {side: {"resident": 7, "footprint": 32} for side in fakes}
    assert more["process_memory_bytes"] == {side: {"resident": 7, "footprint": 512} for side in fakes} and last == 1
    assert (more["texts"], more["lengths"]) == (1000, 512)
    on_cpu = measure._encoding(dataclasses.replace(JOB, device="cpu"), [OURS], {"4 x 8": [8] * 4}, 1, 512)
    assert (on_cpu["many_lengths"]["texts"], on_cpu["many_lengths"]["lengths"]) == (100, 100)


@pytest.mark.parametrize("train", [False, True])
def test_the_facts_do_nothing_that_the_first_step_has_to_do(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_failed_training_leaves_other_speeds(
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
def test_torch_is_measured_without_the_blas_of_mlxbert_and_the_peak_is_that_of_the_process() -> None:
    heavy = {"mlx.core", "mlxbert.cpu.blas", "mlxbert.machine.device"}
    code = "import sys; from mlxbert.doctor.worker import peak_memory, process_memory; "
    code += f"print(process_memory()['resident'], peak_memory(), {heavy} & {{*sys.modules}})"
    held = bytearray(2**29)
    held[:: 2**12] = b"x" * (2**29 // 2**12)  # a child of a large process would begin with its peak
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    now, peak, loaded = run.stdout.split()
    assert 2**20 < int(now) <= int(peak) < 2**28 and loaded == "set()"


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_model_is_measured_beside_torch(dtype: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(measure, "PASSES", ((3, 8), (2, 30)))
    monkeypatch.setattr(measure, "UPDATE", (4, 16))
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
def test_a_step_of_training_counts_three_times_the_products_of_a_pass(tiny_folder: Path) -> None:
    before = mx.get_active_memory()
    jobs = [WorkerJob(str(tiny_folder), OURS, "float32", "cpu", train) for train in (False, True)]
    encoding, training = [worker._ours(job).facts() for job in jobs]
    assert mx.get_peak_memory() < before + 2**20  # without the matrices of the limit, 4 MB each
    assert all(training[name] == 3 * encoding[name] > 0 for name in ("per_token", "per_score"))


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


GPUS = ("mps", "cuda")


class Log:
    """Whatever a torch and its clock are asked for, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, available: str = "") -> None:
        self.calls, self.torch = Mock(), MagicMock()
        self.torch.__version__ = "2.13.0"
        self.torch.backends.mps.is_available.return_value = available == "mps"
        self.torch.cuda.is_available.return_value = available == "cuda"
        self.calls.attach_mock(self.torch, "torch")
        self.calls.clock.side_effect = itertools.count(1.0)
        clock = SimpleNamespace(perf_counter=self.calls.clock, process_time=lambda: 0.0)
        monkeypatch.setattr(training_steps, "time", clock)
        monkeypatch.setattr(torch_peer, "time", clock)
        monkeypatch.setitem(sys.modules, "torch", self.torch)

    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls.mock_calls]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


Prepare = Callable[[Log, str], Callable[[], object]]


def _trained(log: Log, device: str) -> Callable[[], object]:
    model = log.torch.model
    model.parameters.return_value = [SimpleNamespace(requires_grad=True, device=SimpleNamespace(type=device))]
    return training_steps.their_step(model, [{"input_ids": 1}], "float16")


def _encoded(log: Log, device: str) -> Callable[[], object]:
    model = log.torch.model
    model.device = SimpleNamespace(type=device)
    return torch_peer._pass(model, [[1, 2]])


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("make", [_trained, _encoded])
def test_a_gpu_has_nothing_left_to_compute_when_a_clock_is_read(make: Prepare, device: str, log: Log) -> None:
    step = make(log, device)
    log.calls.reset_mock()
    found = step()
    names, waits = log.names(), f"torch.{device}.synchronize"
    first, last = names.index("clock"), len(names) - 1 - names[::-1].index("clock")
    computed = [number for number, name in enumerate(names) if name == "torch.model"]
    assert names[first - 1] == names[last - 1] == waits and names.count(waits) == 2
    assert len(computed) == 1 and first < computed[0] < last - 1
    assert not [name for name in names[last:] if name != "clock"]
    assert isinstance(found, dict) and {*found} == {"seconds"}  # a GPU would have to be waited for between its parts
    log.calls.reset_mock()
    make(log, "cpu")()
    assert not [name for name in log.names() if "synchronize" in name]


@pytest.mark.parametrize(("available", "device", "name"), [
    ("mps", "gpu", "mps"), ("cuda", "gpu", "cuda"), ("mps", "cpu", "cpu"), ("cuda", "cpu", "cpu"), ("", "cpu", "cpu"),
])  # fmt: skip
def test_torch_computes_on_the_kind_of_device_that_mlxbert_does(
    available: str, device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = Log(monkeypatch, available).torch
    assert torch_peer.device_name(torch, device) == name
    if not available:
        with pytest.raises(MlxbertError, match=r"torch 2\.13\.0 finds no GPU") as caught:
            torch_peer.device_name(torch, "gpu")
        assert caught.value.hint is not None and "device='cpu'" in caught.value.hint


def test_precision_of_torch_is_that_of_mlxbert_and_memory_what_torch_counts(log: Log) -> None:
    for tf32 in (False, True):
        torch_peer.match_precision(log.torch, tf32=tf32)
        assert log.torch.backends.cuda.matmul.allow_tf32 is tf32 and log.torch.backends.cudnn.allow_tf32 is tf32
    assert torch_peer.device_memory(log.torch, "cuda") == (log.torch.cuda.max_memory_allocated, "arrays")
    assert torch_peer.device_memory(log.torch, "mps") == (log.torch.mps.driver_allocated_memory, "arrays and cache")
    assert torch_peer.device_memory(log.torch, "cpu") == (None, "process")


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("device", GPUS)
def test_model_and_inputs_are_on_the_gpu_in_the_dtype_of_mlxbert(
    device: str, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, transformers = Log(monkeypatch, device), MagicMock()
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setattr(torch_peer, "version", lambda package: "5.23.0")
    monkeypatch.setattr(torch_peer, "check_training", lambda torch, device, dtype: log.calls.checked(device, dtype))
    side = torch_peer.torch_side(WorkerJob("folder", PEER, "float16", "gpu", train))
    made = (transformers.AutoModelForSequenceClassification if train else transformers.AutoModel).from_pretrained
    made.assert_called_once_with("folder", dtype=log.torch.float32 if train else log.torch.float16)
    made.return_value.to.assert_called_once_with(device)
    assert side.facts() == {"peer": {"torch": "2.13.0", "transformers": "5.23.0", "device": device}}
    assert side.memory is torch_peer.device_memory(log.torch, device)[0]
    assert log.torch.backends.cuda.matmul.allow_tf32 is False
    assert not log.calls.checked.called  # it would do some of what the first update has to do
    monkeypatch.setattr(torch_peer, "token_ids", lambda *given: [[]])
    monkeypatch.setattr(torch_peer, "their_classifier", lambda *given: [])
    monkeypatch.setattr(torch_peer, "their_step", lambda *given: lambda: log.calls.stepped() and {"seconds": 1.0})
    monkeypatch.setattr(torch_peer, "_pass", lambda *given: lambda: log.calls.stepped() and {"seconds": 1.0})
    log.calls.reset_mock()
    for lengths in ([8], [8], [9]):
        side.compute(lengths)
    expected = ["stepped", "checked", "stepped", "stepped"] if train else ["stepped"] * 3
    assert [name for name in log.names() if name in ("stepped", "checked")] == expected
    if train:
        log.calls.checked.assert_called_once_with(device, "float16")


def _half(log: Log, dtype: str) -> Any:
    """A torch whose layers give arrays of this dtype under autocast."""
    log.torch.float32, log.torch.float16, log.torch.bfloat16 = "torch.float32", "torch.float16", "torch.bfloat16"
    log.torch.nn.Linear.return_value.return_value.dtype = f"torch.{dtype}"
    return log.torch


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_training_is_tried_in_its_dtype(dtype: str, log: Log) -> None:
    torch_peer.check_training(_half(log, dtype), "mps", dtype)
    log.torch.autocast.assert_called_once_with("mps", f"torch.{dtype}", enabled=dtype != "float32")
    log.torch.amp.GradScaler.assert_called_once_with("mps", enabled=dtype == "float16")


def test_training_that_torch_cannot_do_is_refused(log: Log) -> None:
    with pytest.raises(MlxbertError, match=r"cannot train in float16 on mps \(autocast computes in float32") as caught:
        torch_peer.check_training(_half(log, "float32"), "mps", "float16")
    assert caught.value.hint is not None and "dtype='float32'" in caught.value.hint
    torch = _half(log, "float16")
    torch.amp.GradScaler.return_value.unscale_.side_effect = TypeError("Cannot convert a MPS Tensor to float64\nUse …")
    with pytest.raises(MlxbertError, match=r"in float16 on mps \(Cannot convert a MPS Tensor to float64\)\n"):
        torch_peer.check_training(torch, "mps", "float16")


@pytest.mark.slow
def test_a_real_torch_has_what_the_imitated_ones_are_asked_for() -> None:
    torch = pytest.importorskip("torch")
    for device in GPUS:
        assert attrgetter(f"{device}.synchronize")(torch) and callable(torch_peer.device_memory(torch, device)[0])
    assert {torch.cuda.is_available(), torch.backends.mps.is_available()} <= {False, True}
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [flag.allow_tf32 for flag in flags]
    try:
        for tf32 in (True, False):
            torch_peer.match_precision(torch, tf32=tf32)
            assert [flag.allow_tf32 for flag in flags] == [tf32] * 2
    finally:
        for flag, value in zip(flags, before, strict=True):
            flag.allow_tf32 = value


LENGTHS = (5, 9, 7)


@pytest.fixture
def model(tiny_folder: Path) -> Model:
    return mlxbert.load(tiny_folder, new_heads={"sequence_classifier": Labels(("a", "b"))}, dtype="float32")


def ids_of(model: Model) -> list[list[list[int]]]:
    return token_ids(LENGTHS, model.config.vocab_size, model.config.pad_token_id)


def test_batches_have_the_lengths_asked_for_and_no_padding_among_the_words() -> None:
    found = token_ids(LENGTHS, 50, pad_id=3)
    assert len(found) == training_steps.BATCHES and all([*map(len, batch)] == [*LENGTHS] for batch in found)
    words = [word for batch in found for row in batch for word in row]
    assert {*words} <= {*range(50)} - {3} and found == token_ids(LENGTHS, 50, pad_id=3) and found[0] != found[1]


@pytest.mark.slow
def test_both_sides_get_the_same_batches(model: Model) -> None:
    pytest.importorskip("torch")
    ids, pad = ids_of(model), model.config.pad_token_id
    objective, batches = our_classifier(model, ids)
    for examples, theirs in zip(batches, training_steps.their_classifier(ids, pad), strict=True):
        ours = objective.collate(examples, None)
        assert ours.inputs.attention_mask is not None and ours.targets.tolist() == theirs["labels"].tolist()
        masks = np.array(ours.inputs.attention_mask), theirs["attention_mask"]
        assert [mask.sum(1).tolist() for mask in masks] == [[*LENGTHS]] * 2
        for row, (length, expected) in enumerate(zip(LENGTHS, theirs["input_ids"].tolist(), strict=True)):
            assert np.array(ours.inputs.input_ids)[row, :length].tolist() == expected[:length]


def test_every_step_is_an_update(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(model)
    objective, batches = our_classifier(model, ids)
    seen: list[list[int]] = []
    collate = objective.collate

    def noted(examples: Sequence[mlxbert.Example], rng: object) -> object:
        seen.extend(example.encoding.ids for example in examples)
        return collate(examples, rng)

    monkeypatch.setattr(objective, "collate", noted)
    before = {name: np.array(array) for name, array in parameters(model.network).items()}
    step = our_step(model, objective, batches, "float32")
    found = [step() for _ in range(training_steps.BATCHES + 1)]  # they come again
    assert sorted(seen) == sorted(row for batch in [*ids, ids[0]] for row in batch)
    for one in found:
        assert one["network"] > 0 and one["update"] > 0
        assert one["network"] + one["update"] == pytest.approx(one["seconds"])
    changed = {name for name, array in parameters(model.network).items() if not np.array_equal(array, before[name])}
    assert "heads.sequence_classifier.out.weight" in changed and any("layers.0" in name for name in changed)


def test_each_step_of_a_gpu_is_one_update_that_is_waited_for(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop starts an update before it finishes the one before it; the first is measured alone."""
    for name, loaded in [*sys.modules.items()]:
        if name.partition(".")[0] == "mlxbert" and "on_gpu" in vars(loaded):
            monkeypatch.setattr(loaded, "on_gpu", lambda: True)
    calls: list[str] = []

    def noted(name: str, right: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            calls.append(name)
            return right(*given)

        return call

    for owner, name in ((Clock, "__init__"), (Clock, "spent"), (Run, "_start"), (mx, "synchronize")):
        monkeypatch.setattr(owner, name, noted(name, getattr(owner, name)))
    mx.disable_compile()
    try:
        step = our_step(model, *our_classifier(model, ids_of(model)), "float32")
        found = [step() for _ in range(4)]
    finally:
        mx.enable_compile()
    update = ["__init__", "_start", "synchronize", "spent"]
    assert calls == [*update, "_start", "_start", "synchronize", *update * 3]
    assert all({*one} == {"seconds"} for one in found)


def test_a_check_follows_the_first_step_and_says_why_it_fails() -> None:
    done: list[str] = []

    def step() -> Spent:
        done.append("step")
        return {"seconds": 1.0}

    checks: list[Callable[[], None]] = [lambda: done.append("check")]
    for _ in range(2):
        made = training_steps.checked(step, checks)
        assert made() == made() == {"seconds": 1.0}
    assert done == ["step", "check", "step", "step", "step"]

    def refused() -> None:
        raise mlxbert.MlxbertError("torch cannot train in float16")

    for fails in (step, lambda: {"seconds": 1 / 0}):
        with pytest.raises(mlxbert.MlxbertError, match="cannot train in float16"):
            training_steps.checked(fails, [refused])()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_updates_all_weights(dtype: str, model: Model, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForSequenceClassification

    mlxbert.save(model, tmp_path / "saved")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", dtype=torch.float32).train()
    before = {name: one.detach().clone() for name, one in theirs.named_parameters()}
    torch_peer.check_training(torch, "cpu", dtype)
    batches = training_steps.their_classifier(ids_of(model), model.config.pad_token_id)
    step = training_steps.their_step(theirs, batches, dtype)
    found = step()
    assert found["network"] + found["update"] == pytest.approx(found["seconds"])
    assert all(not torch.equal(one, before[name]) for name, one in theirs.named_parameters())


def test_what_a_step_needed_is_freed_before_another_shape_is_measured() -> None:
    alive: set[int] = set()

    class Held:
        def __init__(self, size: int) -> None:
            assert not alive
            alive.add(size)
            self.size = size

        def __del__(self) -> None:
            alive.discard(self.size)

    made: list[int] = []

    def make(lengths: Sequence[int]) -> Step:
        made.append(len(lengths))
        held = Held(len(lengths))
        return lambda: {"seconds": float(held.size)}

    measure: Callable[[Sequence[int]], Spent] = training_steps.measured(make)
    assert [measure([8] * count)["seconds"] for count in (1, 2, 2, 1)] == [1, 2, 2, 1] and made == [1, 2, 1]


def test_the_parts_of_a_step_add_up_and_cores_that_wait_are_not_busy() -> None:
    clock = Clock()
    time.sleep(0.05)
    found = clock.spent(time.perf_counter())
    assert found["network"] + found["update"] == pytest.approx(found["seconds"]) and found["busy"] < 0.9
    assert {*Clock().spent(None)} == {"seconds"}


TABLE = Path(__file__).parents[2] / "benchmarks" / "machines.md"


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def test_the_row_to_share_has_the_columns_of_the_table() -> None:
    header, *_ = [_cells(row) for row in TABLE.read_text().splitlines() if row.startswith("| machine")]
    cells = dict(zip(header, _cells(bench_line(measured())), strict=True))
    assert cells["dtype"] == "float16, training float32" and cells["mlxbert"] == "0.1.0"
    assert cells["torch"] == "chip on mps" and cells["layers x width"] == "6 x 384"
    assert [cells[f"{tokens} tokens"] for tokens in (32, 128, 300)] == ["12.5 (2.50)"] * 3
    assert cells["first update"] == "0.41 s (2.00)" and cells["updates per s"] == "12.5 (2.50)"
    assert cells["one text of 512 tokens"] == "500 ms (2.50)"
    assert cells["machine"].endswith("Battery Power, low power, thermal pressure nominal → heavy")
    assert cells["start"] == "0.30 s (20.00)" and cells["memory"] == cells["memory, training"] == "0.25 GB"
    rows = [_cells(row) for row in TABLE.read_text().split("\n\n## ")[0].splitlines() if row.startswith("|")]
    assert len(rows) >= 2 and {len(row) for row in rows} == {len(cells)}


def test_what_was_not_measured_is_a_dash_and_what_a_machine_does_not_say_is_left_out() -> None:
    report = measured(peer=False) | {"training": {"problem": "too little memory"}}
    report["encoding"]["speeds"].pop()
    cells = _cells(bench_line(report))
    assert cells.count("\N{EN DASH}") == 5 and cells[2] == "float16"  # torch, 512 tokens, and three of training
    assert "(" not in bench_line(measured(peer=False))
    for state in ({}, dict.fromkeys(("power_source", "energy_mode", "thermal_pressure"))):
        report = {**measured(), "power": {"start": state, "end": state}}
        assert _cells(bench_line(report))[0] == "chip, chip cores"
