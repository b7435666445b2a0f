"""Time: phases that add up, the estimate, and runs that end in a given time."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import mlxbert
from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.train.loop import phase_times
from mlxbert.train.loop.events import Evaluated, Event, Finished, Started, Step
from mlxbert.train.loop.gradients import Gradients
from mlxbert.train.loop.phase_times import EARLIER
from mlxbert.train.loop.run_estimate import Costs
from mlxbert.train.loop.updater import BatchGradients
from mlxbert.train.pretraining.chunks import Phases
from tests.helpers.cases import fast
from tests.train.pretraining.files import model_folder, text_file
from tests.train.test_finetune import one, rows

RECORDS = [{"text": text, "label": label} for text, label in rows(120)]
OPTIONS: dict[str, Any] = {"lr": 1e-2, "batch_size": 8, "device": "cpu"}


class Clock:
    """A clock that stands still but when an update is computed, which takes `update` seconds, or when it is asked."""

    def __init__(self) -> None:
        self.now, self.update, self.asked = 1000.0, 2.0, 0.0
        self.learns = False  # whether updates have gradients, which take time

    def __call__(self) -> float:
        self.now += self.asked
        return self.now


@pytest.fixture(autouse=True)
def short_runs_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.train.training_call._MIN_STEPS", 10)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    found, gradients = Clock(), BatchGradients.__call__

    def slow(made: BatchGradients, parameters: Any, *given: Any) -> Any:
        found.now += found.update
        if found.learns:
            return gradients(made, parameters, *given)
        zero, names = mx.array(0.0), made._training.objective.losses
        arrays = {name: mx.zeros_like(array) for name, array in parameters.items()}
        return Gradients(zero, mx.array(1.0), arrays, dict.fromkeys(names, zero))

    monkeypatch.setattr(phase_times, "clock", found)
    monkeypatch.setattr(BatchGradients, "__call__", slow)
    yield found


def start(base: Path, output: Path, **changes: Any) -> Any:
    return mlxbert.finetune("classify", train=RECORDS, model=base, output=output, **OPTIONS | changes)


def test_the_phases_of_a_run_are_named_and_add_up(base: Path, tmp_path: Path, clock: Clock) -> None:
    named: list[str] = []
    clock.asked = 0.001
    begun = clock.now
    events = start(base, tmp_path / "out", epochs=2, on_phase=named.append)
    called, clock.now = clock.now - begun, clock.now + 3600  # nobody has begun to train: this does not count
    begun = clock.now
    finished = one([*events], Finished)
    whole = called + clock.now - begun
    assert finished.seconds == pytest.approx(sum(finished.phases.values())) == pytest.approx(whole, abs=1)
    assert finished.phases["training"] == pytest.approx(2 * 26, abs=1)  # 100 examples, 8 a batch
    assert finished.phases.keys() == {*named} >= {"reading the data", "tokenizing", "estimating the time", "saving"}
    assert [name for name in named if name in ("training", "evaluating")][:3] == ["training", "evaluating", "training"]
    assert named.index("tokenizing") < named.index("training") < named.index("comparing with simple methods")


def test_an_interrupted_run_counts_the_earlier_training_and_estimates_all_of_the_rest(
    base: Path, tmp_path: Path, clock: Clock
) -> None:
    events = start(base, tmp_path / "out", epochs=2, seeds=2)
    assert any(isinstance(event, Step) and event.step == 10 for event in events)
    events.close()
    begun, resumed = clock.now, [*start(base, tmp_path / "out", epochs=2, seeds=2)]
    started, finished = resumed[0], one(resumed, Finished)
    assert finished.phases[EARLIER] == 20 and finished.phases["training"] == 2 * (16 + 26)
    assert finished.seconds == sum(finished.phases.values())
    assert isinstance(started, Started) and started.estimate is not None
    assert 2 * (16 + 26) <= started.estimate.seconds <= 120 and clock.now - begun <= 120


def test_the_estimate_comes_before_training_and_long_updates_are_measured_once_after_the_first(
    base: Path, tmp_path: Path, clock: Clock
) -> None:
    options = {"epochs": 1, "seeds": 2}
    [dry] = start(base, tmp_path / "dry", dry_run=True, **options)
    assert not [*tmp_path.glob("dry*")]
    estimates: list[Any] = [
        event.estimate for event in start(base, tmp_path / "out", **options) if isinstance(event, Started)
    ]
    assert estimates[1] is None and estimates[0].seconds == dry.estimate.seconds and estimates[0].memory > 0
    assert 2 * 26 <= dry.estimate.seconds <= 2 * 44  # 13 updates, evaluations, frozen vectors
    assert next(iter(start(base, tmp_path / "short", epochs=1, batch_size=100))).estimate is None
    clock.update, begun = 60.0, clock.now
    estimate = one([*start(base, tmp_path / "long", epochs=2, dry_run=True)], Started).estimate
    assert clock.now - begun == 2 * clock.update and 52 * 30 <= estimate.seconds <= 70 * 30


@pytest.mark.slow
def test_without_the_estimate_the_bits_are_the_same(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [*start(base, tmp_path / "a", epochs=2)]
    monkeypatch.setattr("mlxbert.train.training_call._MIN_STEPS", 1000)
    assert one([*start(base, tmp_path / "b", epochs=2)], Started).estimate is None
    first, second = (tmp_path / name / "model.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_run_fits_into_the_minutes(base: Path, tmp_path: Path, clock: Clock) -> None:
    begun = clock.now
    events = [*start(base, tmp_path / "out", minutes=2)]
    steps = [event for event in events if isinstance(event, Step)]
    started, finished = one(events, Started), one(events, Finished)
    assert 90 < clock.now - begun <= 120 and finished.seconds == clock.now - begun
    assert started.steps == len(steps) > 13 and started.epochs == pytest.approx(started.steps / 13, abs=1e-3)
    assert steps[-1].lr < 0.05 * OPTIONS["lr"] and events[-3].step == started.steps
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["options"]["minutes"] == 2 and record["runs"][0]["history"][-1]["step"] == started.steps
    begun = clock.now
    first, second = (event.steps for event in start(base, tmp_path / "two", minutes=1, seeds=2)
                     if isinstance(event, Started))  # fmt: skip
    assert 40 < clock.now - begun <= 60 and abs(first - second) <= 4


def test_a_run_that_becomes_slower_still_fits(base: Path, tmp_path: Path, clock: Clock) -> None:
    begun, seen = clock.now, list[Event]()
    for event in start(base, tmp_path / "out", minutes=2):
        seen.append(event)
        if isinstance(event, Started):
            clock.update = 5.0
    steps = [event for event in seen if isinstance(event, Step)]
    last = [event for event in seen if isinstance(event, Evaluated)][-1]
    assert 100 < clock.now - begun <= 120 and len(steps) < one(seen, Started).steps
    assert last.step == steps[-1].step > 10


@pytest.mark.slow
def test_a_timed_run_resumes_to_the_same_bits(base: Path, tmp_path: Path, clock: Clock) -> None:
    clock.learns = True
    [*start(base, tmp_path / "whole", minutes=1)]
    events = start(base, tmp_path / "parts", minutes=1)
    assert any(isinstance(event, Step) and event.step == 7 for event in events)
    events.close()
    clock.update = 1.0  # a faster machine does not change how many updates there are
    started = one([*start(base, tmp_path / "parts", minutes=1)], Started)
    assert started.first_step == 7
    first, second = (tmp_path / name / "model.safetensors" for name in ("whole", "parts"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("options", fast([{}, {"eval_every": 1}, {"seeds": 3}], {"seeds": 3}), ids=str)
def test_the_minutes_of_the_hint_suffice(base: Path, tmp_path: Path, clock: Clock, options: dict[str, Any]) -> None:
    for refused in ({"epochs": 2}, {"sweep": {"epochs": [1, 2]}}):
        with pytest.raises(ArgumentError, match="`minutes` and `epochs`"):
            start(base, tmp_path / "out", minutes=0.1, **refused)
    with pytest.raises(ArgumentError, match="at least one") as caught:
        [*start(base, tmp_path / "out", minutes=0.1, **options)]
    assert not (tmp_path / "out").exists()
    [least] = re.findall(r"minutes=([\d.]+)", str(caught.value.hint))
    events = [*start(base, tmp_path / "out", minutes=float(least), **options)]
    assert isinstance(events[-1], Finished)
    assert min(event.steps for event in events if isinstance(event, Started)) >= 1


@pytest.mark.parametrize("teacher", [pytest.param(True, marks=pytest.mark.slow), False])
def test_pre_training_and_distilling_take_minutes(tmp_path: Path, clock: Clock, teacher: bool) -> None:
    corpus, model = text_file(tmp_path / "text.txt"), model_folder(tmp_path / "tiny")
    options: dict[str, Any] = {"length": "16:0.5,24:0.5", "batch_size": 8, "minutes": 1}
    train: Any = partial(mlxbert.distill, teacher=model) if teacher else partial(mlxbert.pretrain, model=model)
    begun = clock.now
    events = [*train(corpus, output=tmp_path / "out", **options)]
    started, finished = one(events, Started), one(events, Finished)
    assert 45 < clock.now - begun <= 60 and finished.seconds == clock.now - begun
    assert started.steps == len([event for event in events if isinstance(event, Step)]) > 10
    assert {"reading the corpus", "training", "evaluating", "saving"} <= finished.phases.keys()
    assert json.loads((tmp_path / "out" / "training.json").read_text())["options"]["minutes"] == 1
    for other in ({"steps": 5}, {"epochs": 1.0}):
        with pytest.raises(ArgumentError, match="minutes"):
            mlxbert.pretrain(corpus, output=tmp_path / "no", **options, **other)


def test_evaluations_of_a_short_pre_training_are_counted() -> None:
    order = Phases([mock.Mock(share=1.0, batches=10_000)], steps=None, epochs=1.0, gradient_accumulation=1, seed=0)
    run = mock.Mock(order=order)
    type(run).every = property(lambda run: order.epoch_steps)
    for evaluation in (0.1, 5.0, 15.0):
        steps = Costs(update=1.0, evaluation=evaluation, once=0.0, memory=0, free=None).updates(run, 200.0)
        order.end_after(steps)
        assert 180 < steps + (steps - 1) // order.epoch_steps * evaluation <= 200
