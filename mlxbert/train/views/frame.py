"""Draws a single picture of a run, with header, loss curve, evaluations and progress, that fits any terminal."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxbert.cli.views import console, rich
from mlxbert.train.loop.events import Evaluated, Event, Saved, Started, Step
from mlxbert.train.views import report, value_texts

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


def draw_curve(
    curve: Curve, width: int, height: int, *, marks: Mapping[int, str], epochs: float
) -> Iterator["rich.Text"]:
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


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: the options in which it differs from other runs, and its best evaluation."""

    varied: Mapping[str, Any]
    best: Evaluated | None


class DrawnRuns:
    """The runs so far: the full state of the current run, and the best evaluation of each earlier run."""

    def __init__(self) -> None:
        self.done: list[FinishedRun] = []
        self.started: Started | None = None
        self.phase = ""  # the name of the current phase, unless it is updating the weights
        self._begin()

    def _begin(self) -> None:
        self.loss = Curve(self.started.steps if self.started else 1)
        self.step: Step | None = None
        self.saved: Saved | None = None
        self.evaluations: list[Evaluated] = []

    @property
    def best(self) -> Evaluated | None:
        return next((evaluated for evaluated in reversed(self.evaluations) if evaluated.best), None)

    @property
    def place(self) -> int:
        first = self.started.first_step if self.started else 0
        return self.step.step if self.step else first

    def note(self, event: Event) -> None:
        match event:
            case Started():
                if self.started is not None:
                    self.done.append(FinishedRun(self.started.varied, self.best))
                self.started = event
                self._begin()
                self.evaluations += event.evaluations
                for step, loss in event.losses:
                    self.loss.add(step, loss)
            case Step():
                self.step = event
                self.loss.add(event.step, event.loss)
            case Evaluated():
                self.evaluations.append(event)
            case Saved():
                self.saved = event


_SIDE_BY_SIDE = 100  # minimum terminal columns for evaluations next to the curve
_SIDE = 44  # terminal columns of evaluations next to the curve
_MAX_LINES, _MIN_LINES = 10, 3  # lines of the curve
_SHOWN = 5  # evaluations, earlier runs
_NARROW, _VERY_NARROW = 64, 30  # terminal columns; below the latter there is no curve, and lines are wrapped
_WITHOUT_BAR = 32  # terminal columns of an evaluation without its bar: epoch, score, loss, ★ best


def frame(state: DrawnRuns, width: int, height: int) -> "rich.RenderableType":
    """Returns a picture that is at most `width` columns wide and `height` lines high.

    If `height` is less than about ten, the picture may be higher.
    """
    started = state.started
    assert started is not None
    head, foot = [*_head(state, started, width)], [*_foot(state, started, width)]
    if width < _VERY_NARROW:
        return rich.Group(*head, *_scores(state), *foot)
    room = height - len(head) - len(foot) - 3  # the curve's heading, axis and epochs
    side_by_side = width >= _SIDE_BY_SIDE
    evaluations = [*_evaluations(state, _SIDE if side_by_side else width, _MAX_LINES if side_by_side else _SHOWN)]
    if not side_by_side and evaluations:
        evaluations = [rich.Text(), *evaluations]
        if room - len(evaluations) < _MIN_LINES:  # few lines: only the newest evaluation
            evaluations = evaluations[-1:]
        room -= len(evaluations)
    lines = min(max(room, _MIN_LINES), _MAX_LINES)
    marks = {started.first_step: "▷"} if started.first_step else {}
    marks |= {event.step: "◆" for event in state.evaluations} | ({state.best.step: "★"} if state.best else {})
    columns = width - _SIDE - 4 if side_by_side else width
    epochs = round(started.epochs, 2)
    curve_lines = [rich.Text("loss", "dim"), *draw_curve(state.loss, columns, lines, marks=marks, epochs=epochs)]
    if not side_by_side:
        return rich.Group(*head, *curve_lines, *evaluations, *foot)
    table = rich.Table.grid(padding=(0, 4, 0, 0))
    table.add_column(width=columns)
    table.add_column(width=_SIDE)
    table.add_row(rich.Group(*curve_lines), rich.Group(*evaluations[: lines + 3]))
    return rich.Group(*head, table, *foot)


def _scores(state: DrawnRuns) -> Iterator["rich.Text"]:
    for event in state.evaluations:
        if event in (state.best, state.evaluations[-1]):
            best = " ★ best" if event is state.best else ""
            yield rich.Text(
                f"{console.visible(event.metric)} {value_texts.score(event.metrics[event.metric])}{best}", "green"
            )


def _truncated(text: "rich.Text", width: int) -> "rich.Text":
    if width < _VERY_NARROW:
        return text
    text.no_wrap = True
    text.truncate(width, overflow="ellipsis")
    return text


