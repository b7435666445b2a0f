"""How good a model is on labelled data: its metrics, each label, the confusion matrix, the worst mistakes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, Indented, PlainTable
from mlxbert.cli.views.training import value_texts
from mlxbert.cli.views.training.confusion import confusion

if TYPE_CHECKING:
    from mlxbert.training.scores.evaluation_summary import Evaluation, LabelScore, Mistake

_NAME = Column(wraps=True, most=24)  # of a label
_LONG, _SHORT = ("precision", "recall", "F1", "support"), ("prec.", "rec.", "F1", "n")
_WIDE = 64  # columns of a terminal that has room for the long names
_TEXT = 240  # characters of a text
_MOST = 5  # mistakes
_GUESSED = 1.5  # times as sure as if all labels were alike: hardly more than a guess


def evaluation(found: "Evaluation", width: int) -> Iterator["rich.RenderableType"]:
    """The details, and the metrics below them, where a person looks first."""
    yield from details(found, width)
    low, high = map(value_texts.score, found.interval)
    yield rich.Text.assemble(
        (f"{console.visible(found.metric)} {value_texts.score(found.score)}", "bold green"),
        f"  95% interval {low} to {high} ({value_texts.method(found.metric, found.spec)})",
    )
    rows: list[tuple[str, object]] = [
        *((name, value_texts.score(value)) for name, value in found.constant.items()),
        ("model", found.model),
        ("data", f"{', '.join(found.data)}, {console.counted(found.examples, 'example')}"),
    ]
    if found.truncated:
        rows.append(("truncated", f"{found.truncated:,} of them"))
    if found.unknown:
        rows.append(
            ("not in the model", console.line(", ".join(f"{name} ({n:,})" for name, n in found.unknown.items())))
        )
    rows += [(name, value_texts.score(value)) for name, value in found.metrics.items() if name != found.metric]
    yield [*console.facts("", rows)][1]


def details(found: "Evaluation", width: int) -> Iterator["rich.RenderableType"]:
    """A table per label, the confusion matrix, the worst mistakes: as far as the task has them."""
    if found.mistakes:
        yield from (*_mistakes(found, width), rich.Text())
    if found.confusion is not None and len(found.labels) > 1:
        yield from (*confusion(found.classes, found.confusion, width), rich.Text())
    if found.labels:
        yield from (*_labels(found.labels, width), rich.Text())


def _labels(scores: Sequence["LabelScore"], width: int) -> Iterator["rich.RenderableType"]:
    yield rich.Text("labels", "bold")
    wide = width >= _WIDE
    heads = [Column(name, right=True) for name in (_LONG if wide else _SHORT)]
    columns = (_NAME, *heads[:3], Column(bar=True, most=24), heads[3])
    rows = []
    for score in scores:
        f1 = _graded(score.f1)
        numbers = (
            rich.Text(f"{score.precision:.3f}"),
            rich.Text(f"{score.recall:.3f}"),
            rich.Text(f"{score.f1:.3f}", f1),
        )
        name, bar = rich.Text(console.visible(score.label)), console.bar_of(score.f1, f1)
        rows.append((name, *numbers, bar, rich.Text(f"{score.support:,}")))
    yield PlainTable(columns, rows, indent=2)


def _graded(f1: float) -> str:
    return "green" if f1 >= 0.8 else "yellow" if f1 >= 0.5 else "red"


def _mistakes(found: "Evaluation", width: int) -> Iterator["rich.RenderableType"]:
    """Where each stands and how sure the model was, what was expected and predicted, and the text."""
    yield rich.Text("worst mistakes", "bold")
    surest = max(mistake.score for mistake in found.mistakes)
    if found.spec.mistakes == "class" and surest < _GUESSED / max(len(found.labels), 1):
        yield Indented(rich.Text(f"none shown: the model was at most {surest:.0%} sure of a wrong label", "dim"))
        return
    for mistake in found.mistakes[:_MOST]:
        line = rich.Text.assemble(
            ("expected ", "dim"),
            (console.line(mistake.expected, 60) or "none", "green"),
            ("  predicted ", "dim"),
            (console.line(mistake.predicted, 60) or "none", "red"),
        )
        place = f"{console.visible(mistake.place)}  {_sureness(found, mistake)}"
        yield Indented(rich.Text(place, "dim"))
        yield Indented(line, 4)
        yield _indented(mistake.text, width)
        if mistake.pair is not None:
            yield _indented(mistake.pair, width)


def _sureness(found: "Evaluation", mistake: "Mistake") -> str:
    """How wrong the model was; of several labels, about which ones."""
    if found.numeric:
        return f"{value_texts.score(mistake.score)} apart"
    kind = found.spec.mistakes
    if kind == "ranks":  # pairs with scores are as far apart as their ranks; the others were not found
        return f"{mistake.score:.0%} of the ranks apart" if mistake.pair else f"nDCG {1 - mistake.score:.2f}"
    if kind != "labels":
        return f"{mistake.score:.0%} sure"
    expected, predicted = ({*given.split(", ")} - {""} for given in (mistake.expected, mistake.predicted))
    missed, added = sorted(expected - predicted), sorted(predicted - expected)
    parts = [("misses", missed), ("adds", added)]
    told = [f"{name} {console.line(', '.join(labels), 60)}" for name, labels in parts if labels]
    worst = f" about {console.line(mistake.label, 60)}" if mistake.label and len(missed) + len(added) > 1 else ""
    return f"{', '.join(told)}: {mistake.score:.0%} sure{worst}"


def _indented(text: str, width: int) -> Indented:
    return Indented(rich.Text(console.line(text, min(_TEXT, 3 * max(width - 6, 10)))), 4)
