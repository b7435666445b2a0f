"""The loop: what a run computes, and that it resumes to the same bits."""

import contextlib
import itertools
import json
import math
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.cpu import numpy_layers
from mlxbert.errors import CheckpointError, DeviceError, MlxbertError, OutOfMemoryError
from mlxbert.machine.device import mx, nn, scalar
from mlxbert.machine.device_errors import StoppedError
from mlxbert.nn.heads import Network
from mlxbert.train.loop.distributed import ProcessGroup
from mlxbert.train.loop.events import Evaluated, Saved, Started, Step
from mlxbert.train.loop.optimizer_steps import DeviceStep
from mlxbert.train.loop.saved_run import Progress, RunState, RunStore
from mlxbert.train.loop.trained_parameters import TABLE
from mlxbert.train.loop.training_run import Run, _after_evaluation
from mlxbert.train.objectives.objective import TrainBatch
from mlxbert.weights.build import parameters
from tests.helpers.cases import fast, together
from tests.helpers.faults import DISPLAY, MEMORY, NO_FAULTS, OTHER, REFUSED, LateDevice, failing_eval, small_memory
from tests.train.pretraining.files import model_folder, text_file
from tests.train.runs import Parity, digest, make_run, steps
from tests.train.test_finetune import one, rows
from tests.train.test_step import a_gpu


def test_events_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, save_every=3)
    events = list(run.events())
    assert [event.step for event in events if isinstance(event, Step)] == list(range(1, 9))  # 26 examples, 8 a batch
    assert [event.step for event in events if isinstance(event, Evaluated)] == [4, 8]
    assert [event.step for event in events if isinstance(event, Saved)] == [3, 4, 6, 8]
    assert events[-1] == Saved(run=0, step=8, path=str(tmp_path))
    assert [event.epoch for event in events if isinstance(event, Evaluated)] == [1.0, 2.0]


@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize("stop", fast([3, 4, 5, 8], 3, 4))
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, stop: int) -> None:
    whole = make_run()
    expected = [(step.loss, step.lr, step.gradient_norm) for step in steps(whole.events())]
    interrupted(make_run(tmp_path), stop)
    second = make_run(tmp_path)
    assert second.state.progress.step == stop
    assert [(step.loss, step.lr, step.gradient_norm) for step in steps(second.events())] == expected[stop:]
    assert digest(second) == digest(whole)
    assert second.state.progress.history == whole.state.progress.history
    stored = make_run(tmp_path)
    assert [*stored.state.progress.losses] == [(number, loss) for number, (loss, *_) in enumerate(expected, 1)]
    best = whole.state.progress.best_step
    assert [(one.step, one.best) for one in stored.earlier()] == [(step, step == best) for step in (4, 8)]


@pytest.mark.parametrize("how", [Generator.close, lambda stream: stream.throw(KeyboardInterrupt), None])
def test_an_interrupt_saves_first(how: Any, tmp_path: Path) -> None:
    """A killed run, whose stream is neither closed nor ended, resumes from the last saved state."""
    stream = interrupted(make_run(tmp_path, save_every=3), 5, how)
    assert stream is not None and make_run(tmp_path).state.progress.step == (4 if how is None else 5)


def interrupted(run: Run, step: int, how: Any = Generator.close) -> Any:
    stream = run.events()
    next(event for event in stream if isinstance(event, Step) and event.step == step)
    with contextlib.suppress(KeyboardInterrupt):
        how and how(stream)
    return stream


