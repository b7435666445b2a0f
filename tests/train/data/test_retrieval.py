"""Queries, documents and judgements of both layouts, pairs with labels, and what is refused with its place."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import InputError
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.data.relevance import JudgedPair, find_relevance_columns, read_judged
from mlxbert.train.data.retrieval import read_retrieval
from tests.helpers.cases import together


def jsonl(path: Path, *records: Any) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def beir(folder: Path, qrels: str = "q1\td1\t2\nq1\td2\t0\nq2\td2\t1\n", **changes: Any) -> Path:
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": "d1", "title": "Wings", "text": "lift"}, {"_id": "d2", "title": "", "text": "heat"}]
    queries = [{"_id": "q1", "text": "what lifts"}, {"_id": "q2", "text": "what heats"}]
    jsonl(folder / "corpus.jsonl", *changes.get("documents", documents))
    jsonl(folder / "queries.jsonl", *changes.get("queries", queries))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + qrels, encoding="utf-8")
    return folder


def refused(source: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_retrieval(source)
    return caught.value.message


def judged(*records: dict[str, Any], max_score: float = 1.0, **columns: str) -> list[JudgedPair]:
    rows = read_rows(records)
    return read_judged(rows, find_relevance_columns(rows, **columns), max_score)


def not_judged(*records: dict[str, Any]) -> InputError:
    with pytest.raises(InputError) as caught:
        judged(*records)
    return caught.value


def test_a_folder_of_beir(tmp_path: Path) -> None:
    found = read_retrieval(beir(tmp_path / "set"))
    assert found.documents == {"d1": "Wings lift", "d2": "heat"}
    assert found.queries == {"q1": "what lifts", "q2": "what heats"}
    assert found.judgements == {"q1": {"d1": 2.0, "d2": 0.0}, "q2": {"d2": 1.0}}
    assert [Path(file).name for file in found.files] == ["corpus.jsonl", "queries.jsonl", "test.tsv"]
    with pytest.raises(InputError, match="test"):  # what there is
        read_retrieval(tmp_path / "set", split="dev")


def test_records_are_numbered_and_equal_texts_are_one_document(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"query": "a", "positives": ["x", "y", "x"], "negatives": ["z"]},
        {"query": "b", "positives": "z"},
        {"query": "a", "positives": ["z"]},
        {"query": "c", "negatives": ["x"]},
    ]
    jsonl(tmp_path / "set.jsonl", *records)
    for source in (tmp_path / "set.jsonl", records):
        found = read_retrieval(source)
        assert found.documents == {"1": "x", "2": "y", "3": "z"}
        assert found.queries == {"1": "a", "2": "b", "3": "c"}
        assert found.judgements == {"1": {"1": 1.0, "2": 1.0, "3": 1.0}, "2": {"3": 1.0}, "3": {"1": 0.0}}


@together("record,said", [
    ({"positives": ["x"]}, "'query'"),
    ({"query": " ", "positives": ["x"]}, "'query'"),
    ({"query": "a"}, "'positives'"),
    ({"query": "a", "positives": [], "negatives": []}, "'positives'"),
    ({"query": "a", "positives": ["x", 3]}, "a number"),
    ({"query": "a", "positives": [""]}, "'positives'"),
    ({"query": "a", "positives": ["x"], "negatives": ["x"]}, "'x'"),
    ({"query": "a", "positives": {"x": 1}}, "an object"),
])  # fmt: skip
def test_unusable_records_are_refused_with_their_line(record: dict[str, Any], said: str, tmp_path: Path) -> None:
    jsonl(tmp_path / "set.jsonl", {"query": "a", "positives": ["x"]}, record)
    message = refused(tmp_path / "set.jsonl")
    assert message.startswith(f"{tmp_path / 'set.jsonl'}, line 2: ") and said in message


@pytest.mark.parametrize(("changes", "place"), [
    ({"documents": [{"_id": "d1", "text": "a"}, {"_id": "d1", "text": "b"}]}, "corpus.jsonl, line 2"),
    ({"documents": [{"_id": "d1"}]}, "corpus.jsonl, line 1"),
    ({"documents": [{"_id": None, "text": "a"}]}, "corpus.jsonl, line 1"),
    ({"documents": [{"_id": "d1", "text": ["a"]}]}, "corpus.jsonl, line 1"),
    ({"queries": [{"text": "a"}]}, "queries.jsonl, line 1"),
    ({"qrels": "q1\td1\thigh\n"}, "test.tsv, line 2"),
    ({"qrels": "q1\td1\tnan\n"}, "test.tsv, line 2"),
    ({"qrels": "q1\td1\n"}, "test.tsv, line 2"),
    ({"qrels": "q1\td1\t0\n"}, "set"),
    ({"qrels": "q9\td1\t1\n"}, "set"),
    ({"queries": [{"_id": "q1", "text": ""}]}, "set"),
])  # fmt: skip
def test_damaged_folders_of_beir_are_refused(changes: dict[str, Any], place: str, tmp_path: Path) -> None:
    assert f"{place}: " in refused(beir(tmp_path / "set", **changes))


def test_a_folder_of_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "corpus.jsonl" in refused(tmp_path / "empty")
    (beir(tmp_path / "beir") / "queries.jsonl").unlink()
    assert "queries.jsonl" in refused(tmp_path / "beir")


GROUP = {"query": "a", "positives": ["x", "y"], "negatives": "z"}


@together("names,given", [
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
])  # fmt: skip
def test_columns_are_found_by_usual_names(names: tuple[str, str, str], given: dict[str, str]) -> None:
    query, text, label = names
    rows = read_rows([{text: "x", label: 1, query: "a", "id": 7}])
    found = find_relevance_columns(rows, **given)
    assert found.to_dict() == {"query": query, "text": text, "label": label}
    asked = {role.removesuffix("_column") for role in given}
    assert {*found.guessed} == {"query", "text", "label"} - asked


def test_columns_that_cannot_be_guessed_are_refused() -> None:
    assert "a, b" in not_judged({"a1": 1, "a, b": "x"}).message
    not_judged({"query": "x", "text": "y"})  # no label
    not_judged({"query": "x", "text": "y", "l": 1, "m": 2})


def test_labels_are_divided_by_the_largest_score() -> None:
    records = [{"query": "a", "text": "x", "score": score} for score in (0, 2.5, "5", np.float32(1))]
    assert [one.label for one in judged(*records, max_score=5)] == [0.0, 0.5, 1.0, 0.2]
    assert [one.label for one in judged(*({**one, "score": one["score"] == 0} for one in records))] == [1.0, 0, 0, 0]
    found = not_judged(*records)
    assert found.message.startswith("record 2: ") and "1 more record" in found.message
    assert "max_score" in str(found.hint)
    assert not_judged({"query": "a", "text": "x", "score": -1}).hint is None
    for wrong in ("nan", "good", None, [1], "0,5", float("inf")):
        assert "'score'" in not_judged({"query": "a", "text": "x", "score": wrong}).message


def test_groups_are_a_record_for_each_text() -> None:
    found = judged(GROUP, {"query": "b", "negatives": ["x", "x"]})
    pairs = [(one.text, one.pair, one.label) for one in found]
    assert pairs == [("a", "x", 1.0), ("a", "y", 1.0), ("a", "z", 0.0), ("b", "x", 0.0)]
    assert [one.place for one in found] == [*["record 1"] * 3, "record 2"]
    assert found[0].group == "a" and found[0].key == ("a", "x") and found[0].names == ()
    assert [one.pair for one in judged({**GROUP, "text": "t", "label": 1}, text_column="text")] == ["t"]


def test_records_of_mixed_form_and_missing_members_are_refused() -> None:
    pair = {"query": "a", "text": "x", "label": 1}
    for right, wrongs in (
        (GROUP, (pair, {"positives": ["x"]}, {"query": "", "positives": ["x"]})),
        (pair, ({"query": "a", "text": " ", "label": 1}, {"query": "a", "label": 1}, {**pair, "label": []})),
    ):
        for wrong in wrongs:
            assert not_judged(right, wrong).message.startswith("record 2: ")
