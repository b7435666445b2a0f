"""Draws entities in their text with a legend, or words with their tags below them."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from mlxbert.cli.views import console, rich
from mlxbert.labels.labels import Labels
from mlxbert.labels.schemes import marks_entities, types_of
from mlxbert.results.text_results import Entity, Tagged

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_GAP = 2  # columns between words


def drawing(
    labels: Labels | None, asked: Sequence[str] | None = None
) -> Callable[[Tagged], Iterator["rich.RenderableType"]]:
    """Returns a function that draws the results of a model with these labels, or with those that were asked for."""
    if asked is not None:
        return functools.partial(draw, labels=asked)
    names = labels.names if labels is not None else ()
    return functools.partial(draw, labels=types_of(names), words=not marks_entities(names))


def draw(result: Tagged, labels: Sequence[str] = (), *, words: bool = False) -> Iterator["rich.RenderableType"]:
    """Draws entities in their text or, if `words` is true, words with their tags.

    Each of `labels` has a fixed colour.
    """
    all_labels = [*dict.fromkeys((*labels, *(entity.label for entity in result.entities)))]
    styles = {label: _COLOURS[place % len(_COLOURS)] for place, label in enumerate(all_labels)}
    if words:
        yield _TagLines(result.entities, styles)
        return
    yield _marked(result, styles)
    counts = Counter(entity.label for entity in result.entities)
    if not counts:
        yield rich.Text("nothing found", style="dim")
        return
    parts = [(f"{console.visible(label)} {counts[label]}", styles[label]) for label in all_labels if counts[label]]
    yield rich.Text("  ").join(rich.Text(text, style=style) for text, style in parts)


def _marked(result: Tagged, styles: dict[str, str]) -> "rich.Text":
    """Returns the text with brackets around each entity and its type, so that it is readable without colours."""
    text, last = rich.Text(), 0
    for entity in result.entities:
        text.append(console.visible(result.text[last : entity.start]))
        text.append(f"[{console.visible(entity.text)} {console.visible(entity.label)}]", style=styles[entity.label])
        last = max(last, entity.end)  # an entity may be inside another one
    text.append(console.visible(result.text[last:]))
    return text


class _TagLines:
    """Words with their tags below them, wrapped to the width of the terminal."""

    def __init__(self, entities: Sequence[Entity], styles: dict[str, str]) -> None:
        self._entities, self._styles = entities, styles

    def __rich_console__(
        self, screen: "rich.Console", options: "rich.ConsoleOptions"
    ) -> Iterator["rich.RenderableType"]:
        above, below, used = rich.Text(), rich.Text(), 0
        for entity in self._entities:
            word, tag = console.visible(entity.text), console.visible(entity.label)
            width = max(rich.cell_len(word), rich.cell_len(tag))
            if used and used + _GAP + width > options.max_width:
                yield from (above, below, "")
                above, below, used = rich.Text(), rich.Text(), 0
            gap = " " * _GAP if used else ""
            above.append(gap + rich.set_cell_size(word, width))
            below.append(gap + rich.set_cell_size(tag, width), style=self._styles[entity.label])
            used += len(gap) + width
            if width > options.max_width:  # a word that is wrapped is alone in its row
                above.rstrip()
                below.rstrip()
        if used:
            yield from (above, below)
