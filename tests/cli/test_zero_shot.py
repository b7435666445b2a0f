"""`mlxbert classify --labels`: labels from the command line, what is printed, what cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from tests.cli.test_terminal import plain
from tests.helpers.classifiers import NLI, SENTIMENT, save_classifier
from tests.helpers.program import call, terminal

LONG = "the cat sat on the mat , a man went to the store . " * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_classifier(tmp_path_factory.mktemp("nli") / "model", NLI))


def names(line: dict[str, Any]) -> set[str]:
    return {label["label"] for label in line["labels"]}


def test_a_line_per_text_is_that_of_python(model: str) -> None:
    for options, given in (
        ((), {}),
        (("--hypothesis", "a {}"), {"hypothesis": "a {}"}),
        (("--multi", "--top-k", "1"), {"multi": True, "top_k": 1}),
    ):
        outcome = call("classify", "the cat", "a dog", "--labels", "milk, tokyo", *options, "--model", model)
        assert (outcome.status, outcome.err) == (0, "")
        found = mlxbert.classify(mlxbert.load(model), ["the cat", "a dog"], labels=["milk", "tokyo"], **given)
        assert outcome.lines == [json.loads(json.dumps(result.to_dict())) for result in found]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a,b"], {"a", "b"}),
        (["a", "b , c"], {"a", "b", "c"}),
        (['"a, b",c'], {"a, b", "c"}),
        (["a", '"b, c"'], {"a", "b, c"}),
        (["say 5\" it's"], {"say 5\" it's"}),
    ],
)
def test_labels_are_split_like_a_row_of_a_table(given: list[str], expected: set[str], model: str) -> None:
    options = [word for text in given for word in ("--labels", text)]
    assert names(call("classify", "the cat", *options, "--model", model).lines[0]) == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--labels", ""], "--labels are"),
        (["--labels", "a,,b"], "is empty"),
        (["--labels", "a", "--labels", "a"], "'a' is given twice"),
        (["--labels", "a", "--hypothesis", "none"], "--hypothesis is 'none'"),
        (["--hypothesis", "a {}"], "--hypothesis works only with --labels"),
        (["--multi"], "--multi works only with --labels"),
        (["--labels", "a", "--pair", "b"], "--labels"),
        (["--labels", "a", "--overflow", "window"], "--overflow is 'window'"),
    ],
)
def test_options_that_cannot_be_used(options: list[str], told: str, model: str) -> None:
    outcome = call("classify", "the cat", *options, "--model", model)
    outcome.fails(2, told)
    assert outcome.out == ""


@pytest.mark.parametrize("options", [["--labels", "a,a"], ["--labels", "a", "--hypothesis", "none"]])
def test_options_are_checked_before_the_model_is_looked_for(options: list[str], tmp_path: Path) -> None:
    call("classify", "the cat", *options, "--model", str(tmp_path / "missing")).fails(2)


def test_models_that_cannot_do_it_say_what_can(tmp_path: Path) -> None:
    call("classify", "the cat", "--labels", "a,b").fails(1, "hint: ", "mnli")
    other = save_classifier(tmp_path / "other", SENTIMENT)
    call("classify", "the cat", "--labels", "a,b", "--model", str(other)).fails(1, "'entail'", "hint: ", "NLI")


def test_a_file_of_texts_counts_those_that_are_truncated(model: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(f"the cat\n{LONG}\n\n", encoding="utf-8")
    arguments = ["classify", "--input", str(tmp_path / "in.txt"), "--labels", "milk,tokyo", "--model", model]
    outcome = call(*arguments)
    assert outcome.status == 0 and "1 of 3 inputs was too long" in outcome.err
    assert [line["text"] for line in outcome.lines] == ["the cat", LONG, ""]
    written = tmp_path / "out.jsonl"
    assert call(*arguments, "--output", str(written)).status == 0
    assert [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()] == outcome.lines
    call(*arguments, "--overflow", "error").fails(1, "1 of 3 inputs failed")


def test_a_terminal_shows_bars_and_checks(model: str) -> None:
    many = ["--labels", ",".join(f"w{number}" for number in range(8)), "--model", model]
    one = plain(terminal("classify", "the cat", *many)[1])
    assert sum(row.endswith("%") for row in one) == 5 and "and 3 more" in "".join(one)
    several = plain(terminal("classify", "the cat", *many, "--multi", "--json")[1])
    chosen = [label["label"] for label in json.loads("".join(several))["labels"] if label["chosen"]]
    shown = plain(terminal("classify", "the cat", *many, "--multi")[1])
    assert [row.split()[1] for row in shown if row.startswith("✓")] == chosen
