"""Draws the result of a training: the score next to baselines, the runs compared, and how to use the model."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.option_spelling import to_options
from mlxbert.cli.views.table import Bar, Cell, Column, Indented, PlainTable
from mlxbert.train.loop.events import Finished
from mlxbert.train.views import value_texts

if TYPE_CHECKING:
    from mlxbert.train.options.training_tasks import TaskSpec
    from mlxbert.train.scores.evaluation_summary import Summary

_BAR = Column(bar=True, most=48)
_COMPARED = (Column(wraps=True, most=27), Column(right=True), _BAR, Column(secondary=1))
_MIN_PHASE = 0.5  # seconds; shorter phases are not shown
FROZEN = "frozen vectors"  # the baseline's name in `TextObjective.baselines`


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
        yield rich.Text.assemble(("opens in ", "bold"), to_options(event.opens))


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
    if summary.advice:
        as_good = [name for name, score in summary.baselines.items() if sign * (score - summary.score) <= 0]
        names, help = console.visible(" and ".join(as_good)), to_options(summary.advice)
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


def runs(event: Finished) -> Iterator["rich.RenderableType"]:
    """Draws every run with its options, and marks the best one.

    Also draws the means over seeds, and a warning that the best of several runs looks better than it is.
    """
    yield from (rich.Text(), rich.Text(console.counted(len(event.runs), "run"), "bold"))
    names = _differing(event.runs)
    heads = (*(name.replace("_", " ") for name in names), event.metric)
    columns = [Column(console.visible(head), right=True) for head in heads]
    columns += [Column(bar=True, most=console.BAR_WIDTH), Column()]
    scores = [_score(run) for run in event.runs]
    best = _best(scores, event.score)
    top = max(1.0, *filter(math.isfinite, scores))
    rows: list[list[Cell]] = []
    for place, (run, score) in enumerate(zip(event.runs, scores, strict=True)):
        style = "bold green" if place == best else ""
        cells = [rich.Text(console.visible(value_texts.value(run.get(name, "-"))), style) for name in names]
        bar = value_texts.bar(event.metric, score / top, style or "cyan")
        rows.append(
            [
                *cells,
                rich.Text(value_texts.score(score), style),
                bar,
                rich.Text("★ kept" if place == best else "", style),
            ]
        )
    yield PlainTable(columns, rows, indent=2)
    yield from _means(event.runs, names)
    warning = f"the best of {len(scores)} runs on the same validation data: expect slightly worse results on new texts"
    yield Indented(rich.Text(warning, "dim"))


def _differing(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the options that are shown for runs; the seed is included only if it differs."""
    names = dict.fromkeys(name for run in runs for name in run if name != "score")
    return [name for name in names if name != "seed" or len({run.get(name) for run in runs}) > 1]


def _best(scores: Sequence[float], kept: float) -> int:
    """Returns the index of the run with the best score, whose model was kept."""
    finite = [place for place, score in enumerate(scores) if math.isfinite(score)]
    return min(finite, key=lambda place: abs(scores[place] - kept))


def _score(run: Mapping[str, Any]) -> float:
    return math.nan if run["score"] is None else float(run["score"])


def _means(runs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator["rich.RenderableType"]:
    """Draws the mean and the standard deviation of runs that differ only in the seed.

    There is a line for each combination of the other options.
    """
    groups: dict[str, list[float]] = {}
    for run in runs:
        other = value_texts.varied({name: run[name] for name in names if name in run and name != "seed"})
        groups.setdefault(other, []).append(_score(run))
    for other, scores in groups.items():
        if len(scores) > 1:
            mean, deviation = statistics.fmean(scores), statistics.stdev(scores)
            line = f"  mean {value_texts.score(mean)} ± {value_texts.score(deviation)}"
            line += f" over {console.counted(len(scores), 'seed')}"
            yield rich.Text(f"{line}{f', {console.visible(other)}' if other else ''}", "bold")
