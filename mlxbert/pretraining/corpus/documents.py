"""Text files to documents, lists of sentences, in bounded memory.

A long sentence is split into pieces, and a long document is read in parts. A line or record that cannot be used is left
out and counted.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlxbert.data.lines import Lines
from mlxbert.data.parse import json_type, read_objects
from mlxbert.data.records import Format, find_format, open_source
from mlxbert.errors import ArgumentError, InputError
from mlxbert.files import to_path
from mlxbert.inputs import Stamp, stamp_of

BOUNDARIES = ("blank", "line")
MAX_SENTENCE = 10_000  # characters
MAX_PART = 200_000  # characters, of a document that is read in parts
_MAX_LINE = 2**28  # bytes; text8, a corpus in a single line, has 10**8
MAX_PROBLEMS = 20  # that are described; all are counted
# Also of Chinese and Japanese.
_END = re.compile(r"[.!?][\"'\u201d\u2019»)\]}]*\s+|[\u3002\uff01\uff1f][\u300d\u300f\u201d\u2019)]*\s*")
# Up to whitespace, or as many characters as there may be where there is none.
_PIECE = re.compile(rf".{{1,{MAX_SENTENCE}}}(?!\S)|.{{1,{MAX_SENTENCE}}}", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """A document, or a part of a long one.

    Attributes:
        sentences: Its sentences, none of them blank.
        continues: Whether the next part belongs to the same document.
        resumable: Whether reading can begin after this part; not within a line.
    """

    sentences: list[str]
    continues: bool
    resumable: bool


@dataclass(frozen=True)
class Place:
    """How far files have been read.

    Attributes:
        file: The number of the file.
        line: How many of its lines were read.
        usable: How many of these have text.
        skipped: How many lines and records of all files cannot be used.
        empty: How many files are empty.
        problems: What is wrong with the first of them.
    """

    file: int = 0
    line: int = 0
    usable: int = 0
    skipped: int = 0
    empty: int = 0
    problems: tuple[str, ...] = ()

    def with_problem(self, text: str, *, skipped: int = 0, empty: int = 0) -> "Place":
        """The place, with another problem."""
        problems = (*self.problems, text)[:MAX_PROBLEMS]
        return replace(self, skipped=self.skipped + skipped, empty=self.empty + empty, problems=problems)


class _LineEnd:
    """Stands in a stream of sentences where a line ends."""


class _DocumentEnd:
    """Stands in a stream of sentences where a document ends, which is always after a line."""


_Event = str | type[_LineEnd] | type[_DocumentEnd]


def check_files(files: Sequence[str | Path], field: str, documents: str) -> tuple[Path, ...]:
    """The files of a corpus, checked before any of them is read.

    Raises:
        ArgumentError: There are none, an ending is not known, or another argument is invalid.
        InputError: One is missing, or is no file.
    """
    if isinstance(files, str | Path) or not files:
        raise ArgumentError(f"files is {files!r:.60}, expected a list of files")
    if documents not in BOUNDARIES:
        raise ArgumentError(f"documents is {documents!r:.60}, expected one of {', '.join(BOUNDARIES)}")
    if not isinstance(field, str) or not field:
        raise ArgumentError(f"field is {field!r:.60}, expected the name of a field")
    paths = tuple(to_path(file, "files") for file in files)
    for path in paths:
        if not path.is_file():
            found = "is a folder" if path.is_dir() else "is not a regular file" if path.exists() else "no such file"
            raise InputError(f"{path}: {found}, expected a file of text", hint="name the files themselves")
        if find_format(str(path), texts=True) not in (Format.txt, Format.jsonl):
            raise ArgumentError(f"{path}: expected a .txt or .jsonl, also with .gz or .xz")
    return paths


class DocumentReader:
    """Reads the documents of files; iterating over it reads them, once.

    A .txt has an empty line between documents; with `documents="line"` each line is a document. A .jsonl has a document
    per line. A sentence ends with its line; after `.`, `!` or `?`, and closing quotes and brackets, before whitespace
    that no lower-case letter follows; and after the full-width marks of Chinese and Japanese.

    Args:
        files: From `check_files`.
        field: The field of .jsonl objects that is the text.
        documents: Where documents of a .txt end, `blank` or `line`.
        place: Where to begin: what was read before is passed over.
        stamps: What each file was when it was hashed or read before.

    Attributes:
        place: What has been read, up to the part that came last.
    """

    def __init__(
        self,
        files: Sequence[Path],
        field: str = "text",
        documents: str = "blank",
        place: Place | None = None,
        stamps: Sequence[Stamp] | None = None,
    ) -> None:
        self._files, self._field, self._documents = files, field, documents
        self._stamps = [stamp_of(path) for path in files] if stamps is None else stamps
        self._lines: Lines | None = None
        self._problem: InputError | None = None  # the first one of a file
        self.place = place or Place()

    @property
    def total(self) -> int:
        """Bytes of all files, compressed ones as they are."""
        return sum(stamp.size for stamp in self._stamps)

    @property
    def done(self) -> int:
        """Bytes read so far."""
        before = sum(stamp.size for stamp in self._stamps[: self.place.file])
        return before + (self._lines.done if self._lines is not None else 0)

    def __iter__(self) -> Iterator[Part]:
        first = self.place.file
        for path, stamp in zip(self._files[first:], self._stamps[first:], strict=True):
            with open_source(path, stamp=stamp) as file:
                inside = self.place.line > 0  # perhaps of a document whose first parts were read before
                yield from _parts(self._events(path, Lines(str(path), file, lenient=True, most=_MAX_LINE)), inside)

    def _events(self, path: Path, lines: Lines) -> Iterator[_Event]:
        self._lines, self._problem = lines, None
        if find_format(str(path), texts=True) is Format.jsonl:
            yield from self._records(lines)
        elif self._documents == "line":
            yield from self._documents_per_line(lines)
        else:
            yield from self._sentences_per_line(lines)
        place = self.place
        if not place.usable and place.line:
            problem = self._problem or InputError("no line has text")
            raise InputError(f"{path}: nothing in it can be used: {problem.message}", hint=problem.hint)
        if not place.line:
            place = place.with_problem(f"{path}: empty", empty=1)
        self._lines = None
        self.place = replace(place, file=place.file + 1, line=0, usable=0)
        yield _DocumentEnd

    def _texts(self, lines: Lines) -> Iterator[str | None]:
        """The lines after those that were passed over: blank ones as `""`, those that cannot be used as `None`."""
        before = self.place.line
        for number, line in enumerate(lines, 1):
            problem = lines.problem()
            if number <= before:
                continue
            if problem is not None:
                self._skip(lines.name, number, problem)
            usable = problem is None and bool(line.strip())
            self.place = replace(self.place, line=number, usable=self.place.usable + usable)
            yield line if usable else "" if problem is None else None

    def _sentences_per_line(self, lines: Lines) -> Iterator[_Event]:
        for line in self._texts(lines):
            if line is not None:  # otherwise the document goes on with the next line
                yield from split_sentences(line)
                yield _LineEnd if line else _DocumentEnd

    def _documents_per_line(self, lines: Lines) -> Iterator[_Event]:
        for line in self._texts(lines):
            if line:
                yield from split_sentences(line)
                yield _DocumentEnd

    def _records(self, lines: Lines) -> Iterator[_Event]:
        before = self.place.line
        for number, record in read_objects(lines):
            if number <= before:
                continue
            text = self._text_of(record)
            usable = isinstance(text, str) and bool(text.strip())
            self.place = replace(self.place, line=number, usable=self.place.usable + usable)
            if isinstance(text, InputError):
                self._skip(lines.name, number, text)
            elif usable:
                for line in text.split("\n"):
                    yield from split_sentences(line)
                yield _DocumentEnd

    def _text_of(self, record: dict[str, object] | InputError) -> str | InputError:
        if isinstance(record, InputError):
            return record
        if self._field not in record:
            names = ", ".join(record) or "nothing"
            return InputError(f"no field {self._field!r}, the record has: {names}", hint="name it with field=")
        text = record[self._field]
        if not isinstance(text, str):
            return InputError(f"field {self._field!r} is {json_type(text)}, expected a string")
        if "\0" in text:
            return InputError("a zero byte in the text")
        try:
            text.encode()
        except UnicodeEncodeError:
            return InputError("half of a surrogate pair, which is not a character")
        return text

    def _skip(self, name: str, number: int, problem: InputError) -> None:
        reason = re.sub(r"^line \d+: ", "", problem.message)
        self._problem = self._problem or InputError(f"line {number}: {reason}", hint=problem.hint)
        self.place = self.place.with_problem(f"{name}, line {number}: {reason}", skipped=1)


def split_sentences(text: str) -> Iterator[str]:
    """The sentences of a text, see `DocumentReader`; no piece is longer than `MAX_SENTENCE`."""
    start = 0
    for found in _END.finditer(text):
        if not text[found.end() : found.end() + 1].islower():
            yield from _pieces(text[start : found.end()])
            start = found.end()
    yield from _pieces(text[start:])


def _pieces(sentence: str) -> Iterator[str]:
    """A sentence, split at whitespace if it is too long; nothing of a blank one."""
    if len(sentence) <= MAX_SENTENCE:
        found: Iterable[str] = (sentence,)
    else:
        found = (match[0] for match in _PIECE.finditer(sentence))
    for piece in found:
        if stripped := piece.strip():
            yield stripped


def _parts(events: Iterable[_Event], inside: bool) -> Iterator[Part]:
    """The parts that events make; `inside` a document, its end is a part even if no sentence precedes it."""
    sentences: list[str] = []
    size = 0
    for event in events:
        if isinstance(event, str):
            sentences.append(event)
            size += len(event)
            if size >= 2 * MAX_PART:  # a line that is a whole book
                yield Part(sentences, continues=True, resumable=False)
                sentences, size, inside = [], 0, True
        elif event is _DocumentEnd or size >= MAX_PART:
            if sentences or inside:
                yield Part(sentences, continues=event is _LineEnd, resumable=True)
            sentences, size, inside = [], 0, event is _LineEnd
