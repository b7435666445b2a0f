"""Which texts repeat others: each is kept or in one group. Neighbours of vectors are those of loops over all pairs."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import mlxbert
from mlxbert.errors import ArgumentError, InputError
from mlxbert.explore import near_vectors
from mlxbert.explore.near_vectors import find_leaders, nearest_of_each, similar_pairs, spherical_kmeans
from tests.helpers.cases import together

TEXTS = ["It rains.", "it \n RAINS.", "Snow is cold, and white.", "Rain falls.", "Snow is cold and white!"]


def folded(text: str) -> str:
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


def test_texts_the_model_cannot_tell_apart_are_kept_and_cut_ones_counted(builtin: mlxbert.Model, caplog: Any) -> None:
    texts = ["I love \ua500", "I love \ua501", "\u0e2a\u0e27", "\u1019\u1004", "I LOVE  \ua500", "It rains."]
    duplicates = mlxbert.dedupe(builtin, texts)
    assert [(group.kept, group.duplicates, group.scores) for group in duplicates.groups] == [(0, (4,), (1.0,))]
    assert "does not know" in caplog.text and "1 text\n" in caplog.text
    long = "the cat sat on the mat " * 100
    mlxbert.dedupe(builtin, [long + "and slept", long + "and ran away", "It rains."])
    assert "2 of 3 texts are longer than 256 tokens" in caplog.text


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


def test_the_model_finds_duplicates_and_pairs_by_meaning(builtin: mlxbert.Model) -> None:
    duplicates = mlxbert.dedupe(builtin, TEXTS, threshold=0.9)
    assert duplicates.groups[0] == mlxbert.DuplicateGroup(0, (1,), (1.0,))
    similar = duplicates.groups[1]
    assert (similar.kept, similar.duplicates) == (2, (4,)) and 0.9 <= similar.scores[0] < 1
    assert duplicates.kept == [0, 2, 3]
    vectors = mlxbert.embed(builtin, TEXTS)
    for length in (3.0, 1e25, 1e-25):
        assert mlxbert.dedupe(None, TEXTS, vectors=length * vectors.astype(np.float64)).kept == duplicates.kept
    done = list[tuple[int, int]]()
    assert builtin.dedupe(TEXTS, on_progress=lambda *counts: done.append(counts)).kept == duplicates.kept
    assert done[-1] == (4, 4)  # equal texts are embedded once
    pairs = mlxbert.paraphrase_mining(builtin, TEXTS, max_pairs=3)
    assert {(pair.first, pair.second) for pair in pairs[:2]} == {(0, 1), (2, 4)}
    for pair in pairs:
        assert abs(pair.score - vectors[pair.first] @ vectors[pair.second]) < 1e-5


def test_too_few_texts_for_duplicates() -> None:
    for texts in ([], ["one text"]):
        duplicates = mlxbert.dedupe(None, texts, vectors=np.ones((len(texts), 2)))
        assert duplicates.groups == () and duplicates.kept == [*range(len(texts))]
        assert mlxbert.paraphrase_mining(None, texts, vectors=np.ones((len(texts), 2))) == []


@together("name", ["dedupe", "paraphrase_mining", "cluster", "project"])
def test_bad_arguments(name: str) -> None:
    function = getattr(mlxbert, name)
    for wrong, error, said in (
        ({}, ArgumentError, "model"), ({"vectors": np.ones((3, 2))}, ArgumentError, "shape"),
        ({"vectors": [[1, 2], [1]]}, ArgumentError, "vectors"), ({"vectors": ["a", "b"]}, ArgumentError, "vectors"),
        ({"vectors": [[1, 1], [1, np.nan]]}, InputError, "text 1"), ({"texts": "a text"}, ArgumentError, "texts"),
        ({"vectors": [[1, 1], [1, 1e300]]}, InputError, "text 1"),
        ({"texts": ["a", 5], "vectors": np.ones((2, 2))}, InputError, "text 1"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            function(None, **{"texts": ["a", "b"], **wrong})


@together(
    ("options", "said"),
    [
        ({"threshold": 2}, "threshold"), ({"threshold": float("nan")}, "threshold"), ({"prefer": "shortest"}, "prefer"),
        ({"exact": True, "threshold": 0.5}, "cannot be combined"), ({"exact": True, "all_pairs": True}, "be combined"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, Any], said: str) -> None:
    vectors = None if "exact" in options else [[1.0]]
    with pytest.raises(ArgumentError, match=said):
        mlxbert.dedupe(None, ["a"], vectors=vectors, **options)


def vectors(count: int, width: int, seed: int = 0) -> Any:
    drawn = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def all_scores(units: Any) -> Any:
    return np.sort((units @ units.T)[np.triu_indices(len(units), 1)])[::-1]


def slow_leaders(units: Any, threshold: float) -> list[int]:
    leaders, found = list[int](), list[int]()
    for number, vector in enumerate(units):
        products = units[leaders] @ vector
        if leaders and products.max() >= threshold:
            found.append(leaders[int(products.argmax())])
        else:
            leaders.append(number)
            found.append(number)
    return found


@pytest.mark.parametrize("block", [7, 1024])
@pytest.mark.parametrize(("width", "threshold"), [(3, 0.9), (8, 0.8), (16, 0.3)])
def test_leaders_are_those_of_a_loop(width: int, threshold: float, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_vectors, "_BLOCK", block)
    units = vectors(300, width)
    leaders, scores = find_leaders(units, threshold)
    expected = slow_leaders(units, threshold)
    assert leaders.tolist() == expected and len({*expected}) < 300
    followers = leaders != np.arange(300)
    assert np.allclose(scores[followers], (units * units[leaders]).sum(1)[followers], atol=1e-6)
    assert (scores[~followers] == 1).all()


def test_cells_find_what_all_pairs_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small blocks, most comparisons go through the cells."""
    for name, value in {"_FEW": 10, "_BLOCK": 32, "_WIDE": 64}.items():
        monkeypatch.setattr(near_vectors, name, value)
    assert not find_leaders(np.repeat(vectors(1, 5), 3000, 0), 1.0)[0].any()  # equal vectors have one leader
    many = np.repeat(vectors(700, 24), 3, 0) + 0.15 * vectors(2100, 24, 1)
    units = (many / np.linalg.norm(many, axis=1, keepdims=True))[np.random.default_rng(2).permutation(2100)]
    all_leaders, _ = find_leaders(units, 0.9, all_pairs=True)
    leaders, scores = find_leaders(units, 0.9)
    assert len({*all_leaders}) == 700
    assert (leaders == all_leaders).mean() > 0.97
    followers = leaders != np.arange(2100)
    assert scores[followers].min() >= 0.9 - 1e-5 and (leaders[leaders] == leaders).all()


