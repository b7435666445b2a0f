"""Draws predictions about a text or a pair of texts: labels with bars, a number, or whether text B follows text A."""

import functools
from collections.abc import Callable, Iterator, Mapping

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, PlainTable
from mlxbert.labels.labels import Labels
from mlxbert.results.text_relations import NextSentence
from mlxbert.results.text_results import Classification, Label, Regression

SHOWN = 5  # labels shown by default, besides chosen ones
_COLUMNS = (
    *(Column(), Column(wraps=True), Column(bar=True, most=console.BAR_WIDTH), Column()),  # mark, label, bar, score
    Column(secondary=1),  # threshold
)


def drawing(
    top_k: int | None, known: Labels | None
) -> Callable[[Classification | Regression], Iterator["rich.RenderableType"]]:
    """Returns a function that draws the results of a model with these labels, with the best `top_k` labels for each."""
    return functools.partial(draw, most=top_k or SHOWN, known=known)


def draw(
    result: Classification | Regression, most: int = SHOWN, known: Labels | None = None
) -> Iterator["rich.RenderableType"]:
    """Draws the text or the pair of texts, and below it the predicted labels or the predicted number.

    Shows the best `most` labels, and also any other labels that were chosen.
    """
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
    """Draws a bar and the threshold for each label.

    The chosen labels are highlighted. These are the labels with a check mark or, in a single-label task, the first
    label.
    """
    rows = []
    for place, label in enumerate(labels):
        multi_label = label.chosen is not None
        chosen = label.chosen if multi_label else place == 0
        cells = (
            rich.Text("✓" if multi_label and chosen else "", style="bold green"),
            rich.Text(console.visible(label.label), style="bold" if chosen else ""),
            console.bar_of(label.score, "green" if chosen else "dim"),
            rich.Text(f"{label.score:6.1%}"),
            rich.Text(f"threshold {thresholds[label.label]:.1%}" if thresholds else "", style="dim"),
        )
        rows.append(cells)
    return PlainTable(_COLUMNS, rows)


def _numbers(result: Regression, known: Labels | None) -> "rich.Text | PlainTable":
    """Draws each number after its name; a single number is shown without its name if the name is just the default."""
    if not result.values:
        name = known.names[0] if known is not None and known.names[0] != "LABEL_0" else ""
        before = f"{console.visible(name)}  " if name else ""
        return rich.Text.assemble(before, (f"{result.value:.4g}", "bold green"))
    rows = [
        (rich.Text(console.visible(name)), rich.Text(f"{value:.4g}", "bold green")) for name, value in result.values
    ]
    return PlainTable((Column(wraps=True), Column()), rows)


def draw_next_sentence(result: NextSentence) -> Iterator["rich.RenderableType"]:
    """Draws the answer with its probability, and the two texts."""
    answer, colour = ("follows", "green") if result.is_next else ("does not follow", "red")
    share = result.score if result.is_next else 1 - result.score
    yield console.meter(rich.Text(answer, f"bold {colour}"), share, colour, f"{share:.1%}")
    yield from console.pair(result.a, result.b)
