"""Passages that a search found: where they stand, how near they are, and the sentence that is the nearest."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import quote_from_bytes

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Indented
from mlxbert.results.hit import Hit

LINES = 6  # of a passage, on the screen
_INDENT, _WIDEST, _LEAST = 3, 100, 8  # columns: of space on the left, of a passage, of what there is room for anyway
_SHORT = 3  # letters of the words that are marked only if the query has no others
_STEM = 4  # letters of the words that are also found with another ending
_WORD = re.compile(r"\w+")
# Lines of prose are joined, those of lists, tables and code are not.
_JOINED = re.compile(r"(?<=\S)[ \t]*\n[ \t]*(?=[^\W\d_]|[\"'“„«(])")
_STEEP = 4  # fused scores fall by a sixtieth with each rank: a power of them tells ranks apart
_CODE = 8  # in code, one of so few lines begins with a space
_THINGS = ("link", "broken link", "package")  # reasons that have a plural


@dataclass(frozen=True)
class DrawnPassage:
    """A hit as it is drawn.

    Attributes:
        hit: The hit.
        text: Its text, or more of its document.
        sentence: Where the closest sentence stands in the text.
        lines: How many lines of the screen it takes, at most.
        share: How long the bar of its score is, from 0 to 1.
        line: The line of the file on which the sentence begins.
    """

    hit: Hit
    text: str
    sentence: tuple[int, int]
    lines: int
    share: float
    line: int | None


class QueryWords:
    """The words of a query, to find them in texts."""

    def __init__(self, query: str) -> None:
        words = dict.fromkeys(word.casefold() for word in _WORD.findall(query))
        names = {word.casefold() for word in _WORD.findall(query) if word.isupper()}
        longer = [word for word in words if len(word) > _SHORT or not word.isascii() or word in names]
        self._words = longer or [*words]
        self._pattern = re.compile("|".join(f"({_form(word)})" for word in self._words) or "(?!)", re.IGNORECASE)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the words stand in a text."""
        return [found.span() for found in self._pattern.finditer(text)]

    def shared(self, text: str) -> int:
        """How many letters the words have that stand in a text."""
        return sum(
            len(self._words[word - 1]) for word in {found.lastindex or 0 for found in self._pattern.finditer(text)}
        )


def _form(word: str) -> str:
    """What matches a word: long ones with any ending, and anywhere what is written without spaces between words."""
    if not word.isascii():
        return re.escape(word)
    stem = word.removesuffix("s") if len(word) > _STEM else word
    return rf"\b{re.escape(stem)}\w*" if len(word) >= _STEM else rf"\b{re.escape(word)}\b"


def draw(passage: DrawnPassage, words: QueryWords, *, explain: bool) -> Iterator["rich.RenderableType"]:
    """The rank, the place and the titles; the score; and the lines around the closest sentence."""
    hit = passage.hit
    head = rich.Text.assemble((f"{hit.rank}  ", "dim"), _place(passage))
    head.append(f"  {console.line(hit.title)}" if hit.title else "", "dim")
    yield head
    fused = hit.score not in (hit.vector_score, hit.word_score, hit.rerank_score)
    bar = console.bar(passage.share**_STEEP if fused else passage.share).rstrip()
    score = rich.Text.assemble((bar, "green"), (f" {hit.score:.3f}", "dim"))
    yield Indented(score, _INDENT)
    if explain:
        yield Indented(rich.Text(_reasons(hit), "dim"), _INDENT)
    width = min(console.stdout().width, _WIDEST) - _INDENT
    for line in _window(passage, words, max(width, _LEAST)):
        yield Indented(line, _INDENT)


def _place(passage: DrawnPassage) -> "rich.Text":
    """`docs/a.md:12`, as a link where the terminal has links."""
    hit = passage.hit
    place = f", page {hit.page}" if hit.page is not None else f", {hit.place}" if hit.place else ""
    if hit.path is None:
        return rich.Text(console.visible(hit.place or "record"), "bold")
    name = f"{near(hit.path)}:{passage.line}" if passage.line is not None else near(hit.path)
    link = f"link file://{quote_from_bytes(os.fsencode(os.path.abspath(hit.path)))}"
    style = f"bold {link}#{passage.line}" if passage.line is not None else f"bold {link}"
    return rich.Text.assemble((console.visible(name), style), console.visible(place))


