"""Reads sentences with tagged words from rows, and checks them before training.

Rows have lists of words and of tags, or texts with character spans. The checks find the tagging scheme, and adopt a
model's spelling of the tags.
"""

import logging
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from mlxbert.errors import ArgumentError, InputError
from mlxbert.labels.labels import Labels
from mlxbert.labels.schemes import OUTSIDE, decode, parts, scheme_of, types_of
from mlxbert.readers.parsing import json_type
from mlxbert.readers.stream import Record
from mlxbert.text.words import Span, split_words
from mlxbert.train.data.columns import ColumnNames, is_spans
from mlxbert.train.data.data_report import UnknownLabels, find_unknown
from mlxbert.train.data.labelled_texts import check_letters, read_each
from mlxbert.train.data.tag_schemes import breaks, encode, recognize

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


_MANY = 20  # with more tags than this, many tags that occur once look like the wrong column


@dataclass
class TagReader:
    """Recognizes the scheme of tags, and converts all tags to one scheme."""

    # The scheme that the caller requested; `None` for the scheme of the model or of the data.
    requested: str | None = None
    # Whether a CRF learns the tags. `iob1` is then converted to `iob2`, in which every entity begins with a `B-` tag.
    crf: bool = False
    source_labels: Labels | None = None  # the labels of the model that training starts from
    scheme: str | None = None  # the scheme to which all records are converted; known after the first `read`
    # A phrase for reports that names the scheme of the first records, and the scheme to which they were converted.
    description: str = ""
    # Sentences about problems: tags that break the scheme, or tags that are numbers.
    notes: list[str] = field(default_factory=list)

    def read(self, records: Sequence[TaggedSentence]) -> list[TaggedSentence]:
        """Converts the tags of records to one scheme, and sets their `names` to the entity types or plain tags."""
        scheme = recognize([record.tags for record in records])
        if self.scheme is not None and "plain" in (scheme, self.scheme):
            scheme = self.scheme  # tags that do not fit this scheme are errors
        entities = [_entities(record, scheme) for record in records]
        if self.scheme is None:
            self.scheme = self._choose(scheme, {kind for row in entities for kind, _, _ in row})
            self.description = scheme if scheme == self.scheme else f"{scheme}, written as {self.scheme}"
            if scheme == "plain" and all(tag.isdecimal() for record in records for tag in record.tags):
                note = "The tags are numbers, which mark no entities; write names if the numbers stand for names."
                self.notes.append(note)
        self._note_breaks(records, scheme)
        if scheme == "plain":
            return [replace(record, names=record.tags) for record in records]
        return [self._rewritten(record, row, scheme) for record, row in zip(records, entities, strict=True)]

    def _rewritten(self, record: TaggedSentence, entities: list[tuple[str, int, int]], scheme: str) -> TaggedSentence:
        names = tuple(kind for kind, _, _ in entities)
        if scheme == self.scheme:
            return replace(record, names=names)
        return replace(record, names=names, tags=tuple(encode(entities, len(record.tags), self.scheme or "")))

    def _choose(self, scheme: str, kinds: set[str]) -> str:
        """Returns the scheme to convert to, given the scheme and the entity types of the data."""
        if self.requested is not None and "plain" in (self.requested, scheme) and self.requested != scheme:
            raise ArgumentError(
                f"`scheme` is {self.requested!r}, but tags of the scheme {scheme} cannot become {self.requested}"
            )
        if self.requested is None and scheme != "plain" and self.source_labels is not None and self._has_types(kinds):
            return scheme_of(self.source_labels.names)
        return self.requested or ("iob2" if self.crf and scheme == "iob1" else scheme)

    def _has_types(self, kinds: set[str]) -> bool:
        """Returns whether the model that training starts from has exactly these entity types."""
        names = self.source_labels.names if self.source_labels is not None else ()
        return scheme_of(names) != "plain" and {*types_of(names)} == kinds

    def fits_source(self, records: Sequence[TaggedSentence]) -> bool:
        """Returns whether the model that training starts from has exactly the types, or plain tags, of the records.

        The model's labels must also have the same scheme as the records.
        """
        if self.source_labels is None or scheme_of(self.source_labels.names) != self.scheme:
            return False
        labels, tags = {*self.source_labels.names}, {tag for record in records for tag in record.tags}
        if self.scheme == "plain":
            return labels == tags
        return tags <= labels and self._has_types({name for record in records for name in record.names})

    def _note_breaks(self, records: Sequence[TaggedSentence], scheme: str) -> None:
        broken = [(count, record.place) for record in records if (count := breaks(record.tags, scheme))]
        if broken:
            count = sum(number for number, _ in broken)
            tags = "1 tag breaks" if count == 1 else f"{count:,} tags break"
            self.notes.append(
                f"{tags} the scheme {scheme} (the first in {broken[0][1]}), so entities begin where their types begin."
            )


