"""Reads sentences with tagged words from rows: lists of words and of tags, or texts with character spans."""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mlxbert.data.columns import ColumnNames, is_spans
from mlxbert.errors import InputError
from mlxbert.labels.schemes import encode
from mlxbert.readers.parsing import json_type
from mlxbert.readers.stream import Record
from mlxbert.text.words import Span, split_words
from mlxbert.train.data.labelled_texts import check_letters, read_each

Offsets = tuple[Span, ...]

SPAN_SCHEME = "iob2"  # the scheme of tags made of spans
_LABELS = ("label", "type", "entity")  # usual keys for the label of a span
_LOG = logging.getLogger("mlxbert")


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """A sentence of W words with their tags."""

    text: str  # the original sentence if the data contain it, else the words joined by spaces
    words: tuple[str, ...]  # the words, (W,)
    offsets: Offsets  # `[start, end)` of each word in code points of the text, (W, 2)
    tags: tuple[str, ...]  # the tag of each word, (W,)
    place: str  # where the record begins: `train.conll, line 17`
    names: tuple[str, ...] = ()  # the labels that occur in the sentence: the types of its entities, or its plain tags

    @property
    def key(self) -> str:
        """Identifies the input: sentences with equal keys have the same input."""
        return self.text

    @property
    def label(self) -> tuple[tuple[int, str], ...]:
        """The tags, each with the index of its word."""
        return tuple(enumerate(self.tags))


def read_tagged(rows: Iterable[Record], columns: ColumnNames) -> list[TaggedSentence]:
    """Reads the sentences of rows.

    Words are a list, or a text that is split at whitespace. Tags are written in the same way, with one tag for each
    word. A text with spans (`{"start": 0, "end": 5, "label": "PER"}` or `[0, 5, "PER"]`) is split into words as in
    tagging, and also at the borders of spans; its tags are IOB2. For CoNLL-U, the original text is kept if the
    column `text` is read and contains exactly the words, with or without spaces between them.

    A warning counts the spans that begin or end between two letters of a word. Offsets in bytes or UTF-16 units cause
    such spans after an emoji or an accent.
    """
    sentences = read_each(rows, lambda row: _sentence(row, columns))
    split = [sentence.place for sentence, splits in sentences for _ in range(splits)]
    if split:
        count = "1 span begins or ends" if len(split) == 1 else f"{len(split):,} spans begin or end"
        _LOG.warning(
            "%s in the middle of a word (the first in %s), so check that offsets count code points", count, split[0]
        )
    return [sentence for sentence, _ in sentences]


def _sentence(row: Record, columns: ColumnNames) -> tuple[TaggedSentence, int]:
    """Reads the sentence of a row; also returns the number of its spans that begin or end within a word."""
    assert columns.label is not None
    value, tags = (_get(row.values, column) for column in (columns.text, columns.label))
    if isinstance(value, str) and (is_spans(tags) or tags in ([], ())):
        return _of_spans(value, tags, row.where)
    if isinstance(value, str) and isinstance(row.values.get("form"), list):  # CoNLL-U
        words, text = _strings(row.values["form"], "form"), value
    else:
        words, text = _strings(value, columns.text), value if isinstance(value, str) else ""
    labels = _strings(tags, columns.label)
    if not words:
        raise InputError(f"{columns.text!r} has no words")
    if len(words) != len(labels):
        counts = [
            f"{len(part)} {noun}{'' if len(part) == 1 else 's'}" for part, noun in ((words, "word"), (labels, "tag"))
        ]
        raise InputError(f"{columns.text!r} has {counts[0]}, but {columns.label!r} has {counts[1]}")
    offsets = _places(words, text)
    if offsets is None:
        text, offsets = " ".join(words), _joined(words)
    return TaggedSentence(text, words, offsets, labels, row.where), 0


def _get(values: Mapping[str, Any], column: str) -> Any:
    value = values.get(column)
    if value is None:
        raise InputError(f"{column!r} is missing or null (fields: {', '.join(values) or 'none'})")
    return value.tolist() if hasattr(value, "tolist") else value


