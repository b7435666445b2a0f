"""Draws the results of this room in a terminal: hits, indexes, the list of an interactive search, and progress."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import quote_from_bytes

from mlxbert.cli.views import console, progress, rich
from mlxbert.cli.views.table import Indented
from mlxbert.search import update_events
from mlxbert.search.folding import folded, plain, plain_with_places
from mlxbert.search.hit import Hit, SearchAnswer
from mlxbert.search.index_problems import grouped
from mlxbert.search.store import IndexProblem
from mlxbert.search.update_events import Event, Scanned
from mlxbert.search.word_search import other_forms, words_of

LINES = 6  # lines of a passage on the screen
_INDENT, _MAX_WIDTH, _MIN_WIDTH = 3, 100, 8  # columns: of space on the left, and of a passage
_SHORT = 3  # words of up to this many letters are marked only if the query has no longer ones
_STEM = 4  # words of at least this many letters also match with other endings
# Lines of prose are joined, but not lines of lists, tables and code.
_JOINED = re.compile(r"(?<=\S)[ \t]*\n[ \t]*(?=[^\W\d_]|[\"'“„«(])")
_CODE = 8  # in code, more than one in this many lines is indented
_COUNTABLE = ("link", "broken link", "package")  # reasons that have a plural


@dataclass(frozen=True)
class DrawnPassage:
    """A passage to draw."""

    hit: Hit  # the hit of the search
    text: str  # the text of the passage, with the requested lines of the document around it
    sentence: tuple[int, int]  # the start and end of the best sentence in the text
    lines: int  # the maximum number of lines on the screen
    share: float  # the length of the bar: the share of the best score, from 0 to 1
    line: int | None  # the line of the file on which the best sentence begins, if it has lines


class QueryWords:
    """Finds the words of a query in texts."""

    def __init__(self, query: str) -> None:
        words = dict.fromkeys([*plain(query).split(), *words_of(query)])
        names = {part for word in query.split() if word.isupper() for part in plain(word).split()}
        longer = [word for word in words if len(word) > _SHORT or not word.isascii() or word in names]
        self._words = longer or [*words]
        self._pattern = re.compile("|".join(f"({_form(word)})" for word in self._words) or "(?!)")

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the start and end of each occurrence of a word in a text."""
        folded, places = plain_with_places(text)
        matches = (match.span() for match in self._pattern.finditer(folded))
        return [(places[start][0], places[end - 1][1]) for start, end in matches]

    def shared(self, text: str) -> int:
        """Returns the total length of the query's words that occur in a text; repeated words count once."""
        numbers = {match.lastindex or 0 for match in self._pattern.finditer(plain(text))}
        return sum(len(self._words[number - 1]) for number in numbers)


def _form(word: str) -> str:
    """Returns a regular expression for a word.

    A long word matches with any ending; a word that is not ASCII also matches inside other words.
    """
    if not word.isascii():
        return re.escape(word)
    stem = word.removesuffix("s") if len(word) > _STEM else word
    return rf"\b{re.escape(stem)}\w*" if len(word) >= _STEM else rf"\b{re.escape(word)}\b"


def draw(
    passage: DrawnPassage, words: QueryWords, *, explain: str | None, duplicates: bool = False
) -> Iterator["rich.RenderableType"]:
    """Draws a passage: its rank, place and headings; its score; and the lines around its best sentence.

    Args:
        words: The words of the query, which are underlined.
        explain: The mode of the search, to explain the rank; `None` explains nothing.
        duplicates: Whether to list the places of equal passages.
    """
    hit = passage.hit
    head = rich.Text.assemble((f"{hit.rank}  ", "dim"), place_of(hit, passage.line))
    head.append(f"  {console.line(hit.title)}" if hit.title else "", "dim")
    yield head
    bar = console.bar(passage.share).rstrip()
    score = f" {hit.score:.3f}" if hit.is_close is None else ""  # the evidence has no scale that one could know
    yield Indented(rich.Text.assemble((bar, "green"), (score, "dim")), _INDENT)
    if explain is not None:
        yield Indented(rich.Text(_reasons(hit, explain), "dim"), _INDENT)
    width = min(console.stdout().width, _MAX_WIDTH) - _INDENT
    for line in passage_lines(passage, words, max(width, _MIN_WIDTH)):
        yield Indented(line, _INDENT)
    if hit.duplicates:
        more = f"and {len(hit.duplicates):,} more like it" + (":" if duplicates else "")
        yield Indented(rich.Text(more, "dim"), _INDENT)
    for other in hit.duplicates if duplicates else ():
        yield Indented(_named(other.path, other.place, other.start_line, other.page), _INDENT + 2)


