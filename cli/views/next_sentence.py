"""Draws whether text B follows text A."""

from collections.abc import Iterator

from mlxbert.cli.views import console, rich
from mlxbert.results.text_relations import NextSentence


def draw(result: NextSentence) -> Iterator["rich.RenderableType"]:
    """Draws the answer with its probability, and the two texts."""
    answer, colour = ("follows", "green") if result.is_next else ("does not follow", "red")
    share = result.score if result.is_next else 1 - result.score
    yield console.meter(rich.Text(answer, f"bold {colour}"), share, colour, f"{share:.1%}")
    yield from console.pair(result.a, result.b)
