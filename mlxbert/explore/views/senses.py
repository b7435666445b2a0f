"""Draws the senses of a word: the words that could stand there, and typical lines."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console
from mlxbert.cli.views.table import Indented

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from mlxbert.explore.results.senses import Senses, TypicalLine


def draw(result: "Senses") -> Iterator["RenderableType"]:
    """Draws the senses, the most frequent first."""
    from rich.text import Text

    total = len(result.occurrences)
    for number, sense in enumerate(result.senses, 1):
        gap = "" if number == 1 else "\n"
        yield Text.assemble((f"{gap}sense {number}", "bold"), f"  {sense.count:,} of {total:,} places")
        if sense.substitutes:
            words = ", ".join(console.visible(substitute.word) for substitute in sense.substitutes)
            yield Indented(Text.assemble(("like ", "dim"), (words, "green")))
        for line in sense.typical:
            yield Indented(_line(line, console.stdout().width - 2))
    distinct = f"; silhouette {result.silhouette:.2f}" if len(result.senses) > 1 else ""
    places, texts = console.counted(total, "place"), console.counted(result.texts, "text")
    yield Text(f"\n{places} in {texts}{distinct}", style="dim")


def _line(example: "TypicalLine", width: int) -> "Text":
    """Returns the part of a text around the word that fits on a line."""
    from rich.text import Text

    before, word, after = (
        text.replace("\n", " ")
        for text in (
            example.text[max(example.start - 2 * width, 0) : example.start],
            example.text[example.start : example.end],
            example.text[example.end : example.end + 2 * width],
        )
    )
    left = console.end_of(before, max(width - len(word), 2) // 2)
    line = Text.assemble(left, (console.visible(word), "bold"), console.visible(after))
    line.truncate(width, overflow="ellipsis")
    return line
