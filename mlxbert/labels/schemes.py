"""Tagging schemes: how the tags of words mark where entities begin and end.

| scheme | "New York" and "Paris" in a row, both LOC | a tag of an entity |
|---|---|---|
| `iob1` | `I-LOC I-LOC B-LOC` | `I-`; `B-` only directly after an entity of the same type |
| `iob2` | `B-LOC I-LOC B-LOC` | `B-` begins an entity, `I-` continues it |
| `bioes` | `B-LOC E-LOC S-LOC` | `E-` ends an entity, `S-` is an entity of one word; also called IOBES |
| `bilou` | `B-LOC L-LOC U-LOC` | the same with `L-` and `U-` |
| `plain` | an independent tag for each word | there are no entities, as in parts of speech |

Words outside of entities have the tag `O`. A tag that breaks its scheme is read as in `conlleval` and in the default
mode of seqeval: an entity begins where its type begins, whatever the letter.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Literal, get_args

from mlxbert.errors import ArgumentError

Scheme = Literal["iob1", "iob2", "bioes", "bilou", "plain"]
SCHEMES: tuple[str, ...] = get_args(Scheme)
OUTSIDE = "O"
_UNTYPED = "_"  # seqeval's name for the type of a tag that is only a letter
_LETTERS = {"iob1": "BI", "iob2": "BI", "bioes": "BIES", "bilou": "BILU"}
_AS_BIOES = str.maketrans("LU", "ES")
_AS_BILOU = str.maketrans("ES", "LU")

Entity = tuple[str, int, int]  # type, first word, and the end, exclusive


@cache
def parts(tag: str, scheme: str) -> tuple[str, str]:
    """Splits a tag into its letter, as in BIOES, and its type: `L-PER` in `bilou` becomes `("E", "PER")`."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    letter, dash, kind = tag[:1], tag[1:2], tag[2:]
    if not letter or letter not in _LETTERS[scheme] or dash not in ("", "-") or (dash and not kind):
        *first, last = (f"{letter}-" for letter in _LETTERS[scheme])
        expected = f"{', '.join(first)} or {last}"
        raise ArgumentError(
            f"tag is {tag!r:.60}, expected {OUTSIDE}, or {expected} followed by a type (scheme {scheme})"
        )
    return letter.translate(_AS_BIOES) if scheme == "bilou" else letter, kind or _UNTYPED


def spelled(name: str, scheme: str) -> str:
    """Converts a model's label to a tag of a scheme; a label that is not a tag is used as a type: `I-PAD` for `PAD`."""
    if scheme == "plain":
        return name
    try:
        parts(name, scheme)
    except ArgumentError:
        return f"I-{name}"
    return name


def scheme_of(names: Iterable[str]) -> str:
    """Returns the scheme of a set of tags, judged by their letters; `iob1` if a type lacks `B-`, which `iob2` requires.

    Tags mark entities if more than half of the tags other than `O` have a letter of a scheme and a type.
    """
    tags = {name for name in names if name and name != OUTSIDE}
    letters = [name[0] for name in tags if name[0] in "BIESLU" and name[1:2] in ("", "-")]
    if 2 * len(letters) <= len(tags):
        return "plain"
    bioes, bilou = (sum(letter in endings for letter in letters) for endings in ("ES", "LU"))
    if bioes or bilou:
        return "bioes" if bioes >= bilou else "bilou"
    begun, continued = ({name[2:] for name in tags if name[0] == letter} for letter in "BI")
    return "iob2" if continued <= begun else "iob1"


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


def decode(tags: Sequence[str], scheme: str) -> list[Entity]:
    """Returns the entities of a sentence, each as type, first word and end word (exclusive); none for `plain`."""
    if scheme == "plain":
        return []
    entities: list[Entity] = []
    before, type_before, start = OUTSIDE, "", 0
    for word, tag in enumerate([*tags, OUTSIDE]):
        letter, kind = parts(tag, scheme)
        new = kind != type_before
        if before != OUTSIDE and (new or before in "ES" or letter in "BS"):
            entities.append((type_before, start, word))
        if letter != OUTSIDE and (new or letter in "BS" or before in "ES"):
            start = word
        before, type_before = letter, kind
    return entities


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
    return letter if kind == _UNTYPED else f"{letter}-{kind}"


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
    return (OUTSIDE, *(_tag(letter, kind) for kind in kinds for letter in _LETTERS[scheme]))


def types_of(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the distinct entity types among a model's labels, or the labels themselves if they mark no entities."""
    scheme = scheme_of(names)
    if scheme == "plain":
        return tuple(names)
    fitting = (parts(name, scheme)[1] for name in names if spelled(name, scheme) == name != OUTSIDE)
    return tuple(dict.fromkeys(fitting))


def inside(tag: str, scheme: str) -> str:
    """Returns the tag of a word's later sub-words if the first has `tag`: `B-PER` continues with `I-PER`."""
    if scheme == "plain" or tag == OUTSIDE:
        return tag
    return "I" + tag[1:]


def allowed(scheme: str, names: Sequence[str]) -> tuple[list[bool], list[list[bool]], list[bool]]:
    """Returns the tag sequences that a scheme allows in a sentence.

    Args:
        scheme: The scheme; `plain` allows everything.
        names: The C tags.

    Returns:
        Three tables: whether a sentence may begin with each tag, (C,); whether each tag (column) may follow each tag
        (row), (C, C); whether a sentence may end with each tag, (C,).
    """
    if scheme == "plain":
        return [True] * len(names), [[True] * len(names) for _ in names], [True] * len(names)
    split = [parts(name, scheme) for name in names]
    outside = (OUTSIDE, "")
    return (
        [_follows(outside, tag, scheme) for tag in split],
        [[_follows(before, tag, scheme) for tag in split] for before in split],
        [_follows(tag, outside, scheme) for tag in split],
    )


def breaks(tags: Sequence[str], scheme: str) -> int:
    """The number of places in a sentence where its tags break the scheme; see `allowed`."""
    if scheme == "plain":
        return 0
    return sum(1 for before, tag in _pairs(tags, scheme) if not _follows(before, tag, scheme))


def _pairs(tags: Sequence[str], scheme: str) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    split = [(OUTSIDE, ""), *(parts(tag, scheme) for tag in tags), (OUTSIDE, "")]
    return pairwise(split)


def _follows(before: tuple[str, str], tag: tuple[str, str], scheme: str) -> bool:
    """Whether a tag may follow another; a tag is a letter and a type. A sentence has an implicit `O` at both ends."""
    same = before[1] == tag[1]
    if scheme == "iob1":
        return tag[0] != "B" or same
    if scheme == "iob2":
        return tag[0] != "I" or same
    return (same and tag[0] in "IE") if before[0] in "BI" else tag[0] in "OBS"


def marks_entities(names: Iterable[str]) -> bool:
    """Whether tags mark entities, rather than a property of every word, such as the part of speech."""
    names = {*names}
    return OUTSIDE in names or scheme_of(names) != "plain"
