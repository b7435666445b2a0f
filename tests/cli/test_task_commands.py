"""What every command of a task does alike: one table of commands, and one test for each thing that they have in common.

What is special to a command is in the file that has its name.
"""

import csv
import io
import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mlxbert import loading
from mlxbert.cli.output.formats import ANY_VECTORS, FORMATS, RESULTS, VECTORS
from mlxbert.tasks.catalogue import CATALOGUE, find_task
from tests.helpers import token_folders
from tests.helpers.cases import together
from tests.helpers.gliner_models import LABELS
from tests.helpers.program import Outcome, call
from tests.helpers.sparse_folder import save_splade
from tests.helpers.task_models import save_discriminator

pytestmark = pytest.mark.usefixtures("loaded_once")
TEXTS = ("the cat sat on the mat", "a dog , paris")
GLINER = Path(__file__).parents[1] / "tasks" / "gliner_goldens" / "bert"


@dataclass(frozen=True)
class Row:
    """A command, and a task of the catalogue that it runs."""

    task: str
    model: str
    more: tuple[str, ...] = ()  # options that belong to the command
    given: dict[str, Any] = field(default_factory=dict)  # the same for the library
    items: tuple[Any, ...] = TEXTS
    refused: tuple[str, ...] = ()  # what is in the error, and in its hint, if the built-in model cannot do it
    fields: tuple[str, ...] = ("text",)  # that are read
    read: tuple[str, ...] = ()  # options without which they are not

    @property
    def command(self) -> tuple[str, ...]:
        return ("embed" if self.task.startswith("embed") else self.task, *self.more)

    def values(self, item: Any) -> tuple[str, ...]:
        return (item,) if isinstance(item, str) else item

    def long(self) -> Any:
        """An item that is too long for every model."""
        text = "the [MASK] cat " + "sat on the mat " * 30
        if isinstance(self.items[0], str):
            return text
        return ("the cat ?", text) if self.task == "answer" else (text, "a")


PAIRS = (("the cat sat", "on the mat"), ('he bought "milk"', "in , \na city"))
QUESTIONS = (("the cat ?", "the cat sat"), ("a dog ?", "in\na city"))
MASKED = ("the [MASK] sat on [MASK]", "a [MASK]")
ROWS = {
    "embed": Row("embed", "embed"),
    "embed --words": Row("embed-words", "embed", ("--words",)),
    "embed sparse": Row("embed-sparse", "sparse"),
    "embed tokens": Row("embed-tokens", "tokens", ("--vectors", "tokens"), refused=("token vectors",)),
    "classify": Row(
        "classify", "sentiment",
        refused=("no classification head", "mnli", "mlxbert finetune classify", "checkpoint can be used for"),
    ),
    "classify, several labels": Row("classify", "emotions"),
    "classify, a number": Row("classify", "stars"),
    "classify pairs": Row("classify", "emotions", items=PAIRS, fields=("text", "p"), read=("--pair-column", "p")),
    "classify --labels": Row("classify", "nli", ("--labels", "cat, city"), {"labels": ["cat", "city"]}),
    "tag": Row("tag", "tag", refused=("no tagging head", "dslim/bert-base-NER has one", "mlxbert finetune tag")),
    "tag --labels": Row(
        "tag", "gliner", ("--labels", ",".join(LABELS)), {"labels": LABELS}, refused=("tagging head", "GLiNER")
    ),
    "answer": Row(
        "answer", "answer", items=QUESTIONS, fields=("question", "context"),
        refused=("no question-answering head", "deepset/roberta-base-squad2"),
    ),
    "fill-mask": Row("fill-mask", "fill-mask", items=MASKED),
    "next-sentence": Row("next-sentence", "fill-mask", items=PAIRS, fields=("a", "b")),
    "replaced": Row("replaced", "replaced", refused=("replaced-token-detection head", "google/electra-small-discri")),
}  # fmt: skip
EVERY = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
# A row for each kind of items: what the results are does not matter to how they are read and written.
KINDS = ("embed", "tag", "classify pairs", "answer", "next-sentence")
EACH = pytest.mark.parametrize("row", [ROWS[name] for name in KINDS], ids=KINDS)


