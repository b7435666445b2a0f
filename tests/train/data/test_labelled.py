"""Texts and labels from rows: what is read as which class or number, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import InputError
from mlxbert.readers.stream import Record
from mlxbert.train.data.columns import ColumnNames, find_columns
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.data.labelled_texts import LabelledText, read_labelled

COLUMNS = ColumnNames("text", None, "label")


def rows(*labels: Any) -> list[Record]:
    return [Record({"text": f"text {n}", "label": label}, f"line {n}") for n, label in enumerate(labels, 1)]


def labels(kind: str, *values: Any) -> list[Any]:
    return [record.label for record in read_labelled(rows(*values), COLUMNS, kind)]


def refused(kind: str, *values: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        labels(kind, *values)
    return caught.value


def test_a_file_becomes_labelled_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('premise,hypothesis,label\n"a\nb",c, yes \n', encoding="utf-8")
    data = read_rows(path)
    (record,) = read_labelled(data, find_columns(data), "class")
    assert record == LabelledText("a\nb", "c", "yes", f"{path}, line 2")
    assert (record.key, record.names) == (("a\nb", "c"), ("yes",))


def test_names_of_classes_are_kept_and_numbers_are_names() -> None:
    values = ["pos", " neg\t", "New York", "1.5.0", "007", True, False, "ž🦆"]
    assert labels("class", *values) == ["pos", "neg", "New York", "1.5.0", "007", "true", "false", "ž🦆"]
    assert labels("class", 1, 1.0, "1", -2.0, 0.5, 10**20) == ["1", "1", "1", "-2", "0.5", "1" + "0" * 20]
    assert labels("class", np.int64(3), np.float32(3), np.bool_(True), np.str_("3")) == ["3", "3", "true", "3"]
    assert labels("class", "1.0", "2.0") == ["1.0", "2.0"]
    assert labels("class", "1.1", "1.10") == ["1.1", "1.10"]


@pytest.mark.parametrize("values", [("1.0", "1"), (1, "1.0"), ("1.0", 1.0), ("2", "1.00", "1.0"), ("-1", "-1.")])
def test_one_number_written_in_two_ways_is_refused(values: tuple[Any, ...]) -> None:
    problem = refused("class", *values)
    assert problem.message.startswith(f"line {len(values)}: 'label' is ") and "the same number" in problem.message


@pytest.mark.parametrize(
    ("value", "said"),
    [
        *((float("inf"), "is inf"), (["a"], "is a list"), ({}, "is an object"), ("\ud800", "surrogate")),
    ],
)
def test_values_that_are_no_class_are_refused_with_their_place(value: Any, said: str) -> None:
    problem = refused("class", "a", value, "b")
    assert problem.message.startswith("line 2: 'label' ") and said in problem.message
    if not isinstance(value, str):
        assert problem.message.endswith("expected a label")


@pytest.mark.parametrize("kind", ["class", "classes", "number"])
@pytest.mark.parametrize("value", ["", " \t\n", None, float("nan"), np.float32("nan")])
def test_rows_without_a_label_are_left_out_and_counted(kind: str, value: Any, caplog: pytest.LogCaptureFixture) -> None:
    is_label = kind == "classes" and isinstance(value, str)
    without = Record({"text": "no label"}, "line 6")
    found = read_labelled([*rows("1", value, "2", value, "3"), without], COLUMNS, kind)
    assert [one.place for one in found] == [f"line {n}" for n in (1, 2, 3, 4, 5) if n % 2 or is_label]
    assert (f"{1 if is_label else 3} of 6 rows" in caplog.text) and ("line 6" if is_label else "line 2") in caplog.text
    if not is_label:
        problem = refused(kind, value, value)
        assert problem.message.startswith("line 1: 'label' is ")
        assert kind == "number" or "label_column=" in str(problem.hint)


class Missing:
    """`pandas.NA`: a comparison with it is neither true nor false."""

    def __ne__(self, other: object) -> "Missing":  # type: ignore[override]
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


def test_a_row_with_the_missing_value_of_pandas_has_no_label() -> None:
    assert [one.label for one in read_labelled(rows("1", Missing(), "2"), COLUMNS, "class")] == ["1", "2"]


def test_whole_numbers_of_thousands_of_digits_are_refused() -> None:
    for kind in ("class", "classes", "number"):
        for value in (10**5000, -(10**5000)):
            assert "a number of more than 60 digits" in refused(kind, value).message
    assert labels("class", 10**59) == ["1" + "0" * 59]
    assert "not valid JSON" in refused("classes", f"[{'1' * 5000}]").message
    with pytest.raises(InputError, match=r"record 2: .*4300 digits"):
        [*read_rows([{"text": "a", "id": [1]}, {"text": "a", "id": [10**5000]}])]
    numbers: Any = [10**5000]
    with pytest.raises(InputError, match="record 1: the record is a number of more than 60 digits, expected a mapping"):
        [*read_rows(numbers)]


def test_sets_of_classes_are_lists_or_strings() -> None:
    assert labels("classes", ["b", " a", "b", 1], [], np.array(["x"]), ()) == [("b", "a", "1"), (), ("x",), ()]
    assert labels("classes", "b, a", "", "  ", "c;d") == [("b", "a"), (), (), ("c;d",)]
    assert labels("classes", "b;a", "c|d") == [("b", "a"), ("c|d",)]
    assert labels("classes", "b|a", "c", 7) == [("b", "a"), ("c",), ("7",)]
    assert labels("classes", '["a, b", 1.0]', "[]", "c,d") == [("a, b", "1"), (), ("c", "d")]


@pytest.mark.parametrize(
    ("value", "said"),
    [("a,,b", "is empty"), ("a,", "is empty"), ([None], "is null"), ([["a"]], "is a list")],
)
def test_sets_with_something_else_are_refused(value: Any, said: str) -> None:
    assert said in refused("classes", "a,b", value).message


def test_lists_of_python_are_refused_with_a_hint() -> None:
    problem = refused("classes", "['a', 'b']")
    assert "not valid JSON" in problem.message and problem.hint and '["a", "b"]' in problem.hint


def test_numbers_are_finite() -> None:
    assert labels("number", "3", " -3.5 ", 4, 2.5, "1e-3", np.float32(0.5)) == [3.0, -3.5, 4.0, 2.5, 0.001, 0.5]
    wrong: tuple[Any, ...] = ("three", True, [3], "1_000", "3,5", 10**400)
    for value in wrong:
        problem = refused("number", 1, value)
        assert problem.message.startswith("line 2: 'label' is ") and "expected a number" in problem.message
    for value in ("nan", "-inf", float("inf"), "1e999"):
        assert "finite" in refused("number", 1, value).message
    assert labels("number", 1e15, "-1e15") == [1e15, -1e15]
    for value in (1e308, "-1e308", 10**16, -(10**300)):  # their squares are not in the range of float32
        assert "from -1e+15 to 1e+15" in refused("number", 1, value).message
    hint = refused("number", "3,5").hint
    assert hint and "point" in hint and refused("number", "1,000,000").hint is None


@pytest.mark.parametrize("text", ["", " \n\t", None, 3, ["a"], "half \ud800"])
def test_texts_that_are_none_are_refused_with_their_place(text: Any) -> None:
    for columns in (ColumnNames("text", None, "label"), ColumnNames("other", "text", "label")):
        data = [
            Record({"text": given, "other": "fine", "label": "a"}, f"line {n}") for n, given in ((1, "fine"), (2, text))
        ]
        with pytest.raises(InputError, match="line 2: 'text' "):
            read_labelled(data, columns, "class")


def test_a_missing_field_is_refused_and_all_such_records_are_counted() -> None:
    data = [
        *rows("a"),
        *(Record({"body": "the", "label": value}, f"b.jsonl, line {n}") for n, value in ((7, "a"), (8, []))),
    ]
    with pytest.raises(InputError) as caught:
        read_labelled(data, COLUMNS, "class")
    said = "b.jsonl, line 7: the record has no field 'text' (fields: body, label); 1 more record has an error"
    assert caught.value.message == said
    assert "2 more records have errors" in refused("class", [], "a", [], []).message
