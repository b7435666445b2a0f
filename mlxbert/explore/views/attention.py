"""Draws which tokens each token attends to: as a heat map if it fits the terminal, or else as a list of links."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console
from mlxbert.cli.views.table import Column, PlainTable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mlxbert.explore.results.attention import Attention

_SHADES = " ░▒▓█"
_CELL, _NAME = 3, 16  # columns of the terminal
_LINKS = 20
_COLUMNS = (Column(wraps=True), Column(), Column(wraps=True), Column(bar=True, most=console.BAR_WIDTH), Column())


def draw(result: "Attention") -> Iterator["RenderableType"]:
    """Draws the attention between tokens, averaged over the layers and heads."""
    from rich.text import Text

    count = len(result.tokens)
    yield Text(_title(result), style="bold")
    if _NAME + 4 + _CELL * count <= console.stdout().width:
        yield from _map(result)
    else:
        yield from _links(result)


def _title(result: "Attention") -> str:
    def named(noun: str, numbers: tuple[int, ...]) -> str:
        return f"{noun} {numbers[0]}" if len(numbers) == 1 else f"mean of {len(numbers)} {noun}s"

    if result.rollout:
        return f"Attention rollout: layers 0 to {max(result.layers)}, mean of the heads"
    return f"Attention: {named('layer', result.layers)}, {named('head', result.heads)}"


def _map(result: "Attention") -> Iterator["RenderableType"]:
    """Draws a heat map with a row for each token and a column for each token that it attends to."""
    from rich.text import Text

    mean, special = result.mean, [token.start == token.end for token in result.tokens]
    # Much attention goes to special tokens, where it has no effect; the shades are scaled to the rest.
    largest = float(mean[:, [not is_special for is_special in special]].max(initial=0.0)) or 1.0
    numbers = "".join(f"{number:>{_CELL}}" for number in range(len(result.tokens)))
    yield Text(" " * (_NAME + 4) + numbers, style="dim")
    for number, token in enumerate(result.tokens):
        line = Text().append(f"{number:>3} ", "dim").append(_fitted(token.token), "dim" if special[number] else "bold")
        for weight in mean[number]:
            shade = _SHADES[min(round(float(weight) / largest * (len(_SHADES) - 1)), len(_SHADES) - 1)]
            line.append(" " + shade * 2, "cyan")
        yield line
    yield Text(f"{_SHADES[-1] * 2} is at least {largest:.0%} of a token's attention", style="dim")


def _fitted(token: str) -> str:
    """Pads or truncates a token to a fixed number of terminal columns."""
    from rich.cells import set_cell_size

    return set_cell_size(console.visible(token), _NAME)


def _links(result: "Attention") -> Iterator["RenderableType"]:
    """Draws the pairs of different tokens with the strongest attention between them."""
    from rich.text import Text

    mean, text_tokens = result.mean, [number for number, token in enumerate(result.tokens) if token.start != token.end]
    links = sorted(((mean[a, b], a, b) for a in text_tokens for b in text_tokens if a != b), reverse=True)[:_LINKS]
    rows = [
        (
            Text(console.visible(result.tokens[a].token), "bold"),
            Text("→", "dim"),
            Text(console.visible(result.tokens[b].token), "bold"),
            console.bar_of(float(weight), "cyan"),
            Text(f"{weight:6.1%}"),
        )
        for weight, a, b in links
    ]
    yield PlainTable(_COLUMNS, rows)
    note = f"the {len(rows)} strongest links of {len(result.tokens)} tokens; --output FILE.html shows all"
    yield Text(note, style="dim")
