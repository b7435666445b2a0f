"""Columns guessed from names and types, and their texts and labels: what is read as what, and what is refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.stream import Record
from mlxbert.train.data.columns import ColumnNames, find_columns
from mlxbert.train.data.labelled_rows import LabelledRows, read_rows
from mlxbert.train.data.labelled_texts import LabelledText, read_labelled
from tests.helpers.cases import together

COLUMNS = ColumnNames("text", None, "label")
LONG = "a sentence that is longer than the name of any label"


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
    assert labels("class", 1, 1.0, "1", -2.0, 0.5, 10**59) == ["1", "1", "1", "-2", "0.5", "1" + "0" * 59]
    assert labels("class", np.int64(3), np.float32(3), np.bool_(True), np.str_("3")) == ["3", "3", "true", "3"]
    assert labels("class", "1.0", "2.0") == ["1.0", "2.0"]
    assert labels("class", "1.1", "1.10") == ["1.1", "1.10"]


@together("values", [("1.0", "1"), (1, "1.0"), ("1.0", 1.0), ("2", "1.00", "1.0"), ("-1", "-1.")])
def test_one_number_written_in_two_ways_is_refused(values: tuple[Any, ...]) -> None:
    problem = refused("class", *values)
    assert problem.message.startswith(f"line {len(values)}: 'label' is ") and "the same number" in problem.message


@together("kind,value,said", [
    *(("class", float("inf"), "is inf"), ("class", ["a"], "is a list"), ("class", {}, "is an object")),
    *(("class", "\ud800", "surrogate"), ("class", 10**5000, "a number of more than 60 digits")),
    *(("classes", "a,,b", "is empty"), ("classes", "a,", "is empty"), ("classes", [None], "is null")),
    *(("classes", [["a"]], "is a list"), ("classes", "['a', 'b']", "not valid JSON")),
    *(("classes", f"[{'1' * 5000}]", "not valid JSON"), ("classes", -(10**5000), "more than 60 digits")),
    *(("number", value, "expected a number") for value in ("three", True, [3], "1_000", "3,5", 10**400)),
    ("number", 10**5000, "more than 60 digits"),
    *(("number", value, "finite") for value in ("nan", "-inf", float("inf"), "1e999")),
    # The squares of larger numbers are not in the range of float32.
    *(("number", value, "from -1e+15 to 1e+15") for value in (1e308, "-1e308", 10**16, -(10**300))),
])  # fmt: skip
def test_values_that_are_no_label_are_refused_with_their_place(kind: str, value: Any, said: str) -> None:
    problem = refused(kind, "1", value)
    assert problem.message.startswith("line 2: 'label' ") and said in problem.message


class Missing:
    """`pandas.NA`: a comparison with it is neither true nor false."""

    def __ne__(self, other: object) -> "Missing":  # type: ignore[override]
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


@pytest.mark.parametrize("kind", ["class", "classes", "number"])
@pytest.mark.parametrize("value", ["", " \t\n", None, float("nan"), np.float32("nan"), Missing()], ids=range(6))
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


def test_whole_numbers_of_thousands_of_digits_are_refused() -> None:
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
    assert '["a", "b"]' in str(refused("classes", "['a', 'b']").hint)


def test_numbers_are_finite() -> None:
    assert labels("number", "3", " -3.5 ", 4, 2.5, "1e-3", np.float32(0.5)) == [3.0, -3.5, 4.0, 2.5, 0.001, 0.5]
    assert labels("number", 1e15, "-1e15") == [1e15, -1e15]
    assert "point" in str(refused("number", "3,5").hint) and refused("number", "1,000,000").hint is None


@together("text", ["", " \n\t", None, 3, ["a"], "half \ud800"])
def test_texts_that_are_none_are_refused_with_their_place(text: Any) -> None:
    for columns in (ColumnNames("text", None, "label"), ColumnNames("other", "text", "label")):
        data = [Record({"text": one, "other": "b", "label": "a"}, f"line {n}") for n, one in ((1, "a"), (2, text))]
        with pytest.raises(InputError, match="line 2: 'text' "):
            read_labelled(data, columns, "class")


def test_a_missing_field_is_refused_and_all_such_records_are_counted() -> None:
    wrong = [Record({"body": "a", "label": value}, f"b.jsonl, line {n}") for n, value in ((7, "a"), (8, []))]
    with pytest.raises(InputError) as caught:
        read_labelled([*rows("a"), *wrong], COLUMNS, "class")
    said = "b.jsonl, line 7: the record has no field 'text' (fields: body, label); 1 more record has an error"
    assert caught.value.message == said
    assert "2 more records have errors" in refused("class", [], "a", [], []).message


def two(**columns: Any) -> LabelledRows:
    """Two rows with these values."""
    return read_rows([columns, columns])


@together("columns,found", [
    ({"text": "a", "label": "b"}, ("text", None, "label")),
    ({"id": "1", "Sentence": "a", "CLASS": "b", "note": "c"}, ("Sentence", None, "CLASS")),
    ({"premise": "a", "hypothesis": "b", "gold label": "c", "genre": "d"}, ("premise", "hypothesis", "gold label")),
    ({"idx": 1, "sentence1": "a", "sentence2": "b", "score": 1.5}, ("sentence1", "sentence2", "score")),
    ({"Class Index": 1, "Title": "a", "Description": "b", "text": "c"}, ("text", None, "Class Index")),
    ({"label": "x", "query": "a", "passage": "b"}, ("query", "passage", "label")),
    ({"A": "a", "b": "b", "y": "1"}, ("A", "b", "y")),
    ({"id": 1, "pair": LONG, "text": "a", "label": "b"}, ("text", "pair", "label")),
    ({"text_2": "a", "Text": "b", "label": "b"}, ("Text", "text_2", "label")),
    ({"label": 1, "labels": 2, "score": 3, "review": LONG}, ("review", None, "label")),
    ({"spam": LONG, "ham": "yes"}, ("spam", None, "ham")),
    ({"ham": 1, "spam": "short", "id": LONG}, ("spam", None, "ham")),
    ({"n": "3", "words": "short"}, ("words", None, "n")),
    ({"what": LONG, "title": "x", "y": 3}, ("title", None, "y")),
])  # fmt: skip
def test_columns_are_guessed(columns: dict[str, Any], found: tuple[str, str | None, str]) -> None:
    guessed = ("text", "label") if found[1] is None else ("text", "pair", "label")
    assert find_columns(two(**columns)) == ColumnNames(*found, guessed)


def table(labels: str) -> str:
    return "".join(f"{label}\ta text of some length, number {n}\n" for n, label in enumerate(labels))


@together("other", [
    [f"2026-01-{number:02} 10:00" for number in range(1, 31)],
    ["3.12.2025", *["31/12/2025"] * 29],
    [f"customer {number}" for number in range(30)],
])  # fmt: skip
def test_dates_and_names_of_their_own_are_no_labels(other: list[str]) -> None:
    labels = ["late", "lost"] * 15
    records = [{"text": LONG, "what": label, "when": value} for label, value in zip(labels, other, strict=True)]
    assert find_columns(read_rows(records)).label == "what"
    numbers = [{"text": LONG, "price": number, "when": value} for number, value in enumerate(other)]
    assert find_columns(read_rows(numbers)).label == "price"
    with pytest.raises(InputError, match="label"):
        find_columns(read_rows([{"text": LONG, "when": value} for value in other]))


def test_what_is_named_is_not_guessed() -> None:
    data = two(text=LONG, title=LONG, label="a", sentence1="b", sentence2="c", target="d")
    assert find_columns(data, text_column="title") == ColumnNames("title", None, "label", ("label",))
    assert find_columns(data, pair_column="sentence2").text == "sentence1"
    assert find_columns(data, pair_column="title") == ColumnNames("text", "title", "label", ("text", "label"))
    named = find_columns(data, text_column="text", pair_column="title", label_column="target")
    assert named == ColumnNames("text", "title", "target", ())
    assert named.to_dict() == {"text": "text", "pair": "title", "label": "target"}
    assert find_columns(two(target=LONG, label="a"), label_column="label").text == "target"
    for wrong, said in (
        ({"text_column": "body"}, "no column 'body', expected one of text, "),
        ({"label_column": "Label"}, "no column 'Label'"),
        ({"text_column": "text", "pair_column": "text"}, "columns are text, text, expected a different column"),
    ):
        with pytest.raises(ArgumentError, match=said):
            find_columns(data, **wrong)  # type: ignore[arg-type]
    # Labels may be left out.
    assert find_columns(two(text="a", label="b", score=3), labels=False) == ColumnNames("text", None, None, ("text",))
    assert find_columns(two(words="a"), labels=False).label is None
    assert find_columns(two(words="a", label="b", score="c", y="d"), labels=False).text == "words"


@together("columns,said,hint", [
    ({"review": "a", "comment": "b", "label": "c"}, "text column may be review or comment (", "text_column="),
    ({"one": LONG, "two": LONG, "label": "c"}, "text column may be one or two (", "text_column="),
    ({"one": 1, "label": "c"}, "no column is known to contain the texts", "text_column="),
    ({"text": "a", "class": "b", "score": 3}, "label column may be class or score (", "label_column="),
    ({"text": "a", "b": 1, "c": 2}, "label column may be b or c (", "label_column="),
    ({"text": "a", "id": 1}, "no column has labels", "label_column="),
    ({"text": "a"}, "no column has labels", "a column called label"),
])  # fmt: skip
def test_several_possible_columns_are_refused_with_the_list(columns: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        find_columns(two(**columns))
    assert said in caught.value.message and caught.value.message.endswith(f"(columns: {', '.join(columns)})")
    assert caught.value.hint and hint in caught.value.hint


@together("name,content,said", [
    ("a.csv", "great film,good\nbad film,bad\nfine film,good\n", "'good'.*line 1"),
    ("a.csv", "great film,y\nbad film,n\nfine film,y\n", "'y'.*line 1"),
    ("a.csv", f"I have never seen {'so ' * 20}long a film,bad\nfine film,good\n", "'I have never.*line 1"),
    *(("a.tsv", table(labels), "no_header=True") for labels in ("1221", "0101")),
])  # fmt: skip
def test_a_table_without_a_header_is_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        find_columns(read_rows(path))
    assert re.search(said, f"{caught.value.message} {caught.value.hint}")
    if name == "a.tsv":  # columns are numbers then
        found = read_rows(path, header=False)
        assert found.columns == ("1", "2") and len(found) == 4
        assert find_columns(found) == ColumnNames("2", None, "1", ("text", "label"))


def test_names_of_columns_may_be_values(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("words,spam\nbuy now and pay much later,spam\nsee you at noon tomorrow,ham\n")
    assert find_columns(read_rows(path), text_column="words", label_column="spam").label == "spam"
    path.write_text(f"text,label,{'how satisfied are you ' * 4}\ntext,label,3\nb,c,4\n")
    assert find_columns(read_rows(path)) == ColumnNames("text", None, "label", ("text", "label"))