@pytest.fixture(scope="module")
def models(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for each row."""
    made = tmp_path_factory.mktemp("models")
    return {
        **folders,
        "sparse": save_splade(made / "sparse"),
        "tokens": token_folders.PYLATE["usual"](made / "tokens"),
        "gliner": GLINER,
        "replaced": save_discriminator(made / "replaced"),
    }


def test_every_task_has_a_row() -> None:
    ranked = {name for name, entry in CATALOGUE.items() if entry.items.ranked}  # in files of their own
    assert {row.task for row in ROWS.values()} == {*CATALOGUE} - ranked


Run = Callable[..., Outcome]


@pytest.fixture
def run(models: dict[str, Path]) -> Run:
    """Runs the command of a row with its model."""
    return lambda row, *options, **named: call(*row.command, *options, "--model", str(models[row.model]), **named)


Library = Callable[..., list[Any]]


@pytest.fixture
def library(models: dict[str, Path]) -> Library:
    """What Python gives for some items, as the command line prints it."""

    def lines(row: Row, items: Sequence[Any], **options: Any) -> list[Any]:
        entry = find_task(row.task)
        model = loading.load(models[row.model], task=entry.needs or entry.name)
        results = entry.make(model, entry.read_options(row.given | options)).run(iter(items), "raise")
        return [json.loads(json.dumps(result.to_dict())) for result in results]

    return lines


def records(row: Row, items: Sequence[Any], names: Sequence[str] = ()) -> list[dict[str, str]]:
    return [dict(zip(names or row.fields, row.values(item), strict=True)) for item in items]


def json_lines(objects: Sequence[Any]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in objects).encode()


def table(objects: Sequence[dict[str, Any]], delimiter: str = ",") -> bytes:
    written = io.StringIO(newline="")
    rows = csv.DictWriter(written, list(objects[0]), delimiter=delimiter)
    rows.writeheader()
    rows.writerows(objects)
    return written.getvalue().encode()


@EVERY
def test_lines_of_a_file_or_a_pipe_are_the_results_of_python(
    row: Row, run: Run, library: Library, tmp_path: Path
) -> None:
    wanted = library(row, row.items)
    objects = [{"id": number, **one} for number, one in enumerate(records(row, row.items))]
    path = tmp_path / "in.jsonl"
    path.write_bytes(json_lines(objects))
    outcome = run(row, *row.read, "--input", str(path), "--quiet")
    assert (outcome.status, outcome.err) == (0, "")
    assert [[*line.items()] for line in outcome.lines] == [
        [("id", number), *line.items()] for number, line in enumerate(wanted)
    ]
    piped = run(row, *row.read, stdin=json_lines(records(row, row.items)))
    assert (piped.status, piped.lines) == (0, wanted)


@EACH
def test_columns_of_a_table_are_read_by_their_usual_names_or_those_that_options_name(
    row: Row, run: Run, library: Library, tmp_path: Path
) -> None:
    wanted, named = library(row, row.items), ("--text-column", "one", "--pair-column", "two")[: 2 * len(row.fields)]
    objects = records(row, row.items, ("one", "two")[: len(row.fields)])
    for content, options in ((table(records(row, row.items)), row.read), (table(objects), named)):
        (tmp_path / "in.csv").write_bytes(content)
        assert run(row, *options, "--input", str(tmp_path / "in.csv")).lines == wanted
        assert run(row, *options, "--format", "csv", stdin=content).lines == wanted
    assert run(row, *named, stdin=json_lines(objects)).lines == wanted
    missing = run(row, "--text-column", "zebra", *named[2:], "--input", str(tmp_path / "in.csv"))
    missing.fails(1, "'zebra'", "one", "hint: ", "--text-column")


@EACH
def test_bad_records_keep_their_places_and_the_first_one_ends_a_strict_run(
    row: Row, run: Run, library: Library, tmp_path: Path
) -> None:
    one, two = records(row, row.items)
    *_, last = row.fields
    without = {name: text for name, text in one.items() if name != last}
    path = tmp_path / "in.jsonl"
    path.write_bytes(json_lines([one, without, [], {**one, last: 3}, two]))
    outcome = run(row, *row.read, "--input", str(path))
    outcome.fails(
        1, "3 of 5 inputs failed", "hint: ", "--field" if len(row.fields) == 1 else "--text-column and --pair-"
    )
    first, second = library(row, row.items)
    assert [outcome.lines[0], outcome.lines[4]] == [first, second]
    assert [(list(line), line["index"]) for line in outcome.lines[1:4]] == [(["index", "error"], n) for n in (1, 2, 3)]
    assert outcome.lines[1]["error"].startswith(f"{path}, line 2: the record has no field {last!r}")
    strict = run(row, *row.read, "--input", str(path), "--strict")
    strict.fails(1, f"input 1: {path}, line 2: the record has no field {last!r}", "hint: ")
    assert strict.lines in ([], [first])


@pytest.mark.parametrize("name", [*KINDS, "tag --labels", "fill-mask", "replaced"])
def test_a_text_that_is_too_long_is_cut_and_counted_read_in_windows_or_refused(
    name: str, run: Run, library: Library
) -> None:
    row = ROWS[name]
    items = [row.items[0], row.long()]
    content = json_lines(records(row, items))
    usual = find_task(row.task).read_options(row.given).overflow  # type: ignore[attr-defined]
    for overflow in {usual, "truncate"}:
        outcome = run(row, *row.read, "--overflow", overflow, stdin=content)
        assert (outcome.status, outcome.lines) == (0, library(row, items, overflow=overflow))
        assert ("1 of 2 inputs was too long" in outcome.err) == (overflow == "truncate")
        assert "note: " not in run(row, *row.read, "--overflow", overflow, "--quiet", stdin=content).err
    refused = run(row, *row.read, "--overflow", "error", stdin=content)
    refused.fails(1, "1 of 2 inputs failed")
    assert refused.lines[0] == library(row, items[:1])[0]
    assert re.search(r"line 2: the \w+ has (at least )?\d+ (tokens|words), ", refused.lines[1]["error"])
    strict = run(row, *row.read, "--overflow", "error", "--strict", stdin=content)
    strict.fails(1, "input 1: stdin, line 2: the ")
    assert strict.lines in ([], refused.lines[:1])


@EACH
def test_a_file_holds_the_lines_of_stdout_and_is_not_replaced_unless_asked(
    row: Row, run: Run, library: Library, tmp_path: Path
) -> None:
    source, path = tmp_path / "in.jsonl", tmp_path / "folder" / "out.jsonl"
    path.parent.mkdir()
    source.write_bytes(json_lines([records(row, row.items)[0], {"n": 1}, records(row, row.items)[1]]))
    given = (*row.read, "--input", str(source))
    written = run(row, *given, "--output", str(path))
    assert (written.status, written.out) == (1, "")  # one of the records is bad
    assert path.read_text(encoding="utf-8") == run(row, *given).out
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    path.write_text("precious")
    run(row, *given, "--output", str(path)).fails(2, "exists", "hint: --overwrite")
    assert path.read_text() == "precious"
    assert run(row, *given, "--output", str(path), "--overwrite").status == 1
    assert path.read_text(encoding="utf-8") == run(row, *given).out


@pytest.mark.parametrize("name", ["embed", "embed --words", "embed sparse", "embed tokens", "tag"])
def test_the_ending_of_an_output_is_one_that_holds_such_results(name: str, run: Run, tmp_path: Path) -> None:
    row, kinds = ROWS[name], {"embed": VECTORS, "tag": RESULTS}
    allowed = kinds[name] if name in kinds else FORMATS[row.task.removeprefix("embed-")]
    if ".parquet" in allowed:
        pytest.importorskip("pyarrow")
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(records(row, row.items)))
    for ending in (".xyz", *ANY_VECTORS):
        path = tmp_path / f"out{ending}"
        outcome = run(row, *row.read, "--input", str(source), "--output", str(path), "--quiet")
        if ending in allowed:
            assert (outcome.status, path.stat().st_size > 0) == (0, True)
        else:
            outcome.fails(2, f"--output {path}", ending, allowed[0], allowed[-1])
            assert not path.exists() and not Path(f"{path}.partial").exists()
    (tmp_path / "folder.jsonl").mkdir()
    run(row, "cat", "--output", str(tmp_path / "folder.jsonl")).fails(2, "is a folder")


@pytest.mark.parametrize("name", ["classify", "tag", "answer"])
@pytest.mark.parametrize("ending", [".csv", ".sqlite"])
def test_a_table_holds_the_values_of_the_lines(name: str, ending: str, run: Run, tmp_path: Path) -> None:
    row, source, path = ROWS[name], tmp_path / "in.csv", tmp_path / f"out{ending}"
    source.write_bytes(table([{**one, "shelf": "x"} for one in records(row, row.items)]))
    given = (*row.read, "--input", str(source), "--keep", "shelf", "--quiet")
    assert run(row, *given, "--output", str(path)).status == 0
    if ending == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            found = [*csv.DictReader(file)]
    else:
        with closing(sqlite3.connect(path)) as base:
            base.row_factory = sqlite3.Row
            name = row.task.replace("-", "_")
            found = [dict(one) for one in base.execute(f"SELECT * FROM {name} ORDER BY rowid")]
    lines = run(row, *given).lines
    assert len(found) == len(lines) == 2 and {one["shelf"] for one in found} == {"x"}
    for cells, line in zip(found, lines, strict=True):
        for key in line:
            cell, value = cells[key], line[key]
            if isinstance(value, list | dict):
                assert json.loads(cell) == value
            elif ending == ".csv":
                assert cell == (value if isinstance(value, str) else json.dumps(value) if value is not None else "")
            else:
                assert cell == value


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.refused])
def test_a_model_that_lacks_the_head_is_refused_with_a_hint(name: str) -> None:
    row = ROWS[name]
    outcome = call(*row.command, *row.read, stdin=json_lines(records(row, row.items)))
    outcome.fails(1, "hint: ", *row.refused)
    assert outcome.out == ""
    said = outcome.err.partition("error")[2]
    assert not re.search(r"[a-z]_[a-z]", re.sub(r"\w+/\S+", "", said))  # names of models, not of the network


def long(row: str) -> tuple[Any, ...]:
    return (ROWS[row].items[0], ROWS[row].long())


# What is typed, what the library is given, and the items if an option has an effect on others only.
OPTIONS: list[tuple[str, str, dict[str, Any], tuple[Any, ...]]] = [
    ("embed", "--pooling cls+mean --normalize", {"pooling": "cls+mean", "normalize": True}, ()),
    ("embed", "--no-normalize", {"normalize": False}, ()),
    ("embed", "--dimensions 5", {"dimensions": 5}, ()),
    ("embed", "--prompt in", {"prompt": "in"}, ()),
    ("embed", "--output-dtype int8", {"output_dtype": "int8"}, ()),
    ("embed", "--overflow window", {"overflow": "window"}, long("embed")),
    ("embed --words", "--layer 1", {"layer": 1}, ()),
    ("embed sparse", "--top-k 4", {"top_k": 4}, ()),
    ("embed tokens", "--kind query", {"kind": "query"}, ()),
    ("classify", "--top-k 2", {"top_k": 2}, ()),
    ("classify --labels", "--hypothesis a{}", {"hypothesis": "a{}"}, ()),
    ("classify --labels", "--multi --top-k 1", {"multi": True, "top_k": 1}, ()),
    ("tag", "--aggregation none", {"aggregation": "none"}, ()),
    ("tag --labels", "--threshold 0.2 --nested", {"threshold": 0.2, "nested": True}, ()),
    ("answer", "--top-k 3 --max-words 2", {"top_k": 3, "max_words": 2}, ()),
    ("answer", "--no-answer-threshold 0", {"no_answer_threshold": 0}, ()),
    ("fill-mask", "--targets cat,dog --no-text", {"targets": ["cat", "dog"], "text": False}, ()),
]  # fmt: skip


@together("name,typed,given,items", OPTIONS)
def test_an_option_does_what_it_does_in_python(
    name: str, typed: str, given: dict[str, Any], items: tuple[Any, ...], run: Run, library: Library
) -> None:
    row = ROWS[name]
    items = items or row.items
    outcome = run(row, *row.read, *typed.split(), stdin=json_lines(records(row, items)))
    assert (outcome.status, outcome.lines) == (0, library(row, items, **given))
    assert outcome.lines != library(row, items)


# The arguments behind those of a command, and the status and a part of the error.
WRONG: list[tuple[str, str, int, str]] = [
    ("embed", "cat --pooling first", 2, "--pooling is 'first', expected one of cls, mean, max, mean_sqrt_len, "),
    ("embed", "cat --dimensions x", 2, "--dimensions"),
    ("embed", "cat --dimensions 25", 2, "--dimensions is 25, but the model's vectors have 24"),
    ("embed", "cat --dtype int8", 2, "--dtype is 'int8', expected auto, float32, float16 or bfloat16"),
    ("embed", "cat --prompt a --prompt-name query", 2, "--prompt 'a' and the --prompt-name 'query' cannot be combined"),
    ("embed", "cat --input in.txt", 2, "--input cannot be combined with"),
    ("embed", "cat --field body", 2, "--field works only with --input"),
    ("embed", "cat --normalize --no-normalize", 2, "2 times"),
    ("embed", "cat --layer 1", 2, "--layer works only for word vectors"),
    ("embed", "cat --vectors sparse --words", 2, "--vectors cannot be combined with --words"),
    ("embed --words", "cat --no-normalize", 2, "--normalize works only for dense"),
    ("embed sparse", "cat --vectors dense", 1, "makes sparse vectors, not dense"),
    ("embed sparse", "cat --vectors dense --top-k 3", 2, "--top-k works only for sparse vectors"),
    ("embed tokens", "cat --overflow window", 2, "--overflow is 'window', expected one of truncate, error"),
    ("classify", "cat --hypothesis a{}", 2, "--hypothesis works only with --labels"),
    ("classify", "cat --multi", 2, "--multi works only with --labels"),
    ("classify", "cat --pair-column a", 2, "--pair-column works only with --input"),
    ("classify", "cat --text-column a", 2, "--text-column works only with --input"),
    ("classify", "--text-column a --input in.txt", 2, "--text-column works only with .jsonl, .json, .csv, .tsv, .parq"),
    ("classify", "--pair-column a --pair b --input in.csv", 2, "--pair cannot be combined with --pair-column"),
    ("classify --labels", "cat --labels cat", 2, "'cat' is given twice"),
    ("classify --labels", "cat --hypothesis none", 2, "--hypothesis is 'none'"),
    ("classify --labels", "cat --pair b", 2, "--labels cannot be combined with pairs"),
    ("tag", "cat --labels person", 2, "--labels"),
    ("answer", "who?", 2, "no context"),
    ("answer", "who? --context a --context-file b", 2, "--context cannot be combined with --context-file"),
    ("answer", "--context-file -", 2, "question"),
    ("answer", "who? --context-file missing.txt", 1, "missing.txt"),
    ("answer", "who? --context=", 1, "the context is empty"),
    ("answer", "who? --context a --no-answer-threshold 2", 2, "--no-answer-threshold is 2"),
    ("fill-mask", "[MASK] --targets zebra", 2, "'zebra'"),
    ("fill-mask", "[MASK] --top-k 1 --top-k 1", 2, "2 times"),
    ("next-sentence", "one", 2, "exactly two texts"),
    ("next-sentence", "--input in.txt", 2, "a and b"),
    ("next-sentence", "--input in.jsonl --field a", 2, "a and b"),
]  # fmt: skip


@together("name,arguments,status,said", WRONG)
def test_wrong_arguments_are_refused_with_what_is_possible_and_nothing_is_written(
    name: str, arguments: str, status: int, said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("in.txt", "in.csv", "in.jsonl"):
        (tmp_path / file).write_text("cat\n")
    before = sorted(tmp_path.iterdir())
    outcome = run(ROWS[name], *arguments.split(" "), "--output", "out.jsonl")
    outcome.fails(status, said)
    assert outcome.out == "" and sorted(tmp_path.iterdir()) == before
