"""Draws which words of a text decided a result: the text in colours, and the words with the largest shares."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console
from mlxbert.cli.views.table import Column, PlainTable
from mlxbert.explore.results.explain import SIMILARITY

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mlxbert.explore.results.explain import Explanation, Share

_SHOWN = 15  # words
_COLOURED = 0.1  # of the largest share; the colour of a smaller one would say too much
_STRONG = 0.5
_COLUMNS = (Column(wraps=True), Column(bar=True, most=console.BAR_WIDTH), Column())


def draw(result: "Explanation") -> Iterator["RenderableType"]:
    """Draws the text, the words, and what the shares add up to."""
    from rich.text import Text

    largest = max((abs(word.score) for word in result.words), default=0.0) or 1.0
    yield Text.assemble((console.visible(result.target), "bold"), f"  {result.score:.3f}")
    for number, text in enumerate((result.text, result.pair)):
        if text is not None:
            yield _coloured(text, [word for word in result.words if word.text == number], largest)
    first = sorted(result.words, key=lambda word: -abs(word.score))[:_SHOWN]
    rows = [
        (
            Text.assemble((console.visible(word.token), "bold"), (_occurrence(result, word), "dim")),
            console.bar_of(abs(word.score) / largest, "green" if word.score > 0 else "red"),
            Text(f"{word.score:+.3f}"),
        )
        for word in first
    ]
    yield PlainTable(_COLUMNS, rows)
    yield Text(summary(result), style="dim")


def _occurrence(result: "Explanation", word: "Share") -> str:
    """Returns which of several equal words a word is, such as " (2 of 3)", counted over both texts."""
    equal = [other for other in result.words if other.token == word.token]
    return f" ({equal.index(word) + 1} of {len(equal)})" if len(equal) > 1 else ""


def summary(result: "Explanation") -> str:
    """Returns a sentence about the scores with and without the words, and about the sum of the shares."""
    twice = "twice " if result.target == SIMILARITY else ""
    gap = "" if result.gap is None else f"; the shares add up to {twice}the difference"
    if result.gap is not None and round(abs(result.gap), 3):
        gap += f" but for {result.gap:+.3f}"
    unit = "cosine" if result.target == SIMILARITY else "logit"
    return f"{unit} {result.score:.3f}, and {result.baseline_score:.3f} without the words{gap}"


def _coloured(text: str, words: list["Share"], largest: float) -> "RenderableType":
    """Returns a text whose words are green if they speak for the target, and red if they speak against it."""
    from rich.text import Text

    shown, last = Text(), 0
    for word in words:
        size = abs(word.score) / largest
        start = max(word.start, last)
        shown.append(console.visible(text[last:start]))
        style = ("bold " if size >= _STRONG else "") + ("green" if word.score > 0 else "red")
        shown.append(console.visible(text[start : word.end]), style if size >= _COLOURED else "")
        last = max(word.end, last)
    shown.append(console.visible(text[last:]))
    return shown
