"""Validation data split off: shares, labels, duplicates, the same on every machine."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mlxbert.errors import ArgumentError, InputError
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.data.validation_split import split
from tests.helpers.cells import quick

FROZEN = [2, 5, 20, 21, 22, 24, 25, 33]  # what every machine and every version of Python finds


def labelled(labels: Any, texts: Any = None) -> list[LabelledText]:
    texts = range(len(labels)) if texts is None else texts
    pairs = zip(texts, labels, strict=True)
    return [LabelledText(str(text), None, label, f"record {n}") for n, (text, label) in enumerate(pairs)]


def numbers(records: list[LabelledText]) -> list[int]:
    return [int(record.text) for record in records]


def test_every_label_has_its_share_in_the_order_of_the_records() -> None:
    labels = ["a"] * 500 + ["b"] * 300 + ["c"] * 200
    records = labelled([labels[7 * n % 1000] for n in range(1000)])
    train, valid = split(records, 0.1, 0)
    assert Counter(record.label for record in valid) == {"a": 50, "b": 30, "c": 20}
    assert numbers(train) == sorted(numbers(train)) and numbers(valid) == sorted(numbers(valid))
    assert sorted(numbers(train) + numbers(valid)) == [*range(1000)]


def test_the_seed_decides_and_nothing_else() -> None:
    records = labelled(["a", "b"] * 20)
    assert numbers(split(records, 0.2, 0)[1]) == numbers(split(records, 0.2, 0)[1]) == FROZEN
    assert numbers(split(records, 0.2, 1)[1]) != FROZEN


def test_small_classes_and_frequent_texts_leave_the_share_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _, valid = split(labelled([str(n // 4) for n in range(400)]), 0.1, 0)
    assert len(valid) == 40 and max(Counter(record.label for record in valid).values()) <= 2
    assert len(split(labelled([1.0] * 100, [0] * 60 + [*range(1, 41)]), 0.1, 0)[1]) == 10
    monkeypatch.setattr("mlxbert.train.data.validation_split.MOST", 7)  # large data give no more than needed
    assert len(split(labelled([0.0] * 100), 0.1, 0)[1]) == 7


def test_several_labels_all_stay_in_training() -> None:
    records = labelled([("x", "y"), ("x",), (), ("x", "z"), ("y",), ("x",), (), ("x", "z")] * 10)
    train, valid = split(records, 0.25, 3)
    assert 15 <= len(valid) <= 25
    for part in (train, valid):
        assert {name for record in part for name in record.names} == {"x", "y", "z"}


def test_pairs_are_told_apart_by_both_texts_and_other_records_by_functions() -> None:
    assert len(split([LabelledText("same", str(n), 1.0, "") for n in range(10)], 0.2, 0)[1]) == 2
    records = [{"id": n // 2, "tag": "ab"[n % 2]} for n in range(20)]
    train, valid = split(records, 0.2, 0, lambda record: record["id"], lambda record: (str(record["tag"]),))
    assert len(valid) == 4 and not {str(r["id"]) for r in train} & {str(r["id"]) for r in valid}


def test_too_few_examples_and_other_shares_are_refused() -> None:
    labels: Any
    for labels in (["a"], [], ["a", "b"], [("a",), ("b",)], [1.0]):
        with pytest.raises(InputError, match=f"from {len(labels)} example") as caught:
            split(labelled(labels), 0.1, 0)
        assert caught.value.hint and "valid=" in caught.value.hint
    with pytest.raises(InputError):
        split([LabelledText("same", "same", 1.0, "")] * 10, 0.2, 0)
    for share in (0, 1, -0.1, 1.5, float("nan")):
        with pytest.raises(ArgumentError, match="validation_fraction"):
            split(labelled([1.0, 2.0]), share, 0)


@quick(50)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abcd")), min_size=2, max_size=40),
    st.floats(0.01, 0.99),
    st.integers(0, 2**64),
)
def test_nothing_leaks_and_no_label_is_lost(drawn: list[tuple[int, str]], share: float, seed: int) -> None:
    records = labelled([label for _, label in drawn], [text for text, _ in drawn])
    try:
        train, valid = split(records, share, seed)
    except InputError:
        counts = Counter(label for _, label in drawn)
        for text in {text for text, _ in drawn}:  # no text can be taken without taking all examples of a label
            inside = Counter(label for other, label in drawn if other == text)
            assert any(count == counts[label] for label, count in inside.items())
        return
    assert train and valid and not {r.text for r in train} & {r.text for r in valid}
    assert {r.label for r in train} == {r.label for r in records}
    assert sorted(r.place for r in (*train, *valid)) == sorted(r.place for r in records)
