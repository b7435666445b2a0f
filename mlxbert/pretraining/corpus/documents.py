"""Text files to documents, lists of sentences, in bounded memory.

A long sentence is split into pieces, and a long document is read in parts. A line or record that cannot be used is left
out and counted.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlxbert.counterparts import not_one_of
from mlxbert.errors import ArgumentError, InputError
from mlxbert.files import to_path
from mlxbert.readers.formats import FormatName, find_format, read_records
from mlxbert.readers.input_files import Stamp, open_source, stamp_of
from mlxbert.readers.parsing import placed
from mlxbert.readers.stream import Record, RecordStream
from mlxbert.readers.text_lines import UTF8

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
class FilePart:
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
class CorpusPosition:
    """How far files have been read.

    Attributes:
        file: The number of the file.
        records: How many of its lines or records were read.
        usable: How many of these have text.
        skipped: How many lines and records of all files cannot be used.
        empty: How many files are empty.
        problems: What is wrong with the first of them.
    """

    file: int = 0
    records: int = 0
    usable: int = 0
    skipped: int = 0
    empty: int = 0
    problems: tuple[str, ...] = ()

    def with_problem(self, text: str, *, skipped: int = 0, empty: int = 0) -> "CorpusPosition":
        """The place, with another problem."""
        problems = (*self.problems, text)[:MAX_PROBLEMS]
        return replace(self, skipped=self.skipped + skipped, empty=self.empty + empty, problems=problems)


class _LineEnd:
    """Stands in a stream of sentences where a line ends."""


class _DocumentEnd:
    """Stands in a stream of sentences where a document ends, which is always after a line."""


_Event = str | type[_LineEnd] | type[_DocumentEnd]


def check_files(files: Sequence[str | Path], field: str, documents: str) -> tuple[Path, ...]:
    """The files of a corpus, checked before any of them is read."""
    if isinstance(files, str | Path) or not files:
        raise ArgumentError(f"files is {files!r:.60}, expected a list of files")
    if documents not in BOUNDARIES:
        raise not_one_of("documents", documents, BOUNDARIES)
    if not isinstance(field, str) or not field:
        raise ArgumentError(f"field is {field!r:.60}, expected the name of a field")
    paths = tuple(to_path(file, "files") for file in files)
    for path in paths:
        if not path.is_file():
            found = "is a folder" if path.is_dir() else "is not a regular file" if path.exists() else "no such file"
            raise InputError(f"{path}: {found}, expected a file of text", hint="name the files themselves")
        if find_format(str(path), texts=True) not in (FormatName.txt, FormatName.jsonl, FormatName.json):
            raise ArgumentError(f"{path}: expected a .txt, .jsonl or .json, also with .gz or .xz")
    return paths


class DocumentReader:
    """Reads the documents of files; iterating over it reads them, once.

    A .txt has an empty line between documents; with `documents="line"` each line is a document. A .jsonl has a document
    per line, a .json an array of them. A sentence ends with its line; after `.`, `!` or `?`, and closing quotes and
    brackets, before whitespace that no lower-case letter follows; and after the full-width marks of Chinese and
    Japanese.

    Args:
        files: From `check_files`.
        field: The field of JSON objects that is the text.
        encoding: That of the files.
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
        place: CorpusPosition | None = None,
        stamps: Sequence[Stamp] | None = None,
        encoding: str = UTF8,
    ) -> None:
        self._files, self._field, self._documents, self._encoding = files, field, documents, encoding
        self._stamps = [stamp_of(path) for path in files] if stamps is None else stamps
        self._records: RecordStream | None = None
        self._problem: InputError | None = None  # the first one of a file
        self.place = place or CorpusPosition()

    @property
    def total(self) -> int:
        """Bytes of all files, compressed ones as they are."""
        return sum(stamp.size for stamp in self._stamps)

    @property
    def done(self) -> int:
        """Bytes read so far."""
        before = sum(stamp.size for stamp in self._stamps[: self.place.file])
        return before + (self._records.done if self._records is not None else 0)

    def __iter__(self) -> Iterator[FilePart]:
        first = self.place.file
        for path, stamp in zip(self._files[first:], self._stamps[first:], strict=True):
            inside = self.place.records > 0  # perhaps of a document whose first parts were read before
            with open_source(path, stamp=stamp) as file:
                self._records = read_records(
                    file, self._field, name=str(path), choose="field=", most=_MAX_LINE, encoding=self._encoding
                )
                yield from _parts(self._events(self._records), inside)

    def _events(self, records: RecordStream) -> Iterator[_Event]:
        self._problem = None
        per_line = self._documents == "blank" and FormatName.txt in records.read_as[:1]
        for text in self._texts(records):
            if text is None:  # the document continues with the next line
                continue
            for line in text.split("\n"):
                yield from split_sentences(line)
            if per_line:
                yield _LineEnd if text else _DocumentEnd
            elif text:
                yield _DocumentEnd
        place = self.place
        if not place.usable and place.records:
            problem = self._problem or InputError("no line has text")
            raise InputError(f"{records.name}: nothing in it can be used: {problem.message}", hint=problem.hint)
        if not place.records:
            place = place.with_problem(f"{records.name}: empty", empty=1)
        self._records = None
        self.place = replace(place, file=place.file + 1, records=0, usable=0)
        yield _DocumentEnd

    def _texts(self, records: RecordStream) -> Iterator[str | None]:
        """The texts after those that were passed over: blank ones as `""`, those that cannot be used as `None`."""
        before = self.place.records
        for number, document in enumerate(records, 1):
            if number <= before:
                continue
            problem = document.problem or _problem(document)
            if problem is not None:
                self._problem = self._problem or placed(problem, document.place)
                self.place = self.place.with_problem(document.located(problem).message, skipped=1)
            usable = problem is None and bool(document.text.strip())
            self.place = replace(self.place, records=number, usable=self.place.usable + usable)
            yield document.text if usable else "" if problem is None else None


def _problem(document: Record) -> InputError | None:
    if "\0" in document.text:
        return InputError("a zero byte in the text")
    try:
        document.text.encode()
    except UnicodeEncodeError:
        return InputError("half of a surrogate pair, which is not a character")
    return None


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


def _parts(events: Iterable[_Event], inside: bool) -> Iterator[FilePart]:
    """The parts that events make; `inside` a document, its end is a part even if no sentence precedes it."""
    sentences: list[str] = []
    size = 0
    for event in events:
        if isinstance(event, str):
            sentences.append(event)
            size += len(event)
            if size >= 2 * MAX_PART:  # a line that is a whole book
                yield FilePart(sentences, continues=True, resumable=False)
                sentences, size, inside = [], 0, True
        elif event is _DocumentEnd or size >= MAX_PART:
            if sentences or inside:
                yield FilePart(sentences, continues=event is _LineEnd, resumable=True)
            sentences, size, inside = [], 0, event is _LineEnd
