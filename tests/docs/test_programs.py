"""The programs of `examples/`, run as a reader runs them, and the cells of the notebook."""

import ast
import csv
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mlxbert
from tests.docs.pages import ROOT
from tests.helpers.cases import ALL

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))
MOST_LINES = 85
# A program that trains or searches for half a minute runs weekly; what it calls is tested with every change.
LONG = pytest.mark.skipif(not ALL, reason="takes half a minute: MLXBERT_TEST_ALL=1 runs it")


def run(program: str, *arguments: str, folder: Path) -> str:
    """What a program prints, in an empty folder and with a data folder of its own."""
    own = {"MLXBERT_DATA": str(folder / ".data"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *arguments], cwd=folder, env={**os.environ, **own},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_program_is_short_and_says_how_it_is_run_and_is_in_the_table() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert {"stars.py", "faq.py"} <= set(PROGRAMS)
    for name in PROGRAMS:
        source = (EXAMPLES / name).read_text(encoding="utf-8")
        assert f"\n    python examples/{name}" in (ast.get_docstring(ast.parse(source)) or ""), name
        assert len(source.splitlines()) <= MOST_LINES, name
        assert f"[{name}]({name})" in table and f"`python examples/{name}" in table, name


def test_what_the_programs_read_is_there_and_what_is_there_is_read() -> None:
    readers = [*(EXAMPLES / name for name in PROGRAMS), *(ROOT / "docs").glob("*.md")]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in readers)
    for path in (EXAMPLES / "data").iterdir():
        assert f'"{path.name}"' in sources or f"data/{path.name}" in sources, path.name


def test_no_message_is_in_the_training_and_in_the_test_data() -> None:
    train, test = (
        {row["text"] for row in csv.DictReader((EXAMPLES / "data" / name).open(encoding="utf-8", newline=""))}
        for name in ("messages.csv", "messages_test.csv")
    )
    assert len(train) == 80 and len(test) == 24 and not train & test


@pytest.mark.slow
def test_notes_are_found_by_meaning_with_file_and_line(tmp_path: Path) -> None:
    printed = run("search_notes.py", "may I put lemon peel on the compost", "--top-k", "1", folder=tmp_path)
    found = re.search(r"^([\w.]+):(\d+)$", printed, re.MULTILINE)
    assert found and found[1] == "garden.md" and "Nothing close" not in printed
    line = (EXAMPLES / "data/notes/garden.md").read_text(encoding="utf-8").split("\n")[int(found[2]) - 1]
    assert line == "## Compost"
    assert "Nothing close was found." in run("search_notes.py", "the capital of Peru", folder=tmp_path)
    (tmp_path / "papers").mkdir()
    shutil.copy(EXAMPLES / "data/manual.pdf", tmp_path / "papers")
    printed = run("search_notes.py", "which bulb does the lamp take", "papers", "--top-k", "1", folder=tmp_path)
    assert re.search(r"^manual\.pdf, page 2$", printed, re.MULTILINE)


def test_places_without_a_line_are_named_by_their_page_or_row() -> None:
    of_notes = runpy.run_path(str(EXAMPLES / "search_notes.py"))["place_of"]
    of_answers = runpy.run_path(str(EXAMPLES / "answer_with_line.py"))["place_of"]
    known = ((3, None, "", ":3"), (None, 2, "", ", page 2"), (None, None, "line 4", ", line 4"), (None, None, "", ""))
    for line, page, place, shown in known:
        found = SimpleNamespace(path=str(Path.cwd() / "a.x"), line=line, start_line=line, page=page, place=place)
        assert str(of_notes(found, Path.cwd())) == f"a.x{shown}" == of_answers(found)


@LONG
@pytest.mark.slow
def test_the_spam_filter_learns(tmp_path: Path) -> None:
    spam, ham = "Claim your free prize, click here now!", "Shall we have lunch at one?"
    printed = run("spam_filter.py", spam, ham, folder=tmp_path)
    counts = {label: (int(of), int(wrong)) for label, of, wrong in re.findall(r"(\w+): (\d+) messages, (\d+)", printed)}
    assert counts["spam"][0] == counts["ham"][0] == 12
    assert counts["spam"][1] <= 4 and counts["ham"][1] <= 1
    assert re.search(rf"^spam  [01]\.\d\d  {re.escape(spam)}$", printed, re.MULTILINE)
    assert re.search(rf"^ham   [01]\.\d\d  {re.escape(ham)}$", printed, re.MULTILINE)
    again = run("spam_filter.py", spam, folder=tmp_path)
    assert "epoch" in printed and "epoch" not in again  # the folder of the first run is used


@LONG
@pytest.mark.slow
def test_the_parties_of_contracts_are_told_from_other_names(tmp_path: Path) -> None:
    printed = run("contract_parties.py", folder=tmp_path)
    parties = {name: line.split(" / ") for name, line in re.findall(r"^(\w+\.txt): (.*)$", printed, re.MULTILINE)}
    assert parties == {
        "lease.txt": ["Dunmore Estates Ltd", "Amara Fielding"],
        "supply.txt": ["Wexcombe Ceramics GmbH", "Brightwater Kitchens Inc."],
        "translation.txt": ["Paperboat Press", "Teodor Vance"],
    }
    train = (EXAMPLES / "data/contract_sentences.jsonl").read_text(encoding="utf-8")
    assert not [name for names in parties.values() for name in names if name in train]
    assert "12 January 2026" in printed