def _strings(value: Any, column: str) -> tuple[str, ...]:
    """Returns the words or tags of a list, or of a text that separates them by whitespace."""
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list | tuple):
        raise InputError(f"{column!r} is {json_type(value)}, expected a list of strings")
    for number, entry in enumerate(value, 1):
        if not isinstance(entry, str | int) or isinstance(entry, bool) or not str(entry):
            description = "empty" if entry == "" else json_type(entry)
            raise InputError(f"entry {number} of {column!r} is {description}, expected a string")
        check_letters(str(entry), column)
    return tuple(map(str, value))


def _places(words: Sequence[str], text: str) -> Offsets | None:
    """Returns the offsets of words in a text; `None` if the text contains more than the words and whitespace."""
    offsets, end = [], 0
    for word in words:
        start = text.find(word, end)
        if start < 0 or text[end:start].strip():
            return None
        end = start + len(word)
        offsets.append((start, end))
    return None if text[end:].strip() else tuple(offsets)


def _joined(words: Sequence[str]) -> Offsets:
    """Returns the offsets of words in the text that joins them by spaces."""
    offsets, start = [], 0
    for word in words:
        offsets.append((start, start + len(word)))
        start += len(word) + 1
    return tuple(offsets)


def _of_spans(text: str, values: Sequence[Any], place: str) -> tuple[TaggedSentence, int]:
    if not text.strip():
        raise InputError("the text is empty")
    check_letters(text, "text")
    spans = sorted(_span(span, number, text) for number, span in enumerate(values, 1))
    for (_, end, _, first), (start, _, _, second) in pairwise(spans):
        if start < end:
            raise InputError(f"spans {min(first, second)} and {max(first, second)} overlap in {text[start:end]!r:.60}")
    unsplit = [*split_words(text)]
    offsets = _split_at(unsplit, (border for start, end, _, _ in spans for border in (start, end)))
    starts, entities, word = [start for start, _ in offsets], [], 0
    for start, end, label, _ in spans:
        first = next(number for number in range(word, len(starts)) if starts[number] >= start)
        word = next((number for number in range(first, len(starts)) if starts[number] >= end), len(starts))
        entities.append((label, first, word))
    words = tuple(text[start:end] for start, end in offsets)
    word_borders = {border for span in unsplit for border in span}
    splits = sum(
        any(border not in word_borders and text[border - 1 : border + 1].isalnum() for border in (start, end))
        for start, end, _, _ in spans
    )
    return TaggedSentence(text, words, offsets, tuple(encode(entities, len(words), SPAN_SCHEME)), place), splits


def _span(span: Any, number: int, text: str) -> tuple[int, int, str, int]:
    """Checks a span of a text; returns its start, end, label, and `number`, by which error messages refer to it."""
    if isinstance(span, Mapping):
        label = next((span[name] for name in _LABELS if span.get(name) is not None), None)
        start, end, span_text = span.get("start"), span.get("end"), span.get("text")
    else:
        start, end, label, span_text = *(*span, None, None, None)[:3], None
    if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label:
        raise InputError(f"span {number} is {span!r:.60}, expected start, end and label")
    if start > end:
        raise InputError(f"span {number} is [{start}, {end}), which ends before it begins")
    if start < 0 or end > len(text):
        raise InputError(
            f"span {number} is [{start}, {end}), but the text has {len(text)} code points",
            hint="use offsets in code points, because byte and UTF-16 offsets are larger after an emoji or an accent",
        )
    if not text[start:end].strip():
        raise InputError(
            f"span {number} is [{start}, {end}), which contains {'only whitespace' if end > start else 'no text'}"
        )
    if isinstance(span_text, str) and span_text != text[start:end]:
        raise InputError(
            f"span {number} has the text {span_text!r:.60}, but [{start}, {end}) is {text[start:end]!r:.60}",
            hint="use offsets in code points, because byte and UTF-16 offsets are larger after an emoji or an accent",
        )
    return start, end, label, number


def _split_at(words: Sequence[Span], places: Iterable[int]) -> tuple[Span, ...]:
    """Splits words at the offsets in `places` that lie within a word."""
    borders = sorted({*places})
    parts: list[Span] = []
    for start, end in words:
        inner = borders[bisect_right(borders, start) : bisect_left(borders, end)]
        parts += pairwise([start, *inner, end])
    return tuple(parts)