@given(st.integers(1, 60), st.integers(0, 2000), st.floats(-1, 1), st.integers(0, 10**6))
def test_pairs_are_the_most_similar_ones(count: int, most: int, least: float, seed: int) -> None:
    units = vectors(count, 4, seed)
    first, second, scores = similar_pairs(units, least, most + 1)
    every = all_scores(units)
    expected = every[every >= least - 1e-6][: most + 1]
    assert np.allclose(scores, expected, atol=1e-6) and (first < second).all()
    assert len({*zip(first.tolist(), second.tolist(), strict=True)}) == len(first)
    assert np.allclose(scores, (units[first] * units[second]).sum(1), atol=1e-6)


def test_pairs_of_many_blocks_keep_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_vectors, "_PAIRS", 9)
    monkeypatch.setattr(near_vectors, "_TOGETHER", 26)
    units = vectors(200, 6)
    assert np.allclose(similar_pairs(units, 0.0, 50)[2], all_scores(units)[:50], atol=1e-6)


@together("count", [0, 1, 2, 9, 600])
def test_the_nearest_of_each(count: int) -> None:
    units = vectors(count, 6) if count else np.zeros((0, 6), np.float32)
    near, scores = nearest_of_each(units, 3)
    assert near.shape == scores.shape == (count, max(min(3, count - 1), 0))
    products = units @ units.T
    np.fill_diagonal(products, -np.inf)
    assert np.array_equal(near, np.argsort(-products, axis=1, kind="stable")[:, : near.shape[1]])
    assert np.allclose(scores, np.take_along_axis(products, near, 1), atol=1e-6)


def test_centers_move_to_the_mean_direction_of_their_group() -> None:
    angles = np.radians([0, 10, 20, 90, 100, 110])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    far = np.array([[0, -1]], np.float32)
    centers = spherical_kmeans(vectors, np.concatenate([vectors[[0, 2]], far]), 10)
    assert np.allclose(centers[:2], vectors[[1, 4]], atol=1e-6)
    assert np.array_equal(centers[2:], far)  # no vector is near it
