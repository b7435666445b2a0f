"""The answer to a question, in the paragraph where it stands."""

import re
from collections.abc import Iterator

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Indented
from mlxbert.results.answer import Answer, Span

_AROUND = 300  # code points of the paragraph that are shown on each side
_BLANK = re.compile(r"\n[^\S\n]*\n")


def draw(result: Answer) -> Iterator["rich.RenderableType"]:
    """The question, and below it each span with its score and place, in its paragraph."""
    yield rich.Text(console.shortened(result.question), style="dim")
    if result.answer is None:
        yield _scored("no answer", result.no_answer_score, "yellow")
    for number, span in enumerate(result.spans):
        best = number == 0 and result.answer is not None
        shown = "" if result.answer is not None else "not sure enough: "
        yield _scored(
            console.visible(span.answer), span.score, "green" if best else "dim green", shown, _place(result, span)
        )
        yield Indented(_paragraph(result.context, span))


def _scored(name: str, score: float, colour: str, before: str = "", place: str = "") -> "rich.Text":
    named = rich.Text.assemble((before, "dim"), (name, f"bold {colour}"))
    return console.meter(named, score, colour, f"{score:.1%}").append(place, "dim")


def _place(result: Answer, span: Span) -> str:
    """Where a span stands: its offsets, and the line if there are several."""
    lines = result.context.count("\n", 0, span.start) + 1
    line = f", line {lines:,}" if "\n" in result.context else ""
    return f"  {span.start:,} to {span.end:,}{line}"


def _paragraph(context: str, span: Span) -> "rich.Text":
    """The paragraph around a span, which stands out; a long one is shortened on both sides."""
    near = max(span.start - _AROUND, 0)
    before, after = context[near : span.start], context[span.end : span.end + _AROUND]
    start = near + max((found.end() for found in _BLANK.finditer(before)), default=0)
    blank = _BLANK.search(after)
    end = span.end + (len(after) if blank is None else blank.start())
    cut_before = start == near > 0
    cut_after = blank is None and end < len(context)
    if cut_before:  # not within a word
        start += max(context[start : span.start].find(" ") + 1, 0)
    if cut_after:
        end = max(context.rfind(" ", span.end, end), span.end)

    def shown(text: str) -> str:
        return console.visible(re.sub(r"\s+", " ", text))

    return rich.Text.assemble(
        ("…" if cut_before else "") + shown(context[start : span.start]).lstrip(),
        (shown(context[span.start : span.end]), "bold reverse green"),
        shown(context[span.end : end]).rstrip() + (" …" if cut_after else ""),
    )
