"""Tagged sentences before training: their scheme, what breaks it, and what a model calls their tags."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlxbert.data.tagged_sentences import TaggedSentence
from mlxbert.errors import ArgumentError, InputError
from mlxbert.labels.labels import Labels
from mlxbert.labels.schemes import OUTSIDE, breaks, decode, encode, parts, recognize, scheme_of, types_of
from mlxbert.training.data.data_checks import Unknown, find_unknown

_MANY = 20  # different tags from which on those that occur once look like something else


@dataclass
class TagReader:
    """Recognises the scheme of tags, and writes all of them in the same one.

    Attributes:
        asked: The scheme that is asked for; `None` for that of the model or of the data.
        crf: Whether a CRF takes the tags: it tells an entity's begin by its letter, so `iob1` becomes `iob2`.
        own: The labels of the model that training starts from.
        scheme: The scheme of all records, once some were read.
        said: How the tags of the first records are written, in words.
        notes: What looks wrong, in sentences: tags that break the scheme, or are numbers.
    """

    asked: str | None = None
    crf: bool = False
    own: Labels | None = None
    scheme: str | None = None
    said: str = ""
    notes: list[str] = field(default_factory=list)

    def read(self, records: Sequence[TaggedSentence]) -> list[TaggedSentence]:
        """The records in one scheme, with names of what they have."""
        found = recognize([record.tags for record in records])
        if self.scheme is not None and "plain" in (found, self.scheme):
            found = self.scheme  # tags that do not fit it are errors
        units = [_entities(record, found) for record in records]
        if self.scheme is None:
            self.scheme = self._chosen(found, {kind for one in units for kind, _, _ in one})
            self.said = found if found == self.scheme else f"{found}, written as {self.scheme}"
            if found == "plain" and all(tag.isdecimal() for record in records for tag in record.tags):
                note = "The tags are numbers, which mark no entities: if they stand for names, write the names."
                self.notes.append(note)
        self._note(records, found)
        if found == "plain":
            return [replace(record, names=record.tags) for record in records]
        return [self._written(record, one, found) for record, one in zip(records, units, strict=True)]

    def _written(self, record: TaggedSentence, entities: list[tuple[str, int, int]], found: str) -> TaggedSentence:
        names = tuple(kind for kind, _, _ in entities)
        if found == self.scheme:
            return replace(record, names=names)
        return replace(record, names=names, tags=tuple(encode(entities, len(record.tags), self.scheme or "")))

    def _chosen(self, found: str, kinds: set[str]) -> str:
        if self.asked is not None and "plain" in (self.asked, found) and self.asked != found:
            raise ArgumentError(f"scheme is {self.asked!r}, and tags of the scheme {found} cannot be written in it")
        if self.asked is None and found != "plain" and self.own is not None and self._knows(kinds):
            return scheme_of(self.own.names)
        return self.asked or ("iob2" if self.crf and found == "iob1" else found)

    def _knows(self, kinds: set[str]) -> bool:
        """Whether these are the types of the model that training starts from."""
        own = self.own.names if self.own is not None else ()
        return scheme_of(own) != "plain" and {*types_of(own)} == kinds

    def is_own(self, records: Sequence[TaggedSentence]) -> bool:
        """Whether the types, or plain tags, of these records are the labels of that model, which has all their tags."""
        if self.own is None or scheme_of(self.own.names) != self.scheme:
            return False
        own, tags = {*self.own.names}, {tag for record in records for tag in record.tags}
        if self.scheme == "plain":
            return own == tags
        return tags <= own and self._knows({name for record in records for name in record.names})

    def _note(self, records: Sequence[TaggedSentence], found: str) -> None:
        broken = [(count, record.place) for record in records if (count := breaks(record.tags, found))]
        if broken:
            count = sum(number for number, _ in broken)
            tags = "1 tag breaks" if count == 1 else f"{count:,} tags break"
            self.notes.append(
                f"{tags} the scheme {found}, the first in {broken[0][1]}: an entity begins where its type does."
            )


def tokenless(missed: Mapping[str, int]) -> Iterator[str]:
    """A sentence for the report on words that the model does not see.

    Args:
        missed: By the place of a sentence, its words that have a tag, but no token.
    """
    if missed:
        count = sum(missed.values())
        have = "1 tagged word has" if count == 1 else f"{count:,} tagged words have"
        yield f"{have} no token, the first in {next(iter(missed))}: such words are never found."


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
    """Refuses training data from which nothing can be learned.

    Args:
        records: Those that a `TagReader` gave.
        column: Where the tags were read.
    """
    counts = Counter(name for record in records for name in record.names)
    tags = {tag for record in records for tag in record.tags}
    if len(tags) < 2:
        raise InputError(
            f"{records[0].place} and below: every word has the tag {min(tags, default='')!r}, expected two or more",
            hint="choose the column of the tags with label_column=",
        )
    once = sum(count == 1 for count in counts.values())
    if len(counts) > _MANY and 2 * once > len(counts):
        raise InputError(
            f"label column {column!r} has {len(counts):,} different tags, {once:,} of them once: is it the wrong one?",
            hint="choose the column of the tags with label_column=",
        )


def spelled_as(
    records: Sequence[TaggedSentence], names: Sequence[str], scheme: str
) -> tuple[list[TaggedSentence], Unknown | None]:
    """Records with the tags of a model, in its scheme; capitals do not count where they need not.

    Args:
        records: Those that a `TagReader` gave, in `scheme`.
        names: The labels of the model.
        scheme: How the tags of the records are written.

    Returns:
        The records, and the types or tags that the model does not have.
    """
    own, known = scheme_of(names), types_of(names)
    if own != "plain" and {tag for record in records for tag in record.tags} == {OUTSIDE}:
        return [replace(record, names=()) for record in records], None  # the same in every scheme
    if (own == "plain") != (scheme == "plain"):
        raise InputError(
            f"{records[0].place}: the tags are {scheme} ({_shown(records[0].tags)}), those of the model "
            f"{own} ({_shown(names)})",
            hint="choose the column of the tags with label_column=",
        )
    folded = {kind.casefold(): kind for kind in known}
    folded = folded if len(folded) == len(known) else {}
    spelled = {kind: kind for kind in known}
    unknown = find_unknown(lambda kind: kind in spelled or kind.casefold() in folded, records)
    if unknown is not None and not any({*record.names} - unknown.labels.keys() for record in records):
        raise InputError(
            f"{unknown.place}: {unknown.of_no_model()}, which has: {_shown(known)}",
            hint="rename the tags of the data, or choose their column with label_column=",
        )

    def rewritten(record: TaggedSentence) -> TaggedSentence:
        def name(kind: str) -> str:
            return spelled.get(kind) or folded.get(kind.casefold(), kind)

        if own == "plain":
            tags = tuple(map(name, record.tags))
        else:
            entities = [(name(kind), start, end) for kind, start, end in decode(record.tags, scheme)]
            tags = tuple(encode(entities, len(record.tags), own))
        return replace(record, tags=tags, names=tuple(map(name, record.names)))

    return [rewritten(record) for record in records], unknown


def _shown(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names[:12])) + (", …" if len(names) > 12 else "")


def most_frequent(train: Sequence[TaggedSentence], asked: Sequence[TaggedSentence]) -> list[list[str]]:
    """The tag that each word has most often in `train`; for words that are not there the most frequent of all."""
    counts: dict[str, Counter[str]] = {}
    for record in train:
        for word, tag in zip(record.words, record.tags, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    usual = sum(counts.values(), Counter[str]()).most_common(1)[0][0]
    best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    return [[best.get(word, usual) for word in record.words] for record in asked]
