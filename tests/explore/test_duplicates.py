"""Which texts repeat others: every text is kept, or in exactly one group."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import mlxbert
from mlxbert.errors import ArgumentError, InputError
from tests.helpers.cases import together

TEXTS = ["It rains.", "it \n RAINS.", "Snow is cold, and white.", "Rain falls.", "Snow is cold and white!"]


def folded(text: str) -> str:
    """A text without differences in whitespace and case."""
    return " ".join(text.split()).casefold()


def check(texts: list[str], units: Any, duplicates: mlxbert.Duplicates, threshold: float) -> None:
    """Checks that nothing is lost, and that each duplicate is similar to the text that is kept in its place."""
    seen = Counter([*duplicates.kept, *(duplicate for group in duplicates.groups for duplicate in group.duplicates)])
    assert seen == Counter(range(len(texts))) and duplicates.texts == len(texts)
    assert [group.kept for group in duplicates.groups] == sorted({group.kept for group in duplicates.groups})
    for group in duplicates.groups:
        assert group.duplicates and [*group.duplicates] == sorted(group.duplicates)
        for duplicate, score in zip(group.duplicates, group.scores, strict=True):
            if folded(texts[duplicate]) == folded(texts[group.kept]):
                assert score == 1
            else:  # it, or the text that it equals, is similar to the kept one
                equal = [n for n, text in enumerate(texts) if folded(text) == folded(texts[duplicate])]
                cosines = [float(units[n] @ units[group.kept]) for n in equal]
                assert max(cosines) >= threshold - 1e-5
                assert any(abs(score - cosine) < 1e-5 for cosine in cosines)


def test_texts_that_the_model_cannot_tell_apart_are_kept(builtin: mlxbert.Model, caplog: Any) -> None:
    texts = ["I love \ua500", "I love \ua501", "\u0e2a\u0e27", "\u1019\u1004", "I LOVE  \ua500", "It rains."]
    duplicates = mlxbert.dedupe(builtin, texts)
    assert [(group.kept, group.duplicates, group.scores) for group in duplicates.groups] == [(0, (4,), (1.0,))]
    assert "does not know" in caplog.text and "1 text\n" in caplog.text


@together(
    ("text", "other"),
    [
        ("It is -5 degrees outside.", "It is 5 degrees outside."),
        ("The parcel weighs 5 kg.", "The parcel weighs 5 pounds."),
        ("The ticket costs $5.", "The ticket costs \u20ac5."),
        ("My parcel has arrived.", "My parcel hasn't arrived."),
        ("Ich habe die Rechnung bezahlt.", "Ich habe die Rechnung nicht bezahlt."),
        ("The scores were above 7.", "The scores were above 8."),
        ("I write programs in C.", "I write programs in C#."),
        ("The battery lasts two weeks.", "The battery lasts six weeks."),
        ("The battery lasts two weeks.", "The battery lasts two days."),
        ("She paid two hundred dollars.", "She paid two hundred euros."),
        ("The offer ends in one day.", "The offer ends in ten days."),
        ("It was her first prize.", "It was her second prize."),
        ("They charged me once.", "They charged me twice."),
        ("We open on Monday.", "We open on Tuesday."),
        ("We open in May.", "We open in June."),
        ("Er ist vierundzwanzig Jahre alt.", "Er ist fünfundzwanzig Jahre alt."),
        ("Der Kurs beginnt am Montagabend.", "Der Kurs beginnt am Dienstagabend."),
        ("Die zweite Rechnung vom März", "Die zweite Rechnung vom April"),
        ("Le voyage dure quatre-vingts jours.", "Le voyage dure quatre-vingt-dix jours."),
        ("La réunion est en décembre.", "La réunion est en novembre."),
        ("Tiene veintidós años.", "Tiene veintitrés años."),
        ("La tienda abre el miércoles.", "La tienda abre el jueves."),
    ],
)
def test_texts_with_other_numbers_dates_signs_units_or_negations_are_no_duplicates(text: str, other: str) -> None:
    vectors = [[1.0, 0.0]] * 3  # as similar as can be
    duplicates = mlxbert.dedupe(None, [text, other, f"Well, {text}"], vectors=vectors)
    assert [(group.kept, group.duplicates) for group in duplicates.groups] == [(0, (2,))]


def test_truncated_texts_are_counted(builtin: mlxbert.Model, caplog: Any) -> None:
    long = "the cat sat on the mat " * 100
    mlxbert.dedupe(builtin, [long + "and slept", long + "and ran away", "It rains."])
    assert "2 of 3 texts are longer than 256 tokens" in caplog.text


@pytest.mark.parametrize("more", [{"threshold": 0.5}, {"all_pairs": True}])
def test_options_that_change_nothing_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="cannot be combined"):
        mlxbert.dedupe(None, TEXTS, exact=True, **more)


SPACED = st.text("ab \n", max_size=4)


@given(
    st.lists(st.tuples(SPACED, st.integers(0, 7)), max_size=40), st.floats(0, 1), st.sampled_from(["first", "longest"])
)
def test_each_text_is_kept_or_in_one_group(rows: list[tuple[str, int]], threshold: float, prefer: Any) -> None:
    texts = [text for text, _ in rows]
    angles = np.array([number for _, number in rows]) * np.pi / 7
    units = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32).reshape(-1, 2)
    duplicates = mlxbert.dedupe(None, texts, vectors=units, threshold=threshold, prefer=prefer)
    check(texts, units, duplicates, threshold)
    exact = mlxbert.dedupe(None, texts, exact=True, prefer=prefer)
    assert len(exact.kept) == len({*map(folded, texts)}) >= len(duplicates.kept)
    for group in (*duplicates.groups, *exact.groups):
        if prefer == "longest":
            assert len(texts[group.kept]) >= max(len(texts[duplicate]) for duplicate in group.duplicates)
        else:
            assert group.kept < group.duplicates[0]


def test_the_model_finds_duplicates_by_meaning(builtin: mlxbert.Model) -> None:
    duplicates = mlxbert.dedupe(builtin, TEXTS, threshold=0.9)
    assert duplicates.groups[0] == mlxbert.DuplicateGroup(0, (1,), (1.0,))
    similar = duplicates.groups[1]
    assert (similar.kept, similar.duplicates) == (2, (4,)) and 0.9 <= similar.scores[0] < 1
    assert duplicates.kept == [0, 2, 3]
    vectors = mlxbert.embed(builtin, TEXTS)
    assert mlxbert.dedupe(None, TEXTS, vectors=3 * vectors).kept == duplicates.kept  # of any length
    assert builtin.dedupe(TEXTS).kept == duplicates.kept


def test_equal_texts_are_embedded_once(builtin: mlxbert.Model) -> None:
    done = list[tuple[int, int]]()
    mlxbert.dedupe(builtin, TEXTS, on_progress=lambda *counts: done.append(counts))
    assert done[-1] == (4, 4)


@pytest.mark.parametrize("texts", [[], ["one text"]])
def test_too_few_texts_for_duplicates(texts: list[str]) -> None:
    duplicates = mlxbert.dedupe(None, texts, vectors=np.ones((len(texts), 2)))
    assert duplicates.groups == () and duplicates.kept == [*range(len(texts))]
    assert mlxbert.paraphrase_mining(None, texts, vectors=np.ones((len(texts), 2))) == []


def test_pairs_by_meaning(builtin: mlxbert.Model) -> None:
    pairs = mlxbert.paraphrase_mining(builtin, TEXTS, max_pairs=3)
    vectors = mlxbert.embed(builtin, TEXTS)
    assert {(pair.first, pair.second) for pair in pairs[:2]} == {(0, 1), (2, 4)}
    for pair in pairs:
        assert abs(pair.score - vectors[pair.first] @ vectors[pair.second]) < 1e-5


@pytest.mark.parametrize("name", ["dedupe", "paraphrase_mining", "cluster", "project"])
def test_bad_arguments(name: str) -> None:
    function = getattr(mlxbert, name)
    with pytest.raises(ArgumentError, match="model"):
        function(None, ["a", "b"])
    with pytest.raises(ArgumentError, match="shape"):
        function(None, ["a", "b"], vectors=np.ones((3, 2)))
    for ragged in ([[1, 2], [1]], ["a", "b"]):
        with pytest.raises(ArgumentError, match="vectors"):
            function(None, ["a", "b"], vectors=ragged)
    for unusable in (np.nan, 1e300):
        with pytest.raises(InputError, match="text 1"):
            function(None, ["a", "b"], vectors=[[1, 1], [1, unusable]])
    with pytest.raises(InputError, match="text 1"):
        function(None, ["a", 5], vectors=np.ones((2, 2)))
    with pytest.raises(ArgumentError, match="texts"):
        function(None, "a text")


@pytest.mark.parametrize("options", [{"threshold": 2}, {"threshold": float("nan")}, {"prefer": "shortest"}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(options))):
        mlxbert.dedupe(None, ["a"], vectors=[[1.0]], **options)


@pytest.mark.parametrize("scale", [1e25, 1e-25])
def test_the_length_of_vectors_does_not_matter(scale: float) -> None:
    assert mlxbert.dedupe(None, ["a", "b"], vectors=np.array([[1, 2], [1, 2]]) * scale).kept == [0]
