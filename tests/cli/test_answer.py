"""`mlxbert answer`: contexts from everywhere, how it looks in a terminal; training and evaluation as commands."""

import json
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from tests.cli.test_terminal import colours, plain
from tests.helpers.answering import save_answering
from tests.helpers.program import TERMINALS, Terminal, call, terminal
from tests.helpers.rooms import needs

pytestmark = pytest.mark.usefixtures("loaded_once")

QUESTION, CONTEXT = "who sat ?", "the cat sat on the mat .\r\n\r\na man went to the store , he bought milk"
ALWAYS = ("--no-answer-threshold", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_answering(tmp_path_factory.mktemp("answering") / "model"))


def lines(model: str, items: Any, **options: Any) -> list[Any]:
    """What Python gives, as the command line prints it."""
    found = mlxbert.answer(mlxbert.load(model), items, **options)
    return [json.loads(json.dumps(result.to_dict())) for result in found]


def test_a_context_comes_from_a_file_as_it_is_or_from_stdin(model: str, tmp_path: Path) -> None:
    path = tmp_path / "long.md"
    path.write_bytes(b"\xef\xbb\xbf" + CONTEXT.encode())
    (wanted,) = lines(model, [QUESTION], context=CONTEXT)
    assert call("answer", QUESTION, "--context-file", str(path), "--model", model).lines == [wanted]
    assert call("answer", QUESTION, "--context-file", "-", "--model", model, stdin=CONTEXT.encode()).lines == [wanted]


@pytest.mark.slow
def test_a_context_may_be_a_document(model: str, tmp_path: Path) -> None:
    text = CONTEXT.partition("\r")[0]
    (wanted,) = lines(model, [QUESTION], context=text)
    page = tmp_path / "long.html"
    page.write_text(f"<title>none</title><p>{text}</p>")
    assert call("answer", QUESTION, "--context-file", str(page), "--model", model).lines == [wanted]
    (tmp_path / "a.docx").write_bytes(b"no document")
    call("answer", QUESTION, "--context-file", str(tmp_path / "a.docx"), "--model", model).fails(1, "a.docx: ")


def test_questions_from_a_pipe_have_the_context_that_is_given_unless_they_have_their_own(
    model: str, tmp_path: Path
) -> None:
    questions = call("answer", "--model", model, "--context", CONTEXT, stdin=b"who sat ?\nwhere ?\n")
    assert questions.lines == lines(model, [QUESTION, "where ?"], context=CONTEXT)
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"question": QUESTION, "context": CONTEXT}) + "\n")
    for option in ("--context", "--context-file"):
        call("answer", "--input", str(path), option, str(path), "-m", model).fails(2, "'context'", "hint: ")


def test_a_context_that_is_not_utf8_is_refused_with_the_offset(model: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"the caf\xe9")
    call("answer", QUESTION, "--context-file", str(tmp_path / "a.txt"), "--model", model).fails(1, "offset 7", "UTF-8")


@pytest.mark.parametrize("content", [b"", b" \n"])
def test_a_file_without_a_text_is_named(content: bytes, model: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    call("answer", QUESTION, "--context-file", str(tmp_path / "a.txt"), "--model", model).fails(1, "a.txt: ")


@TERMINALS
def test_the_span_stands_out_in_its_paragraph(show: Terminal, model: str) -> None:
    outcome, shown = show("answer", QUESTION, "--context", CONTEXT, "--model", model, *ALWAYS)
    (found,) = lines(model, [QUESTION], context=CONTEXT, no_answer_threshold=1)
    rows = plain(shown)
    assert (outcome.status, outcome.out) == (0, "")
    number = CONTEXT.count("\n", 0, found["start"]) + 1
    assert rows[0] == QUESTION and rows[1].startswith(found["answer"])
    assert rows[1].endswith(f"{found['start']} to {found['end']}, line {number}")
    assert rows[2].strip() == CONTEXT.split("\r\n\r\n")[number > 1] and colours(shown)


def test_no_answer_is_shown_with_the_span_that_was_not_sure_enough(model: str) -> None:
    _, shown = terminal("answer", QUESTION, "--context", CONTEXT, "--model", model, "--no-answer-threshold", "0")
    rows = plain(shown)
    assert rows[1].startswith("no answer") and rows[2].startswith("not sure enough: ")


@needs("train")
def test_a_file_of_squad_becomes_a_model_and_its_evaluation(model: str, tmp_path: Path) -> None:
    names = ("paris", "tokyo", "cat", "dog")
    words = ("where", "to", "of")

    def qas(name: str) -> list[dict[str, Any]]:
        answers = [{"text": name, "answer_start": 16}]
        return [{"question": f"{word} ?", "answers": [] if word == "of" else answers} for word in words]

    asked = [{"context": f"the man went to {name} .", "qas": qas(name)} for name in names for _ in range(3)]
    path, target = tmp_path / "train.json", tmp_path / "trained"
    path.write_text(json.dumps({"data": [{"paragraphs": asked}]}), encoding="utf-8")
    given = ["--train", str(path), "--model", model, "--output", str(target)]
    trained = call("finetune", "answer", *given, "--epochs", "1", "--stride", "5")
    assert trained.status == 0, trained.err
    assert trained.lines[0]["report"]["splits"][0]["labels"].keys() == {"answer", "no answer"}
    assert trained.lines[-1]["event"] == "finished" and trained.lines[-1]["metric"] == "f1"
    found = call("evaluate", "answer", "--data", str(path), "--model", str(target), "--max-words", "3")
    assert found.status == 0, found.err
    assert found.lines[0]["examples"] == 36
    assert {"f1", "exact_match", "no_answer_accuracy"} <= found.lines[0]["metrics"].keys()
    outcome, shown = terminal("evaluate", "answer", "--data", str(path), "--model", str(target))
    assert outcome.status == 0 and "exact_match" in shown and "no answer" in shown
    path.write_text("{}", encoding="utf-8")
    call("evaluate", "answer", "--data", str(path), "--model", str(target)).fails(1, "'data' is missing", "hint: ")