def tokenless(missed: Mapping[str, int]) -> Iterator[str]:
    """Yields a warning if some tagged words have no token, so that the model does not see them."""
    if missed:
        count = sum(missed.values())
        have = "1 tagged word has" if count == 1 else f"{count:,} tagged words have"
        yield f"{have} no token (the first in {next(iter(missed))}), so words without a token are never found."


def _entities(record: TaggedSentence, scheme: str) -> list[tuple[str, int, int]]:
    for word, tag in enumerate(record.tags if scheme != "plain" else ()):
        try:
            parts(tag, scheme)
        except ArgumentError as problem:
            raise InputError(
                f"{record.place}, word {word + 1} ({record.words[word]!r:.40}): {problem.message}",
                hint="choose the column of the tags with `label_column=`",
            ) from None
    return decode(record.tags, scheme)


def check_tags(records: Sequence[TaggedSentence], column: str) -> None:
    """Raises `InputError` if nothing can be learned from the training data."""
    counts = Counter(name for record in records for name in record.names)
    tags = {tag for record in records for tag in record.tags}
    if len(tags) < 2:
        raise InputError(
            f"{records[0].place} and below: every word has the tag {min(tags, default='')!r}, expected different tags",
            hint="choose the column of the tags with `label_column=`",
        )
    once = sum(count == 1 for count in counts.values())
    if len(counts) > _MANY and 2 * once > len(counts):
        raise InputError(
            f"label column {column!r} may be wrong, because {once:,} of {len(counts):,} different tags occur only once",
            hint="choose the column of the tags with `label_column=`",
        )


def spelled_as(
    records: Sequence[TaggedSentence], names: Sequence[str], scheme: str
) -> tuple[list[TaggedSentence], UnknownLabels | None]:
    """Converts the tags of records to the spelling and the scheme of a model.

    Case is ignored, unless some of the model's types differ in case only.

    Returns:
        The converted records, and the types or tags that the model does not have.
    """
    model_scheme, types = scheme_of(names), types_of(names)
    if model_scheme != "plain" and {tag for record in records for tag in record.tags} == {OUTSIDE}:
        return [replace(record, names=()) for record in records], None  # such tags are the same in every scheme
    if (model_scheme == "plain") != (scheme == "plain"):
        raise InputError(
            f"{records[0].place}: the tags have the scheme {scheme} ({_listed(records[0].tags)}), but the model has "
            f"the scheme {model_scheme} ({_listed(names)})",
            hint="choose the column of the tags with `label_column=`",
        )
    folded = {kind.lower(): kind for kind in types}
    folded = folded if len(folded) == len(types) else {}
    spelled = {kind: kind for kind in types}
    unknown = find_unknown(lambda kind: kind in spelled or kind.lower() in folded, records)
    if unknown is not None and not any({*record.names} - unknown.labels.keys() for record in records):
        raise InputError(
            f"{unknown.place}: {unknown.of_no_model()}, which has {_listed(types)}",
            hint="rename the tags in the data, or choose their column with `label_column=`",
        )

    def rewritten(record: TaggedSentence) -> TaggedSentence:
        def name(kind: str) -> str:
            return spelled.get(kind) or folded.get(kind.lower(), kind)

        if model_scheme == "plain":
            tags = tuple(map(name, record.tags))
        else:
            entities = [(name(kind), start, end) for kind, start, end in decode(record.tags, scheme)]
            tags = tuple(encode(entities, len(record.tags), model_scheme))
        return replace(record, tags=tags, names=tuple(map(name, record.names)))

    return [rewritten(record) for record in records], unknown


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names[:12])) + (", …" if len(names) > 12 else "")


def most_frequent(train: Sequence[TaggedSentence], valid: Sequence[TaggedSentence]) -> list[list[str]]:
    """Gives each word of `valid` the tag that it most often has in `train`, or else the most frequent tag overall."""
    counts: dict[str, Counter[str]] = {}
    for record in train:
        for word, tag in zip(record.words, record.tags, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    fallback = sum(counts.values(), Counter[str]()).most_common(1)[0][0]
    best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    return [[best.get(word, fallback) for word in record.words] for record in valid]
