"""`mlxbert classify --labels`: labels from the command line, what is printed, what cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from tests.helpers.classifiers import NLI, SENTIMENT, save_classifier
from tests.helpers.program import call


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
        (["--labels", ""], "--labels is ''"),
        (["--labels", "a,,b"], "--labels is 'a,,b'"),
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
    call("classify", "the cat").fails(1, "hint: ", "mnli")
    other = save_classifier(tmp_path / "other", SENTIMENT)
    call("classify", "the cat", "--labels", "a,b", "--model", str(other)).fails(1, "'entail'", "hint: ", "NLI")
