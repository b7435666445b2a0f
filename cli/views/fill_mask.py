"""The words for each mask, as a table."""

from collections.abc import Iterator

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, Rows
from mlxbert.results.fill_mask import FillMask, Mask

EXCERPT = 60  # characters shown on each side of a mask
_COLUMNS = (Column(), Column(bar=True, most=console.BAR_WIDTH), Column(), Column(wraps=True, secondary=1))


def draw(result: FillMask) -> Iterator["rich.RenderableType"]:
    """A table per mask: the words, their probabilities, the sentence filled."""
    for number, mask in enumerate(result.masks, 1):
        if len(result.masks) > 1:
            left, right = _excerpt(result.text, mask.start, mask.end)
            here = console.visible(result.text[mask.start : mask.end])
            yield rich.Text.assemble(
                (f"mask {number} of {len(result.masks)}: ", "dim"), left, (here, "bold yellow"), right
            )
        yield _fills(result, mask)


def _fills(result: FillMask, mask: Mask) -> Rows:
    rows = []
    for fill in mask.fills:
        token = fill.token.strip()
        filled = result.text[: mask.start] + token + result.text[mask.end :] if fill.text is None else fill.text
        end = len(filled) - len(result.text[mask.end :])
        start = end - len(token.removeprefix("##"))
        left, right = _excerpt(filled, start, end)
        word = console.visible(filled[start:end])
        cells = (
            rich.Text(console.visible(token), style="bold"),
            console.bar_of(fill.score, "green"),
            rich.Text(f"{fill.score:6.1%}"),
            rich.Text.assemble((left, "dim"), (word, "bold green"), (right, "dim")),
        )
        rows.append(cells)
    return Rows(_COLUMNS, rows)


def _excerpt(text: str, start: int, end: int) -> tuple[str, str]:
    left, right = text[:start], text[end:]
    if len(left) > EXCERPT:
        left = "…" + left[-EXCERPT:]
    if len(right) > EXCERPT:
        right = right[:EXCERPT] + "…"
    return console.visible(left), console.visible(right)
