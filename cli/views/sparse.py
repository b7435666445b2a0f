"""Draws sparse vectors: the heaviest tokens with bars."""

from collections.abc import Iterator

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, PlainTable
from mlxbert.results.embed import SparseEmbedding

_SHOWN = 15  # tokens of a vector
_LONGEST = 30  # characters of a token
_COLUMNS = (Column(), Column(bar=True, most=console.BAR_WIDTH), Column())


def draw(result: SparseEmbedding) -> Iterator["rich.RenderableType"]:
    """Draws the text, and its heaviest tokens with their weights."""
    weights = result.weights(_SHOWN)
    more = len(result.ids) - len(weights)
    largest = max(weights.values(), default=0.0)
    facts = [console.counted(len(result.ids), "weight"), console.counted(result.tokens, "token")]
    facts += [f"{result.unknown_tokens} unknown"] * bool(result.unknown_tokens) + ["truncated"] * result.truncated
    yield rich.Text(console.line(result.text), "bold")
    yield rich.Text(", ".join(facts), "dim")
    yield PlainTable(
        _COLUMNS,
        [
            (
                rich.Text(console.line(token, _LONGEST)),
                console.bar_of(weight / largest if largest > 0 else 0.0, "green"),
                rich.Text(f"{weight:.3f}"),
            )
            for token, weight in weights.items()
        ],
    )
    if more:
        yield rich.Text(f"and {console.counted(more, 'lighter token')}", "dim")
