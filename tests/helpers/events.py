"""Made-up events, reports and evaluations of trainings, for tests of how they are displayed."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from mlxbert.train.data.data_report import DataReport, SplitReport
from mlxbert.train.loop.events import Estimate, Evaluated, Event, Finished, Saved, Started, Step
from mlxbert.train.scores.evaluation_summary import Evaluation, LabelScore, Mistake, Summary

LABELS = {"ENTY": 1126, "HUM": 1102, "DESC": 1046, "NUM": 807, "LOC": 752, "ABBR": 78}
EMOTIONS = (
    *("neutral", "admiration", "amusement", "anger", "annoyance", "approval", "caring", "confusion", "curiosity"),
    *("desire", "disappointment", "disapproval", "disgust", "embarrassment", "excitement", "fear", "gratitude"),
    *("grief", "joy", "love", "nervousness", "optimism", "pride", "realization", "relief", "remorse", "sadness"),
    "surprise",
)
STEERING = "[bold]What[/bold] \x1b[5A is\n\x9b5A a [red]red[/nothing] giant?"
COMMAND = 'mlxbert classify "What is a red giant?" --model trec-model'


def report(labels: dict[str, int] | None = None) -> DataReport:
    """Returns a report on training and validation data; the validation data has a tenth of each label."""
    labels = LABELS if labels is None else labels
    train = SplitReport(
        name="train", files=("train.csv",), examples=sum(labels.values()), labels=labels, range=None,
        tokens=(12, 21, 43), truncated=3, duplicates=58, conflicts=4,
    )  # fmt: skip
    valid = replace(
        train, name="valid", examples=sum(labels.values()) // 10, tokens=(12, 20, 37), truncated=0, duplicates=5,
        labels={name: count // 10 for name, count in labels.items()}, conflicts=0,
    )  # fmt: skip
    return DataReport(
        columns={"text": "question", "label": "coarse"}, guessed=("text",), splits=(train, valid), split_off=0.1,
        leaked=7, only_in={"train": ("[bold]rare[/bold]",), "valid": ()}, max_length=128,
        warnings=("7 validation texts stand in train.csv, too: the score will look better than it is",),
    )  # fmt: skip


def started(**changes: object) -> Started:
    first = Started(
        task="classify", model="sentence-transformers/all-MiniLM-L6-v2", output="trec-model", runs=1, varied={},
        examples=4911, epochs=3, steps=462, first_step=0, parameters=22_715_526, frozen=0, new_head=True,
        device="cpu, float32", report=report(),
        estimate=Estimate(seconds=232.0, memory=3_100_000_000, available=16_000_000_000, free=9_000_000_000),
    )  # fmt: skip
    return replace(first, **changes)  # type: ignore[arg-type]


def step(number: int, *, of: int = 462) -> Step:
    """Returns a step of a run whose loss falls, with some noise that is always the same."""
    share = number / of
    noise = 1 + 0.35 * math.sin(number * 12.9898) * math.cos(number * 4.1)
    return Step(
        step=number, epoch=share * 3, loss=(1.75 * math.exp(-5 * share) + 0.06) * noise,
        lr=5e-5 * (1 - share), gradient_norm=2.5 * noise, tokens_per_second=8412.3, memory=1_240_000_000,
        seconds_left=232 * (1 - share),
    )  # fmt: skip


def evaluated(number: int, score: float, *, best: bool = True, run: int = 0, metric: str = "accuracy") -> Evaluated:
    metrics = {metric: score, "macro_f1": score - 0.02, "loss": 1.4 * (1 - score)}
    return Evaluated(run=run, step=number, epoch=number / 154, metrics=metrics, metric=metric, best=best, seconds=2.1)


def evaluation(names: tuple[str, ...] = tuple(LABELS), *, confusion: bool = True) -> Evaluation:
    """Returns the evaluation of a model with about 100 examples per label, most of them classified correctly."""
    scores = tuple(
        LabelScore(label=name, precision=0.99 - 0.01 * place, recall=0.95, f1=0.9 - 0.02 * place, support=100 - place)
        for place, name in enumerate(names)
    )
    size = len(names)
    matrix = tuple(
        tuple(88 - row if row == column else 9 if column == (row + 1) % size else 0 for column in range(size))
        for row in range(size)
    )
    place = "train.csv, line 17"
    wrong = Mistake(text=STEERING, pair=None, expected=names[0], predicted=names[1], score=0.987, place=place)
    long = replace(wrong, text="How long does it take " * 20, pair="until the other text ends?", place="row 3")
    return Evaluation(
        task="classify", model="trec-model", data=("test.csv",), examples=500, metric="accuracy", score=0.964,
        interval=(0.946, 0.98), metrics={"accuracy": 0.964, "macro_f1": 0.951, "loss": 0.142}, labels=scores,
        confusion=matrix if confusion else None, mistakes=(wrong, long), truncated=2,
    )  # fmt: skip


def finished(runs: tuple[Mapping[str, object], ...] = (), deviation: float | None = None) -> Finished:
    summary = Summary(
        metric="accuracy", score=0.964, interval=(0.946, 0.98), command=COMMAND, deviation=deviation,
        baselines={"largest class": 0.229, "frozen vectors": 0.902},
        weakest="ABBR: recall 0.71 of 7 examples; most are taken for DESC",
    )  # fmt: skip
    return Finished(
        output="trec-model", metric="accuracy", score=0.964, step=308, ended=462, planned=462, seconds=241.3, runs=runs,
        evaluation=evaluation(), summary=summary,
    )  # fmt: skip


def whole_run(steps: int = 462) -> Iterator[Event]:
    yield started(steps=steps)
    for number in range(1, steps + 1):
        yield step(number, of=steps)
        if number % (steps // 3) == 0:
            done = number // (steps // 3)
            yield evaluated(number, (0.921, 0.964, 0.958)[done - 1], best=done < 3)
            yield Saved(step=number, path="trec-model.partial")
    yield finished()
