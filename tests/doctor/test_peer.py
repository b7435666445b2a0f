"""Torch next to mlxbert: its device, precision, memory, and what its clocks wait for; GPUs are imitated."""

import itertools
import sys
from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from mlxbert.doctor import torch_peer, training_steps
from mlxbert.doctor.worker_job import PEER, WorkerJob
from mlxbert.errors import MlxbertError
from tests.helpers.program import call

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
        """The names of what was called, of methods also those of what has them."""
        return [name for name, _, _ in self.calls.mock_calls]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """A torch that records what it is asked for."""
    return Log(monkeypatch)


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
def test_a_gpu_has_nothing_left_to_compute_when_a_clock_is_read(
    make: Callable[[Log, str], Callable[[], object]], device: str, log: Log
) -> None:
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


@pytest.mark.parametrize("make", [_trained, _encoded])
def test_a_cpu_is_not_waited_for(make: Callable[[Log, str], Callable[[], object]], log: Log) -> None:
    make(log, "cpu")()
    assert not [name for name in log.names() if "synchronize" in name]


@pytest.mark.parametrize(("available", "device", "name"), [
    ("mps", "gpu", "mps"), ("cuda", "gpu", "cuda"), ("mps", "cpu", "cpu"), ("cuda", "cpu", "cpu"), ("", "cpu", "cpu"),
])  # fmt: skip
def test_torch_computes_on_the_kind_of_device_that_mlxbert_does(
    available: str, device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch_peer.device_name(Log(monkeypatch, available).torch, device) == name


def test_a_torch_without_a_gpu_is_refused_beside_a_gpu(log: Log) -> None:
    with pytest.raises(MlxbertError, match=r"torch 2\.13\.0 finds no GPU") as caught:
        torch_peer.device_name(log.torch, "gpu")
    assert caught.value.hint is not None and "device='cpu'" in caught.value.hint


@pytest.mark.parametrize("tf32", [False, True])
def test_products_in_float32_are_rounded_to_tf32_where_those_of_mlxbert_are(tf32: bool, log: Log) -> None:
    torch_peer.match_precision(log.torch, tf32=tf32)
    assert log.torch.backends.cuda.matmul.allow_tf32 is tf32 and log.torch.backends.cudnn.allow_tf32 is tf32


def test_the_memory_of_a_gpu_is_what_torch_counts(log: Log) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_trains_in_every_dtype_on_a_cpu(dtype: str) -> None:
    torch_peer.check_training(pytest.importorskip("torch"), "cpu", dtype)


def test_the_help_says_which_device_torch_takes() -> None:
    assert "MPS or CUDA" in call("help", "bench").out
