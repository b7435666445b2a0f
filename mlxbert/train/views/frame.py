"""Draws a single picture of a run, with header, loss curve, evaluations and progress, that fits any terminal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlxbert.cli.views import console, rich
from mlxbert.train.loop.events import Evaluated, Event, Saved, Started, Step
from mlxbert.train.views import curve, report, value_texts
from mlxbert.train.views.curve import Curve


@dataclass(frozen=True)
class Done:
    """A finished run: the options in which it differs from other runs, and its best evaluation."""

    varied: Mapping[str, Any]
    best: Evaluated | None


class DrawnRuns:
    """The runs so far: the full state of the current run, and the best evaluation of each earlier run."""

    def __init__(self) -> None:
        self.done: list[Done] = []
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
        """The best evaluation of the current run."""
        return next((evaluated for evaluated in reversed(self.evaluations) if evaluated.best), None)

    @property
    def place(self) -> int:
        """The number of finished steps of the current run."""
        first = self.started.first_step if self.started else 0
        return self.step.step if self.step else first

    def note(self, event: Event) -> None:
        match event:
            case Started():
                if self.started is not None:
                    self.done.append(Done(self.started.varied, self.best))
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
    curve_lines = [rich.Text("loss", "dim"), *curve.draw(state.loss, columns, lines, marks=marks, epochs=epochs)]
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
    """Truncates a text to one line, unless the terminal is very narrow."""
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
