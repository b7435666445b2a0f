"""Draws the result of a training: the score next to baselines, the runs, and how to use the model."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Bar, Column, Indented, PlainTable
from mlxbert.cli.views.training import value_texts
from mlxbert.cli.views.training.compared_runs import runs

if TYPE_CHECKING:
    from mlxbert.training.loop.events import Finished
    from mlxbert.training.options.training_tasks import TaskSpec
    from mlxbert.training.scores.evaluation_summary import Summary

_BAR = Column(bar=True, most=48)
_COMPARED = (Column(wraps=True, most=27), Column(right=True), _BAR, Column(secondary=1))
_MIN_PHASE = 0.5  # seconds; shorter phases are not shown
FROZEN = "frozen vectors"  # the baseline's name in `mlxbert.training.scores.baselines`


def finished(event: "Finished") -> Iterator["rich.RenderableType"]:
    """Draws the score and its interval next to baselines, the runs, how to use the model, and what can open it."""
    yield rich.Text.assemble(
        (f"{console.visible(event.metric)} {value_texts.score(event.score)}", "bold green"),
        f"  after step {event.step:,}, {value_texts.duration(event.seconds)} in all",
    )
    phases = [
        f"{name} {value_texts.duration(seconds)}" for name, seconds in event.phases.items() if seconds >= _MIN_PHASE
    ]
    if event.ended < event.planned:
        yield Indented(rich.Text(f"ended early, after step {event.ended:,} of {event.planned:,}", "dim"))
    if phases:
        yield Indented(rich.Text(", ".join(phases), "dim"))
    if event.summary is not None and event.evaluation is not None:
        yield from _compared(event.summary, event.evaluation.spec)
    if len(event.runs) > 1:
        yield from runs(event)
    if event.summary is not None:
        yield from _advice(event.summary, event.output, event.evaluation is not None and event.evaluation.numeric)
    if event.check is not None:
        text = f"transformers gives the same logits, to {event.check:.1e}"
        yield rich.Text.assemble(("check    ", "bold"), text)
    if event.opens:
        yield rich.Text.assemble(("opens in ", "bold"), console.to_options(event.opens))


def _compared(summary: "Summary", task: "TaskSpec") -> Iterator["rich.RenderableType"]:
    """Draws a bar for the model with its interval, and a bar for each baseline, best first; all bars begin at 0."""
    sign = 1 if summary.metric in task.minimized else -1
    values = (summary.score, *summary.interval, *summary.baselines.values())
    scale = (0.0, max(1.0, *filter(math.isfinite, values)))
    interval = f"{value_texts.score(summary.interval[0])} to {value_texts.score(summary.interval[1])}"
    style = "bold green"
    lessens = value_texts.lessens(summary.metric)
    bar = rich.Text() if lessens else error_bar(summary, scale)
    ours = (rich.Text("this model", style), rich.Text(value_texts.score(summary.score), style), bar)
    rows = [(*ours, rich.Text(interval, "dim"))]
    for name, score in sorted(summary.baselines.items(), key=lambda entry: sign * entry[1]):
        bar = value_texts.bar(summary.metric, (score - scale[0]) / (scale[1] - scale[0]), "dim")
        rows.append((rich.Text(console.line(name)), rich.Text(value_texts.score(score)), bar, rich.Text()))
    yield PlainTable(_COMPARED, rows, indent=2)
    mark = "" if lessens else "┣━┫ "
    yield _note(f"{mark}95% interval ({value_texts.method(summary.metric, task)}) over the validation examples")
    if FROZEN in summary.baselines:
        kind = "ridge" if task.numeric else "logistic"
        yield _note(f"{FROZEN}: a {kind} regression on the untrained model's vectors")
    yield from _worse(summary, sign)


def _worse(summary: "Summary", sign: int) -> Iterator["rich.RenderableType"]:
    """Warns if a baseline is as good as the trained model, and gives advice."""
    if summary.advice:
        as_good = [name for name, score in summary.baselines.items() if sign * (score - summary.score) <= 0]
        names, help = console.visible(" and ".join(as_good)), console.to_options(summary.advice)
        yield rich.Text.assemble(("no better than ", "bold yellow"), (names, "bold yellow"), f": {help}")


def _note(text: str) -> Indented:
    return Indented(rich.Text(text, "dim"))


def error_bar(summary: "Summary", scale: tuple[float, float]) -> Bar:
    """Makes a bar that reaches up to the score, with a line that spans the interval."""

    def draw(width: int) -> rich.Text:
        def place(value: float) -> int:
            share = (value - scale[0]) / (scale[1] - scale[0] or 1)
            return min(max(round(share * width), 1), width) - 1 if math.isfinite(share) else 0

        start, score, end = (place(value) for value in (summary.interval[0], summary.score, summary.interval[1]))
        cells = ["█" if column < score else " " for column in range(width)]
        for column in range(start, end + 1):
            cells[column] = "━"
        cells[start], cells[end] = ("┣", "┫") if end > start else ("█", "█")
        cells[score] = "╋" if start < score < end else cells[score]
        line = "".join(cells)
        return rich.Text.assemble((line[:start], "green"), (line[start:], "bold green"))

    return draw


def _advice(summary: "Summary", output: str, numeric: bool) -> Iterator["rich.RenderableType"]:
    yield rich.Text("")
    if summary.weakest is not None:
        name = "largest error" if numeric else "weakest"
        yield rich.Text.assemble((f"{name}  ", "bold yellow"), console.visible(summary.weakest))
    yield rich.Text.assemble(("model    ", "bold"), console.visible(output))
    yield rich.Text.assemble(("use it   ", "bold"), (console.visible(summary.command), "cyan"))
