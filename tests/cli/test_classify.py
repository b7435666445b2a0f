"""`mlxbert classify`: texts and pairs from everywhere, what is printed for each kind of model, long runs, bad input."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.labels.labels import Labels
from tests.cli.test_terminal import colours, plain
from tests.helpers.classifiers import EMOTIONS, SENTIMENT, STARS, save_classifier
from tests.helpers.program import TERMINALS, Terminal, call, terminal
from tests.helpers.rooms import needs

PAIRS = [("the cat sat", "a dog"), ("he bought milk", 'in the "city" , \nparis')]
CSV = 'id,body,question\n1,the cat sat,a dog\n2,he bought milk,"in the ""city"" , \nparis"\n'
LONG = "the cat sat on the mat , a man went to the store . " * 4


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of each kind."""
    folder = tmp_path_factory.mktemp("classifiers")
    chosen = replace(EMOTIONS, thresholds=(0.1, 0.2, 0.999, 0.001))
    for name, labels in {"one": SENTIMENT, "several": chosen, "number": STARS}.items():
        save_classifier(folder / name, labels)
    return folder


@pytest.fixture(scope="module")
def model(folders: Path) -> str:
    return str(folders / "one")


@pytest.fixture(scope="module")
def wanted(model: str) -> list[Any]:
    """The lines for `PAIRS`."""
    return lines(mlxbert.classify(mlxbert.load(model), PAIRS))


def lines(results: Any) -> list[Any]:
    """Results of Python as the command line prints them."""
    return [json.loads(json.dumps(result.to_dict())) for result in results]


