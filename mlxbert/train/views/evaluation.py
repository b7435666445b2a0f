"""Draws an evaluation on labelled data: the metrics, each label, the confusion matrix, and the worst mistakes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, Indented, PlainTable
from mlxbert.train.views import value_texts

if TYPE_CHECKING:
    from mlxbert.train.scores.evaluation_summary import Evaluation, LabelScore, Mistake


Matrix = Sequence[Sequence[int]]

_MAX_LABEL, _MIN_LABEL = 24, 8  # terminal columns of a label's name
_MAX_HEAD = 12
_LISTED = 8  # mix-ups
_LABEL = Column(wraps=True, most=_MAX_LABEL + 2)
_MIXED_UP = (_LABEL, _LABEL, Column(right=True), Column(bar=True, most=console.BAR_WIDTH))
_SHADES = " ░▒▓█"
# Backgrounds of a full cell, right or wrong, and of an almost empty one: on white, black would look strongest.
_RIGHT, _WRONG, _FAINT = (0, 95, 0), (135, 0, 0), (98, 98, 98)


def confusion(labels: Sequence[str], matrix: Matrix, width: int) -> Iterator["rich.RenderableType"]:
    """Draws the confusion matrix and the most frequent mix-ups.

    The matrix has numbers if they fit, otherwise shades. If these do not fit either, it is left out.
    """
    names = [console.visible(label) for label in labels]
    longest = max(map(rich.cell_len, names))
    digits = max(len(str(count)) for row in matrix for count in row)
    room = max(min(longest, _MAX_LABEL, width // 3), _MIN_LABEL)
    heads = max(digits, longest if longest <= _MAX_HEAD else _MAX_HEAD + 1) + 2
    numbered = max(digits, len(str(len(names)))) + 1
    place = room + len(str(len(names))) + 4
    yield rich.Text("confusion: rows are expected labels, columns predicted ones", "bold")
    if longest <= _MAX_HEAD and room + 4 + heads * len(names) <= width:
        yield from _cells(names, matrix, room, heads, [" " * (heads - rich.cell_len(name)) + name for name in names])
    elif place + numbered * len(names) <= width:
        tops = [f"{number:>{numbered}}" for number in range(1, len(names) + 1)]
        yield from _cells(_with_numbers(names), matrix, place - 2, numbered, tops)
    elif place + 2 * len(names) <= width:
        yield from _shades(_with_numbers(names), matrix, place - 2)
    else:
        yield rich.Text(f"  {len(names)} x {len(names)} numbers do not fit this terminal", "dim")
    yield from _mixed_up(names, matrix)


def _with_numbers(names: Sequence[str]) -> list[str]:
    digits = len(str(len(names)))
    return [f"{number:>{digits}} {name}" for number, name in enumerate(names, 1)]


def _name(name: str, room: int) -> "rich.Text":
    text = rich.Text(f"  {name}", no_wrap=True)
    text.truncate(room + 2, overflow="ellipsis", pad=True)
    return text


def _share(count: int, row: Sequence[int]) -> float:
    return count / total if (total := sum(row)) else 0.0


def _colour(share: float, right: bool) -> str:
    """Returns a background colour, which is stronger for a larger share of the row."""
    strength = share**0.5
    full = _RIGHT if right else _WRONG
    red, green, blue = (round(low + (high - low) * strength) for low, high in zip(_FAINT, full, strict=True))
    return f"on #{red:02x}{green:02x}{blue:02x}"


def _cells(
    names: Sequence[str], matrix: Matrix, room: int, width: int, heads: Sequence[str]
) -> Iterator["rich.RenderableType"]:
    yield rich.Text(" " * (room + 2) + "".join(heads), "dim", no_wrap=True)
    for number, (name, row) in enumerate(zip(names, matrix, strict=True)):
        line = _name(name, room)
        for column, count in enumerate(row):
            style = f"white {_colour(_share(count, row), column == number)}" if count else "dim"
            line.append(f"{count or '·':>{width}}", style)
        yield line


def _shades(names: Sequence[str], matrix: Matrix, room: int) -> Iterator["rich.RenderableType"]:
    """Draws the matrix with two characters per cell, which are darker for a larger share of the row.

    The number of each column is written vertically.
    """
    digits = len(str(len(names)))
    for digit in range(digits):
        heads = "".join(f"{str(number).rjust(digits)[digit]:>2}" for number in range(1, len(names) + 1))
        yield rich.Text(" " * (room + 2) + heads, "dim", no_wrap=True)
    for number, (name, row) in enumerate(zip(names, matrix, strict=True)):
        line = _name(name, room)
        for column, count in enumerate(row):
            shade = _SHADES[min(1 + int(_share(count, row) * 4), 4)] if count else "·" if column == number else " "
            line.append(f" {shade}" if shade == "·" else shade * 2, "green" if column == number else "red")
        yield line
    yield rich.Text("  ░ ▒ ▓ █: up to a quarter, a half, three quarters, all of a row; · none right", "dim")


def _mixed_up(names: Sequence[str], matrix: Matrix) -> Iterator["rich.RenderableType"]:
    wrong = [
        (count, row, column)
        for row, counts in enumerate(matrix)
        for column, count in enumerate(counts)
        if count and row != column
    ]
    if not wrong:
        return
    wrong.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
    yield from (rich.Text(), rich.Text("most frequent mix-ups", "bold"))
    rows = []
    for count, row, column in wrong[:_LISTED]:
        bar = console.bar_of(_share(count, matrix[row]), "red")
        counts = rich.Text(f"{count:,} of {sum(matrix[row]):,}")
        rows.append((rich.Text(names[row]), rich.Text(f"→ {names[column]}"), counts, bar))
    yield PlainTable(_MIXED_UP, rows, indent=2)
    if len(wrong) > _LISTED:
        yield rich.Text(f"  … and {console.counted(len(wrong) - _LISTED, 'other pair')}", "dim")


_NAME = Column(wraps=True, most=24)  # of a label
_LONG, _SHORT = ("precision", "recall", "F1", "support"), ("prec.", "rec.", "F1", "n")
_WIDE = 64  # minimum terminal columns for the long names
_MAX_TEXT = 240  # characters of a text
_MAX_MISTAKES = 5
_GUESS = 1.5  # a score of up to this many times the chance level is hardly more than a guess


def evaluation(result: "Evaluation", width: int) -> Iterator["rich.RenderableType"]:
    """Draws the details of an evaluation, and below them the metrics, because users look there first."""
    yield from details(result, width)
    low, high = map(value_texts.score, result.interval)
    yield rich.Text.assemble(
        (f"{console.visible(result.metric)} {value_texts.score(result.score)}", "bold green"),
        f"  95% interval {low} to {high} ({value_texts.method(result.metric, result.spec)})",
    )
    rows: list[tuple[str, object]] = [
        *((name, value_texts.score(value)) for name, value in result.constant.items()),
        ("model", result.model),
        ("data", f"{', '.join(result.data)}, {console.counted(result.examples, 'example')}"),
    ]
    if result.truncated:
        rows.append(("truncated", f"{result.truncated:,} of them"))
    if result.unknown:
        rows.append(
            ("not in the model", console.line(", ".join(f"{name} ({n:,})" for name, n in result.unknown.items())))
        )
    rows += [(name, value_texts.score(value)) for name, value in result.metrics.items() if name != result.metric]
    yield [*console.facts("", rows)][1]


def details(result: "Evaluation", width: int) -> Iterator["rich.RenderableType"]:
    """Draws the worst mistakes, the confusion matrix and a table of labels, if the task has them."""
    if result.mistakes:
        yield from (*_mistakes(result, width), rich.Text())
    if result.confusion is not None and len(result.labels) > 1:
        yield from (*confusion(result.classes, result.confusion, width), rich.Text())
    if result.labels:
        yield from (*_labels(result.labels, width), rich.Text())


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


def _mistakes(result: "Evaluation", width: int) -> Iterator["rich.RenderableType"]:
    """Draws each mistake: where it is in the data, how wrong the model was, expected and predicted labels, and text."""
    yield rich.Text("worst mistakes", "bold")
    surest = max(mistake.score for mistake in result.mistakes)
    if result.spec.mistakes == "class" and surest < _GUESS / max(len(result.labels), 1):
        yield Indented(rich.Text(f"none shown: the model was at most {surest:.0%} sure of a wrong label", "dim"))
        return
    for mistake in result.mistakes[:_MAX_MISTAKES]:
        line = rich.Text.assemble(
            ("expected ", "dim"),
            (console.line(mistake.expected, 60) or "none", "green"),
            ("  predicted ", "dim"),
            (console.line(mistake.predicted, 60) or "none", "red"),
        )
        place = f"{console.visible(mistake.place)}  {_sureness(result, mistake)}"
        yield Indented(rich.Text(place, "dim"))
        yield Indented(line, 4)
        yield _indented(mistake.text, width)
        if mistake.pair is not None:
            yield _indented(mistake.pair, width)


def _sureness(result: "Evaluation", mistake: "Mistake") -> str:
    """Describes how wrong the model was, as a difference, as an nDCG, or as its confidence in a wrong label.

    If a text can have several labels, also names the labels that were missed or added.
    """
    if result.numeric:
        return f"{value_texts.score(mistake.score)} apart"
    kind = result.spec.mistakes
    if kind == "ranks":  # pairs with scores have a distance of ranks, queries an nDCG
        return f"{mistake.score:.0%} of the ranks apart" if mistake.pair else f"nDCG {1 - mistake.score:.2f}"
    if kind != "labels":
        return f"{mistake.score:.0%} sure"
    expected, predicted = ({*labels.split(", ")} - {""} for labels in (mistake.expected, mistake.predicted))
    missed, added = sorted(expected - predicted), sorted(predicted - expected)
    parts = [("misses", missed), ("adds", added)]
    differences = [f"{name} {console.line(', '.join(labels), 60)}" for name, labels in parts if labels]
    worst = f" about {console.line(mistake.label, 60)}" if mistake.label and len(missed) + len(added) > 1 else ""
    return f"{', '.join(differences)}: {mistake.score:.0%} sure{worst}"


def _indented(text: str, width: int) -> Indented:
    return Indented(rich.Text(console.line(text, min(_MAX_TEXT, 3 * max(width - 6, 10)))), 4)
