"""Topics, their words and typical texts, and coordinates in two dimensions."""

import math
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mlxbert
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.explore.topics import distinguishing_words
from tests.helpers.cases import together

pytestmark = pytest.mark.usefixtures("counted_cores")
WORDS = {0: "goal match team", 1: "bank money market", 2: "song film music"}


def blobs(sizes: tuple[int, ...], width: int = 12) -> tuple[list[str], Any, list[int]]:
    """Texts of some topics, their vectors and their topics, shuffled."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = random.normal(size=(len(sizes), width))
    vectors = centres[labels] + 0.1 * random.normal(size=(len(labels), width))
    texts = [f"The {WORDS[label % 3]} of {random.choice(['day', 'week', 'year'])}" for label in labels]
    return texts, vectors, labels.tolist()


def alike(first: Any, second: Any) -> bool:
    """Whether two clusterings are the same, apart from the numbers of the clusters."""
    pairs = {*zip(first, second, strict=True)}
    return len(pairs) == len({*first}) == len({*second})


@pytest.mark.parametrize(("options", "many"), [({"clusters": 3}, 10**6), ({"clusters": 3}, 50), ({"min_size": 10}, 50)])
def test_topics(options: dict[str, Any], many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.explore.topics._MANY", many)  # more are grouped in samples
    texts, vectors, labels = blobs((60, 40, 25))
    topics = mlxbert.cluster(None, texts, vectors=vectors, typical=2, words=3, **options)
    assert alike(topics.labels, labels) and topics.outliers == 0
    assert [(topic.topic, topic.size) for topic in topics.topics] == [(0, 60), (1, 40), (2, 25)]
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for topic in topics.topics:
        members = [number for number, label in enumerate(topics.labels) if label == topic.topic]
        assert {word.word for word in topic.words} == {*WORDS[labels[members[0]]].split()}
        nearness = {number: units[number] @ units[members].mean(0) for number in members}
        assert [*topic.typical] == sorted(members, key=lambda number: -nearness[number])[:2]


def test_few_or_equal_texts() -> None:
    cases: list[tuple[int, dict[str, Any], int]] = [(30, {}, 1), (9, {}, 0), (30, {"clusters": 3}, 1)]
    for count, options, topics in cases:
        found = mlxbert.cluster(None, ["same text"] * count, vectors=np.ones((count, 4)), **options)
        assert len(found.topics) == topics and found.outliers == (0 if topics else count)
        assert sum(topic.size for topic in found.topics) + found.outliers == count
    assert mlxbert.cluster(None, [], clusters=3) == mlxbert.Topics((), ())
    one = mlxbert.cluster(None, ["one"], vectors=[[1, 0]], clusters=1)
    assert one.labels == (0,) and one.topics[0].size == 1
    none = mlxbert.cluster(None, ["one", "two"], vectors=[[1, 0], [0, 1]])  # fewer than the smallest topic
    assert none.labels == (-1, -1) and none.topics == () and none.outliers == 2
    with pytest.raises(ArgumentError, match="`clusters` is 3, expected at most the number of texts, 2"):
        mlxbert.cluster(None, ["one", "two"], vectors=[[1, 0], [0, 1]], clusters=3)
    with pytest.raises(ArgumentError, match="cannot be combined"):
        mlxbert.cluster(None, ["a"] * 20, vectors=np.ones((20, 3)), clusters=2, min_size=5)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 3), min_size=2, max_size=30), st.integers(1, 2), st.integers(0, 3))
def test_every_text_is_in_one_topic_or_none(angles: list[int], clusters: int, typical: int) -> None:
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1)
    texts = [f"text {angle}" for angle in angles]
    topics = mlxbert.cluster(None, texts, vectors=vectors, clusters=clusters, typical=typical)
    sizes = Counter(topics.labels)
    assert sizes == {topic.topic: topic.size for topic in topics.topics} and sizes.total() == len(texts)
    assert [topic.size for topic in topics.topics] == sorted(sizes.values(), reverse=True)


def test_scores_of_words_follow_the_formula() -> None:
    texts, labels = ["red red apple", "green apple", "red car", "fast car car"], [0, 0, 1, 1]
    words = distinguishing_words(texts, labels, 10)
    mean, number = 10 / 2, {"red": 3, "apple": 2, "green": 1, "car": 3, "fast": 1}
    expected = {"apple": 2 / 5, "green": 1 / 5}, {"car": 3 / 5, "fast": 1 / 5}  # "red" is in half of both
    for label in (0, 1):
        scores = {word.word: word.score for word in words[label]}
        assert scores == pytest.approx({
            word: share * math.log(1 + mean / number[word]) for word, share in expected[label].items()
        })  # fmt: skip
        assert [*scores.values()] == sorted(scores.values(), reverse=True)


@together(
    ("texts", "found"),
    [
        (["Der Hund bellt.", "Die Katze schläft in der Sonne."], [["bellt", "hund"], ["katze", "schläft", "sonne"]]),
        (
            ["She had to mend the red hat of her friend.", "The soldiers of the war were there for a week."],
            [["friend", "hat", "mend", "red"], ["soldiers", "war", "week"]],
        ),
        (["我喜欢音乐", "他们喜欢足球"], [["欢音", "音乐"], ["们喜", "他们"]]),
        (["Die Straße", "In Maßen"], [["straße"], ["maßen"]]),
        (["1 2 3 !", "x"], [[], []]),
        (  # a language has its own words in a topic of its own, and no note the keys of its front matter
            ["---\ntags: [x]\n---\nWe will mend the red bike.", *["The cat sat on the mat."] * 9, "Das Rad ist rot."],
            [["bike", "mend", "red"], ["cat", "mat", "sat"], ["rad", "rot"]],
        ),
    ],
)
def test_words_of_any_language(texts: list[str], found: list[list[str]]) -> None:
    words = distinguishing_words(texts, [0, *[1] * (len(texts) - 2), 2 if len(texts) > 2 else 1], 20)
    for label, expected in enumerate(found):
        assert {*expected} == {word.word for word in words[label]} or texts[0][0] == "我"


def test_coordinates() -> None:
    texts, vectors, labels = blobs((30, 20, 20))
    methods: tuple[Any, ...] = ("pca", "tsne")
    for method in methods:
        coordinates = mlxbert.project(None, texts, vectors=vectors, method=method)
        assert coordinates.shape == (70, 2) and coordinates.dtype == np.float32 and np.isfinite(coordinates).all()
        distances = np.linalg.norm(coordinates[:, None] - coordinates, axis=-1) + np.diag([np.inf] * 70)
        assert (np.array(labels)[distances.argmin(1)] == labels).mean() > 0.95
        assert np.array_equal(coordinates, mlxbert.project(None, texts, vectors=vectors, method=method))
        for count in (0, 1, 2, 25):  # few or equal texts
            few = mlxbert.project(None, ["text"] * count, vectors=np.ones((count, 3)), method=method)
            assert few.shape == (count, 2) and not few.any()


@pytest.mark.parametrize(("package", "module"), [("scikit-learn", "sklearn"), ("openTSNE", "openTSNE")])
def test_without_packages(package: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    functions: dict[str, Any] = {
        "scikit-learn": lambda: mlxbert.cluster(None, ["a"], vectors=[[1]], clusters=1),
        "openTSNE": lambda: mlxbert.project(None, ["a"], vectors=[[1]], method="tsne"),
    }
    for function in (functions[package], lambda: mlxbert.cluster(None, ["a"], vectors=[[1]])):
        with pytest.raises(MlxbertError, match=package) as raised:
            function()
        assert raised.value.hint is not None and package.lower() in raised.value.hint
    if module == "sklearn":
        return
    assert mlxbert.cluster(None, ["a"], vectors=[[1]], clusters=1).labels == (0,)
    assert mlxbert.project(None, ["a", "b"], vectors=[[1, 0], [0, 1]]).shape == (2, 2)
