"""`mlxbert classify`: pairs, labels from the command line, columns that are guessed, and how it looks in a terminal."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import mlxbert
from mlxbert.labels.labels import Labels
from tests.cli.test_terminal import colours, plain
from tests.helpers.cases import together
from tests.helpers.classifiers import EMOTIONS, NLI, SENTIMENT, save_classifier
from tests.helpers.program import TERMINALS, Terminal, call, terminal
from tests.helpers.rooms import needs

pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of each kind."""
    folder = tmp_path_factory.mktemp("classifiers")
    chosen = replace(EMOTIONS, thresholds=(0.1, 0.2, 0.999, 0.001))
    for name, labels in {"one": SENTIMENT, "several": chosen, "nli": NLI}.items():
        save_classifier(folder / name, labels)
    return folder


@pytest.fixture(scope="module")
def model(folders: Path) -> str:
    return str(folders / "one")


def test_each_text_is_paired_with_the_one_that_is_given(model: str) -> None:
    pairs = [(text, "a dog") for text in ("the cat sat", "")]
    wanted = [result.to_dict() for result in mlxbert.classify(mlxbert.load(model), pairs)]
    assert call("classify", "the cat sat", "", "--pair", "a dog", "--model", model).lines == wanted
    assert call("classify", "--pair", "a dog", "--model", model, stdin=b"the cat sat\n\n").lines == wanted


@together(
    "given,expected",
    [
        (["a,b"], {"a", "b"}),
        (["a", "b , c"], {"a", "b", "c"}),
        (['"a, b",c'], {"a, b", "c"}),
        (["a", '"b, c"'], {"a", "b, c"}),
        (["say 5\" it's"], {"say 5\" it's"}),
    ],
)
def test_labels_are_split_like_a_row_of_a_table(given: list[str], expected: set[str], folders: Path) -> None:
    options = [word for text in given for word in ("--labels", text)]
    (line,) = call("classify", "the cat", *options, "--model", str(folders / "nli")).lines
    assert {label["label"] for label in line["labels"]} == expected


def test_labels_are_checked_before_the_model_is_looked_for(tmp_path: Path) -> None:
    for options in (["--labels", "a,a"], ["--labels", "a", "--hypothesis", "none"]):
        call("classify", "the cat", *options, "--model", str(tmp_path / "missing")).fails(2)


@TERMINALS
def test_a_bar_for_each_label(show: Terminal, model: str) -> None:
    outcome, shown = show("classify", "the cat", "a dog", "--model", model)
    rows = plain(shown)
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    best = call("classify", "the cat", "--model", model).lines[0]["labels"][0]["label"]
    assert rows[0] == "the cat" and rows[1].startswith(best) and rows[4:6] == ["", "a dog"]
    for row in (*rows[1:4], *rows[6:9]):
        assert re.fullmatch(r"(negative|neutral|positive) +[█▉▊▋▌▍▎▏]* +\d+\.\d%", row)
    assert colours(shown)


def test_chosen_labels_have_a_check_mark_and_are_shown_however_small_they_are(folders: Path, tmp_path: Path) -> None:
    _, shown = terminal("classify", "the cat", "--pair", "a dog", "--model", str(folders / "several"))
    found = call("classify", "the cat", "--pair", "a dog", "--model", str(folders / "several")).lines[0]["labels"]
    rows = plain(shown)
    assert rows[:2] == ["A  the cat", "B  a dog"]
    assert [row.startswith("✓ ") for row in rows[2:6]] == [label["chosen"] for label in found]
    assert 0 < sum(label["chosen"] for label in found) < 4
    names = tuple(f"label {number}" for number in range(9))
    for thresholds, count in (((0.0,) * 9, 9), ((1.0,) * 9, 5)):
        labels = Labels(names, "multi_label_classification", thresholds)
        arguments = ["classify", "the cat", "--model", str(save_classifier(tmp_path / str(count), labels))]
        rows = plain(terminal(*arguments)[1])
        assert sum("%" in row for row in rows) == count
        assert ("and 4 more, see --top-k" in rows) is (count == 5)
        assert sum("%" in row for row in plain(terminal(*arguments, "--top-k", "7")[1])) == 7


def test_thresholds_of_labels_stand_beside_their_scores(tmp_path: Path) -> None:
    known = Labels(("joy", "anger"), "multi_label_classification", (0.01, 0.99))
    model = save_classifier(tmp_path / "model", known)
    rows = plain(terminal("classify", "the cat", "--model", str(model))[1])[1:3]
    told = {row.replace("✓", "").split()[0]: row for row in rows}
    assert told["joy"].startswith("✓") and told["joy"].endswith("threshold 1.0%")
    assert not told["anger"].startswith("✓") and told["anger"].endswith("threshold 99.0%")
    without = save_classifier(tmp_path / "without", Labels(("joy", "anger"), "multi_label_classification"))
    assert "from" not in terminal("classify", "the cat", "--model", str(without))[1]


@needs("train")
@pytest.mark.parametrize(
    ("header", "expected"),
    [("review,stars", ("a", None)), ("premise,hypothesis", ("a", "b")), ("label,body", ("b", None))],
)
def test_columns_of_a_table_are_guessed_as_training_guesses_them(
    header: str, expected: tuple[str, str | None], model: str, tmp_path: Path
) -> None:
    texts = {"a": "the cat sat", "b": "he bought milk"}
    file = tmp_path / "in.csv"
    file.write_text(f"{header}\n{','.join(texts.values())}\n")
    outcome = call("classify", "--input", str(file), "--model", model)
    assert outcome.status == 0 and outcome.err.count("note: ") == 1 and "--text-column" in outcome.err
    (line,) = outcome.lines
    assert (line["text"], line.get("pair")) == tuple(one and texts[one] for one in expected)


@needs("train")
@pytest.mark.parametrize(("header", "said"), [("the cat sat on\tx", True), ("body of it\tn", False)])
def test_a_header_that_is_a_text_points_to_no_header(header: str, said: bool, model: str, tmp_path: Path) -> None:
    file = tmp_path / "in.tsv"
    file.write_text(header + "\nthe cat sat on the mat\t1\nthe dog sat\t1\nhe bought milk\t1\n")
    outcome = call("classify", "--input", str(file), "--model", model)
    assert len(outcome.lines) == 3 and "--text-column" in outcome.err and ("--no-header" in outcome.err) == said


def test_columns_that_cannot_be_told_are_to_be_named(model: str, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text("comment,message\nthe cat,a dog\n")
    call("classify", "--input", str(file), "--model", model).fails(1, "comment, message", "--text-column")
    file.write_text("premise,hypothesis\nthe cat,a dog\n")
    call("classify", "--input", str(file), "--model", model, "--pair", "a man").fails(1, "premise, hypothesis")
    named = call("classify", "--input", str(file), "--model", model, "--text-column", "premise")
    assert named.lines[0]["text"] == "the cat" and "note: " not in named.err


def test_a_word_after_the_labels_is_noted_to_be_a_text(folders: Path) -> None:
    nli = str(folders / "nli")
    assert "--labels cat,city" in call("classify", "Paris", "--labels", "cat", "city", "--model", nli).err
    assert "--labels" not in call("classify", "Paris", "--labels", "cat,city", "--model", nli).err
