"""Draws the tokens that a model sees, and the tokens that a discriminator takes for replaced ones."""

from collections.abc import Iterator, Sequence

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, PlainTable
from mlxbert.results.text_results import Replaced, Token, Tokens

_SEGMENT_STYLES = ("cyan", "magenta")
_LABELS = ("token", "  id", "+ segment", "+ position")
_LABEL_WIDTH = 10  # columns
_REPLACED = (Column(wraps=True), Column(bar=True, most=console.BAR_WIDTH), Column(), Column(secondary=1))


def draw_tokens(result: Tokens) -> Iterator["rich.RenderableType"]:
    """Draws the input of BERT: a column per token, with rows for the token, its id, its segment and its position.

    The model adds the embeddings of the last three.
    """
    for tokens in _tables(result.tokens, console.stdout().width):
        cells = [_cells(token) for token in tokens]
        rows = []
        for line, label in enumerate(_LABELS):
            row = [rich.Text(cell[line], style=_style(line, token)) for cell, token in zip(cells, tokens, strict=True)]
            rows.append([rich.Text(label, style="dim"), *row])
        yield PlainTable([Column()] * (1 + len(tokens)), rows)


def _tables(tokens: Sequence[Token], width: int) -> Iterator[Sequence[Token]]:
    """Splits tokens into groups that each fit the width; each group has at least one token."""
    start, used = 0, _LABEL_WIDTH
    for place, token in enumerate(tokens):
        column = max(map(rich.cell_len, _cells(token))) + 2
        if place > start and used + column > width:
            yield tokens[start:place]
            start, used = place, _LABEL_WIDTH
        used += column
    if tokens:
        yield tokens[start:]


def _cells(token: Token) -> tuple[str, ...]:
    segment = "AB"[token.segment] if token.segment < 2 else str(token.segment)
    return console.visible(token.token), str(token.id), segment, str(token.position)


def _style(line: int, token: Token) -> str:
    colour = _SEGMENT_STYLES[token.segment % len(_SEGMENT_STYLES)]
    special = token.start == token.end
    return ("dim" if special else f"bold {colour}", "dim", colour, "")[line]


def draw_replaced(result: Replaced) -> Iterator["rich.RenderableType"]:
    """Draws the text, in which tokens that look replaced are coloured, and lists these tokens with their scores."""
    suspects = [token for token in result.tokens if token.replaced]
    text, last = rich.Text(), 0
    for token in suspects:
        start = max(token.start, last)  # byte tokens may share a character
        text.append(console.visible(result.text[last:start]))
        text.append(console.visible(result.text[start : token.end]), "bold red")
        last = token.end
    yield text.append(console.visible(result.text[last:]))
    rows = [
        (
            rich.Text(console.visible(result.text[token.start : token.end]), style="bold"),
            console.bar_of(token.score, "red"),
            rich.Text(f"{token.score:6.1%}"),
            rich.Text(f"{token.start} to {token.end}", style="dim"),
        )
        for token in suspects
    ]
    yield PlainTable(_REPLACED, rows) if suspects else rich.Text("no token looks replaced", style="dim")
