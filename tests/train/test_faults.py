"""A device that fails ends training with an error; the state is saved, and the run resumes to the same bits."""

import itertools
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import DeviceError, MlxbertError, OutOfMemoryError
from mlxbert.machine.device import mx, nn
from mlxbert.machine.device_errors import StoppedError
from mlxbert.train.loop.distributed import ProcessGroup
from mlxbert.train.loop.events import Evaluated, Started, Step
from mlxbert.train.loop.optimizer_steps import DeviceStep
from mlxbert.train.loop.saved_run import RunState
from mlxbert.train.loop.training_run import Run
from tests.helpers.cases import fast
from tests.helpers.faults import DISPLAY, MEMORY, NO_FAULTS, OTHER, REFUSED, LateDevice, failing_eval, small_memory
from tests.train.pretraining.files import model_folder, text_file
from tests.train.runs import digest, make_run
from tests.train.test_finetune import one, rows
from tests.train.test_step import a_gpu


def calls_of(monkeypatch: pytest.MonkeyPatch, work: Any) -> int:
    """How often a run calls `mx.eval`."""
    with monkeypatch.context() as patched:
        calls = failing_eval(patched, None)
        [*work()]
        return next(calls)


@pytest.mark.parametrize(
    ("sentence", "every"), fast([(MEMORY[0], 8), (MEMORY[0], 1), (OTHER[0], 1), (REFUSED, 1)], (MEMORY[0], 8))
)
def test_wherever_an_update_fails_the_run_resumes_to_the_same_bits(
    sentence: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_run(epochs=1, data=32)
    states = {event.step: digest(whole) for event in whole.events() if isinstance(event, Step)}
    count = calls_of(monkeypatch, make_run(epochs=1, data=32).events)
    steps = set()
    for number in {*range(first := count // 2, last := first + count // whole.steps, every), last}:  # of an update
        folder = tmp_path / str(number)
        failed = make_run(folder, epochs=1, data=32)
        with monkeypatch.context() as patched:
            failing_eval(patched, number, sentence)
            with pytest.raises(DeviceError, match="is saved") as problem:
                [*failed.events()]
        assert isinstance(problem.value, OutOfMemoryError) == (sentence in MEMORY)
        assert problem.value.hint and ("checkpointing=True" in problem.value.hint) == (sentence in MEMORY)
        resumed = make_run(folder, epochs=1, data=32)
        step = resumed.state.progress.step
        assert 0 < step == failed.state.progress.step < whole.steps
        assert digest(resumed) == states[step]
        if step not in steps:
            [*resumed.events()]
            assert digest(resumed) == digest(whole)
        steps.add(step)
    assert len(steps) == 2


def saved(folder: Path) -> dict[str, dict[str, Any]]:
    """The tensors of all files of a saved state; their order in a file is another one after a run was resumed."""
    files: dict[str, Any] = {path.name: mx.load(str(path)) for path in folder.glob("*.safetensors")}
    return {name: {key: bytes(np.array(one)) for key, one in arrays.items()} for name, arrays in files.items()}


def test_wherever_an_update_is_stopped_it_is_repeated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"epochs": 1, "data": 24, "save_every": 2}
    whole = make_run(tmp_path / "whole", **options)
    losses = [event.loss for event in whole.events() if isinstance(event, Step)]
    expected, resumed_at = saved(tmp_path / "whole"), set()
    count = calls_of(monkeypatch, make_run(**options).events)
    of_update = {*range(first := count // 2, last := first + count // whole.steps, 13), last}
    for number in (0, *of_update, count - 1):  # the last is of an evaluation
        caplog.clear()
        run = make_run(tmp_path / f"once {number}", **options)
        with monkeypatch.context() as patched:
            failing_eval(patched, number, DISPLAY)
            assert [event.loss for event in run.events() if isinstance(event, Step)] == losses
        assert digest(run) == digest(whole) and saved(tmp_path / f"once {number}") == expected
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    for number in of_update:
        folder = tmp_path / f"always {number}"
        with monkeypatch.context() as patched:
            failing_eval(patched, number, DISPLAY, always=True)
            with pytest.raises(StoppedError, match="is saved"):
                [*make_run(folder, **options).events()]
        resumed = make_run(folder, **options)
        resumed_at.add(resumed.state.progress.step)
        [*resumed.events()]
        assert digest(resumed) == digest(whole) and saved(folder) == expected
    assert len(resumed_at) == 2


@pytest.mark.parametrize("options", fast([{}, {"save_every": 1}, {"evaluate": None}], {}))
@pytest.mark.parametrize("started", fast([1, 2, 3, 4], 2, 3))
def test_updates_that_a_gpu_computed_in_vain_are_repeated(
    started: int, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes late: when the results, which are 0 here, are read, and the next update is started on them."""
    with a_gpu(monkeypatch):
        whole = make_run(tmp_path / "whole", data=16, **options)
        expected = [event.loss for event in whole.events() if isinstance(event, Step)]
    kept = saved(tmp_path / "whole")
    for always in (False, True):
        folder = tmp_path / f"always {always}"
        with monkeypatch.context() as patched:
            stopped_updates(patched, started, always=always)
            run, found = make_run(folder, data=16, **options), list[float]()
            with pytest.raises(StoppedError) if always else nullcontext():
                found += (event.loss for event in run.events() if isinstance(event, Step))
        step = run.state.progress.step
        assert started - 2 <= step < started if always else step == whole.steps
        with a_gpu(monkeypatch):
            resumed = make_run(folder, data=16, **options)
            assert resumed.state.progress.step == step
            found += (event.loss for event in resumed.events() if isinstance(event, Step))
        assert found == expected or always
        assert digest(resumed) == digest(whole) and saved(folder) == kept


def stopped_updates(patch: pytest.MonkeyPatch, number: int, *, always: bool) -> None:
    """A GPU does not compute one of the updates, counted from 1, or none from this one on."""
    usual, calls, lost = DeviceStep.__call__, itertools.count(1), list[mx.array]()
    LateDevice(patch, lambda arrays: any(one is array for one in lost for array in arrays), DISPLAY)

    def stopped(step: DeviceStep, *given: Any) -> Any:
        numbers, parameters, optimizer, counters = usual(step, *given)
        call = next(calls)
        if call == number or (always and call > number):
            numbers, parameters, counters, means, squares = nn.utils.tree_map(
                mx.zeros_like, (numbers, parameters, counters, optimizer.means, optimizer.squares)
            )
            optimizer = replace(optimizer, means=means, squares=squares)
            lost.append(numbers)
        return numbers, parameters, optimizer, counters

    patch.setattr(DeviceStep, "__call__", stopped)


@pytest.mark.parametrize(("call", "sentence", "processes", "error", "said"), [
    (0, MEMORY[0], 1, OutOfMemoryError, r"^(?!.*is saved)"),  # a first update leaves nothing
    (60, DISPLAY, 2, StoppedError, "is saved"),  # one of several processes repeats nothing alone
    (40, NO_FAULTS[0], 1, RuntimeError, "no Stream"),  # another error is not swallowed
])  # fmt: skip
def test_what_a_failure_ends(
    call: int, sentence: str, processes: int, error: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", evaluate=None)
    run.training = replace(run.training, group=ProcessGroup(0, processes))
    failing_eval(monkeypatch, call, sentence)
    with pytest.raises(error, match=said):
        [*run.events()]
    assert call or not (tmp_path / "run").exists()


def test_a_device_that_fails_is_no_lost_process(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_eval(monkeypatch, 1)
    monkeypatch.setattr(mx.distributed, "all_sum", lambda array: array)
    with pytest.raises(OutOfMemoryError):
        ProcessGroup(0, 2).sum({"": mx.zeros(3)})


def test_evaluations_are_computed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = mlxbert.load(model_folder(tmp_path / "tiny")), text_file(tmp_path / "text.txt")

    def of_training() -> dict[str, float]:
        return one([*make_run(epochs=1).events()], Evaluated).metrics

    def of_words() -> dict[str, float]:
        return dict(mlxbert.evaluate_words(model, text, objective="mlm,nsp", length=24).metrics)

    for metrics, most in ((of_training, 8), (of_words, 5)):  # 8 are the examples of a batch of training
        expected = metrics()
        with monkeypatch.context() as patched:
            tried = small_memory(patched, most)
            assert metrics() == pytest.approx(expected, rel=1e-5) and max(tried) > most


def test_the_same_call_resumes(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = [{"text": text, "label": label} for text, label in rows(32)]

    def start(name: str) -> Iterator[mlxbert.Event]:
        how: dict[str, Any] = {"model": base, "output": tmp_path / name, "epochs": 2, "lr": 1e-2, "batch_size": 8}
        return mlxbert.finetune("classify", train=data, **how)

    count = calls_of(monkeypatch, lambda: start("whole"))
    with monkeypatch.context() as patched:
        failing_eval(patched, count // 3, DISPLAY)
        [*start("stopped")]
    with monkeypatch.context() as patched:
        failing_eval(patched, count // 3)  # half of them follow the updates
        with pytest.raises(OutOfMemoryError, match="is saved"):
            [*start("parts")]
    assert not (tmp_path / "parts").exists()
    [started, *_] = start("parts")
    assert isinstance(started, Started) and started.first_step > 0
    assert [step for step, _ in started.losses] == [*range(1, started.first_step + 1)]
    assert all(one.step <= started.first_step for one in started.evaluations)
    names = "whole", "stopped", "parts"
    whole, *others = ((tmp_path / name / "model.safetensors").read_bytes() for name in names)
    assert others == [whole, whole] and not (tmp_path / "parts.partial").exists()


def test_a_model_that_cannot_be_loaded_or_kept_for_want_of_memory(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arrays: Any) -> None:
        raise RuntimeError(MEMORY[3])

    model = mlxbert.load(base)
    with monkeypatch.context() as patched:
        patched.setattr(mx, "eval", full)
        for call in (lambda: mlxbert.load(base), model.adopt):
            with pytest.raises(OutOfMemoryError):
                call()
    monkeypatch.setattr(mx, "save_safetensors", lambda *arguments: full())
    with pytest.raises(MlxbertError) as problem:
        mlxbert.save(model, tmp_path / "saved")
    assert isinstance(problem.value, OutOfMemoryError) and not [*tmp_path.iterdir()]


def failing_call(patch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> None:
    """What a call of a function has started fails, on a device whose errors come late; calls are counted from 1."""
    device, calls, usual = LateDevice(patch), itertools.count(1), getattr(owner, name)

    def failing(*given: Any, **named: Any) -> Any:
        found = usual(*given, **named)
        if next(calls) == number:
            device.fail()
        return found

    patch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("started", "options"),
    fast(
        [*((number, {}) for number in (1, 2, 3, 4)), (3, {"save_every": 1}), (4, {"evaluate": None})],
        (1, {}),
        (2, {}),
        (4, {}),
        (3, {"save_every": 1}),
    ),
)
def test_the_state_before_an_update_that_was_not_computed_is_saved(
    started: int, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with it all updates that are known to be computed: all but that one and the one before it, at most."""
    with monkeypatch.context() as patched:
        failing_call(patched, DeviceStep, "__call__", started)
        run = make_run(tmp_path, data=16, **options)
        with pytest.raises(OutOfMemoryError) as problem:
            [*run.events()]
    kept = run.state.progress.step
    assert max(started - 2, 0) <= kept < started
    assert (f"the state after step {kept} is saved" in problem.value.message) == (kept > 0)
    resumed = make_run(tmp_path, data=16, **options)
    assert resumed.state.progress.step == kept
    if kept:
        saved: list[RunState] = []
        monkeypatch.setattr("mlxbert.train.loop.saved_run.RunStore.save", lambda store, state: saved.append(state))
        with a_gpu(monkeypatch):  # of an uninterrupted run, which saves after as many updates
            [*make_run(tmp_path / "whole", data=16, evaluate=None, save_every=kept).events()]
        assert saved[0].progress.step == kept and digest(resumed) == digest(SimpleNamespace(state=saved[0]))


def test_a_loss_that_was_not_computed_is_not_that_of_a_run_that_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    device, usual = LateDevice(monkeypatch), Run._finish

    def finish(run: Run, *given: Any) -> Any:
        update = run.updater.started.popleft()
        device.fail()
        run.updater.started.appendleft(replace(update, numbers=[math.nan] * 3))
        return usual(run, *given)

    monkeypatch.setattr(Run, "_finish", finish)
    with pytest.raises(OutOfMemoryError):
        [*make_run().events()]


def test_a_dry_run_waits_for_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_call(monkeypatch, DeviceStep, "__call__", 1)
    with pytest.raises(OutOfMemoryError):
        make_run().try_update([[0, 1]])


def test_a_state_that_cannot_be_written_does_not_hide_why_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: Any, state: Any) -> None:
        raise MlxbertError("no space left")

    count = calls_of(monkeypatch, make_run(epochs=1).events)
    run = make_run(tmp_path, epochs=1)
    monkeypatch.setattr("mlxbert.train.loop.saved_run.RunStore.save", full)
    failing_eval(monkeypatch, count // 2)
    with pytest.raises(OutOfMemoryError, match=r"out of memory.*no space left"):
        [*run.events()]