def place_of(hit: Hit, line: int | None) -> "rich.Text":
    """Formats the place of a line of a passage."""
    return _named(hit.path, hit.place, line, hit.page)


def _named(path: str | None, place: str, line: int | None, page: int | None) -> "rich.Text":
    """Formats a place, such as `docs/a.md:12`, as a link for terminals that support links."""
    if path is None:
        return rich.Text(console.visible(place or "record"), "bold")
    inside = f", page {page}" if page is not None else f", {place}" if place else ""
    name = f"{near(path)}:{line}" if line is not None else near(path)
    link = f"link file://{quote_from_bytes(os.fsencode(os.path.abspath(path)))}"
    style = f"bold {link}#{line}" if line is not None else f"bold {link}"
    return rich.Text.assemble((console.visible(name), style), console.visible(inside))


def draw_answer(answer: SearchAnswer) -> Iterator["rich.RenderableType"]:
    """Draws the answer to the query, its probability and its place; or says that there is none."""
    if answer.answer is None or answer.place is None:
        passages = console.counted(len(answer.hits), "passage")
        yield rich.Text.assemble(("no answer", "bold yellow"), (f" in {passages}", "dim"))
        return
    yield rich.Text(console.line(answer.answer), "bold green")
    yield _named(answer.path, answer.place, answer.line, answer.page)
    yield rich.Text.assemble((console.bar(answer.score).rstrip(), "green"), (f" {answer.score:.1%}", "dim"))


def near(path: str) -> str:
    """Returns a path below the current folder as a relative path, and any other path unchanged."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _reasons(hit: Hit, mode: str) -> str:
    """Explains the rank of a hit, which results from several searches: by vectors, by words, and by exact phrase.

    Gives the hit's rank in each of them, and the score of the reranker, if one was used.
    """
    lists = (
        ("vectors", hit.vector_rank, "similarity", hit.vector_score), ("words", hit.word_rank, "BM25", hit.word_score)
    )  # fmt: skip
    reasons = []
    for name, rank, unit, score in lists:
        if mode not in ("hybrid", name):
            continue
        value = f", {unit} {score:.3f}" if score is not None else ""
        reasons.append(f"{name}: {'not among the best' if rank is None else f'rank {rank}'}{value}")
    forms = other_forms(hit.query, folded(f"{hit.title} {hit.text}").split()) if mode == "hybrid" else ()
    if forms:
        reasons.append(f"other forms of its words: {', '.join(forms)}")
    if hit.phrase_rank is not None:
        reasons.append(f"exact phrase: rank {hit.phrase_rank}")
    if hit.token_score is not None:
        reasons.append(f"tokens: MaxSim {hit.token_score:.3f}")
    if hit.rerank_score is not None:
        reasons.append(f"reranker: {hit.rerank_score:.3f}")
    return "; ".join(reasons)


def passage_lines(passage: DrawnPassage, words: QueryWords, width: int) -> Sequence["rich.Text"]:
    """Returns the screen lines of the best sentence, and as many lines around it as may be shown."""
    lines = [line for line in _marked(passage, words).wrap(console.stdout(), width - 2) if line.plain.strip()]
    inside = [number for number, line in enumerate(lines) if any("underline" in str(span.style) for span in line.spans)]
    first, last = (inside[0], min(inside[-1], inside[0] + passage.lines - 1)) if inside else (0, 0)
    start = max(min(first - (passage.lines - (last - first + 1)) // 2, len(lines) - passage.lines), 0)
    window = lines[start : start + passage.lines]
    if start and window:
        window[0] = rich.Text.assemble(("… ", "dim"), window[0])
    if start + passage.lines < len(lines):
        window[-1].rstrip()
        window[-1].append(" …", "dim")
    return window


def _marked(passage: DrawnPassage, words: QueryWords) -> "rich.Text":
    """Returns the text, in which the best sentence is underlined and the words of the query are bold."""
    text, (first, last) = passage.text, passage.sentence
    joins = [] if _is_code(text) else [match.span() for match in _JOINED.finditer(text)]
    matches = words.spans(text)
    places = sorted({0, len(text), first, last, *(place for span in (*joins, *matches) for place in span)})
    drawn = rich.Text()
    for start, end in pairwise(places):
        inside = any(begin <= start and end <= stop for begin, stop in joins)
        style = "underline" if first <= start and end <= last and text[start:end].strip() else ""
        style += " bold" if any(begin <= start and end <= stop for begin, stop in matches) else ""
        piece = " " if inside else text[start:end].replace("\t", "    ").replace("\r", "")
        drawn.append("\n".join(map(console.visible, piece.split("\n"))), style.strip())
    return drawn


def _is_code(text: str) -> bool:
    """Whether many lines of a text are indented, as in code, so that lines must not be joined."""
    lines = [line for line in text.split("\n") if line.strip()]
    return sum(line[0] in " \t" for line in lines) * _CODE > len(lines)


def draw_indexes(listing: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws the folder that holds the indexes, and a line for each index."""
    yield from console.facts("indexes", [("folder", listing["folder"])])
    rows = [
        (", ".join(map(near, facts["covers"])), facts["model"], f"{facts['files']:,}", f"{facts['chunks']:,}",
         console.size(facts["bytes"]), _as_text("updated", facts["updated"]))
        for facts in listing["indexes"] if "problem" not in facts
    ]  # fmt: skip
    if rows:
        yield console.listing(("covers", "model", "files", "chunks", "size", "updated"), rows)


