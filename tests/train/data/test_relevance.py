"""Pairs of query and text with labels: which columns are found, what is read, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import InputError
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.data.relevance import JudgedPair, find_relevance_columns, read_judged

GROUP = {"query": "a", "positives": ["x", "y"], "negatives": "z"}


def read(*records: dict[str, Any], max_score: float = 1.0, **columns: str) -> list[JudgedPair]:
    rows = read_rows(records)
    return read_judged(rows, find_relevance_columns(rows, **columns), max_score)


def refused(*records: dict[str, Any], **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        read(*records, **options)
    return caught.value


@pytest.mark.parametrize(
    ("names", "given"),
    [
        (("query", "text", "label"), {}),
        (("Query", "Passage", "Score"), {}),
        (("question", "answer", "label"), {}),
        (("sentence1", "sentence2", "score"), {}),
        (("s1", "s2", "similarity"), {}),
        (("asked", "text", "grade"), {"query_column": "asked"}),
        (("query", "found", "grade"), {"text_column": "found", "query_column": "query"}),
        (("query", "found", "grade"), {"text_column": "found"}),
        (("asked", "answer", "query"), {"query_column": "asked", "label_column": "query"}),
        (("q", "t", "l"), {"query_column": "q", "text_column": "t", "label_column": "l"}),
    ],
)
def test_columns_are_found_by_usual_names(names: tuple[str, str, str], given: dict[str, str]) -> None:
    query, text, label = names
    rows = read_rows([{text: "x", label: 1, query: "a", "id": 7}])
    found = find_relevance_columns(rows, **given)
    assert found.to_dict() == {"query": query, "text": text, "label": label}
    asked = {role.removesuffix("_column") for role in given}
    assert {*found.guessed} == {"query", "text", "label"} - asked


def test_columns_that_cannot_be_guessed_are_refused() -> None:
    assert "a, b" in refused({"a1": 1, "a, b": "x"}).message
    refused({"query": "x", "text": "y"})  # no label
    refused({"query": "x", "text": "y", "l": 1, "m": 2})


def test_labels_are_divided_by_the_largest_score() -> None:
    records = [{"query": "a", "text": "x", "score": score} for score in (0, 2.5, "5", np.float32(1))]
    assert [one.label for one in read(*records, max_score=5)] == [0.0, 0.5, 1.0, 0.2]
    assert [one.label for one in read(*({**one, "score": one["score"] == 0} for one in records))] == [1.0, 0, 0, 0]
    found = refused(*records)
    assert (
        found.message.startswith("record 2: ")
        and "1 more record" in found.message
        and "max_score" in (found.hint or "")
    )
    assert refused({"query": "a", "text": "x", "score": -1}).hint is None
    for wrong in ("nan", "good", None, [1], "0,5", float("inf")):
        assert "'score'" in refused({"query": "a", "text": "x", "score": wrong}).message


def test_groups_are_a_record_for_each_text() -> None:
    found = read(GROUP, {"query": "b", "negatives": ["x", "x"]})
    assert [(one.text, one.pair, one.label, one.place) for one in found] == [
        ("a", "x", 1.0, "record 1"),
        ("a", "y", 1.0, "record 1"),
        ("a", "z", 0.0, "record 1"),
        ("b", "x", 0.0, "record 2"),
    ]
    assert found[0].group == "a" and found[0].key == ("a", "x") and found[0].names == ()
    assert [one.pair for one in read({**GROUP, "text": "t", "label": 1}, text_column="text")] == ["t"]


def test_records_of_mixed_form_and_missing_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    for wrong in ({"query": "a", "text": "x", "label": 1}, {"positives": ["x"]}, {"query": "", "positives": ["x"]}):
        path.write_text(f"{json.dumps(GROUP)}\n{json.dumps(wrong)}\n", encoding="utf-8")
        rows = read_rows(path)
        with pytest.raises(InputError, match="line 2"):
            read_judged(rows, find_relevance_columns(rows))
    singles: tuple[dict[str, Any], ...] = ({"text": " ", "label": 1}, {"label": 1}, {"text": "x", "label": []})
    for single in singles:
        assert refused({"query": "a", "text": "x", "label": 1}, {"query": "a", **single}).message.startswith(
            "record 2: "
        )
