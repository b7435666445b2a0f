"""How tokens look at a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import render
from mlxbert.results import Replaced, Tokens

if TYPE_CHECKING:
    from rich.console import RenderableType

_SEGMENT_STYLES = ("cyan", "magenta")


def tokens(result: Tokens) -> Iterator["RenderableType"]:
    """BERT's input as the sum it is: token, segment and position, one column per token."""
    from rich.text import Text

    rows = [
        [render.visible(token.token), str(token.id), "AB"[token.segment] if token.segment < 2 else str(token.segment),
         str(token.position)]
        for token in result.tokens
    ]  # fmt: skip
    names = ("token", "id", "segment", "position")
    width = render.console().width
    start = 0
    while start < len(rows):
        end, used = start, 10
        while end < len(rows) and (end == start or used + _column_width(rows[end]) <= width):
            used += _column_width(rows[end])
            end += 1
        table = render.grid("", *("" for _ in rows[start:end]))
        table.show_header = False
        for line, name in enumerate(names):
            cells = [
                Text(row[line], style=_token_style(line, token.segment, special=token.start == token.end))
                for row, token in zip(rows[start:end], result.tokens[start:end], strict=True)
            ]
            table.add_row(Text(name if line == 0 else f"+ {name}" if line > 1 else "  id", style="dim"), *cells)
        yield table
        start = end


def replaced(result: Replaced) -> Iterator["RenderableType"]:
    """The text with what looks replaced in colour, and the scores of these tokens."""
    from rich.text import Text

    shown = Text(render.visible(result.text))
    suspects = [token for token in result.tokens if token.replaced]
    for token in suspects:  # made visible, every character is still one
        shown.stylize("bold red", token.start, token.end)
    yield shown
    table = render.grid("", "", "")
    table.show_header = False
    for token in suspects:
        place = Text(f"{token.start} to {token.end}", style="dim")
        bar = Text(render.bar(token.score), style="red")
        table.add_row(
            Text(render.visible(result.text[token.start : token.end]), style="bold"), bar, f"{token.score:6.1%}", place
        )
    yield table if suspects else Text("no token looks replaced", style="dim")


def _column_width(row: list[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, row)) + 2


def _token_style(line: int, segment: int, *, special: bool) -> str:
    colour = _SEGMENT_STYLES[segment % len(_SEGMENT_STYLES)]
    if line == 0:
        return f"dim {colour}" if special else f"bold {colour}"
    return colour if line == 2 else "dim" if line == 1 else ""
