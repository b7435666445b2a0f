"""The labels of a text with bars, or its number."""

import functools
from collections.abc import Callable, Iterator, Mapping

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, PlainTable
from mlxbert.labels.labels import Labels
from mlxbert.results.classify import Classification, Label, Regression

MOST = 5  # labels shown, besides chosen ones, where nothing else is asked for
_COLUMNS = (
    *(Column(), Column(wraps=True), Column(bar=True, most=console.BAR_WIDTH), Column()),  # mark, label, bar, score
    Column(secondary=1),  # threshold
)


def drawing(
    top_k: int | None, known: Labels | None
) -> Callable[[Classification | Regression], Iterator["rich.RenderableType"]]:
    """How results of a model with these labels look; `top_k` labels of each are shown."""
    return functools.partial(draw, most=top_k or MOST, known=known)


def draw(
    result: Classification | Regression, most: int = MOST, known: Labels | None = None
) -> Iterator["rich.RenderableType"]:
    """The text or the pair, and below it what the model says: `most` labels, and all chosen ones."""
    if result.pair is None:
        yield rich.Text(console.shortened(result.text), style="dim")
    else:
        yield from console.pair(result.text, result.pair)
    if isinstance(result, Regression):
        yield _numbers(result, known)
        return
    shown = [label for place, label in enumerate(result.labels) if place < most or label.chosen]
    thresholds = dict(zip(known.names, known.thresholds, strict=True)) if known and known.thresholds else {}
    yield _bars(shown, thresholds)
    if len(shown) < len(result.labels):
        yield rich.Text(f"and {len(result.labels) - len(shown)} more, see --top-k", style="dim")


def _bars(labels: list[Label], thresholds: Mapping[str, float]) -> PlainTable:
    """A bar for each label, next to its threshold; chosen ones stand out: the first, or those with a check mark."""
    rows = []
    for place, label in enumerate(labels):
        several = label.chosen is not None
        chosen = label.chosen if several else place == 0
        cells = (
            rich.Text("✓" if several and chosen else "", style="bold green"),
            rich.Text(console.visible(label.label), style="bold" if chosen else ""),
            console.bar_of(label.score, "green" if chosen else "dim"),
            rich.Text(f"{label.score:6.1%}"),
            rich.Text(f"threshold {thresholds[label.label]:.1%}" if thresholds else "", style="dim"),
        )
        rows.append(cells)
    return PlainTable(_COLUMNS, rows)


def _numbers(result: Regression, known: Labels | None) -> "rich.Text | PlainTable":
    """Each number after its name; a single one without it where it has only that of its place."""
    if not result.values:
        name = known.names[0] if known is not None and known.names[0] != "LABEL_0" else ""
        before = f"{console.visible(name)}  " if name else ""
        return rich.Text.assemble(before, (f"{result.value:.4g}", "bold green"))
    rows = [
        (rich.Text(console.visible(name)), rich.Text(f"{value:.4g}", "bold green")) for name, value in result.values
    ]
    return PlainTable((Column(wraps=True), Column()), rows)
