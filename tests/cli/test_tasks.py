"""The commands of the tasks: an entry of the catalogue gives each, one test for each thing that they do alike.

What is special to `classify`, `tag` and `answer` comes behind.
"""

import ast
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from mlxbert import loading
from mlxbert.cli.commands.tasks import HOOKS, ITEMS
from mlxbert.cli.output.formats import ANY_VECTORS, FORMATS, RESULTS, VECTORS
from mlxbert.cli.views import tag as view
from mlxbert.labels.labels import Labels
from mlxbert.option_declarations import choices_of, declared_options
from mlxbert.results.text_results import Entity, Tagged
from mlxbert.tasks.catalogue import CATALOGUE, TaskEntry, find_task
from tests.cli.test_formats import rows
from tests.cli.test_terminal import colours, plain
from tests.docs.pages import rows as table_rows
from tests.helpers import token_folders
from tests.helpers.cases import together
from tests.helpers.classifiers import EMOTIONS, save_classifier
from tests.helpers.commands import COMMANDS
from tests.helpers.gliner_models import LABELS, TEXTS as GLINER_TEXTS
from tests.helpers.program import TERMINALS, Outcome, Terminal, call, terminal
from tests.helpers.rooms import needs
from tests.helpers.sparse_folder import save_splade
from tests.helpers.taggers import NER, POS, save_tagger
from tests.helpers.task_models import save_discriminator

pytestmark = pytest.mark.usefixtures("loaded_once")
Run = Callable[..., Outcome]
Library = Callable[..., list[Any]]
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


@pytest.fixture
def run(models: dict[str, Path]) -> Run:
    """Runs the command of a row with its model."""
    return lambda row, *options, **named: call(*row.command, *options, "--model", str(models[row.model]), **named)


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
    values = ((item,) if isinstance(item, str) else item for item in items)
    return [dict(zip(names or row.fields, one, strict=True)) for one in values]


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
    found = rows(path, row.task)
    lines = run(row, *given).lines
    assert len(found) == len(lines) == 2 and {one["shelf"] for one in found} == {"x"}
    for cells, line in zip(found, lines, strict=True):
        for key in line:
            cell, value = cells[key], line[key]
            if isinstance(value, list | dict):
                assert json.loads(cell) == value
            else:
                assert cell == ("" if value is None else str(value))


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
    ("fill-mask", "[MASK] --targets=", 2, "--targets is ''"),
    ("fill-mask", "[MASK] --targets a,,b", 2, "--targets is 'a,,b'"),
    ("fill-mask", "[MASK] --targets ,", 2, "--targets is ','"),
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


CLI = Path(__file__).parents[2] / "cli"


@together("entry", CATALOGUE.values())
def test_a_task_has_a_command_with_the_options_of_its_class_and_a_view(entry: TaskEntry) -> None:
    declared: Any = entry.options
    command = COMMANDS["embed" if entry.about is None else entry.name]
    options = {one.name: one for one in command.params if one.param_type_name == "option"}
    assert declared_options(declared).keys() <= options.keys()
    assert entry.about is None or command.help.split() == entry.about.split()
    own = (CLI / f"commands/{entry.name.replace('-', '_')}.py").is_file()
    assert entry.about is None or own != (entry.name in HOOKS and entry.items in ITEMS)


@together("entry", CATALOGUE.values())
def test_the_table_of_texts_that_are_too_long_has_what_each_task_does(entry: TaskEntry) -> None:
    table = {
        name: cells for names, *cells in table_rows("docs/command-line.md", "command") for name in names.split(", ")
    }
    kind = f"`embed --vectors {entry.name.removeprefix('embed-')}`"  # if it differs from other vectors
    name = kind if kind in table else f"`{entry.name}`" if entry.about is not None else "`embed`"
    declared: Any = entry.options
    choices = choices_of(declared_options(declared)["overflow"][0])
    assert {f"`{choice}`" for choice in choices} == {*re.findall("`[^`]*`", table[name][-1])}


