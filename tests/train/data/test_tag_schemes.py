"""Schemes of tags: entities as seqeval finds them, conversions without loss, what a scheme allows."""

import random
from itertools import compress, pairwise

import pytest
from hypothesis import given, strategies as st

from mlxbert.errors import ArgumentError
from mlxbert.labels.schemes import SCHEMES, Entity, allowed, decode, scheme_of
from mlxbert.train.data.tag_schemes import breaks, convert, encode, inside, names_of, recognize
from tests.helpers.cases import together
from tests.helpers.cells import quick

ENTITY_SCHEMES = SCHEMES[:4]
LETTERS = {"iob1": "BI", "iob2": "BI", "bioes": "BIES", "bilou": "BILU"}
# "New York, Paris": two entities that touch, one that does not, of another type.
WRITTEN = {
    "iob1": ["I-LOC", "I-LOC", "B-LOC", "O", "I-PER", "O"],
    "iob2": ["B-LOC", "I-LOC", "B-LOC", "O", "B-PER", "O"],
    "bioes": ["B-LOC", "E-LOC", "S-LOC", "O", "S-PER", "O"],
    "bilou": ["B-LOC", "L-LOC", "U-LOC", "O", "U-PER", "O"],
}
ENTITIES = [("LOC", 0, 2), ("LOC", 2, 3), ("PER", 4, 5)]
# Broken ones, and what seqeval 1.2.2 finds in them.
FROZEN: list[tuple[str, list[str], list[Entity]]] = [
    ("iob2", ["O", "I-PER", "I-PER"], [("PER", 1, 3)]),
    ("iob2", ["B-PER", "I-LOC", "I-LOC"], [("PER", 0, 1), ("LOC", 1, 3)]),
    ("iob2", ["I-PER", "B-PER", "O"], [("PER", 0, 1), ("PER", 1, 2)]),
    ("iob1", ["B-PER", "B-PER", "I-PER"], [("PER", 0, 1), ("PER", 1, 3)]),
    ("bioes", ["B-PER", "I-PER", "O"], [("PER", 0, 2)]),
    ("bioes", ["E-PER", "E-PER", "I-PER"], [("PER", 0, 1), ("PER", 1, 2), ("PER", 2, 3)]),
    ("bioes", ["S-PER", "I-PER", "S-PER"], [("PER", 0, 1), ("PER", 1, 2), ("PER", 2, 3)]),
    ("bioes", ["B-PER", "E-LOC", "E-LOC"], [("PER", 0, 1), ("LOC", 1, 2), ("LOC", 2, 3)]),
    ("iob2", ["B", "I", "O", "I"], [("_", 0, 2), ("_", 3, 4)]),
    ("iob2", ["B-a-b", "I-a-b", "I-a-c"], [("a-b", 0, 2), ("a-c", 2, 3)]),
]


def random_tags(rng: random.Random, scheme: str) -> list[str]:
    names = [f"{letter}-{kind}" for letter in LETTERS[scheme] for kind in ("PER", "LOC")] + ["O"]
    return [rng.choice(names) for _ in range(rng.randrange(12))]


@pytest.mark.parametrize("scheme", ENTITY_SCHEMES)
def test_entities_are_read_and_written_and_their_scheme_is_recognised(scheme: str) -> None:
    assert decode(WRITTEN[scheme], scheme) == ENTITIES
    assert encode(ENTITIES, 6, scheme) == WRITTEN[scheme]
    assert breaks(WRITTEN[scheme], scheme) == 0
    for other in ENTITY_SCHEMES:
        assert convert(WRITTEN[scheme], scheme, other) == WRITTEN[other]
    assert recognize([WRITTEN[scheme], ["O"], []]) == scheme
    assert scheme_of(WRITTEN[scheme]) == scheme
    assert scheme_of(names_of(WRITTEN[scheme], scheme)) == ("iob2" if scheme == "iob1" else scheme)


def test_a_few_broken_tags_do_not_change_the_scheme() -> None:
    assert recognize([WRITTEN["iob2"]] * 5 + [["O", "I-PER"]]) == "iob2"
    assert recognize([WRITTEN["iob1"]] * 5 + [["O", "B-PER"]]) == "iob1"
    assert recognize([WRITTEN["bioes"]] * 5 + [["PER", "LOC", "X", "Y", "Z"]]) == "bioes"
    assert breaks(["O", "I-PER", "I-LOC"], "iob2") == 2
    assert breaks(["O", "B-PER"], "iob1") == 1
    assert breaks(["B-PER", "O", "I-PER"], "bioes") == 3


@together("tags", [["NOUN", "VERB", "X"], ["N", "V", "B", "I"], ["O", "O"], [], ["PER", "LOC", "O"]])
def test_tags_without_letters_are_plain(tags: list[str]) -> None:
    assert recognize([tags]) == scheme_of(tags) == "plain"
    assert decode(tags, "plain") == [] and breaks(tags, "plain") == 0 and convert(tags, "plain", "plain") == tags


@together("scheme,tags,expected", FROZEN)
def test_broken_tags_are_read_as_seqeval_does(scheme: str, tags: list[str], expected: list[Entity]) -> None:
    assert decode(tags, scheme) == expected
    mended = convert(tags, scheme, scheme)
    assert decode(mended, scheme) == expected and breaks(mended, scheme) == 0


@quick(100)
@given(st.integers(0, 10**9), st.sampled_from(ENTITY_SCHEMES), st.sampled_from(ENTITY_SCHEMES))
def test_conversion_keeps_entities(seed: int, scheme: str, other: str) -> None:
    tags = random_tags(random.Random(seed), scheme)
    converted = convert(tags, scheme, other)
    assert decode(converted, other) == decode(tags, scheme) and len(converted) == len(tags)
    assert breaks(converted, other) == 0


@pytest.mark.parametrize("scheme", ENTITY_SCHEMES)
def test_what_is_allowed_is_what_encode_writes(scheme: str) -> None:
    names = names_of(["B-PER", "B-LOC", "O"], scheme)
    start, follows, end = allowed(scheme, names)
    rng = random.Random(0)
    drawn = [convert(random_tags(rng, scheme), scheme, scheme) for _ in range(2000)]
    assert {tags[0] for tags in drawn if tags} == {*compress(names, start)}
    assert {tags[-1] for tags in drawn if tags} == {*compress(names, end)}
    may = {(a, b) for a, row in zip(names, follows, strict=True) for b in compress(names, row)}
    assert {pair for tags in drawn for pair in pairwise(tags)} == may
    assert allowed("plain", ("A", "B")) == ([True, True], [[True, True], [True, True]], [True, True])


def test_names_have_every_letter_of_every_type_and_later_pieces_are_inside() -> None:
    assert names_of(["O", "B-b", "I-a"], "iob2") == ("O", "B-a", "I-a", "B-b", "I-b")
    assert names_of(["VERB", "NOUN"], "plain") == ("NOUN", "VERB")
    assert names_of(["U"], "bilou") == ("O", "B", "I", "L", "U")
    assert inside("B-PER", "iob2") == inside("S-PER", "bioes") == "I-PER"
    assert inside("B", "bioes") == "I" and inside("NOUN", "plain") == "NOUN"


def test_tags_of_other_schemes_are_refused() -> None:
    for tag in ("PER", "", "B_PER", "E-PER", "b-PER", "B-"):
        with pytest.raises(ArgumentError, match="iob2"):
            decode(["O", tag], "iob2")
    with pytest.raises(ArgumentError):
        convert(["NOUN"], "plain", "iob2")
