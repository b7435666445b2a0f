"""Draws the words for each mask as a table."""

from collections.abc import Iterator

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, PlainTable
from mlxbert.results.text_results import Fill, FillMask, Mask

EXCERPT = 60  # characters shown on each side of a mask
_COLUMNS = (Column(), Column(bar=True, most=console.BAR_WIDTH), Column(), Column())
_OTHER_COLUMNS = 24  # columns of a terminal for bars, scores and the space between columns


def draw(result: FillMask) -> Iterator["rich.RenderableType"]:
    """Draws a table for each mask, with words, probabilities, and the filled sentences.

    If the filled sentences do not fit, the original text is drawn above the tables instead.
    """
    for number, mask in enumerate(result.masks, 1):
        sentences = [_sentence(result, mask, fill) for fill in mask.fills]
        tokens = [rich.Text(console.visible(fill.token.strip()), style="bold") for fill in mask.fills]
        longest, word = (max((text.cell_len for text in texts), default=0) for texts in (sentences, tokens))
        column_count = len(_COLUMNS) if longest + word + _OTHER_COLUMNS <= console.stdout().width else len(_COLUMNS) - 1
        if len(result.masks) > 1 or column_count < len(_COLUMNS):
            left, right = _excerpt(result.text, mask.start, mask.end)
            mask_text = console.visible(result.text[mask.start : mask.end])
            name = f"mask {number} of {len(result.masks)}: " if len(result.masks) > 1 else ""
            yield rich.Text.assemble((name, "dim"), left, (mask_text, "bold yellow"), right)
        rows = [
            (token, console.bar_of(fill.score, "green"), rich.Text(f"{fill.score:6.1%}"), sentence)[:column_count]
            for token, fill, sentence in zip(tokens, mask.fills, sentences, strict=True)
        ]
        yield PlainTable(_COLUMNS[:column_count], rows)


def _sentence(result: FillMask, mask: Mask, fill: Fill) -> "rich.Text":
    """Returns the text around a mask, in which a word replaces the mask."""
    token = fill.token.strip()
    filled = result.text[: mask.start] + token + result.text[mask.end :] if fill.text is None else fill.text
    end = len(filled) - len(result.text[mask.end :])
    start = end - len(token.removeprefix("##"))
    left, right = _excerpt(filled, start, end)
    return rich.Text.assemble((left, "dim"), (console.visible(filled[start:end]), "bold green"), (right, "dim"))


def _excerpt(text: str, start: int, end: int) -> tuple[str, str]:
    left, right = text[:start], text[end:]
    if len(left) > EXCERPT:
        left = "…" + left[-EXCERPT:]
    if len(right) > EXCERPT:
        right = right[:EXCERPT] + "…"
    return console.visible(left), console.visible(right)