def draw_index(facts: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws the facts about an index, and the numbers of its problems by reason."""
    rows = [(name.replace("_", " "), _as_text(name, value)) for name, value in facts.items() if name != "problems"]
    yield from console.facts(facts["index"], [row for row in rows if row[0] != "index"])
    if facts.get("problems"):
        counts = [(f"{group['count']:,}", f"{group['kind']}: {group['reason']}") for group in facts["problems"]]
        yield from console.facts("problems", counts)


def summarized(problems: Iterable[IndexProblem]) -> list[dict[str, Any]]:
    """Returns, for each group of problems, their kind, reason and number, and the place of the first one."""
    return [
        {"kind": group.kind, "reason": group.reason, "count": group.count, "path": first.path, "place": first.place}
        for group in grouped(problems)
        for first in group.problems[:1]
    ]


def draw_problems(problems: Iterable[IndexProblem]) -> Iterator["rich.RenderableType"]:
    """Draws problems by reason: under each reason, the files with their places, or with what differs in the reasons."""
    for group in grouped(problems):
        rows: dict[tuple[str, str], list[str]] = {}
        for problem in group.problems:
            path = "" if problem.path is None else near(problem.path)
            reason = "" if problem.reason == group.reason else problem.reason
            more = f"and {problem.more:,} more" if problem.more else ""
            rows.setdefault((path, reason), []).extend(filter(None, (problem.place, more)))
        yield from console.facts(
            f"{group.kind}: {group.reason} ({group.count:,})",
            [(path, ": ".join(filter(None, (", ".join(places), reason)))) for (path, reason), places in rows.items()],
        )


def counted_reasons(counts: Mapping[str, int]) -> str:
    """Formats the numbers of files and folders that were left out, by reason: `5 hidden, 2 links`."""
    return ", ".join(
        console.counted(count, reason) if reason in _COUNTABLE else f"{count:,} {reason}"
        for reason, count in counts.items()
    )


def _as_text(name: str, value: Any) -> object:
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


Fragment = tuple[str, str]  # a style of prompt_toolkit and a text
Line = list[Fragment]
_MARGIN = 2  # columns before each line
_STYLES = ("bold", "dim", "underline")  # attributes of rich's styles that prompt_toolkit has, too


@dataclass
class HitList:
    """The hits of the latest search."""

    query: str = ""
    hits: Sequence[Hit] = ()  # the hits, best first
    selected: int = 0  # the index of the selected hit
    message: str = ""  # what the last line of the screen says
    _top: int = field(default=0, init=False)  # the index of the first hit on the screen

    def show(self, query: str, hits: Sequence[Hit]) -> None:
        self.query, self.hits, self.selected, self._top = query, hits, 0, 0
        self.message = _summary(hits) if query.strip() else ""

    def move(self, step: int) -> None:
        self.selected = min(max(self.selected + step, 0), max(len(self.hits) - 1, 0))

    def line_of(self, hit: Hit) -> int | None:
        """Returns the line of the file on which the best sentence of a hit begins, if the file has lines."""
        return self._passage(hit, 1).line

    def lines(self, width: int, height: int) -> list[Line]:
        """Returns the lines on a screen; the selected hit is among them, with more of its passage than the others."""
        blocks = [self._block(number, width, min(LINES, height - 1)) for number in range(len(self.hits))]
        self._top = min(self._top, self.selected)
        while self._top < self.selected and sum(map(len, blocks[self._top : self.selected + 1])) > height:
            self._top += 1
        return [line for block in blocks[self._top :] for line in block][:height]

    def _block(self, number: int, width: int, most: int) -> list[Line]:
        hit, chosen = self.hits[number], number == self.selected
        passage = self._passage(hit, max(most, 1) if chosen else 1)
        place = f", page {hit.page}" if hit.page is not None else f", {hit.place}" if hit.place else ""
        name = near(hit.path) if hit.path is not None else hit.place
        name += f":{passage.line}" if passage.line is not None else ""
        duplicates = f"  +{len(hit.duplicates):,} duplicates" if hit.duplicates else ""
        room = width - _MARGIN - len(duplicates)
        name = console.end_of(name if hit.path is None else name + place, max(room, 2))
        title = rich.Text(f"  {console.line(hit.title)}" if hit.title and room > rich.cell_len(name) else "")
        title.truncate(max(room - rich.cell_len(name), 0), overflow="ellipsis")
        head: Line = [("reverse bold" if chosen else "bold", name), ("dim", duplicates + title.plain)]
        # Two columns less: a line may have an ellipsis on both sides.
        texts = passage_lines(passage, QueryWords(self.query), max(width - _MARGIN - 2, 1))
        return [[("", "> " if chosen else "  "), *head], *([("", " " * _MARGIN), *_fragments(text)] for text in texts)]

    def _passage(self, hit: Hit, lines: int) -> DrawnPassage:
        """Returns a passage to draw; its best sentence is the one that has most of the query's words."""
        from mlxbert.search.chunks import sentences

        words = QueryWords(self.query)
        spans = sentences(hit.text) or [(0, len(hit.text))]
        start, end = max(spans, key=lambda span: words.shared(hit.text[slice(*span)]))
        line = None if hit.start_line is None else hit.start_line + hit.text.count("\n", 0, start)
        return DrawnPassage(hit, hit.text, (start, end), lines, 0.0, line)


def _summary(hits: Sequence[Hit]) -> str:
    """Says how many hits there are, or that none of them is close."""
    if not hits:
        return "nothing was found"
    is_far = all(hit.is_close is False for hit in hits)
    return "nothing close; the nearest" if is_far else console.counted(len(hits), "passage")


def _fragments(text: "rich.Text") -> Line:
    text.rstrip()
    segments = text.render(console.stdout())
    return [
        (" ".join(name for name in _STYLES if segment.style and getattr(segment.style, name)), segment.text)
        for segment in segments
        if segment.text.strip("\n")
    ]


_MIN_BAR, _MAX_BAR, _BAR_SHARE = 6, 40, 6  # columns of a bar: a sixth of the terminal's
_OTHER_COLUMNS = 4 + len("1:02:03") + 4  # the percentage, the remaining time, and the gaps
_MIN_NAME = 8  # columns for the name of a file


class UpdateEstimate:
    """Estimates how much of an update is done, from the time that reading and embedding have taken so far.

    The files that are still to be read are assumed to give as many chunks per byte as those that were read.

    Attributes:
        total: The size in bytes of the files to read.
        files: The number of files read so far.
        doing: The path of the file that is being read; empty while chunks are embedded.
    """

    def __init__(self, total: int) -> None:
        self.total, self.files, self.doing = total, 0, ""
        self._read = self._chunks = self._embedded = self._at_measurement = 0
        self._size = 0  # of the file that is being read
        self._reading = self._embedding = self._seconds_per_chunk = self._share = 0.0
        self._last = time.monotonic()

    def add(self, event: Event) -> None:
        """Adds an event. The time since the previous event counts as reading or as embedding."""
        now = time.monotonic()
        match event:
            case update_events.FileStarted():
                self._end_file()  # one that failed or vanished has no other event that says so
                self.doing, self._size = event.path, event.size
            case update_events.FileRead():
                self._end_file()
                self.files, self._reading = self.files + 1, self._reading + now - self._last
                self._chunks += event.chunks
            case update_events.IndexUpdated():
                self._end_file()
            case _:  # a file is written before the event of its last chunk
                self._embedding += now - self._last
                if isinstance(event, update_events.Embedded):
                    self._count_embedded(event.chunks)
        self._last = now

    def _end_file(self) -> None:
        self.doing, self._read, self._size = "", self._read + self._size, 0

    def _count_embedded(self, embedded: int) -> None:
        """Measures the rate after whole windows, because the results of a window all arrive at its end."""
        from mlxbert.text.batch import WINDOW

        self._embedded = embedded
        if embedded >= self._chunks or embedded - self._at_measurement >= WINDOW:
            self._at_measurement, self._seconds_per_chunk = embedded, self._embedding / embedded

    def left(self, total: float | None = None) -> float | None:
        """Returns the remaining seconds; `None` if they are unknown or the work is overdue.

        Args:
            total: Not used; columns of a bar pass it.
        """
        rest = self._rest()
        seconds = None if rest is None else rest - (time.monotonic() - self._last)
        return seconds if seconds is not None and seconds > 0 else None

    def _rest(self) -> float | None:
        """Returns the seconds that remained at the last event; `None` before the first files are embedded."""
        if not self._read or (self._chunks and not self._at_measurement):
            return None
        unread = max(self.total - self._read, 0)
        chunks = self._chunks * (1 + unread / self._read) - self._embedded
        return unread * self._reading / self._read + chunks * self._seconds_per_chunk

    @property
    def share(self) -> float:
        """The share of the whole work that is done, from 0 to 1; it never falls, even if the estimate does."""
        rest, spent = self._rest(), self._reading + self._embedding
        if rest is not None and spent + rest > 0:
            self._share = max(self._share, spent / (spent + rest))
        return self._share


@contextmanager
def index_update(scanned: Scanned) -> Iterator[Callable[[Event], None]]:
    """Shows a bar in a terminal; yields a function that takes the events of an update after `scanned`."""
    if not console.may_draw():
        yield lambda event: None
        return
    estimate, width = UpdateEstimate(scanned.size), console.stderr().width
    columns = max(_MIN_BAR, min(_MAX_BAR, width // _BAR_SHARE))
    texts = [rich.TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("files", "doing")]
    with progress.drawing(texts[0], last=texts[1], bar_width=columns) as bar:
        task = bar.add_task("", total=1.0, pace=estimate, files="", doing="")

        def update(event: Event) -> None:
            estimate.add(event)
            files = f"{estimate.files:,} of {console.counted(scanned.changed, 'file')}"
            room = console.stderr().width - columns - _OTHER_COLUMNS - len(files)
            doing = console.end_of(near(estimate.doing), max(room, _MIN_NAME)) if estimate.doing else "embedding"
            bar.update(task, completed=estimate.share, files=files, doing=doing)

        yield update
