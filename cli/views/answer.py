"""Draws the answers to a question, and the paragraphs that contain them."""

import re
from collections.abc import Iterator
from itertools import pairwise

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Cell, Column, Indented, PlainTable
from mlxbert.results.text_results import Answer, Span

_CONTEXT = 300  # code points of the paragraph that are shown on each side
_BLANK = re.compile(r"\n[^\S\n]*\n")
_COLUMNS = (Column(wraps=True), Column(bar=True, most=console.BAR_WIDTH), Column(), Column())


def draw(result: Answer) -> Iterator["rich.RenderableType"]:
    """Draws the question, the answers with scores and offsets, and then each paragraph with its answers marked."""
    yield rich.Text(console.shortened(result.question), style="dim")
    unanswered = result.answer is None
    rows = [_row("no answer", result.no_answer_score, "bold yellow", "yellow")] if unanswered else []
    for number, span in enumerate(result.spans):
        before = "not sure enough: " if unanswered else ""
        styles = ("", "dim") if unanswered or number else ("bold green", "green")
        rows.append(_row(console.visible(span.answer), span.score, *styles, before, _place(result, span)))
    yield PlainTable(_COLUMNS, rows)
    for number, (start, end) in enumerate(_paragraphs(result)):
        yield from (rich.Text(),) * (number > 0)
        yield Indented(_marked(result, start, end))


def _row(name: str, score: float, style: str, bar: str, before: str = "", place: str = "") -> tuple[Cell, ...]:
    named = rich.Text.assemble((before, "dim"), (name, style))
    return named, console.bar_of(score, bar), rich.Text(f"{score:6.1%}"), rich.Text(place, "dim")


def _place(result: Answer, span: Span) -> str:
    """Formats the offsets of a span, and its line if the context has several lines."""
    lines = result.context.count("\n", 0, span.start) + 1
    line = f", line {lines:,}" if "\n" in result.context else ""
    return f"{span.start:,} to {span.end:,}{line}"


def _paragraphs(result: Answer) -> list[tuple[int, int]]:
    """Returns the bounds of the parts of the context to show, in order; overlapping parts are merged."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(_around(result.context, span) for span in result.spans):
        earlier = merged.pop() if merged and start <= merged[-1][1] else (start, end)
        merged.append((earlier[0], max(end, earlier[1])))
    return merged


def _around(context: str, span: Span) -> tuple[int, int]:
    """Returns the start and end of the paragraph around a span; a long paragraph is shortened on both sides."""
    near = max(span.start - _CONTEXT, 0)
    before, after = context[near : span.start], context[span.end : span.end + _CONTEXT]
    start = near + max((match.end() for match in _BLANK.finditer(before)), default=0)
    blank = _BLANK.search(after)
    end = span.end + (len(after) if blank is None else blank.start())
    if start == near > 0:
        start += max(before.find(" ") + 1, 0)
    if blank is None and end < len(context):
        end = max(context.rfind(" ", span.end, end), span.end)
    return start, end


def _marked(result: Answer, start: int, end: int) -> "rich.Text":
    """Returns a part of the context with the best span highlighted, and other spans underlined."""
    places = {place for span in result.spans for place in (span.start, span.end) if start < place < end}
    # A paragraph begins and ends at a line break.
    text = rich.Text("…" if start and result.context[start - 1] != "\n" else "")
    for first, last in pairwise(sorted({start, end, *places})):
        piece = console.visible(re.sub(r"\s+", " ", result.context[first:last]))
        inside = [n for n, span in enumerate(result.spans) if span.start <= first and last <= span.end]
        style = "bold reverse green" if 0 in inside else "underline" if inside else ""
        text.append(piece.lstrip() if first == start else piece, style)
    return text.append(" …") if end < len(result.context) and result.context[end] != "\n" else text
