"""Columns guessed from names and types."""

from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.train.data.columns import ColumnNames, find_columns
from mlxbert.train.data.labelled_rows import LabelledRows, read_rows
from mlxbert.train.data.related_texts import find_related_columns

LONG = "a sentence that is longer than the name of any label"


def rows(**columns: Any) -> LabelledRows:
    """Two rows with these values."""
    return read_rows([columns, columns])


@pytest.mark.parametrize(
    ("columns", "found"),
    [
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
    ],
)
def test_columns_are_guessed(columns: dict[str, Any], found: tuple[str, str | None, str]) -> None:
    guessed = ("text", "label") if found[1] is None else ("text", "pair", "label")
    assert find_columns(rows(**columns)) == ColumnNames(*found, guessed)


@pytest.mark.parametrize(
    "other",
    [
        [f"2026-01-{number:02} 10:00" for number in range(1, 31)],
        ["3.12.2025", *["31/12/2025"] * 29],
        [f"customer {number}" for number in range(30)],
    ],
)
def test_dates_and_names_of_their_own_are_no_labels(other: list[str]) -> None:
    labels = ["late", "lost"] * 15
    records = [{"text": LONG, "what": label, "when": value} for label, value in zip(labels, other, strict=True)]
    assert find_columns(read_rows(records)).label == "what"
    numbers = [{"text": LONG, "price": number, "when": value} for number, value in enumerate(other)]
    assert find_columns(read_rows(numbers)).label == "price"
    with pytest.raises(InputError, match="label"):
        find_columns(read_rows([{"text": LONG, "when": value} for value in other]))


def test_what_is_named_is_not_guessed() -> None:
    data = rows(text=LONG, title=LONG, label="a", sentence1="b", sentence2="c", target="d")
    assert find_columns(data, text_column="title") == ColumnNames("title", None, "label", ("label",))
    assert find_columns(data, pair_column="sentence2").text == "sentence1"
    assert find_columns(data, pair_column="title") == ColumnNames("text", "title", "label", ("text", "label"))
    named = find_columns(data, text_column="text", pair_column="title", label_column="target")
    assert named == ColumnNames("text", "title", "target", ())
    assert named.to_dict() == {"text": "text", "pair": "title", "label": "target"}
    assert find_columns(rows(target=LONG, label="a"), label_column="label").text == "target"


def test_labels_may_be_left_out() -> None:
    assert find_columns(rows(text="a", label="b", score=3), labels=False) == ColumnNames("text", None, None, ("text",))
    assert find_columns(rows(words="a"), labels=False).label is None
    assert find_columns(rows(words="a", label="b", score="c", y="d"), labels=False).text == "words"


@pytest.mark.parametrize(
    ("columns", "said", "hint"),
    [
        ({"review": "a", "comment": "b", "label": "c"}, "text column may be review or comment (", "text_column="),
        ({"one": LONG, "two": LONG, "label": "c"}, "text column may be one or two (", "text_column="),
        ({"one": 1, "label": "c"}, "no column is known to contain the texts", "text_column="),
        ({"text": "a", "class": "b", "score": 3}, "label column may be class or score (", "label_column="),
        ({"text": "a", "b": 1, "c": 2}, "label column may be b or c (", "label_column="),
        ({"text": "a", "id": 1}, "no column has labels", "label_column="),
        ({"text": "a"}, "no column has labels", "a column called label"),
    ],
)
def test_several_possible_columns_are_refused_with_the_list(columns: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        find_columns(rows(**columns))
    assert said in caught.value.message and caught.value.message.endswith(f"(columns: {', '.join(columns)})")
    assert caught.value.hint and hint in caught.value.hint


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"text_column": "body"}, "no column 'body', expected one of text, label"),
        ({"label_column": "Label"}, "no column 'Label'"),
        ({"text_column": "text", "pair_column": "text"}, "columns are text, text, expected a different column"),
    ],
)
def test_names_that_do_not_fit_are_refused(named: dict[str, str], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        find_columns(rows(text="a", label="b"), **named)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("great film,good\nbad film,bad\nfine film,good\n", "'good'"),
        ("great film,y\nbad film,n\nfine film,y\n", "'y'"),
        ("I have never seen a film that is so long and so dull as this one was,bad\nfine film,good\n", "'I have never"),
    ],
)
def test_a_table_without_a_header_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "train.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=said) as caught:
        find_columns(read_rows(path))
    assert caught.value.hint and "line 1" in caught.value.hint


def test_names_of_columns_may_be_values(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("words,spam\nbuy now and pay much later,spam\nsee you at noon tomorrow,ham\n")
    assert find_columns(read_rows(path), text_column="words", label_column="spam").label == "spam"
    path.write_text(f"text,label,{'how satisfied are you ' * 4}\ntext,label,3\nb,c,4\n")
    assert find_columns(read_rows(path)) == ColumnNames("text", None, "label", ("text", "label"))


@pytest.mark.parametrize("labels", ["1221", "0101"])
def test_columns_of_a_table_without_a_header_are_numbers(tmp_path: Path, labels: str) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{label}\ta text of some length, number {n}\n" for n, label in enumerate(labels)))
    found = read_rows(path, header=False)
    assert found.columns == ("1", "2") and len(found) == 4
    assert find_columns(found) == ColumnNames("2", None, "1", ("text", "label"))
    with pytest.raises(InputError) as caught:
        find_columns(read_rows(path))
    assert caught.value.hint and "no_header=True" in caught.value.hint


def test_an_error_does_not_list_the_same_columns_twice() -> None:
    for find, columns in ((find_related_columns, ("headline", "summary")), (find_columns, ("title", "summary"))):
        with pytest.raises(InputError) as caught:
            find(rows(**dict.fromkeys(columns, LONG)))
        message = caught.value.message
        assert [message.count(column) for column in columns] == [1, 1] and "the data have" not in message
