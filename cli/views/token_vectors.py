"""How vectors of tokens look in a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich
from mlxbert.results.embed import TokenVectors

if TYPE_CHECKING:
    from mlxbert.cli.views.rich import RenderableType

_SHOWN = 4  # values of the first vector


def draw(result: TokenVectors) -> "Iterator[RenderableType]":
    """Yields the text, the shape of its vectors, and the first values of the first one."""
    rows, size = result.embeddings.shape
    facts = [f"{console.counted(rows, 'vector')} of {size} values", console.counted(result.tokens, "token")]
    facts += [f"{result.unknown_tokens} unknown"] * bool(result.unknown_tokens) + ["truncated"] * result.truncated
    yield rich.Text(console.line(result.text), "bold")
    yield rich.Text(", ".join(facts), "dim")
    if rows:
        yield rich.Text(" ".join(f"{value:.3g}" for value in result.embeddings[0, :_SHOWN].tolist()) + " …")
