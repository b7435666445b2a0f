"""Draws curves with braille characters of 2 x 4 dots."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from mlxbert.cli.views import rich
from mlxbert.train.views import value_texts

_BINS = 1200  # more than the dots of any terminal; limits memory and time for runs of a million steps
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bits of U+2800, by column and row
_STYLES = {True: "cyan", False: "dim"}
_SMOOTHING = 40  # the mean covers about 1/40 of the run
_MARGIN = 9  # terminal columns of the scale

Dots = dict[tuple[int, int], int]


class Curve:
    """The values of a metric over the steps of a run, averaged in bins."""

    def __init__(self, steps: int) -> None:
        self.steps = max(steps, 1)
        self._sums = [0.0] * min(self.steps, _BINS)
        self._counts = [0] * len(self._sums)

    def add(self, step: int, value: float) -> None:
        """Adds the value of a step, which counts from 1; ignores values that are not finite."""
        if math.isfinite(value):
            place = min(max(step - 1, 0) * len(self._sums) // self.steps, len(self._sums) - 1)
            self._sums[place] += value
            self._counts[place] += 1

    def means(self, width: int) -> list[float | None]:
        """Returns the mean value in each of `width` equal parts of the run."""
        sums, counts = [0.0] * width, [0] * width
        for place, number in enumerate(self._counts):
            part = place * width // len(self._counts)
            sums[part] += self._sums[place]
            counts[part] += number
        return [total / number if number else None for total, number in zip(sums, counts, strict=True)]

    def smoothed(self, values: Sequence[float | None]) -> list[float | None]:
        """Returns the exponential moving average of the values up to each value."""
        keep = 1 - 1 / max(len(values) / _SMOOTHING, 1)
        total = weight = 0.0
        averages: list[float | None] = []
        for value in values:
            if value is not None:
                total, weight = keep * total + value, keep * weight + 1
            averages.append(None if value is None else total / weight)
        return averages


def draw(curve: Curve, width: int, height: int, *, marks: Mapping[int, str], epochs: float) -> Iterator["rich.Text"]:
    """Draws a curve in `height` lines with its scale, and below it an axis and a line of epochs.

    `marks` holds the characters to show on the axis, by step.
    """
    columns = width - _MARGIN
    # If there are fewer steps than dots, each part of the run is one step, and lines connect the steps.
    parts = min(2 * columns, len(curve._counts))
    raw = curve.means(parts)
    smooth = curve.smoothed(raw)
    known = [value for value in (*raw, *smooth) if value is not None]
    low, high = _scale(known)
    faint = _dots(raw, 2 * columns, 4 * height, (low, high))
    strong = _dots(smooth, 2 * columns, 4 * height, (low, high))
    rows = (0, (height - 1) // 2, height - 1)
    ticks = _ticks([high - (high - low) * row / max(height - 1, 1) for row in rows]) if known else []
    labels = dict(zip(rows, ticks, strict=False))
    for row in range(height):
        line = rich.Text(f"{labels.get(row, ''):>{_MARGIN - 2}} ", "dim", no_wrap=True)
        line.append("│", "dim")
        cells = [(strong.get((column, row), 0), faint.get((column, row), 0)) for column in range(columns)]
        for bright, group in itertools.groupby(cells, lambda cell: cell[0] > 0):
            line.append("".join(chr(0x2800 + (cell or other)) for cell, other in group), _STYLES[bright])
        yield line
    yield _axis(curve.steps, columns, marks)
    yield _epochs(columns, epochs)


def _scale(values: Sequence[float]) -> tuple[float, float]:
    """Returns the lower and the upper end of the scale, which starts at 0 unless all values are far from 0."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if low >= 0 and low < high / 2:
        low = 0.0
    if high == low:  # a single point is not a curve: the scale includes 0
        low, high = min(low, 0.0), max(high, 0.0)
    return (low, high) if high > low else (0.0, 1.0)


def _ticks(values: Sequence[float]) -> list[str]:
    """Formats the numbers of a scale, with enough digits to distinguish them."""
    for digits in range(2, _MARGIN - 3):
        texts = [f"{value:.{digits}f}" for value in values]
        if len({*texts}) == len({*values}) and max(map(len, texts)) <= _MARGIN - 2:
            return texts
    return [value_texts.figure(value) for value in values]


def _dots(values: Sequence[float | None], width: int, height: int, scale: tuple[float, float]) -> Dots:
    """Returns the dots of a line through the values, as bits of the braille character in each column and row."""
    low, high = scale
    places = [
        (place * (width - 1) / max(len(values) - 1, 1), (high - value) / (high - low) * (height - 1))
        for place, value in enumerate(values)
        if value is not None
    ]
    dots: Dots = {}
    for (x, y), (to_x, to_y) in zip(places, places[1:] or places, strict=False):
        count = max(round(max(abs(to_x - x), abs(to_y - y))), 1)
        for part in range(count + 1):
            column, row = round(x + (to_x - x) * part / count), round(y + (to_y - y) * part / count)
            cell = (column // 2, row // 4)
            dots[cell] = dots.get(cell, 0) | _DOTS[column % 2][row % 4]
    return dots


def _axis(steps: int, columns: int, marks: Mapping[int, str]) -> "rich.Text":
    line = ["─"] * columns
    for step, mark in marks.items():
        line[min(max(step - 1, 0) * columns // steps, columns - 1)] = mark
    text = rich.Text(" " * (_MARGIN - 1) + "└", "dim", no_wrap=True)
    for mark in line:
        text.append(mark, "dim" if mark == "─" else "bold green" if mark == "★" else "green")
    return text


def _epochs(columns: int, epochs: float) -> "rich.Text":
    """Draws the numbers of epochs under the axis, as many as fit."""
    room = max(columns // 8, 1)
    stride = max(math.ceil(epochs / room), 1)
    end = f"{epochs:g} epoch{'s' if epochs != 1 else ''}"
    line = [" "] * columns
    for epoch in range(0, math.ceil(epochs), stride):
        place = int(columns * epoch // max(epochs, 1))
        if place + len(str(epoch)) + 1 < columns - len(end):
            line[place : place + len(str(epoch))] = str(epoch)
    line[columns - len(end) :] = end
    return rich.Text(" " * _MARGIN + "".join(line), "dim", no_wrap=True)
