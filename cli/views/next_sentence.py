"""Whether text B follows text A."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console
from mlxbert.results.related import NextSentence

if TYPE_CHECKING:
    from rich.console import RenderableType


def draw(result: NextSentence) -> Iterator["RenderableType"]:
    """The answer with its probability, and the two texts."""
    from rich.text import Text

    answer, colour = ("follows", "green") if result.is_next else ("does not follow", "red")
    share = result.score if result.is_next else 1 - result.score
    yield console.meter(Text(answer, f"bold {colour}"), share, colour, f"{share:.1%}")
    yield from console.pair(result.a, result.b)
