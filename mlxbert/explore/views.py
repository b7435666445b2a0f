"""How the results of this room are drawn in a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, Indented, PlainTable
from mlxbert.explore.results import SIMILARITY

if TYPE_CHECKING:
    from mlxbert.explore.options import ClusterOptions
    from mlxbert.explore.results import Attention, Duplicates, Explanation, Senses, Share, Topics, TypicalLine
    from mlxbert.readers.text_collection import TextCollection


_FEW = 10  # texts from which a large topic is worth a hint
_MORE_TOPICS = "--clusters N finds N topics by k-means; a smaller --min-size finds smaller topics"
_GROUPS, _DUPLICATES = 20, 5  # groups on a screen; duplicates of each of them
_GROUP_COLUMNS = (Column(right=True), Column(right=True, secondary=1), Column(wraps=True))


def draw_duplicates(duplicates: "Duplicates", collection: "TextCollection") -> Iterator["rich.RenderableType"]:
    """Draws the first groups, each with the text that is kept, and a summary."""
    for group in duplicates.groups[:_GROUPS]:
        rows = [(rich.Text("kept", "bold"), _place_of(collection, group.kept), _text_of(collection, group.kept))]
        shown = [*zip(group.duplicates, group.scores, strict=True)][:_DUPLICATES]
        rows += [
            (rich.Text(f"{score:.3f}"), _place_of(collection, number), _text_of(collection, number))
            for number, score in shown
        ]
        if len(group.duplicates) > _DUPLICATES:
            more = f"and {len(group.duplicates) - _DUPLICATES:,} more"
            rows.append((rich.Text(), rich.Text(), rich.Text(more, "dim")))
        yield PlainTable(_GROUP_COLUMNS, rows)
        yield rich.Text()
    if len(duplicates.groups) > _GROUPS:
        yield rich.Text(f"and {console.counted(len(duplicates.groups) - _GROUPS, 'more group')}", style="dim")
    kept, groups = duplicates.texts - len(duplicates.dropped), console.counted(len(duplicates.groups), "group")
    yield rich.Text(
        f"{kept:,} of {console.counted(duplicates.texts, 'text')} remain{'s' * (kept == 1)}; {groups} of duplicates"
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
            _GROUP_COLUMNS[1:],
            [(_place_of(collection, number), _text_of(collection, number)) for number in topic.typical],
            2,
        )
        yield rich.Text()


def _place_of(collection: "TextCollection", number: int) -> "rich.Text":
    """Names a text by its place in a file, if it is from an index, or by its index in the input."""
    name = console.visible(collection.names[number]) if collection.names else f"{collection.places[number]:,}"
    return rich.Text(name, "dim")


def _text_of(collection: "TextCollection", number: int) -> "rich.Text":
    return rich.Text(console.line(collection.texts[number], 200))


def draw_senses(result: "Senses") -> Iterator["rich.RenderableType"]:
    """Draws the senses, the most frequent first."""
    total = len(result.occurrences)
    for number, sense in enumerate(result.senses, 1):
        gap = "" if number == 1 else "\n"
        yield rich.Text.assemble((f"{gap}sense {number}", "bold"), f"  {sense.count:,} of {total:,} places")
        if sense.substitutes:
            words = ", ".join(console.visible(substitute.word) for substitute in sense.substitutes)
            yield Indented(rich.Text.assemble(("like ", "dim"), (words, "green")))
        for line in sense.typical:
            yield Indented(_typical_line(line, console.stdout().width - 2))
    distinct = f"; silhouette {result.silhouette:.2f}" if len(result.senses) > 1 else ""
    places, texts = console.counted(total, "place"), console.counted(result.texts, "text")
    yield rich.Text(f"\n{places} in {texts}{distinct}", style="dim")


def _typical_line(example: "TypicalLine", width: int) -> "rich.Text":
    """Returns the part of a text around the word that fits on a line."""
    before, word, after = (
        text.replace("\n", " ")
        for text in (
            example.text[max(example.start - 2 * width, 0) : example.start],
            example.text[example.start : example.end],
            example.text[example.end : example.end + 2 * width],
        )
    )
    left = console.end_of(before, max(width - len(word), 2) // 2)
    line = rich.Text.assemble(left, (console.visible(word), "bold"), console.visible(after))
    line.truncate(width, overflow="ellipsis")
    return line


_MOST_WORDS = 15  # words
_COLOURED = 0.1  # of the largest share; the colour of a smaller one would say too much
_STRONG = 0.5
_SHARE_COLUMNS = (Column(wraps=True), Column(bar=True, most=console.BAR_WIDTH), Column())


def draw_explanation(result: "Explanation") -> Iterator["rich.RenderableType"]:
    """Draws the text, the words, and what the shares add up to."""
    largest = max((abs(word.score) for word in result.words), default=0.0) or 1.0
    yield rich.Text.assemble((console.visible(result.target), "bold"), f"  {result.score:.3f}")
    for number, text in enumerate((result.text, result.pair)):
        if text is not None:
            yield _coloured(text, [word for word in result.words if word.text == number], largest)
    first = sorted(result.words, key=lambda word: -abs(word.score))[:_MOST_WORDS]
    rows = [
        (
            rich.Text.assemble((console.visible(word.token), "bold"), (_occurrence(result, word), "dim")),
            console.bar_of(abs(word.score) / largest, "green" if word.score > 0 else "red"),
            rich.Text(f"{word.score:+.3f}"),
        )
        for word in first
    ]
    yield PlainTable(_SHARE_COLUMNS, rows)
    yield rich.Text(summary(result), style="dim")


def _occurrence(result: "Explanation", word: "Share") -> str:
    """Returns which of several equal words a word is, such as " (2 of 3)", counted over both texts."""
    equal = [other for other in result.words if other.token == word.token]
    return f" ({equal.index(word) + 1} of {len(equal)})" if len(equal) > 1 else ""


def summary(result: "Explanation") -> str:
    """Returns a sentence about the scores with and without the words, and about the sum of the shares."""
    twice = "twice " if result.target == SIMILARITY else ""
    gap = "" if result.gap is None else f"; the shares add up to {twice}the difference"
    if result.gap is not None and round(abs(result.gap), 3):
        gap += f" but for {result.gap:+.3f}"
    unit = "cosine" if result.target == SIMILARITY else "logit"
    return f"{unit} {result.score:.3f}, and {result.baseline_score:.3f} without the words{gap}"


def _coloured(text: str, words: list["Share"], largest: float) -> "rich.RenderableType":
    """Returns a text whose words are green if they speak for the target, and red if they speak against it."""
    shown, last = rich.Text(), 0
    for word in words:
        size = abs(word.score) / largest
        start = max(word.start, last)
        shown.append(console.visible(text[last:start]))
        style = ("bold " if size >= _STRONG else "") + ("green" if word.score > 0 else "red")
        shown.append(console.visible(text[start : word.end]), style if size >= _COLOURED else "")
        last = max(word.end, last)
    shown.append(console.visible(text[last:]))
    return shown


_SHADES = " ░▒▓█"
_CELL, _NAME = 3, 16  # columns of the terminal
_LINKS = 20
_LINK_COLUMNS = (Column(wraps=True), Column(), Column(wraps=True), Column(bar=True, most=console.BAR_WIDTH), Column())


def draw_attention(result: "Attention") -> Iterator["rich.RenderableType"]:
    """Draws the attention between tokens, averaged over the layers and heads."""
    count = len(result.tokens)
    yield rich.Text(_title(result), style="bold")
    if _NAME + 4 + _CELL * count <= console.stdout().width:
        yield from _heat_map(result)
    else:
        yield from _links(result)


def _title(result: "Attention") -> str:
    def named(noun: str, numbers: tuple[int, ...]) -> str:
        return f"{noun} {numbers[0]}" if len(numbers) == 1 else f"mean of {len(numbers)} {noun}s"

    if result.rollout:
        return f"Attention rollout: layers 0 to {max(result.layers)}, mean of the heads"
    return f"Attention: {named('layer', result.layers)}, {named('head', result.heads)}"


def _heat_map(result: "Attention") -> Iterator["rich.RenderableType"]:
    """Draws a heat map with a row for each token and a column for each token that it attends to."""
    mean, special = result.mean, [token.start == token.end for token in result.tokens]
    # Much attention goes to special tokens, where it has no effect; the shades are scaled to the rest.
    largest = float(mean[:, [not is_special for is_special in special]].max(initial=0.0)) or 1.0
    numbers = "".join(f"{number:>{_CELL}}" for number in range(len(result.tokens)))
    yield rich.Text(" " * (_NAME + 4) + numbers, style="dim")
    for number, token in enumerate(result.tokens):
        name = rich.set_cell_size(console.visible(token.token), _NAME), "dim" if special[number] else "bold"
        line = rich.Text.assemble((f"{number:>3} ", "dim"), name)
        for weight in mean[number]:
            shade = _SHADES[min(round(float(weight) / largest * (len(_SHADES) - 1)), len(_SHADES) - 1)]
            line.append(" " + shade * 2, "cyan")
        yield line
    yield rich.Text(f"{_SHADES[-1] * 2} is at least {largest:.0%} of a token's attention", style="dim")


def _links(result: "Attention") -> Iterator["rich.RenderableType"]:
    """Draws the pairs of different tokens with the strongest attention between them."""
    mean, text_tokens = result.mean, [number for number, token in enumerate(result.tokens) if token.start != token.end]
    links = sorted(((mean[a, b], a, b) for a in text_tokens for b in text_tokens if a != b), reverse=True)[:_LINKS]
    rows = [
        (
            rich.Text(console.visible(result.tokens[a].token), "bold"),
            rich.Text("→", "dim"),
            rich.Text(console.visible(result.tokens[b].token), "bold"),
            console.bar_of(float(weight), "cyan"),
            rich.Text(f"{weight:6.1%}"),
        )
        for weight, a, b in links
    ]
    yield PlainTable(_LINK_COLUMNS, rows)
    note = f"the {len(rows)} strongest links of {len(result.tokens)} tokens; --output FILE.html shows all"
    yield rich.Text(note, style="dim")


def advise(topics: "Topics", chosen: "ClusterOptions") -> None:
    """Prints how many texts are in no topic, and what to try if there is no topic or if one has most of the texts."""
    largest = topics.topics[0].size if topics.topics else 0
    as_asked = chosen.clusters is None or 1 < chosen.clusters == len(topics.topics)
    if largest > len(topics.labels) / 2 and as_asked and len(topics.labels) >= _FEW:
        more = _MORE_TOPICS
        if chosen.clusters is not None:
            more = "a larger --clusters splits it; without --clusters, the number of topics is found"
        console.say("hint", f"topic 0 has {largest:,} of {len(topics.labels):,} texts; {more}")
    if topics.outliers:
        count, whole = topics.outliers, len(topics.labels)
        console.say("note", f"in no topic: {count:,} of {console.counted(whole, 'text')}")
        if not topics.topics:
            console.say("hint", _MORE_TOPICS)