def _head(state: DrawnRuns, started: Started, width: int) -> Iterator["rich.Text"]:
    """Draws the task, the model to train, the folder to write, and the current run.

    Also draws the step at which the run resumed, if it did, and the results of earlier runs.
    """
    text = rich.Text.assemble(
        ("fine-tuning ", "dim") if started.corpus is None else "",
        (started.task, "bold"),
        ("  ", ""),
    )
    if started.runs > 1:
        text.append(f"run {started.run + 1} of {started.runs}", "bold cyan")
        text.append(f" {console.visible(value_texts.varied(started.varied))}" if started.varied else "", "cyan").append(
            "  "
        )
    model, output = console.visible(started.model), console.visible(started.output)
    names = rich.Text.assemble(model, (" → ", "dim"), (output, "bold"))
    separate = text.cell_len + names.cell_len > width  # each gets its own line
    yield from (_truncated(line, width) for line in ([text, names] if separate else [text + names]))
    if started.first_step:
        yield _truncated(rich.Text(f"resumed after step {started.first_step:,} of {started.steps:,}", "cyan"), width)
    for done in state.done[-_SHOWN:]:
        score = f"{done.best.metric} {value_texts.score(done.best.metrics[done.best.metric])}" if done.best else "-"
        yield _truncated(rich.Text(console.visible(f"  {value_texts.varied(done.varied)}  {score}"), "dim"), width)
    yield rich.Text()


def _evaluations(state: DrawnRuns, width: int, limit: int) -> Iterator["rich.Text"]:
    """Draws a line for each of the newest evaluations, oldest first.

    The best evaluation is marked, and is shown even if it is not among the newest.
    """
    if not state.evaluations:
        if width == _SIDE:  # the space next to the curve is reserved
            yield rich.Text("no evaluation yet", "dim")
        return
    events, best = state.evaluations[-limit:], state.best
    if best is not None and best not in events:
        events = [best, *events[1:]]
    metric = state.evaluations[-1].metric
    name = console.visible(metric)
    bars = 0 if value_texts.lessens(metric) else min(max(width - _WITHOUT_BAR, 0), 20)
    losses = metric != "loss" and any(map(_loss, state.evaluations))
    title = f"{'epoch':>6}  {name:<{bars + 7 if bars else 7}}" + (f"  {'loss':>7}" if losses else "")
    yield _truncated(rich.Text(title, "dim"), width)
    top = max(max(abs(event.metrics[metric]) for event in state.evaluations), 1e-12)
    for event in events:
        line = _evaluation(event, bars, 1.0 if top <= 1 else top, len(name), event is best, losses)
        yield _truncated(line, width)


def _evaluation(event: Evaluated, bars: int, top: float, name: int, best: bool, loss: bool) -> "rich.Text":
    value, style = event.metrics[event.metric], "green" if best else ""
    text = rich.Text(f"{event.epoch:>6.2f}  ")
    text.append(f"{value_texts.score(value):>5}", f"bold {style}".strip())
    used = 5
    if bars:
        text.append(f" {console.bar(min(max(value / top, 0.0), 1.0), bars)}", style or "cyan")
        used += bars + 1
    text.append(" " * max(max(bars + 7 if bars else 7, name) - used, 0))
    text.append(f"  {_loss(event):>7}" if loss else "", "dim")
    return text.append("  ★ best" if best else "", "green")


def _foot(state: DrawnRuns, started: Started, width: int) -> Iterator["rich.Text"]:
    step, share = state.step, state.place / max(started.steps, 1)
    finished = state.place >= started.steps
    status = "" if finished else f"{value_texts.duration(step.seconds_left)} left" if step else "starting"
    status = state.phase or status
    position = f"step {state.place:,} of {started.steps:,}"
    epoch = f"epoch {step.epoch:.2f} of {started.epochs:.3g}" if step else ""
    facts = [position, epoch, status] if width >= _NARROW else [position, status]
    line_text = "  ".join(fact for fact in facts if fact)
    bars = min(max(width - len(line_text) - 8, 0), 40)
    yield rich.Text()
    line = rich.Text()
    if bars >= 4:
        done = console.bar(share, bars).rstrip()
        line.append(done, "green").append("╌" * (bars - len(done)), "dim")
    yield _truncated(line.append(f" {share:4.0%}  ", "bold").append(line_text), width)
    if step is None:
        yield _truncated(rich.Text("" if finished else "the first steps measure the speed", "dim"), width)
        return
    numbers = [
        ("loss", value_texts.figure(step.loss)),
        ("learning rate", f"{step.lr:.2e}"),
        ("tokens/s", f"{step.tokens_per_second:,.0f}"),
        ("memory", console.size(step.memory)),
        ("gradient", value_texts.figure(step.gradient_norm)),
    ]
    yield from _flowing([*numbers, *([("saved at step", f"{state.saved.step:,}")] if state.saved else [])], width)
    if started.corpus is not None:
        yield from (
            _truncated(line, width) for line in report.below(step, state.evaluations[-1] if state.evaluations else None)
        )


def _flowing(facts: list[tuple[str, str]], width: int) -> Iterator["rich.Text"]:
    line = rich.Text()
    for name, value in facts:
        piece = rich.Text.assemble((f"{name} ", "dim"), value)
        if line and len(line) + 3 + len(piece) > width:
            yield _truncated(line, width)
            line = rich.Text()
        line = rich.Text.assemble(line, ("   " if line else ""), piece)
    yield _truncated(line, width)


def _loss(event: Evaluated) -> str:
    """Formats the validation loss, whose name depends on the task; returns an empty text if there is none."""
    losses = [event.metrics[name] for name in ("loss", "log_loss", "mse") if name in event.metrics]
    return value_texts.score(losses[0]) if losses else ""