def test_a_loss_may_be_evaluated_where_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_layers, "_MIN_SIZE", 1)  # numpy computes all that it may
    expected, usual, seen = [step.loss for step in steps(make_run().events())], Parity.loss, []

    def evaluated(self: Parity, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        loss, weight = usual(self, network, batch)
        seen.append(scalar(loss) / weight)
        return loss, weight

    monkeypatch.setattr(Parity, "loss", evaluated)
    assert [step.loss for step in steps(make_run().events())] == expected
    assert seen == pytest.approx(expected)
    monkeypatch.setattr(Parity, "loss", usual)
    monkeypatch.setattr(Parity, "pure", True)
    assert [step.loss for step in steps(make_run().events())] == pytest.approx(expected)


@together("steps", [1, 399, 400, 401, 1000, 4_321])
def test_the_losses_of_a_run_are_kept_as_means_of_equal_parts(steps: int) -> None:
    progress, size = Progress(), -(-steps // 400)
    for number in range(1, steps + 1):
        progress = replace(progress, step=number).with_loss(math.sin(number), steps)
    assert len(progress.losses) == -(-steps // size) <= 400 and progress.losses[-1][0] == steps
    start = 0
    for end, loss in progress.losses:
        assert loss == pytest.approx(sum(map(math.sin, range(start + 1, end + 1))) / (end - start))
        start = end
    assert Progress.from_dict(json.loads(json.dumps(asdict(progress)))) == progress


def test_an_interrupt_within_an_update_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, run, calls = make_run(), make_run(tmp_path), itertools.count(1)
    usual = type(run.updater._change).__call__

    def interrupted(*given: Any) -> Any:
        for _ in range(2 if (number := next(calls)) == 5 else 0):
            os.kill(os.getpid(), signal.SIGINT)
        found = usual(*given)
        if number == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    list(whole.events())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    try:
        with monkeypatch.context() as patched:
            patched.setattr(type(run.updater._change), "__call__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(run.events())
    finally:
        signal.signal(signal.SIGINT, before)
    resumed = make_run(tmp_path)
    assert resumed.state.progress.step == resumed.state.progress.updates == 5
    list(resumed.events())
    assert digest(resumed) == digest(whole)


def test_later_updates_change_nothing_that_was_handed_out() -> None:
    scores = iter([0.9, 0.5])
    run = make_run(evaluate=lambda: {"accuracy": next(scores)}, weight_decay=0.1)
    before = {name: array.tolist() for name, array in parameters(run.training.network).items()}
    first = {name: array for name, array in parameters(run.training.network).items()}
    for event in run.events():
        if isinstance(event, Evaluated) and event.best:
            network = parameters(run.training.network)
            kept, best = {n: a.tolist() for n, a in network.items()}, run.best()
            run.try_update([[0, 1]])
    assert {name: array.tolist() for name, array in first.items()} == before
    assert {name: array.tolist() for name, array in network.items()} == kept
    assert all(kept[name] == array.tolist() for name, array in best.items())
    whole = make_run(evaluate=None, weight_decay=0.1)
    list(whole.events())
    assert digest(run) == digest(whole)


def test_an_update_without_a_target_is_tried_and_metrics_that_cannot_be_compared_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for metrics in ({"accuracy": math.nan}, {"score": 1.0}):
        with pytest.raises(MlxbertError, match="expected a number called 'accuracy'"):
            list(make_run(evaluate=lambda metrics=metrics: metrics).events())
    monkeypatch.setattr(Parity, "loss", lambda self, network, batch: (mx.array(0.0), 0.0))
    run = make_run()
    run.try_update([[0, 1]])
    assert run.state.progress.step == 0


def test_an_interrupted_evaluation_is_repeated(tmp_path: Path) -> None:
    def interrupted() -> dict[str, float]:
        raise KeyboardInterrupt

    run = make_run(tmp_path, evaluate=interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(run.events())
    resumed = make_run(tmp_path)
    assert resumed.state.progress.step == 4
    assert isinstance(next(resumed.events()), Evaluated)


@pytest.mark.usefixtures("all_cores")
def test_accumulated_batches_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_run(rate=0, data=50, batch_size=24, epochs=1, weight_decay=0.1)
    three = make_run(rate=0, data=50, batch_size=8, gradient_accumulation=3, epochs=1, weight_decay=0.1)
    assert one.steps == three.steps == 3
    for run in (one, three):  # the same examples, whose order differs: batches are drawn with their size
        size = run.training.options.batch_size
        parts = [[[*range(start, min(start + size, 50))] for start in range(first, min(first + 24, 50), size)]
                 for first in (0, 24, 48)]  # fmt: skip
        monkeypatch.setattr(run.order, "batches", parts.__getitem__)
    pairs = zip(steps(one.events()), steps(three.events()), strict=True)
    assert all(a.loss == pytest.approx(b.loss, rel=1e-5) for a, b in pairs)
    for name, array in one.state.parameters.items():
        # The gradient of a bias of the keys is 0 but for rounding, which Adam makes large.
        assert "key.bias" in name or scalar(mx.abs(array - three.state.parameters[name]).max()) < 2e-4, name


@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize("parts", fast([2, 3, 20], 20))
def test_parts_of_a_batch_add_up(parts: int) -> None:
    one, many = make_run(rate=0, epochs=1), make_run(rate=0, epochs=1, streams=parts)
    pairs = list(zip(steps(one.events()), steps(many.events()), strict=True))
    assert all(a.loss == pytest.approx(b.loss, rel=1e-4) for a, b in pairs)
    assert pairs[0][0].gradient_norm == pytest.approx(pairs[0][1].gradient_norm, rel=1e-5)


def test_the_best_evaluation_is_kept(tmp_path: Path) -> None:
    scores = iter([0.5, 0.9, 0.7, 0.8])
    run = make_run(tmp_path, epochs=4, evaluate=lambda: {"accuracy": next(scores)})
    best: dict[str, Any] = {}
    for event in run.events():
        if isinstance(event, Evaluated) and event.metrics["accuracy"] == 0.9:
            assert event.best
            best = {name: array.tolist() for name, array in run.state.parameters.items()}
    assert (run.state.progress.best_score, run.state.progress.best_step) == (0.9, 8)
    found = run.best()
    assert all(found[name].tolist() == values for name, values in best.items() if name != TABLE)
    assert {path.name for path in tmp_path.iterdir()} == {
        "state.json", "state-00000016.safetensors", "best-00000008.safetensors"
    }  # fmt: skip


# Scores and losses of successive evaluations, the patience, the number of evaluations until the end, and the best one.
_HISTORIES: dict[str, tuple[list[float], list[float], int | None, int, int]] = {
    "the score falls": ([0.5, 0.9, 0.7, 0.8, 0.95], [], 2, 4, 2),
    "no patience": ([0.5, 0.9, 0.7, 0.8, 0.6], [], None, 5, 2),
    "a plateau with a falling loss": ([0.5, 0.5, 0.5, 0.5, 0.9], [0.7, 0.6, 0.5, 0.4, 0.3], 2, 5, 5),
    "a lower score with a lower loss": ([0.5, 0.4, 0.4, 0.4, 0.6], [0.7, 0.6, 0.5, 0.4, 0.5], 2, 5, 5),
    "a plateau": ([0.5, 0.5, 0.5, 0.5, 0.9], [0.6, 0.7, 0.6, 0.6, 0.1], 3, 4, 4),
    "of equal scores the lower loss": ([0.5, 0.9, 0.9, 0.9, 0.9], [0.6, 0.5, 0.3, 0.4, 0.5], 3, 5, 3),
    "a perfect score": ([0.5, 1.0, 1.0, 1.0, 1.0], [0.6, 0.5, 0.4, 0.3, 0.2], 2, 4, 4),
}


@together(("scores", "losses", "patience", "ended", "best"), _HISTORIES.values())
def test_training_ends_when_neither_score_nor_loss_improves(
    scores: list[float],
    losses: list[float],
    patience: int | None,
    ended: int,
    best: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Parity, "perfect", 1.0)
    training, progress = make_run(patience=patience).training, Progress()
    for step, (score, loss) in enumerate(itertools.zip_longest(scores, losses), 1):
        metrics = {"accuracy": score} | ({} if loss is None else {"loss": loss})
        progress = _after_evaluation(training, replace(progress, step=step), metrics, step)[0]
        if progress.stopped:
            break
    assert (len(progress.history), progress.best_step) == (ended, best)


def test_all_processes_use_the_metrics_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine, the last digit of a loss may differ."""

    def sent(self: ProcessGroup, value: Any) -> Any:
        return {"accuracy": 0.25} if value == {"accuracy": 0.5} else value

    monkeypatch.setattr(ProcessGroup, "broadcast", sent)
    run = make_run(evaluate=lambda: {"accuracy": 0.5})
    assert {event.metrics["accuracy"] for event in run.events() if isinstance(event, Evaluated)} == {0.25}


@pytest.mark.parametrize("done", [0, 3])
def test_a_loss_that_is_not_finite_names_its_batch(done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    loss = Parity.loss

    def broken(self: Any, network: Any, batch: Any) -> Any:
        found, weight = loss(self, network, batch)
        return (found * math.nan if run.state.progress.step == done else found), weight

    monkeypatch.setattr(Parity, "loss", broken)
    with pytest.raises(MlxbertError, match=rf"step {done + 1}, in the batch of line \d+"):
        list(run.events())
    assert make_run(tmp_path).state.progress.step == done  # nothing is lost
    assert done or not list(tmp_path.iterdir())  # other options need no overwrite=True
    assert all(mx.isfinite(array).all().item() for array in run.state.parameters.values())


def test_float16_scales_the_loss_and_skips_overflows() -> None:
    run = make_run(dtype=mx.float16, epochs=1)
    losses = [step.loss for step in steps(run.events())]
    assert all(map(math.isfinite, losses))
    exact = [step.loss for step in steps(make_run(epochs=1).events())]
    assert losses == pytest.approx(exact, rel=0.1)
    assert all(array.dtype == mx.float32 for array in run.state.parameters.values())
    assert run.state.progress.updates > 0


@pytest.mark.parametrize("freeze", [1, 2])
def test_frozen_parameters_stay(freeze: int) -> None:
    run = make_run(freeze=freeze, epochs=1, layers=2)
    before = {name: array.tolist() for name, array in parameters(run.training.network).items()}
    list(run.events())
    assert run.best().keys() == run.state.parameters.keys()
    after = parameters(run.training.network) | run.best()
    still = {name for name, values in before.items() if after[name].tolist() == values}
    layers = tuple(f"encoder.layers.{number}." for number in range(freeze))
    # The gradient of a bias of the keys is 0 but for rounding, and may or may not change it.
    expected = {name for name in before if name.startswith(("encoder.embeddings.", *layers))}
    assert expected <= still and not {name for name in still - expected if "key.bias" not in name}
    assert run.trained.frozen_count == sum(np.size(before[name]) for name in expected)
    assert run.training.network.encoder.frozen == freeze


def test_training_used_rows_is_training_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    used = make_run(weight_decay=0.1)
    assert used.state.parameters[TABLE].shape[0] < used.trained.whole(used.state.parameters, 1.0)[TABLE].shape[0]
    monkeypatch.setattr(Parity, "tokens", lambda self, example: range(46))
    every = make_run(weight_decay=0.1)
    assert every.state.parameters[TABLE].shape[0] > used.state.parameters[TABLE].shape[0]
    pairs = list(zip(steps(used.events()), steps(every.events()), strict=True))
    assert all(a.loss == pytest.approx(b.loss, rel=1e-5) for a, b in pairs)
    here, there = used.best(), every.best()
    assert all(scalar(mx.abs(here[name] - there[name]).max()) < 1e-5 for name in here if "key.bias" not in name)


@together("change", ["name", "shape", "dtype", "missing"])
def test_a_state_of_another_network_is_refused(change: str, tmp_path: Path) -> None:
    run = make_run(epochs=1)
    name = min(run.state.parameters)
    parameters = dict(run.state.parameters)
    array = parameters.pop(name)
    if change != "missing":
        changed = {"name": array, "shape": array[None], "dtype": array.astype(mx.float16)}[change]
        parameters["other" if change == "name" else name] = changed
    RunStore(tmp_path).save(replace(run.state, parameters=parameters))
    with pytest.raises(CheckpointError, match="does not fit") as caught:
        make_run(tmp_path, epochs=1)
    assert caught.value.hint and str(tmp_path) in caught.value.hint


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), RuntimeError(MEMORY[3])], ids=str)
def test_a_full_disk_keeps_the_last_state(problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_run(tmp_path, save_every=2).events()
    next(event for event in stream if isinstance(event, Saved))

    def full(file: Any, arrays: Any) -> None:
        file.write(b"some")
        raise problem

    monkeypatch.setattr(mx, "save_safetensors", full)
    with pytest.raises(MlxbertError) as caught:
        list(stream)
    assert caught.value.hint and isinstance(caught.value, OutOfMemoryError) == isinstance(problem, RuntimeError)
    monkeypatch.undo()
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", "state-00000002.safetensors"}
    resumed, whole = make_run(tmp_path), make_run()
    assert resumed.state.progress.step == 2
    list(resumed.events()), list(whole.events())
    assert digest(resumed) == digest(whole)


def calls_of(monkeypatch: pytest.MonkeyPatch, work: Any) -> int:
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
    of_update = {*range(first := count // 2, last := first + count // whole.steps, 20), last}
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


def test_a_model_that_is_too_large_for_the_memory(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_dry_run_waits_for_the_update_and_a_failed_device_is_no_lost_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing_call(monkeypatch, DeviceStep, "__call__", 1)
    with pytest.raises(OutOfMemoryError):
        make_run().try_update([[0, 1]])
    failing_eval(monkeypatch, 1)
    monkeypatch.setattr(mx.distributed, "all_sum", lambda array: array)
    with pytest.raises(OutOfMemoryError):
        ProcessGroup(0, 2).sum({"": mx.zeros(3)})


def test_a_state_that_cannot_be_written_does_not_hide_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(store: Any, state: Any) -> None:
        raise MlxbertError("no space left")

    count = calls_of(monkeypatch, make_run(epochs=1).events)
    run = make_run(tmp_path, epochs=1)
    monkeypatch.setattr("mlxbert.train.loop.saved_run.RunStore.save", full)
    failing_eval(monkeypatch, count // 2)
    with pytest.raises(OutOfMemoryError, match=r"out of memory.*no space left"):
        [*run.events()]
