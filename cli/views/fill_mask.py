"""The words for each mask, as a table."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console
from mlxbert.results import FillMask, Mask

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

EXCERPT = 60  # characters shown on each side of a mask


def draw(result: FillMask) -> Iterator["RenderableType"]:
    """A table per mask: the words, their probabilities, the sentence filled."""
    from rich.text import Text

    for number, mask in enumerate(result.masks, 1):
        if len(result.masks) > 1:
            left, right = _excerpt(result.text, mask.start, mask.end)
            here = console.visible(result.text[mask.start : mask.end])
            yield Text.assemble((f"mask {number} of {len(result.masks)}: ", "dim"), left, (here, "bold yellow"), right)
        yield _fills(result, mask)


def _fills(result: FillMask, mask: Mask) -> "Table":
    from rich.text import Text

    table = console.grid()
    for no_wrap in (True, True, True, False):
        table.add_column(no_wrap=no_wrap)
    for fill in mask.fills:
        token = fill.token.strip()
        filled = result.text[: mask.start] + token + result.text[mask.end :] if fill.text is None else fill.text
        end = len(filled) - len(result.text[mask.end :])
        start = end - len(token.removeprefix("##"))
        left, right = _excerpt(filled, start, end)
        word = console.visible(filled[start:end])
        table.add_row(
            Text(console.visible(token), style="bold"),
            Text(console.bar(fill.score), style="green"),
            Text(f"{fill.score:6.1%}"),
            Text.assemble((left, "dim"), (word, "bold green"), (right, "dim")),
        )
    return table


def _excerpt(text: str, start: int, end: int) -> tuple[str, str]:
    """The text before and after a place, shortened."""
    left, right = text[:start], text[end:]
    if len(left) > EXCERPT:
        left = "…" + left[-EXCERPT:]
    if len(right) > EXCERPT:
        right = right[:EXCERPT] + "…"
    return console.visible(left), console.visible(right)