def near(path: str) -> str:
    """A path relative to the current folder if it lies in it."""
    here = os.path.relpath(path)
    return path if here.startswith("..") else here


def _reasons(hit: Hit) -> str:
    """Why a hit is where it is: its places in the lists."""
    lists = (("vectors", hit.vector_rank, "cosine", hit.vector_score), ("words", hit.word_rank, "BM25", hit.word_score))
    told = [
        f"{name}: rank {rank}, {unit} {score:.3f}" if rank is not None and score is not None else f"{name}: not found"
        for name, rank, unit, score in lists
    ]
    if hit.phrase_rank is not None:
        told.append(f"word for word: rank {hit.phrase_rank}")
    if hit.rerank_score is not None:
        told.append(f"reranker: {hit.rerank_score:.3f}")
    return "; ".join(told)


def _window(passage: DrawnPassage, words: QueryWords, width: int) -> Sequence["rich.Text"]:
    """The lines of the screen that have the sentence, and those around it."""
    lines = [line for line in _marked(passage, words).wrap(console.stdout(), width - 2) if line.plain.strip()]
    inside = [number for number, line in enumerate(lines) if any("underline" in str(span.style) for span in line.spans)]
    first, last = (inside[0], min(inside[-1], inside[0] + passage.lines - 1)) if inside else (0, 0)
    start = max(min(first - (passage.lines - (last - first + 1)) // 2, len(lines) - passage.lines), 0)
    shown = lines[start : start + passage.lines]
    if start and shown:
        shown[0] = rich.Text.assemble(("… ", "dim"), shown[0])
    if start + passage.lines < len(lines):
        shown[-1].rstrip()
        shown[-1].append(" …", "dim")
    return shown


def _marked(passage: DrawnPassage, words: QueryWords) -> "rich.Text":
    """The text, in which the sentence and the words of the query stand out."""
    text, (first, last) = passage.text, passage.sentence
    joined = [] if _is_code(text) else [found.span() for found in _JOINED.finditer(text)]
    bold = words.spans(text)
    places = sorted({0, len(text), first, last, *(place for span in (*joined, *bold) for place in span)})
    drawn = rich.Text()
    for start, end in pairwise(places):
        inside = any(begin <= start and end <= until for begin, until in joined)
        style = "underline" if first <= start and end <= last and text[start:end].strip() else ""
        style += " bold" if any(begin <= start and end <= until for begin, until in bold) else ""
        piece = " " if inside else text[start:end].replace("\t", "    ").replace("\r", "")
        drawn.append("\n".join(map(console.visible, piece.split("\n"))), style.strip())
    return drawn


def _is_code(text: str) -> bool:
    """Whether the lines of a text are to stay: many are indented, as in code."""
    lines = [line for line in text.split("\n") if line.strip()]
    return sum(line[0] in " \t" for line in lines) * _CODE > len(lines)


def draw_indexes(found: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """The folder of the indexes, and a line for each."""
    yield from console.facts("indexes", [("folder", found["folder"])])
    rows = [
        (", ".join(map(near, one["covers"])), one["model"], f"{one['files']:,}", f"{one['chunks']:,}",
         console.size(one["bytes"]), _shown("updated", one["updated"]))
        for one in found["indexes"] if "problem" not in one
    ]  # fmt: skip
    if rows:
        yield console.listing(("covers", "model", "files", "chunks", "size", "updated"), rows)


def draw_index(facts: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """The facts of one index, and the files that could not be read."""
    rows = [(name.replace("_", " "), _shown(name, value)) for name, value in facts.items() if name != "failed"]
    yield from console.facts(facts["index"], [row for row in rows if row[0] != "index"])
    if facts.get("failed"):
        yield from console.facts("could not be read", [(near(one["path"]), one["reason"]) for one in facts["failed"]])


def counted_reasons(counts: Mapping[str, int]) -> str:
    """How many files and folders were left out, by reason: `5 hidden, 2 links`."""
    return ", ".join(
        console.counted(count, reason) if reason in _THINGS else f"{count:,} {reason}"
        for reason, count in counts.items()
    )


def _shown(name: str, value: Any) -> object:
    if name == "bytes":
        return console.size(value)
    if name in ("created", "updated") and value:
        return value[:16].replace("T", " ")
    if isinstance(value, dict):
        return counted_reasons(value) or None
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or None
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
