"""Draws groups of texts that repeat each other, and topics."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, PlainTable

if TYPE_CHECKING:
    from mlxbert.explore.results.groups import Doubles, Topics
    from mlxbert.readers.text_collection import TextCollection

_GROUPS, _DOUBLES = 20, 5  # groups on a screen; doubles of each of them
_COLUMNS = (Column(right=True), Column(right=True, secondary=1), Column(wraps=True))


def draw_doubles(doubles: "Doubles", collection: "TextCollection") -> Iterator["rich.RenderableType"]:
    """Draws the first groups, each with the text that is kept, and a summary."""
    for group in doubles.groups[:_GROUPS]:
        rows = [(rich.Text("kept", "bold"), _place(collection, group.kept), _text(collection, group.kept))]
        shown = [*zip(group.doubles, group.scores, strict=True)][:_DOUBLES]
        rows += [
            (rich.Text(f"{score:.3f}"), _place(collection, number), _text(collection, number))
            for number, score in shown
        ]
        if len(group.doubles) > _DOUBLES:
            rows.append((rich.Text(), rich.Text(), rich.Text(f"and {len(group.doubles) - _DOUBLES:,} more", "dim")))
        yield PlainTable(_COLUMNS, rows)
        yield rich.Text()
    if len(doubles.groups) > _GROUPS:
        yield rich.Text(f"and {console.counted(len(doubles.groups) - _GROUPS, 'more group')}", style="dim")
    kept, groups = doubles.texts - len(doubles.dropped), console.counted(len(doubles.groups), "group")
    yield rich.Text(
        f"{kept:,} of {console.counted(doubles.texts, 'text')} remain{'s' * (kept == 1)}; {groups} of doubles"
    )


def draw_topics(topics: "Topics", collection: "TextCollection") -> Iterator["rich.RenderableType"]:
    """Draws each topic with its size, its words and its typical texts."""
    for topic in topics.topics:
        share = topic.size / len(topics.labels)
        words = ", ".join(console.visible(word.word) for word in topic.words)
        size = f"  {console.counted(topic.size, 'text')}, {share:.1%}"
        yield rich.Text.assemble((f"topic {topic.topic}", "bold"), (size, "dim"))
        yield rich.Text(f"  {words}", "cyan")
        yield PlainTable(
            _COLUMNS[1:], [(_place(collection, number), _text(collection, number)) for number in topic.typical], 2
        )
        yield rich.Text()


def _place(collection: "TextCollection", number: int) -> "rich.Text":
    """Names a text by its place in a file, if it is from an index, or by its index in the input."""
    name = console.visible(collection.names[number]) if collection.names else f"{collection.places[number]:,}"
    return rich.Text(name, "dim")


def _text(collection: "TextCollection", number: int) -> "rich.Text":
    return rich.Text(console.line(collection.texts[number], 200))
