"""Questions with answers from files and records: what is read, what is repaired and said, what is refused."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.formats import FormatName, read_records
from mlxbert.train.data.columns import ColumnNames, find_usual_columns
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.data.questions import Question, read_questions
from tests.helpers.cases import together

CONTEXT = "The cat sat. A cat went to Paris 😀 in 1973."
COLUMNS = ColumnNames("question", "context", "answers")


def asked(answers: Any, context: str = CONTEXT, **more: Any) -> dict[str, Any]:
    return {"question": "Who?", "context": context, "answers": answers, **more}


def read(*records: dict[str, Any]) -> list[Question]:
    rows = read_rows(records)
    return read_questions(rows, find_usual_columns(rows, "answer"))


def refused(*records: dict[str, Any]) -> InputError:
    with pytest.raises(InputError) as caught:
        read(*records)
    return caught.value


def squad(path: Path, *asked: Any, context: Any = CONTEXT) -> Path:
    data = [{"title": "Cats", "paragraphs": [{"context": "x", "qas": []}, {"context": context, "qas": list(asked)}]}]
    path.write_text(json.dumps({"version": "v2.0", "data": data}), encoding="utf-8")
    return path


def test_a_file_of_squad_becomes_questions(tmp_path: Path) -> None:
    cat, the_cat = {"text": "cat", "answer_start": 4}, {"text": "The cat", "answer_start": 0}
    one = {"id": "a", "question": "Who sat?", "answers": [cat, the_cat, cat]}
    none = {"id": "b", "question": "Who ran?", "answers": [], "is_impossible": True, "plausible_answers": [cat]}
    path = squad(tmp_path / "dev.json", one, none)
    rows = read_rows(path)
    assert rows[0].values == one | {"title": "Cats", "context": CONTEXT}
    found = read_questions(rows, find_usual_columns(rows, "answer"))
    assert found == [
        Question("Who sat?", CONTEXT, ("cat", "The cat"), 4, 7, f"{path}, data[0].paragraphs[1].qas[0]"),
        Question("Who ran?", CONTEXT, (), None, None, f"{path}, data[0].paragraphs[1].qas[1]"),
    ]
    assert [one.names for one in found] == [("answer",), ("no answer",)]
    assert found[0].key == ("Who sat?", CONTEXT) and rows.resumable and [*rows.sha256] == [str(path)]
    rows = read_rows(squad(path, none, context=None))
    with pytest.raises(InputError, match=r"data\[0\]\.paragraphs\[1\]\.qas\[0\]: 'context' is null"):
        read_questions(rows, COLUMNS)


@together("answers", [
    {"text": ["Paris"], "answer_start": [27]},
    {"text": np.array(["Paris"]), "answer_start": np.array([27], np.int32)},
    *({"text": "Paris", "answer_start": 27}, [{"text": "Paris", "answer_start": 27}], [{"text": "Paris"}]),
    *(["Paris"], "Paris", {"text": ["Paris"]}, {"text": ["", "Paris"], "answer_start": [0, 27]}),
])  # fmt: skip
def test_answers_are_read_in_every_usual_form(answers: Any) -> None:
    (found,) = read(asked(answers))
    assert (found.answers, found.start, found.end) == (("Paris",), 27, 32)


@together("answers", [None, "", " ", [], {"text": [], "answer_start": []}, {}, {"text": [""], "answer_start": [0]}])
def test_no_answer_in_every_usual_form(answers: Any) -> None:
    assert read(asked(answers))[0].answers == ()
    assert read(asked([{"text": "Paris", "answer_start": 27}], is_impossible=True))[0].answers == ()


def test_tables_and_other_names_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("query,passage,answer,answer_start\nwho,the cat,cat,4\nwhen,the cat,,\n", encoding="utf-8")
    rows = read_rows(path)
    columns = find_usual_columns(rows, "answer")
    assert columns == ColumnNames("query", "passage", "answer", ("text", "pair", "label"))
    assert [(one.answers, one.start) for one in read_questions(rows, columns)] == [(("cat",), 4), ((), None)]
    named = find_usual_columns(rows, "answer", text_column="passage", pair_column="query")
    assert named == ColumnNames("passage", "query", "answer", ("label",))
    rows = read_rows([{"q": "a", "context": "b", "answers": []}])
    with pytest.raises(InputError, match=r"no column.*question.* q, context, answers") as caught:
        find_usual_columns(rows, "answer")
    assert caught.value.hint == "choose the column with `text_column=`"
    assert find_usual_columns(rows, "answer", text_column="q").text == "q"


def test_the_nearest_place_is_taken_where_answer_start_is_wrong_and_said(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("mlxbert").propagate = True
    places = {0: 4, 3: 4, 4: 4, 9: 4, 10: 15, 15: 15, 40: 15, 10**6: 15, -5: 4}
    found = read(*(asked([{"text": "cat", "answer_start": start}]) for start in places))
    assert [one.start for one in found] == list(places.values())
    assert all(CONTEXT[one.start : one.end] == "cat" for one in found)
    assert "7 answers are not at answer_start (the first in record 1)" in caplog.text
    (of_utf_16,) = read(asked([{"text": "1973", "answer_start": CONTEXT.index("1973") + 1}]))  # after an emoji
    assert of_utf_16.start == CONTEXT.index("1973")


def test_an_answer_that_is_in_no_context_is_refused_and_the_others_counted() -> None:
    right = asked(["cat"])
    problem = refused(right, asked(["dog"]), right, asked([{"text": "Cat", "answer_start": 4}]))
    assert problem.message == "record 2: the answer 'dog' is not in the context; 1 more record has an error"
    (kept,) = read(asked(["dog", "Paris"]))
    assert kept.answers == ("dog", "Paris") and kept.start == 27


@together("record,said", [
    ({"context": "a", "answers": []}, "no field 'question'"),
    ({"question": " ", "context": "a", "answers": []}, "'question' is empty"),
    ({"question": "a", "context": "", "answers": []}, "'context' is empty"),
    ({"question": "a", "context": "\n ", "answers": []}, "'context' is empty"),
    ({"question": "a", "context": None, "answers": []}, "'context' is null"),
    ({"question": "a", "context": "a"}, "no field 'answers'"),
    ({"question": "a", "context": "a", "answers": 3}, "a number as an answer"),
    ({"question": "a", "context": "a", "answers": [["a"]]}, "a list as an answer"),
    ({"question": "a", "context": "a", "answers": [{"answer_start": 0}]}, "null as an answer"),
    ({"question": "a", "context": "a", "answers": [{"text": "a", "answer_start": 0.5}]}, "answer_start is 0.5"),
    ({"question": "a", "context": "a", "answers": {"text": ["a"], "answer_start": [0, 1]}}, "1 texts and 2"),
    ({"question": "\ud800", "context": "a", "answers": []}, "surrogate"),
])  # fmt: skip
def test_records_that_cannot_be_used_are_refused_with_their_place(record: dict[str, Any], said: str) -> None:
    problem = refused(asked("Paris"), record)
    assert problem.message.startswith("record 2: ") and said in problem.message


@together("content,said", [
    ("{", "not valid JSON"),
    ('{"question": 1}\n{"question": 2}', "not valid JSON"),
    ("[]", "the input has no records"),
    ('{"rows": []}', "'data' is missing"),
    ('{"data": {}}', "'data' is an object, expected a list"),
    ('{"data": [3]}', "data[0] is a number, expected an object with 'paragraphs'"),
    ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "data[0].paragraphs[0]: 'qas' is missing"),
    ('{"data": [{"paragraphs": [{"context": "x", "qas": ["q"]}]}]}', "data[0].paragraphs[0].qas[0] is a string"),
    ('{"data": []}', "the input has no records"),
])  # fmt: skip
def test_files_with_another_layout_are_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_rows(path)
    assert caught.value.message.startswith(str(path)) and said in caught.value.message


def test_only_training_reads_json(tmp_path: Path) -> None:
    path = squad(tmp_path / "a.json")
    with pytest.raises(InputError, match="expected a JSON array"):
        list(read_records(path))
    with pytest.raises(ArgumentError, match="training"):
        read_records(path, format="squad")
    lines = tmp_path / "b.json"
    lines.write_text('{"text": "a"}\n', encoding="utf-8")
    assert [one.text for one in read_records(lines, format="jsonl")] == ["a"]
    assert read_rows(lines, format=FormatName.jsonl)[0].values == {"text": "a"}