def assert_alike(found: list[Any], wanted: list[Any]) -> None:
    """The same texts with the same scores, which differ in the last digit between batches."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one["text"], one.get("pair")) == (other["text"], other.get("pair"))
        scores, expected = ({label["label"]: label["score"] for label in line["labels"]} for line in (one, other))
        assert scores == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "keys"),
    [("one", ["text", "labels"]), ("several", ["text", "labels"]), ("number", ["text", "value"])],
)
def test_a_line_per_text_is_that_of_python(name: str, keys: list[str], folders: Path) -> None:
    outcome = call("classify", "the cat", "a dog", "--model", str(folders / name))
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.lines == lines(mlxbert.classify(mlxbert.load(folders / name), ["the cat", "a dog"]))
    assert [list(line) for line in outcome.lines] == [keys] * 2
    if name != "number":
        wide = name == "several"
        assert {tuple(label) for label in outcome.lines[0]["labels"]} == {("label", "score", *["chosen"] * wide)}


def test_all_labels_or_the_best(folders: Path) -> None:
    arguments = ["classify", "the cat", "--model", str(folders / "several")]
    every, best = call(*arguments).lines[0]["labels"], call(*arguments, "--top-k", "2").lines[0]["labels"]
    assert len(every) == 4 and best == every[:2]
    call(*arguments, "--top-k", "0").fails(2, "--top-k")


def test_each_text_is_paired_with_the_one_that_is_given(model: str, wanted: list[Any]) -> None:
    found = [call("classify", text, "--pair", pair, "--model", model).lines[0] for text, pair in PAIRS]
    assert_alike(found, wanted)
    assert list(found[0]) == ["text", "pair", "labels"]
    piped = call("classify", "--pair", "a dog", "--model", model, stdin=b"the cat sat\n\n")
    assert [(line["text"], line["pair"]) for line in piped.lines] == [("the cat sat", "a dog"), ("", "a dog")]
    assert_alike(piped.lines[:1], wanted[:1])


def parquet() -> bytes:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    written, columns = io.BytesIO(), list(zip(*PAIRS, strict=True))
    pq.write_table(pa.table({"body": columns[0], "question": columns[1]}), written)
    return written.getvalue()


def objects() -> str:
    return "".join(json.dumps({"body": text, "question": pair}) + "\n" for text, pair in PAIRS)


@pytest.mark.parametrize("name", ["in.csv", "in.jsonl", "in.parquet"])
def test_pairs_come_from_two_columns_of_any_format(name: str, model: str, wanted: list[Any], tmp_path: Path) -> None:
    content = {"in.csv": CSV.encode(), "in.jsonl": objects().encode()}.get(name) or parquet()
    (tmp_path / name).write_bytes(content)
    arguments = ["classify", "--input", str(tmp_path / name), "--model", model, "--text-column", "body"]
    outcome = call(*arguments, "--pair-column", "question")
    assert outcome.status == 0
    assert_alike(outcome.lines, wanted)
    texts, kept = call(*arguments), ["id"] if name == "in.csv" else []
    assert [list(line) for line in texts.lines] == [[*kept, "text", "labels"]] * 2
    assert [line["text"] for line in texts.lines] == [text for text, _ in PAIRS]
    missing = call(*arguments, "--pair-column", "b")
    missing.fails(1)
    assert "'b'" in missing.out + missing.err


def test_the_text_of_a_pair_is_in_text_unless_said(model: str, wanted: list[Any], tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("b\ttext\na dog\tthe cat sat\n", encoding="utf-8")
    arguments = ["classify", "--input", str(tmp_path / "in.tsv"), "--model", model]
    assert_alike(call(*arguments, "--pair-column", "b").lines, wanted[:1])
    assert call(*arguments, "--pair-column", "text", "--text-column", "b").lines[0]["pair"] == "the cat sat"
    call(*arguments, "--pair-column", "c").fails(1, "'c'", "hint: ", "--text-column and --pair-column")
    call(*arguments, "--text-column", "c").fails(1, "'c'", "hint: ", "--text-column")


def test_columns_from_stdin_are_those_of_json_lines_unless_said(model: str, wanted: list[Any]) -> None:
    arguments = ["classify", "--text-column", "body", "--pair-column", "question", "--model", model]
    assert_alike(call(*arguments, stdin=objects().encode()).lines, wanted)
    assert_alike(call(*arguments, "--format", "csv", stdin=CSV.encode()).lines, wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--text-column", "a", "--input", "in.txt"],
            "--text-column works only with .jsonl, .json, .csv, .tsv, .parquet",
        ),
        (["--pair-column", "a", "--input", "in.txt"], "--pair-column works only with"),
        (["--pair-column", "a", "--pair", "b", "--input", "in.csv"], "--pair cannot be combined with --pair-column"),
        (["the cat", "--pair-column", "a"], "--pair-column works only with --input"),
        (["the cat", "--text-column", "a"], "--text-column works only with --input"),
        (["--overflow", "cut", "the cat"], "--overflow"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], said: str, model: str) -> None:
    outcome = call("classify", *options, "--model", model)
    outcome.fails(2, said)
    assert outcome.out == ""


def test_bad_records_keep_their_places(model: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a", "b": "c"}\n{"text": "a"}\n[]\n{"text": 3, "b": "c"}\n{"text": "", "b": ""}\n')
    arguments = ["classify", "--input", str(path), "--pair-column", "b", "--model", model]
    outcome = call(*arguments)
    outcome.fails(1, "3 of 5 inputs failed")
    assert [line.get("index") for line in outcome.lines] == [None, 1, 2, 3, None]
    assert "no field 'b'" in outcome.lines[1]["error"]
    strict = call(*arguments, "--strict")
    strict.fails(1, f"input 1: {path}, line 2: the record has no field 'b'", "--text-column and --pair-column")


def test_a_long_text_is_counted_covered_or_refused(model: str) -> None:
    cut = call("classify", LONG, "the cat", "--model", model)
    assert cut.status == 0 and "1 of 2 inputs was too long" in cut.err
    covered = call("classify", LONG, "--overflow", "window", "--model", model)
    assert covered.err == "" and covered.lines[0]["labels"] != cut.lines[0]["labels"]
    call("classify", LONG, "--overflow", "error", "--model", model).fails(1, "58 tokens", "at most 32")
    call("classify", LONG, "--pair", LONG, "--overflow", "window", "--model", model).fails(1, "--overflow truncate")


def test_a_model_without_a_classifier_is_refused_with_what_makes_one() -> None:
    call("classify", "the cat").fails(1, "no classification head", "hint: ", "mlxbert finetune classify")


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
