"""Draws a comparison of the runs of a training, which differ in the seed or in the values of a sweep."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Cell, Column, Indented, PlainTable
from mlxbert.cli.views.training import value_texts
from mlxbert.training.loop.events import Finished


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
    """Returns the score of a run; NaN if the run diverged."""
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
