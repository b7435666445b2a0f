"""Draws how vectors of another program compare with a model's own."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Cell, Column, PlainTable

if TYPE_CHECKING:
    from mlxbert.export.vector_verification import VectorSizes, VectorVerification


def draw(result: "VectorVerification") -> Iterator["rich.RenderableType"]:
    """Draws whether the vectors agree and why not, the cosines, the worst texts, and remarks."""
    rows = [("model", result.model), ("vectors", result.against), *_cause(result)]
    yield from console.facts(f"the vectors {'agree' if result.agrees else 'differ'}", rows)
    yield rich.Text(
        f"cosines of {console.counted(result.texts, 'text')}: lowest {result.cosine.lowest:.4f}, median "
        f"{result.cosine.median:.4f}",
        style="bold",
    )
    yield _distribution(result)
    if result.worst:
        yield rich.Text("lowest cosines", style="bold")
        columns = (
            Column("text", right=True),
            Column("tokens", right=True),
            Column("cosine", right=True),
            Column(wraps=True),
        )
        shown = ((str(each.index), f"{each.tokens:,}", f"{each.cosine:.4f}", each.text) for each in result.worst)
        yield PlainTable(
            columns, [[*map(rich.Text, row[:3]), rich.Text(console.line(row[3], 50))] for row in shown], indent=2
        )
    numbers = [("the model's", _numbers(result.ours)), ("the other ones", _numbers(result.theirs))]
    yield from console.facts("numbers", numbers)
    if result.notes:
        yield from console.facts("notes", [("", note) for note in result.notes])


def _cause(result: "VectorVerification") -> Iterator[tuple[str, str]]:
    for cause in result.causes:
        yield "cause", cause.text
    if result.cosine_explained is not None:
        yield "with that", f"the lowest cosine is {result.cosine_explained.lowest:.4f}"
    for other in result.alternatives:
        yield "or", other
    if not result.agrees and not result.causes:
        same = result.texts - result.differ
        guess = "perhaps another model or version"
        if same:
            guess = f"{same:,} of {result.texts:,} texts agree, so perhaps the others were cut or changed before"
        yield "cause", f"none of {result.tried:,} ways to compute vectors gives these: {guess}"


def _distribution(result: "VectorVerification") -> PlainTable:
    """Draws a line for each band of cosines that has texts."""
    above, rows = 1.0, list[list[Cell]]()
    for band in result.cosine.ranges:
        if band.texts:
            label = f"{band.least:g} to {above:g}"
            share = band.texts / result.texts
            rows.append([rich.Text(label), console.bar_of(share, "cyan"), rich.Text(f"{band.texts:,}")])
        above = band.least
    columns = (Column(), Column(bar=True, most=console.BAR_WIDTH), Column(right=True))
    return PlainTable(columns, rows, indent=2)


def _numbers(facts: "VectorSizes") -> str:
    shortest, longest = f"{facts.shortest:.4g}", f"{facts.longest:.4g}"
    lengths = shortest if shortest == longest else f"{shortest} to {longest}"
    return f"{facts.width:,} values of {facts.stored}, length {lengths}"
