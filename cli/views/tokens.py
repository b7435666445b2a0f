"""Tokens as the model sees them, and which of them look replaced."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mlxbert.cli.views import console
from mlxbert.results import Replaced, Token, Tokens

if TYPE_CHECKING:
    from rich.console import RenderableType

_SEGMENT_STYLES = ("cyan", "magenta")
_LABELS = ("token", "  id", "+ segment", "+ position")
_LABEL_WIDTH = 10  # columns


def draw_tokens(result: Tokens) -> Iterator["RenderableType"]:
    """BERT's input as the sum it is: token, segment and position, one column per token."""
    from rich.text import Text

    for tokens in _tables(result.tokens, console.stdout().width):
        table = console.grid("", *("" for _ in tokens))
        cells = [_cells(token) for token in tokens]
        for line, label in enumerate(_LABELS):
            row = [Text(cell[line], style=_style(line, token)) for cell, token in zip(cells, tokens, strict=True)]
            table.add_row(Text(label, style="dim"), *row)
        yield table


def _tables(tokens: Sequence[Token], width: int) -> Iterator[Sequence[Token]]:
    """As many tokens at a time as fit in a width, at least one."""
    from rich.cells import cell_len

    start, used = 0, _LABEL_WIDTH
    for place, token in enumerate(tokens):
        column = max(map(cell_len, _cells(token))) + 2
        if place > start and used + column > width:
            yield tokens[start:place]
            start, used = place, _LABEL_WIDTH
        used += column
    if tokens:
        yield tokens[start:]


def _cells(token: Token) -> tuple[str, ...]:
    """The lines of a token's column."""
    segment = "AB"[token.segment] if token.segment < 2 else str(token.segment)
    return console.visible(token.token), str(token.id), segment, str(token.position)


def _style(line: int, token: Token) -> str:
    colour = _SEGMENT_STYLES[token.segment % len(_SEGMENT_STYLES)]
    special = token.start == token.end
    return (f"dim {colour}" if special else f"bold {colour}", "dim", colour, "")[line]


def draw_replaced(result: Replaced) -> Iterator["RenderableType"]:
    """The text with replaced tokens in colour, and the scores of these tokens."""
    from rich.text import Text

    shown = Text(console.visible(result.text))
    suspects = [token for token in result.tokens if token.replaced]
    for token in suspects:  # a control character and its picture are one character each
        shown.stylize("bold red", token.start, token.end)
    yield shown
    table = console.grid("", "", "", "")
    for token in suspects:
        table.add_row(
            Text(console.visible(result.text[token.start : token.end]), style="bold"),
            Text(console.bar(token.score), style="red"),
            f"{token.score:6.1%}",
            Text(f"{token.start} to {token.end}", style="dim"),
        )
    yield table if suspects else Text("no token looks replaced", style="dim")
