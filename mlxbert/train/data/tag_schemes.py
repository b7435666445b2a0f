"""Recognizes, converts and writes the tags of labelled sentences (see `mlxbert.labels.schemes`)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from mlxbert.errors import ArgumentError
from mlxbert.labels.schemes import LETTERS, OUTSIDE, UNTYPED, Entity, decode, follows, parts, scheme_of

_AS_BILOU = str.maketrans("ES", "LU")


def recognize(tags: Iterable[Sequence[str]]) -> str:
    """Returns the scheme of the tags of sentences, if it fits more than half of the words not tagged `O`; else `plain`.

    If most entities that do not directly follow another entity of the same type begin with `I-`, the scheme is `iob1`,
    otherwise `iob2`.
    """
    tags = [*tags]
    counts = Counter(tag for sentence in tags for tag in sentence if tag != OUTSIDE)
    fitting = [tag for tag in counts if scheme_of([tag]) != "plain"]
    scheme = scheme_of(fitting) if 2 * sum(counts[tag] for tag in fitting) > counts.total() else "plain"
    if scheme not in ("iob1", "iob2"):
        return scheme
    begun = {"B": 0, "I": 0}
    for sentence in tags:
        last = ""
        for tag in sentence:
            if tag[:1] in begun and tag[2:] != last:
                begun[tag[0]] += 1
            last = tag[2:] if tag[:1] in begun else ""
    return "iob1" if begun["I"] > begun["B"] else "iob2"


def encode(entities: Iterable[Entity], length: int, scheme: str) -> list[str]:
    """Returns the tags of a sentence of `length` words with these entities (in order). `plain` has no entities."""
    tags, last = [OUTSIDE] * length, ("", 0, 0)
    for kind, start, end in entities:
        if scheme in ("iob1", "iob2"):
            first = "B" if scheme == "iob2" or (kind, start) == (last[0], last[2]) else "I"
            letters = first + "I" * (end - start - 1)
        else:
            letters = "S" if end - start == 1 else "B" + "I" * (end - start - 2) + "E"
            letters = letters.translate(_AS_BILOU) if scheme == "bilou" else letters
        tags[start:end] = [_tag(letter, kind) for letter in letters]
        last = kind, start, end
    return tags


def _tag(letter: str, kind: str) -> str:
    return letter if kind == UNTYPED else f"{letter}-{kind}"


def convert(tags: Sequence[str], from_scheme: str, to_scheme: str) -> list[str]:
    """Converts tags to another scheme; tags that break their scheme are repaired, even if the scheme stays the same."""
    if "plain" in (from_scheme, to_scheme):
        if from_scheme != to_scheme:
            raise ArgumentError(f"tags of the scheme {from_scheme} cannot be converted to the scheme {to_scheme}")
        return [*tags]
    return encode(decode(tags, from_scheme), len(tags), to_scheme)


def names_of(tags: Iterable[str], scheme: str) -> tuple[str, ...]:
    """All tags of a scheme for the types in `tags`: `O`, then the tags of each type, in alphabetical order."""
    if scheme == "plain":
        return tuple(sorted({*tags}))
    kinds = sorted({parts(tag, scheme)[1] for tag in tags if tag != OUTSIDE})
    return (OUTSIDE, *(_tag(letter, kind) for kind in kinds for letter in LETTERS[scheme]))


def inside(tag: str, scheme: str) -> str:
    """Returns the tag of a word's later sub-words if the first has `tag`: `B-PER` continues with `I-PER`."""
    if scheme == "plain" or tag == OUTSIDE:
        return tag
    return "I" + tag[1:]


def breaks(tags: Sequence[str], scheme: str) -> int:
    """The number of places in a sentence where its tags break the scheme; see `allowed`."""
    if scheme == "plain":
        return 0
    return sum(1 for before, tag in _pairs(tags, scheme) if not follows(before, tag, scheme))


def _pairs(tags: Sequence[str], scheme: str) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    split = [(OUTSIDE, ""), *(parts(tag, scheme) for tag in tags), (OUTSIDE, "")]
    return pairwise(split)
