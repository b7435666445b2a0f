"""Checks tagged sentences before training: finds their tagging scheme, and adopts a model's spelling of the tags."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlxbert.errors import ArgumentError, InputError
from mlxbert.labels.labels import Labels
from mlxbert.labels.schemes import OUTSIDE, breaks, decode, encode, parts, recognize, scheme_of, types_of
from mlxbert.train.data.data_checks import Unknown, find_unknown
from mlxbert.train.data.tagged_sentences import TaggedSentence

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
                f"scheme is {self.requested!r}, but tags of the scheme {scheme} cannot be converted to {self.requested}"
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
                hint="choose the column of the tags with label_column=",
            ) from None
    return decode(record.tags, scheme)


def check_tags(records: Sequence[TaggedSentence], column: str) -> None:
    """Raises `InputError` if nothing can be learned from the training data."""
    counts = Counter(name for record in records for name in record.names)
    tags = {tag for record in records for tag in record.tags}
    if len(tags) < 2:
        raise InputError(
            f"{records[0].place} and below: every word has the tag {min(tags, default='')!r}, expected different tags",
            hint="choose the column of the tags with label_column=",
        )
    once = sum(count == 1 for count in counts.values())
    if len(counts) > _MANY and 2 * once > len(counts):
        raise InputError(
            f"label column {column!r} may be wrong, because {once:,} of {len(counts):,} different tags occur only once",
            hint="choose the column of the tags with label_column=",
        )


def spelled_as(
    records: Sequence[TaggedSentence], names: Sequence[str], scheme: str
) -> tuple[list[TaggedSentence], Unknown | None]:
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
            hint="choose the column of the tags with label_column=",
        )
    folded = {kind.lower(): kind for kind in types}
    folded = folded if len(folded) == len(types) else {}
    spelled = {kind: kind for kind in types}
    unknown = find_unknown(lambda kind: kind in spelled or kind.lower() in folded, records)
    if unknown is not None and not any({*record.names} - unknown.labels.keys() for record in records):
        raise InputError(
            f"{unknown.place}: {unknown.of_no_model()}, which has {_listed(types)}",
            hint="rename the tags in the data, or choose their column with label_column=",
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