@pytest.mark.slow
def test_the_faq_answers_what_it_knows_and_nothing_else(tmp_path: Path) -> None:
    printed = run("faq.py", "--check", str(EXAMPLES / "data/faq_check.csv"), folder=tmp_path)
    right, wrong, unanswered = map(int, re.findall(r"(\d+) (?:right|wrong|not answered)", printed.splitlines()[-1]))
    assert right + wrong + unanswered == 20 and right >= 18 and wrong <= 1
    assert "any post office" in run("faq.py", folder=tmp_path)
    assert run("faq.py", "What is the capital of Peru?", folder=tmp_path).startswith("no good answer")


def places(printed: str) -> tuple[list[str], dict[str, list[str]], list[float]]:
    """The ways to rank, the places of each query, and the means."""
    head, *lines, last = printed.splitlines()
    found = {line[36:].strip(): line[:36].split() for line in lines}
    return head.split(), found, [float(mean) for mean in last.split()[:-1]]


@LONG
@pytest.mark.slow
def test_ways_to_rank_are_compared_and_a_cross_encoder_takes_part(tmp_path: Path) -> None:
    ways, found, means = places(run("rerank.py", folder=tmp_path))
    assert ways == ["words", "reranked", "vectors", "hybrid"] and len(found) == 16
    assert found["WF-3"] == ["1"] * 4
    assert means[0] < means[1] < means[3] and means[0] < means[2]
    for row in found.values():  # what the first stage has missed is not found by reranking
        assert (row[0] == "-") == (row[1] == "-")
    head = {"sequence_classifier": mlxbert.Labels(("score",), "regression")}
    mlxbert.save(mlxbert.load(new_heads=head), tmp_path / "untrained")
    _, others, _ = places(run("rerank.py", "--reranker", str(tmp_path / "untrained"), folder=tmp_path))
    assert [row[0] for row in others.values()] == [row[0] for row in found.values()]
    assert [row[1] for row in others.values()] != [row[1] for row in found.values()]


@LONG
@pytest.mark.slow
def test_the_student_is_closer_to_its_teacher_after_distillation(tmp_path: Path) -> None:
    (corpus,) = runpy.run_path(str(EXAMPLES / "distill_model.py"))["documentation"](tmp_path / "corpus.txt")
    paragraphs = corpus.read_text(encoding="utf-8").split("\n\n")
    assert len(paragraphs) > 300
    corpus.write_text("\n\n".join(paragraphs[::16]), encoding="utf-8")
    printed = run("distill_model.py", str(corpus), "--steps", "10", folder=tmp_path)
    losses = [float(found) for found in re.findall(r"^step \d+: 1 - cosine (.*)$", printed, re.MULTILINE)]
    assert losses[-1] < 0.7 * losses[0]
    found = re.findall(r"^(\w+): (\d+) layers, cosine (\d\.\d+)", printed, re.MULTILINE)
    ends = {name: numbers for name, *numbers in found}
    assert ends["teacher"] == ["6", "1.000"]
    layers, cosine = ends["student"]
    assert layers == "3" and 0.6 < float(cosine) < 1
    assert mlxbert.load(tmp_path / "small-model").config.num_stored_layers == 3


@pytest.mark.slow
def test_a_server_answers_a_client_of_openai(tmp_path: Path) -> None:
    printed = run("openai_client.py", folder=tmp_path)
    assert ("plain HTTP" in printed) == (importlib.util.find_spec("openai") is None)
    assert "3 vectors of 384 numbers" in printed
    near, far = (float(score) for score in re.findall(r"^(-?\d\.\d\d)  ", printed, re.MULTILINE))
    assert near > 0.3 > far


@LONG
@pytest.mark.slow
def test_answers_have_the_file_and_line_that_they_stand_on(tmp_path: Path) -> None:
    printed = run("answer_with_line.py", folder=tmp_path)
    found = re.findall(r"^    (\S+):(\d+): (.+)$", printed, re.MULTILINE)
    assert [(Path(path).name, answer) for path, _, answer in found] == [
        ("rooms.md", "the white cupboard next to the sink"),
        ("fees.md", "25 euros a month"),
    ]
    for path, line, answer in found:
        assert answer in (tmp_path / path).read_text(encoding="utf-8").split("\n")[int(line) - 1]
    assert printed.endswith("Who has the key to the sauna?\n    no answer\n")


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells) and len(code) >= 9
    names: dict[str, Any] = {}
    for source in code:
        exec(source, names)
    assert names["filled"].masks[0].fills[0].token == "japan"
    assert names["vectors"].shape == (4, 384) and names["matrix"].argmax(-1).tolist() == [2, 3]
    assert "refund" in names["nearest"][0].text and "<table>" in names["nearest"]._repr_html_()
    assert "holidays" in names["hits"][0].text
    assert [row["label"] for row in names["rows"]] == ["delivery", "payment", "delivery"]
    assert capsys.readouterr().out.count("delivery") == 2