def _compared(path: Path) -> Iterator[str]:
    """The names of tasks that a file compares something with."""
    names = {*CATALOGUE, "similarity"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        values = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        values += [node.value] if isinstance(node, ast.MatchValue) else []
        for value in values:
            parts = value.elts if isinstance(value, ast.Tuple | ast.List | ast.Set) else [value]
            yield from (part.value for part in parts if isinstance(part, ast.Constant) and part.value in names)


def test_no_file_of_the_command_line_compares_the_name_of_a_task() -> None:
    assert [path.relative_to(CLI) for path in CLI.rglob("*.py") if [*_compared(path)]] == []


def test_each_text_is_paired_with_the_one_that_is_given(run: Run, library: Library) -> None:
    row = ROWS["classify"]
    wanted = library(row, [("the cat sat", "a dog"), ("", "a dog")])
    assert run(row, "the cat sat", "", "--pair", "a dog").lines == wanted
    assert run(row, "--pair", "a dog", stdin=b"the cat sat\n\n").lines == wanted


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
def test_labels_are_split_like_a_row_of_a_table(given: list[str], expected: set[str], folders: dict[str, Path]) -> None:
    options = [word for text in given for word in ("--labels", text)]
    (line,) = call("classify", "the cat", *options, "--model", str(folders["nli"])).lines
    assert {label["label"] for label in line["labels"]} == expected


@TERMINALS
def test_a_bar_for_each_label(show: Terminal, folders: dict[str, Path]) -> None:
    given = ("--model", str(folders["sentiment"]))
    outcome, shown = show("classify", "the cat", "a dog", *given)
    rows = plain(shown)
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    best = call("classify", "the cat", *given).lines[0]["labels"][0]["label"]
    assert rows[0] == "the cat" and rows[1].startswith(best) and rows[4:6] == ["", "a dog"]
    for row in (*rows[1:4], *rows[6:9]):
        assert re.fullmatch(r"(negative|neutral|positive) +[█▉▊▋▌▍▎▏]* +\d+\.\d%", row)
    assert colours(shown)


def test_chosen_labels_have_a_check_mark_and_a_threshold_and_are_shown_however_small_they_are(tmp_path: Path) -> None:
    chosen = replace(EMOTIONS, thresholds=(0.1, 0.2, 0.999, 0.001))
    given = ["classify", "the cat", "--pair", "a dog", "--model", str(save_classifier(tmp_path / "chosen", chosen))]
    found = call(*given).lines[0]["labels"]
    rows = plain(terminal(*given)[1])
    assert rows[:2] == ["A  the cat", "B  a dog"]
    known = dict(zip(chosen.names, ("10.0%", "20.0%", "99.9%", "0.1%"), strict=True))
    for row, label in zip(rows[2:6], found, strict=True):
        assert row.startswith("✓ ") == label["chosen"] and row.endswith(f"threshold {known[label['label']]}")
    assert 0 < sum(label["chosen"] for label in found) < 4
    names = tuple(f"label {number}" for number in range(9))
    for thresholds, count in (((0.0,) * 9, 9), ((1.0,) * 9, 5)):
        labels = Labels(names, "multi_label_classification", thresholds)
        arguments = ["classify", "the cat", "--model", str(save_classifier(tmp_path / str(count), labels))]
        rows = plain(terminal(*arguments)[1])
        assert sum("%" in row and "label" in row for row in rows) == count
        assert ("and 4 more, see --top-k" in rows) is (count == 5)
        assert sum("%" in row for row in plain(terminal(*arguments, "--top-k", "7")[1])) == 7


@needs("train")
@together("header,expected", [("premise,hypothesis", ("a", "b")), ("label,body", ("b", None))])
def test_columns_of_a_table_are_guessed_as_training_guesses_them(
    header: str, expected: tuple[str, str | None], run: Run, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text(f"{header}\na,b\n")
    outcome = run(ROWS["classify"], "--input", str(tmp_path / "in.csv"))
    assert outcome.status == 0 and outcome.err.count("note: ") == 1 and "--text-column" in outcome.err
    assert (outcome.lines[0]["text"], outcome.lines[0].get("pair")) == expected


@needs("train")
@together("header,said", [("the cat sat on\tx", True), ("body of it\tn", False)])
def test_a_header_that_is_a_text_points_to_no_header(header: str, said: bool, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text(header + "\nthe cat sat on the mat\t1\nthe dog sat\t1\nhe bought milk\t1\n")
    outcome = run(ROWS["classify"], "--input", str(tmp_path / "in.tsv"))
    assert len(outcome.lines) == 3 and "--text-column" in outcome.err and ("--no-header" in outcome.err) == said


def test_columns_that_cannot_be_told_are_to_be_named(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    given = (ROWS["classify"], "--input", str(file))
    file.write_text("comment,message\nthe cat,a dog\n")
    run(*given).fails(1, "comment, message", "--text-column")
    file.write_text("premise,hypothesis\nthe cat,a dog\n")
    run(*given, "--pair", "a man").fails(1, "premise, hypothesis")
    named = run(*given, "--text-column", "premise")
    assert named.lines[0]["text"] == "the cat" and "note: " not in named.err


def test_a_word_after_the_labels_is_noted_to_be_a_text(folders: dict[str, Path]) -> None:
    nli = str(folders["nli"])
    assert "--labels cat,city" in call("classify", "Paris", "--labels", "cat", "city", "--model", nli).err
    assert "--labels" not in call("classify", "Paris", "--labels", "cat,city", "--model", nli).err
    for wrong in (["--labels", "a,a"], ["--labels", "a", "--hypothesis", "none"]):  # before a model is looked for
        call("classify", "the cat", *wrong, "--model", f"{nli}/missing").fails(2, wrong[-1][:1])
    call("fill-mask", "a [MASK]", "--targets", "a,,b", "--model", f"{nli}/missing").fails(2, "--targets is 'a,,b'")


NAMES = {"paris": "B-LOC", "city": "I-LOC", "tokyo": "B-LOC", "man": "B-PER"}
TEXT = "the man went to paris city, a man to tokyo."


@pytest.fixture(scope="module")
def taggers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taggers")
    save_tagger(folder / "entities", NER, NAMES)
    save_tagger(folder / "words", POS, {"the": "DET", "a": "DET", "went": "VERB", ",": "PUNCT", ".": "PUNCT"})
    return folder


def test_a_model_of_any_labels_needs_some() -> None:
    call("tag", "the", "--model", str(GLINER)).fails(2, "no labels are given", "--labels 'person,")


@TERMINALS
def test_entities_stand_out_in_the_text_above_a_legend(show: Terminal, taggers: Path) -> None:
    outcome, shown = show("tag", TEXT, "the cat", "--model", str(taggers / "entities"))
    rows = plain(shown)
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    assert rows[0] == "the [man PER] went to [paris city LOC], a [man PER] to [tokyo LOC]."
    assert rows[1] == "PER 2  LOC 2"
    assert rows[2:5] == ["", "the cat", "nothing found"]
    assert len(colours(shown)) == 2  # one for each type


@TERMINALS
def test_entities_of_any_labels_stand_out_in_the_text(show: Terminal, library: Library) -> None:
    labels, text = ("--labels", ",".join(LABELS), "--threshold", "0.35"), GLINER_TEXTS[0]
    outcome, shown = show("tag", text, "", "--model", str(GLINER), *labels)
    (found,) = library(ROWS["tag --labels"], [text], threshold=0.35)
    rows = plain(shown)
    assert outcome.status == 0 and found["entities"]
    assert all(f"[{one['text']} {one['label']}]" in rows[0] for one in found["entities"])
    assert re.sub(r"\[([^\]]*?) (?:" + "|".join(LABELS) + r")\]", r"\1", rows[0]) == text
    assert "nothing found" in rows


def test_an_entity_inside_another_one_repeats_no_text_after_it() -> None:
    entities = (Entity("org", 0, 14, "New York Times", 0.9), Entity("place", 0, 8, "New York", 0.8))
    (text, _) = view.draw(Tagged("New York Times says", entities), ["org", "place"])
    assert str(text) == "[New York Times org][New York place] says"


@TERMINALS
def test_parts_of_speech_stand_under_their_words(show: Terminal, taggers: Path) -> None:
    outcome, shown = show("tag", "The man went, a dog", "--model", str(taggers / "words"))
    rows = plain(shown)
    assert outcome.status == 0 and len(colours(shown)) == 4
    assert rows[0].split() == ["The", "man", "went", ",", "a", "dog"]
    assert rows[1].split() == ["DET", "NOUN", "VERB", "PUNCT", "DET", "NOUN"]
    assert rows[0].index("man") == rows[1].index("NOUN") and rows[0].index(",") == rows[1].index("PUNCT")


QUESTION, CONTEXT = "who sat ?", "the cat sat on the mat .\r\n\r\na man went to the store , he bought milk"


def test_a_context_comes_from_a_file_as_it_is_or_from_stdin(run: Run, library: Library, tmp_path: Path) -> None:
    row, path = ROWS["answer"], tmp_path / "a.md"
    path.write_bytes(b"\xef\xbb\xbf" + CONTEXT.encode())
    wanted = library(row, [(QUESTION, CONTEXT)])
    assert run(row, QUESTION, "--context-file", str(path)).lines == wanted
    assert run(row, QUESTION, "--context-file", "-", stdin=CONTEXT.encode()).lines == wanted
    assert run(row, "--context", CONTEXT, stdin=b"who sat ?\nwhere ?\n").lines == [
        *wanted, *library(row, [("where ?", CONTEXT)]),
    ]  # fmt: skip
    (tmp_path / "in.jsonl").write_text(json.dumps({"question": QUESTION, "context": CONTEXT}) + "\n")
    for option in ("--context", "--context-file"):
        run(row, "--input", str(tmp_path / "in.jsonl"), option, str(path)).fails(2, "'context'", "hint: ")
    for content, said in ((b"the caf\xe9", "offset 7"), (b"", "a.md: "), (b" \n", "a.md: ")):
        path.write_bytes(content)
        run(row, QUESTION, "--context-file", str(path)).fails(1, said)


@pytest.mark.slow
def test_a_context_may_be_a_document(run: Run, library: Library, tmp_path: Path) -> None:
    row, page, text = ROWS["answer"], tmp_path / "long.html", CONTEXT.partition("\r")[0]
    page.write_text(f"<title>none</title><p>{text}</p>")
    assert run(row, QUESTION, "--context-file", str(page)).lines == library(row, [(QUESTION, text)])
    (tmp_path / "a.docx").write_bytes(b"no document")
    run(row, QUESTION, "--context-file", str(tmp_path / "a.docx")).fails(1, "a.docx: ")


@TERMINALS
def test_the_span_stands_out_in_its_paragraph(show: Terminal, library: Library, folders: dict[str, Path]) -> None:
    given = ("answer", QUESTION, "--context", CONTEXT, "--model", str(folders["answer"]), "--no-answer-threshold")
    outcome, shown = show(*given, "1")
    (found,) = library(ROWS["answer"], [(QUESTION, CONTEXT)], no_answer_threshold=1)
    rows = plain(shown)
    assert (outcome.status, outcome.out) == (0, "")
    number = CONTEXT.count("\n", 0, found["start"]) + 1
    assert rows[0] == QUESTION and rows[1].startswith(found["answer"])
    assert rows[1].endswith(f"{found['start']} to {found['end']}, line {number}")
    assert rows[2].strip() == CONTEXT.split("\r\n\r\n")[number > 1] and colours(shown)
    rows = plain(show(*given, "0")[1])
    assert rows[1].startswith("no answer") and rows[2].startswith("not sure enough: ")


@needs("train")
def test_a_file_of_squad_becomes_a_model_and_its_evaluation(folders: dict[str, Path], tmp_path: Path) -> None:
    def qas(name: str) -> list[dict[str, Any]]:
        answers = [{"text": name, "answer_start": 16}]
        return [{"question": f"{word} ?", "answers": answers * (word != "of")} for word in ("where", "to", "of")]

    names = ("paris", "tokyo", "cat", "dog") * 2
    asked = [{"context": f"the man went to {name} .", "qas": qas(name)} for name in names]
    path, target = tmp_path / "train.json", tmp_path / "trained"
    path.write_text(json.dumps({"data": [{"paragraphs": asked}]}), encoding="utf-8")
    given = ["--train", str(path), "--model", str(folders["answer"]), "--output", str(target)]
    trained = call("finetune", "answer", *given, "--epochs", "1", "--stride", "5")
    assert trained.status == 0, trained.err
    assert trained.lines[0]["report"]["splits"][0]["labels"].keys() == {"answer", "no answer"}
    assert trained.lines[-1]["event"] == "finished" and trained.lines[-1]["metric"] == "f1"
    evaluate = ["evaluate", "answer", "--data", str(path), "--model", str(target)]
    found = call(*evaluate, "--max-words", "3")
    assert found.status == 0, found.err
    assert found.lines[0]["examples"] == 24
    assert {"f1", "exact_match", "no_answer_accuracy"} <= found.lines[0]["metrics"].keys()
    outcome, shown = terminal(*evaluate)
    assert outcome.status == 0 and "exact_match" in shown and "no answer" in shown
    path.write_text("{}", encoding="utf-8")
    call(*evaluate).fails(1, "'data' is missing", "hint: ")
