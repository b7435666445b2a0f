"""What tokens attend to: a heat map that fits the terminal, or the strongest links."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console
from mlxbert.cli.views.table import Column, PlainTable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mlxbert.results.attention import Attention

_SHADES = " ░▒▓█"
_CELL, _NAME = 3, 16  # columns of the terminal
_LINKS = 20
_COLUMNS = (Column(wraps=True), Column(), Column(wraps=True), Column(bar=True, most=console.BAR_WIDTH), Column())


def draw(found: "Attention") -> Iterator["RenderableType"]:
    """The mean over the layers and heads; a row for each token."""
    from rich.text import Text

    count = len(found.tokens)
    yield Text(_title(found), style="bold")
    if _NAME + 4 + _CELL * count <= console.stdout().width:
        yield from _map(found)
    else:
        yield from _links(found)


def _title(found: "Attention") -> str:
    def named(what: str, numbers: tuple[int, ...]) -> str:
        return f"{what} {numbers[0]}" if len(numbers) == 1 else f"mean of {len(numbers)} {what}s"

    return f"Attention: {named('layer', found.layers)}, {named('head', found.heads)}"


def _map(found: "Attention") -> Iterator["RenderableType"]:
    """Each token looks along its row; columns have the numbers of the tokens."""
    from rich.text import Text

    mean, special = found.mean, [token.start == token.end for token in found.tokens]
    # Much attention goes to special tokens, where it does nothing; the shades are for the rest.
    largest = float(mean[:, [not one for one in special]].max(initial=0.0)) or 1.0
    numbers = "".join(f"{number:>{_CELL}}" for number in range(len(found.tokens)))
    yield Text(" " * (_NAME + 4) + numbers, style="dim")
    for number, token in enumerate(found.tokens):
        line = Text().append(f"{number:>3} ", "dim").append(_fitted(token.token), "dim" if special[number] else "bold")
        for weight in mean[number]:
            shade = _SHADES[min(round(float(weight) / largest * (len(_SHADES) - 1)), len(_SHADES) - 1)]
            line.append(" " + shade * 2, "cyan")
        yield line
    yield Text(f"{_SHADES[-1] * 2} is {largest:.0%} of the attention of a token, or more", style="dim")


def _fitted(token: str) -> str:
    """A token in a fixed number of columns of the terminal."""
    from rich.cells import set_cell_size

    return set_cell_size(console.visible(token), _NAME)


def _links(found: "Attention") -> Iterator["RenderableType"]:
    """The strongest links between different tokens of the text."""
    from rich.text import Text

    mean, real = found.mean, [number for number, token in enumerate(found.tokens) if token.start != token.end]
    links = sorted(((mean[a, b], a, b) for a in real for b in real if a != b), reverse=True)[:_LINKS]
    rows = [
        (
            Text(console.visible(found.tokens[a].token), "bold"),
            Text("→", "dim"),
            Text(console.visible(found.tokens[b].token), "bold"),
            console.bar_of(float(weight), "cyan"),
            Text(f"{weight:6.1%}"),
        )
        for weight, a, b in links
    ]
    yield PlainTable(_COLUMNS, rows)
    note = f"the {len(rows)} strongest links of {len(found.tokens)} tokens; --output FILE.html shows all"
    yield Text(note, style="dim")
