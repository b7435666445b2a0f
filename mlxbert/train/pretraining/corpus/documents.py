"""Reads the documents of text files in bounded memory; a document is a list of sentences.

A long sentence is split into pieces, and a long document is read in parts. Unusable lines and records are skipped and
counted.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from mlxbert.durable_files import to_path
from mlxbert.errors import ArgumentError, InputError
from mlxbert.other_libraries import not_one_of
from mlxbert.readers.formats import FormatName, find_format, read_records
from mlxbert.readers.input_files import Stamp, open_source, stamp_of
from mlxbert.readers.parsing import placed
from mlxbert.readers.stream import Record, RecordStream
from mlxbert.readers.text_lines import UTF8

BOUNDARIES = ("blank", "line")
MAX_SENTENCE = 10_000  # characters
MAX_PART = 200_000  # characters of a part of a long document
_MAX_LINE = 2**28  # bytes; text8, a corpus in a single line, has 10**8
MAX_PROBLEMS = 20  # problems that are described; all are counted
# Ends of sentences, also in Chinese and Japanese.
_END = re.compile(r"[.!?][\"'\u201d\u2019»)\]}]*\s+|[\u3002\uff01\uff1f][\u300d\u300f\u201d\u2019)]*\s*")
# Matches as many characters as allowed, but ends before whitespace if there is any.
_PIECE = re.compile(rf".{{1,{MAX_SENTENCE}}}(?!\S)|.{{1,{MAX_SENTENCE}}}", re.DOTALL)


@dataclass(frozen=True)
class FilePart:
    """A document, or a part of a long one."""

    sentences: list[str]  # the sentences of the part, none of them blank
    continues: bool  # whether the next part belongs to the same document
    # Whether reading can resume after this part. It cannot if the part ends in the middle of a line.
    resumable: bool


@dataclass(frozen=True)
class CorpusPosition:
    """The position up to which the files of a corpus have been read."""

    file: int = 0  # the number of the current file
    records: int = 0  # the number of lines or records of the current file that were read
    usable: int = 0  # the number of these lines or records that have text
    skipped: int = 0  # the number of unusable lines and records in all files
    empty: int = 0  # the number of empty files
    problems: tuple[str, ...] = ()  # messages about the first problems (skipped lines and records, and empty files)

    def with_problem(self, text: str, *, skipped: int = 0, empty: int = 0) -> "CorpusPosition":
        """Returns a copy of the position that also counts and lists this problem."""
        problems = (*self.problems, text)[:MAX_PROBLEMS]
        return replace(self, skipped=self.skipped + skipped, empty=self.empty + empty, problems=problems)


class _End(Enum):
    """Marks the end of a line, or of a document and its last line, in a stream of sentences."""

    LINE, DOCUMENT = "line", "document"


_Event = str | _End


def check_files(files: str | Path | Sequence[str | Path], field: str, documents: str) -> tuple[Path, ...]:
    """Checks that all files of a corpus can be used, before any of them is read; returns their paths."""
    files = [files] if isinstance(files, str | Path) else files
    if not isinstance(files, Sequence) or not files:
        raise ArgumentError(f"`files` is {files!r:.60}, expected a list of one or more file names")
    if documents not in BOUNDARIES:
        raise not_one_of("documents", documents, BOUNDARIES)
    if not isinstance(field, str) or not field:
        raise ArgumentError(f"`field` is {field!r:.60}, expected the name of a field")
    paths = tuple(to_path(file, "files") for file in files)
    for path in paths:
        if not path.is_file():
            kind = "is a folder" if path.is_dir() else "is not a regular file" if path.exists() else "no such file"
            raise InputError(f"{path}: {kind}, expected a text file", hint="name the files, not their folder")
        if find_format(str(path), texts=True) not in (FormatName.txt, FormatName.jsonl, FormatName.json):
            raise ArgumentError(
                f"{path}: the file type is not supported, expected .txt, .jsonl or .json, optionally with .gz or .xz"
            )
    return paths


class DocumentReader:
    """Reads the documents of files; it can be iterated over only once.

    In a .txt file, an empty line separates documents; with `documents="line"`, each line is a document. A .jsonl file
    has one document per line, and a .json file is an array of documents.

    A sentence ends at the end of its line. It also ends after `.`, `!` or `?` with any closing quotes and brackets, if
    whitespace follows and the next letter is not lowercase; and after the full-width marks of Chinese and Japanese.

    `files` are the paths that `check_files` returned, and `stamps` the size and modification time that each file had
    when it was hashed or read before. Text before `place` is skipped.
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
        self._problem: InputError | None = None  # the first problem of the current file
        self.place = place or CorpusPosition()  # the position after the last part that was read

    @property
    def total(self) -> int:
        """The size of all files in bytes, before decompression."""
        return sum(stamp.size for stamp in self._stamps)

    @property
    def done(self) -> int:
        """The number of bytes read so far."""
        before = sum(stamp.size for stamp in self._stamps[: self.place.file])
        return before + (self._records.done if self._records is not None else 0)

    def __iter__(self) -> Iterator[FilePart]:
        first = self.place.file
        for path, stamp in zip(self._files[first:], self._stamps[first:], strict=True):
            inside = self.place.records > 0  # the file may continue a document whose first parts were read before
            with open_source(path, stamp=stamp) as file:
                self._records = read_records(
                    file, self._field, name=str(path), choose="`field=`", most=_MAX_LINE, encoding=self._encoding
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
                yield _End.LINE if text else _End.DOCUMENT
            elif text:
                yield _End.DOCUMENT
        place = self.place
        if not place.usable and place.records:
            problem = self._problem or InputError("no line has text")
            raise InputError(f"{records.name}: contains no usable text ({problem.message})", hint=problem.hint)
        if not place.records:
            place = place.with_problem(f"{records.name}: is empty", empty=1)
        self._records = None
        self.place = replace(place, file=place.file + 1, records=0, usable=0)
        yield _End.DOCUMENT

    def _texts(self, records: RecordStream) -> Iterator[str | None]:
        """Yields the texts after `place`: `""` for a blank text, `None` for an unusable one."""
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
        return InputError("the text contains a NUL byte")
    try:
        document.text.encode()
    except UnicodeEncodeError:
        return InputError("the text contains half of a surrogate pair, which is not a character")
    return None


def split_sentences(text: str) -> Iterator[str]:
    """Splits a text into sentences by the rules of `DocumentReader`; none is longer than `MAX_SENTENCE`."""
    start = 0
    for match in _END.finditer(text):
        if not text[match.end() : match.end() + 1].islower():
            yield from _pieces(text[start : match.end()])
            start = match.end()
    yield from _pieces(text[start:])


def _pieces(sentence: str) -> Iterator[str]:
    """Yields the sentence, or pieces split at whitespace if it is too long; yields nothing if it is blank."""
    if len(sentence) <= MAX_SENTENCE:
        pieces: Iterable[str] = (sentence,)
    else:
        pieces = (match[0] for match in _PIECE.finditer(sentence))
    for piece in pieces:
        if stripped := piece.strip():
            yield stripped


def _parts(events: Iterable[_Event], inside: bool) -> Iterator[FilePart]:
    """Groups a stream of sentences, line ends and document ends into parts of files.

    If `inside` is true, the stream begins in the middle of a document. The rest of this document becomes a part even if
    it has no sentences, because the part marks the end of the document.
    """
    sentences: list[str] = []
    size = 0
    for event in events:
        if isinstance(event, str):
            sentences.append(event)
            size += len(event)
            if size >= 2 * MAX_PART:  # a very long line
                yield FilePart(sentences, continues=True, resumable=False)
                sentences, size, inside = [], 0, True
        elif event is _End.DOCUMENT or size >= MAX_PART:
            if sentences or inside:
                yield FilePart(sentences, continues=event is _End.LINE, resumable=True)
            sentences, size, inside = [], 0, event is _End.LINE
