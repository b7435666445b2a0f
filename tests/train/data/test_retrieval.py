"""Queries, documents and judgements of both layouts, and what is refused with its place."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import InputError
from mlxbert.train.data.retrieval import Retrieval, read_retrieval


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
    assert isinstance(found, Retrieval)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"positives": ["x"]}, "'query'"),
        ({"query": " ", "positives": ["x"]}, "'query'"),
        ({"query": "a"}, "'positives'"),
        ({"query": "a", "positives": [], "negatives": []}, "'positives'"),
        ({"query": "a", "positives": ["x", 3]}, "a number"),
        ({"query": "a", "positives": [""]}, "'positives'"),
        ({"query": "a", "positives": ["x"], "negatives": ["x"]}, "'x'"),
        ({"query": "a", "positives": {"x": 1}}, "an object"),
    ],
)
def test_records_that_cannot_be_used_are_refused_with_their_line(
    record: dict[str, Any], said: str, tmp_path: Path
) -> None:
    jsonl(tmp_path / "set.jsonl", {"query": "a", "positives": ["x"]}, record)
    message = refused(tmp_path / "set.jsonl")
    assert message.startswith(f"{tmp_path / 'set.jsonl'}, line 2: ") and said in message


@pytest.mark.parametrize(
    ("changes", "place"),
    [
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
    ],
)
def test_damaged_folders_of_beir_are_refused_with_the_place(
    changes: dict[str, Any], place: str, tmp_path: Path
) -> None:
    assert f"{place}: " in refused(beir(tmp_path / "set", **changes))


def test_a_folder_of_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "corpus.jsonl" in refused(tmp_path / "empty")
    (beir(tmp_path / "beir") / "queries.jsonl").unlink()
    assert "queries.jsonl" in refused(tmp_path / "beir")
