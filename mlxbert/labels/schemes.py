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

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal, get_args

from mlxbert.errors import ArgumentError

Scheme = Literal["iob1", "iob2", "bioes", "bilou", "plain"]
SCHEMES: tuple[str, ...] = get_args(Scheme)
OUTSIDE = "O"
UNTYPED = "_"  # seqeval's name for the type of a tag that is only a letter
LETTERS = {"iob1": "BI", "iob2": "BI", "bioes": "BIES", "bilou": "BILU"}
_AS_BIOES = str.maketrans("LU", "ES")

Entity = tuple[str, int, int]  # type, first word, and the end, exclusive


@cache
def parts(tag: str, scheme: str) -> tuple[str, str]:
    """Splits a tag into its letter, as in BIOES, and its type: `L-PER` in `bilou` becomes `("E", "PER")`."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    letter, dash, kind = tag[:1], tag[1:2], tag[2:]
    if not letter or letter not in LETTERS[scheme] or dash not in ("", "-") or (dash and not kind):
        *first, last = (f"{letter}-" for letter in LETTERS[scheme])
        expected = f"{', '.join(first)} or {last}"
        raise ArgumentError(
            f"tag is {tag!r:.60}, expected {OUTSIDE}, or {expected} followed by a type (scheme {scheme})"
        )
    return letter.translate(_AS_BIOES) if scheme == "bilou" else letter, kind or UNTYPED


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


def types_of(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the distinct entity types among a model's labels, or the labels themselves if they mark no entities."""
    scheme = scheme_of(names)
    if scheme == "plain":
        return tuple(names)
    fitting = (parts(name, scheme)[1] for name in names if spelled(name, scheme) == name != OUTSIDE)
    return tuple(dict.fromkeys(fitting))


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
        [follows(outside, tag, scheme) for tag in split],
        [[follows(before, tag, scheme) for tag in split] for before in split],
        [follows(tag, outside, scheme) for tag in split],
    )


def follows(before: tuple[str, str], tag: tuple[str, str], scheme: str) -> bool:
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
