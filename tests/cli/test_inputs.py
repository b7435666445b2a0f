"""Where texts come from: arguments, .txt, .jsonl, .csv, .tsv and stdin, read as they are and as they come."""

import gzip
import io
import json
import os
import subprocess
import threading
import typing
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli import inputs
from mlxbert.cli.inputs import open_input
from mlxbert.cli.shared_options import InputOptions, PairInputOptions, TextFormat
from mlxbert.cli.views.option_spelling import set_options, to_options
from mlxbert.errors import ArgumentError
from mlxbert.readers.formats import FORMATS
from tests.helpers.cases import together
from tests.helpers.program import TIMEOUT, Outcome, call, command, environment, terminal
from tests.helpers.rooms import needs


@pytest.fixture
def read(small: str, tmp_path: Path) -> "Tokenizing":
    return Tokenizing(small, tmp_path)


_TOKENIZE = ("tokenize", "--overflow", "truncate")


class Tokenizing:
    """Gives the program a file to tokenize, which prints each text it has read."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model, self.folder = model, folder

    def __call__(self, name: str, content: bytes, *options: str) -> Outcome:
        (self.folder / name).write_bytes(content)
        return call("tokenize", "--model", self.model, "--input", str(self.folder / name), *options)

    def texts(self, name: str, content: bytes, *options: str) -> list[str]:
        """The texts, in a run without failures."""
        outcome = self(name, content, *options)
        assert (outcome.status, outcome.err) == (0, "" if content else "note: the input is empty\n")
        return [line["text"] for line in outcome.lines]


_SEPARATORS = "the\u2028cat\u2029sat\x85on\x0bthe\x0cmat\x1cw1\rw2"
_JSON = b'\xef\xbb\xbf{"text": "the", "other": "cat"}\r\n\n{"text": "\\u2026", "other": "dog"}\n'
_CSV = b'\xef\xbb\xbftext,other\r\n"the, ""cat""\nsat",x\r\n\r\ndog,y\r\n'
_COFFEE = "café\ncat".encode("latin-1")


@together(
    "name,content,options,texts",
    [
        ("in.txt", b"the cat\nthe dog\n", [], ["the cat", "the dog"]),
        ("in.txt", b"", [], []),
        ("in.txt", b"the\n\n  cat \n\n", [], ["the", "", "  cat ", ""]),
        ("in.txt", f"{_SEPARATORS}\ndog\n".encode(), [], [_SEPARATORS, "dog"]),  # only a newline ends a line
        ("in.jsonl", _JSON, [], ["the", "…"]),
        ("in.jsonl", _JSON, ["--field", "other"], ["cat", "dog"]),
        ("in.csv", _CSV, [], ['the, "cat"\nsat', "dog"]),
        ("in.csv", _CSV, ["--text-column", "other"], ["x", "y"]),
        ("in.csv", b"1,the\n2,cat\n", ["--no-header", "--text-column", "2"], ["the", "cat"]),
        ("in.data", b"the\n", ["--format", "txt"], ["the"]),
        ("in.txt", b'{"text": "the"}\n', ["--format", "jsonl"], ["the"]),
        ("IN.JSONL", b'{"text": "the"}\n', [], ["the"]),
        ("in.csv.gz", gzip.compress(b"x,y\nthe,cat\n"), ["--text-column", "y"], ["cat"]),
        ("in.data.gz", gzip.compress(b'{"x": "the"}\n'), ["--format", "jsonl", "--field", "x"], ["the"]),
        ("in.txt", _COFFEE, ["--encoding", "latin-1"], ["café", "cat"]),
        ("in.csv", b"n\n" + _COFFEE, ["--text-column", "n", "--encoding", "latin-1"], ["café", "cat"]),
        (
            "in.json",
            '[{"text": "café"},\n {"text": "cat"}]'.encode("latin-1"),
            ["--encoding", "latin-1"],
            ["café", "cat"],
        ),
        ("in.jsonl", b'{"utf-8": "cat"}', ["--field", "utf-8"], ["cat"]),  # called like an encoding
        ("in.csv", b"utf-8\ncat\n", ["--text-column", "utf-8"], ["cat"]),
    ],
)
def test_texts_are_read_as_they_are(
    read: Tokenizing, name: str, content: bytes, options: list[str], texts: list[str]
) -> None:
    assert read.texts(name, content, *options) == texts


@together(
    "name,content,options,status,said",
    [
        ("in.data", b"the\n", [], 2, ["'.data'", "hint: ", "--format"]),
        ("in.data.gz", b"", [], 2, ["'.gz'", "hint: ", "--format jsonl"]),
        ("in.csv", b"text\nthe\n", ["--field", "text"], 2, []),
        ("in.txt", b"text\nthe\n", ["--field", "text"], 2, []),
        ("in.txt", b"text\nthe\n", ["--text-column", "text"], 2, []),
        ("in.jsonl", b"text\nthe\n", ["--field", "text", "--text-column", "text"], 2, []),
        ("in.txt", b"text\nthe\n", ["--format", "xml"], 2, []),
        ("in.txt", b"text\nthe\n", ["an argument"], 2, []),
        ("in.csv", b"1,2\n", ["--no-header"], 1, ["'text'", "1, 2", "hint: ", "--text-column"]),
        ("in.jsonl", b"{}\n", ["--no-header"], 2, ["--no-header works only with .csv, .tsv"]),
        ("in.csv", b"n,m\n1,2\n", [], 1, ["the file has no column 'text' (columns: n, m)", "hint: ", "--text-column"]),
        ("in.jsonl", b'{"body": "the"}\n', ["--strict"], 1, ["'text'", "body", "hint: ", "--field"]),
        ("in.parquet", b"", ["--encoding", "latin-1"], 2, ["--encoding works only with .txt"]),
        ("in.txt", b"the\n", ["--keep", "id"], 2, ["--keep works only with"]),
        ("in.csv", b"id,text\n7,the\n", ["--keep", "text"], 2, ["--keep text", "tokens"]),
        # What only some results have: otherwise the first bad record would end the run.
        *(
            ("in.csv", f"text,{name}\nthe,1\n2\n".encode(), ["--keep", name], 2, [f"--keep {name}", "hint: "])
            for name in ("index", "error", "unknown_tokens")
        ),
        *(
            (name, b"PK\x03\x04", [], 2, [".parquet", "hint: ", said])
            for name, said in (("a.docx", ".txt"), ("a.xlsx", ".csv"), ("a.org", "--format txt"), ("a.npy", "vectors"))
        ),
        ("a.docx", b"PK\x03\x04", ["--format", "txt"], 1, ["zip", ".csv"]),
        ("packed.txt", gzip.compress(b"the\n", mtime=0), [], 1, ["packed.txt", "gzip"]),
        ("in.txt", b"caf\xe9\n", [], 1, ["--encoding latin-1"]),
        ("in.txt", b"caf\xe9\n", ["--encoding", "latin-99"], 2, ["latin-99", "hint: ", "--encoding latin-1"]),
        ("in.jsonl", b"\0\1\2", [], 1, ["failed", "hint: ", "iconv"]),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_helps(
    read: Tokenizing, name: str, content: bytes, options: list[str], status: int, said: list[str]
) -> None:
    outcome = read(name, content, *options)
    outcome.fails(status, *said)
    assert (outcome.out == "" or status == 1) and ".conll" not in outcome.err


def test_options_of_files_are_refused_without_one(small: str, tmp_path: Path) -> None:
    for options in (["--no-header"], ["--keep", "id"], ["--encoding", "latin-1"]):
        call("tokenize", "the", *options, "--model", small).fails(2, options[0])
    call("tokenize", "the", "--model", "").fails(1, "error: --model is ''")
    (tmp_path / "folder.txt").mkdir()
    for name, status, said in (("none.txt", 1, "No such file"), ("folder.txt", 2, "is a folder")):
        call("tokenize", "--input", str(tmp_path / name), "--model", small).fails(status, name, said)


@pytest.mark.parametrize("name", ["-", "in.txt", "in.md"])
def test_a_dash_and_the_name_of_a_file_are_texts_and_what_they_may_mean_is_pointed_to(
    small: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("the cat")
    monkeypatch.chdir(tmp_path)
    outcome = call("tokenize", name, "--model", small, stdin=b"the cat\n")
    assert [line["text"] for line in outcome.lines] == [name]
    assert "hint: " in outcome.err and f"--input {name}" in outcome.err


_LONG = "the cat " * 20_000


@together(
    "stdin,options,texts",
    [
        (b"the\r\ncat\r\n", [], ["the", "cat"]),
        (b"the\rcat\r", [], ["the", "cat"]),
        (f"{_LONG}\nthe\n".encode(), [], [_LONG, "the"]),
        (f'{{"text": "{_LONG}"}}\n{{"text": "the"}}\n'.encode(), [], [_LONG, "the"]),
        (b'{"text": "the"}\r{"text": "cat"}\r', [], ["the", "cat"]),
        (b'\xef\xbb\xbf{"text": "the"}\n{"text": "cat"}\n', [], ["the", "cat"]),  # known by the first line
        (b'{"text": "the"}\n', ["--format", "txt"], ['{"text": "the"}']),
        (b'["the"]\n{"text": 1}\n', [], ['["the"]', '{"text": 1}']),
        (b"[MASK] the cat\n[x]\n", [], ["[MASK] the cat", "[x]"]),
        (b'{"text": "the", "x": "cat"}\n', ["--format", "jsonl"], ["the"]),
        (b'{"text": "the", "x": "cat"}\n', ["--field", "x"], ["cat"]),
        (b"text,x\nthe,cat\n", ["--format", "csv"], ["the"]),
        (b"text,x\nthe,cat\n", ["--text-column", "x"], ["cat"]),
        (b"text\tx\nthe\tcat\n", ["--format", "tsv", "--text-column", "x"], ["cat"]),
        *(
            (text.encode("latin-1"), ["--encoding", "latin-1"], ["café"])
            for text in ('[{"text": "café"}]', '[\n  {"text": "café"}\n]', '{"text": "café"}\n', "café\n")
        ),
    ],
)
def test_stdin_is_read_as_its_first_line_or_an_option_says(
    stdin: bytes, options: list[str], texts: list[str], small: str
) -> None:
    for asked in ([], ["--input", "-"]):
        outcome = call(*_TOKENIZE, "--model", small, *asked, *options, "--quiet", stdin=stdin)
        assert [line["text"] for line in outcome.lines] == texts and outcome.status == 0


def test_what_stdin_is_taken_for_is_said(small: str) -> None:
    model, rows = ["--model", small], b"id,text\n1,the [MASK]\n"
    first = call("fill-mask", *model, stdin=b'{"text": "the [MASK]"}\n')
    assert first.status == 0 and first.err.startswith("note: ")
    assert call("tokenize", *model, stdin=first.out.encode()).lines[0]["text"] == "the [MASK]"
    said = call("tokenize", *model, stdin=rows)
    assert [line["text"] for line in said.lines] == ["id,text", "1,the [MASK]"] and "--format csv" in said.err
    named = call("tokenize", *model, "--format", "csv", stdin=rows)
    assert [line["text"] for line in named.lines] == ["the [MASK]"] and "note" not in named.err
    given = call("tokenize", "the cat", *model, stdin=b"the dog\n")
    assert [line["text"] for line in given.lines] == ["the cat"]


@needs("train")
def test_several_processes_do_not_wait_for_stdin(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.cli.inputs.first_line", None)
    call("embed", "--model", small, stdin=b"the\n", MLX_RANK="0").fails(2, "mlx.launch", "hint: ")


def test_several_inputs_are_read_one_after_the_other(small: str, tmp_path: Path) -> None:
    contents = {"a.csv": b"n,text\n1,the\n", "b.txt": b"cat\n\xe9\n", "c.jsonl": b'{"text": "dog"}\n{"body": "mat"}\n'}
    arguments = ["tokenize", "--model", small]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        arguments += ["--input", str(tmp_path / name)]
    outcome = call(*arguments, "-i", "-", stdin=b"sat\n")
    outcome.fails(1, "2 of 6", "hint: ")
    assert [line.get("text") for line in outcome.lines] == ["the", "cat", None, "dog", None, "sat"]
    assert [line["index"] for line in outcome.lines if "index" in line] == [2, 4]
    assert outcome.lines[2]["error"].startswith(f"{tmp_path / 'b.txt'}, line 2: byte 0xe9")
    assert outcome.lines[4]["error"].startswith(f"{tmp_path / 'c.jsonl'}, line 2: the record has no field 'text'")
    numbers = call(*arguments, "--text-column", "n")
    assert [line.get("text") for line in numbers.lines] == ["1", "cat", None, None, None]
    call(*arguments, "-i", "-", "-i", "-").fails(2, "given twice")
    call(*arguments, str(tmp_path / "b.txt")).fails(2, "--input cannot be combined with", "hint: ", "b.txt")
    call(*arguments, "-i", str(tmp_path / "none.txt")).fails(1, "none.txt")
    call("tokenize", "--field", "x", "-i", str(tmp_path / "b.txt"), "-i", str(tmp_path / "a.csv")).fails(2, "txt, csv")


def test_results_carry_columns_of_the_input(read: Tokenizing) -> None:
    content = b"id,text,n\n7,the,x\n8\n9,cat,y\n"
    assert [line.get("id") for line in read("in.csv", content).lines] == ["7", None, "9"]
    kept = read("in.csv", content, "--keep", "n", "--keep", "n")
    assert [next(iter(line)) for line in kept.lines] == ["n", "index", "n"] and kept.lines[2]["n"] == "y"
    target = read.folder / "out.jsonl"
    read("in.csv", content, "--keep", "n", "--output", str(target))
    assert target.read_text() == kept.out
    objects = b'{"text": "the"}\n{}\n{"text": "the", "note": 1}\n'
    assert [line.get("note") for line in read("in.jsonl", objects, "--keep", "note").lines] == [None, None, 1]
    missing = read("in.jsonl", objects, "--keep", "note,nota")
    missing.fails(2, "--keep nota", "'note'")
    assert missing.out == ""
    table = str(read.folder / "in.csv")
    both = read("a.jsonl", b'{"text": "the"}\n', "-i", table, "--keep", "n")
    assert [line.get("n") for line in both.lines] == [None, "x", None, "y"]
    read("a.jsonl", b'{"text": "the"}\n', "-i", table, "--keep", "nota").fails(2, "--keep nota")


def test_inputs_that_are_read_otherwise_are_told_apart(tmp_path: Path) -> None:
    """Results of a pair are not gone on with by those of one column that keeps another."""
    (tmp_path / "in.csv").write_text("a,b,1,2\nthe,cat,x,y\n")
    given: list[dict[str, Any]] = [
        {"text_column": "a"},
        {"text_column": "a", "pair_column": "b"},
        {"text_column": "a", "keep": ["b"]},
        {"text_column": "1", "pair_column": "2"},
        {"text_column": "1", "pair_column": "2", "no_header": True},
    ]
    options = [PairInputOptions(input=[str(tmp_path / "in.csv")], **one) for one in given]
    assert len({open_input((), one, "text").read_as for one in options}) == len(given)


def test_a_field_that_an_option_replaces_is_sought_in_the_first_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(inputs, "_SAMPLE_ROWS", 2)
    path = tmp_path / "in.jsonl"
    for before in (1, 2):
        path.write_text('{"text": "the"}\n' * before + '{"text": "the", "pair": "cat"}\n')
        with nullcontext() if before == 2 else pytest.raises(ArgumentError, match="pair"):
            open_input((), PairInputOptions(input=[str(path)]), "text", pair="a dog")


def test_a_table_of_vectors_carries_columns(small: str, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "the", "n": 1}\n{"text": "cat", "n": "x"}\n{"text": "dog"}\n')
    arguments = ["embed", "--model", small, "--input", str(tmp_path / "in.jsonl"), "--keep", "n", "--output"]
    assert call(*arguments, str(tmp_path / "x.parquet")).status == 0
    assert pq.read_table(tmp_path / "x.parquet")["n"].to_pylist() == ["1", "x", None]
    call(*arguments, str(tmp_path / "x.npy")).fails(2, "--keep", ".parquet")


def test_without_texts_at_a_terminal_the_program_does_not_wait(small: str) -> None:
    outcome, _ = terminal("fill-mask", "--model", small, on=["stdin"])
    outcome.fails(2, "no input", "hint: ")


@pytest.mark.parametrize("task", ["tokenize", "fill-mask"])
@pytest.mark.slow
def test_a_result_arrives_before_the_next_input(small: str, task: str) -> None:
    running = subprocess.Popen(
        command(task, "--model", small), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert running.stdin is not None and running.stdout is not None
    guard = threading.Timer(TIMEOUT / 12, running.kill)  # were all of it read first, this would wait for ever
    guard.start()
    texts = [f"w{number} [MASK]" for number in range(5)]
    for text in texts:
        running.stdin.write(f"{text}\n".encode())
        running.stdin.flush()
        assert json.loads(running.stdout.readline())["text"] == text
    guard.cancel()
    running.stdin.close()
    assert (running.stdout.read(), running.wait(TIMEOUT)) == (b"", 0)
    running.stdout.close()


def test_a_parquet_has_a_text_per_row_in_a_column(read: Tokenizing) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    written = io.BytesIO()
    pq.write_table(pa.table({"text": ["the", None], "other": ["cat", "dog"], "n": [1, 2]}), written)
    content = written.getvalue()
    assert read.texts("in.parquet", content, "--text-column", "other") == ["cat", "dog"]
    assert read.texts("in.data", content, "--text-column", "other", "--format", "parquet") == ["cat", "dog"]
    outcome = read("in.parquet", content)
    outcome.fails(1, "1 of 2 inputs failed")
    error = f"{read.folder / 'in.parquet'}, row 2: column 'text' is null, expected a string"
    assert outcome.lines[0]["text"] == "the" and outcome.lines[1] == {"index": 1, "error": error}
    read("in.parquet", content, "--text-column", "body").fails(1, "'body'", "text, other, n", "hint: ", "--text-column")
    read("in.parquet", content, "--field", "text").fails(2, "--field works only with .jsonl")


@needs("train")
@together("name", ["in.csv", "in.tsv"])
def test_the_column_of_the_text_is_guessed(read: Tokenizing, name: str) -> None:
    content = b"id,review\n1,the cat\n".replace(b",", b"\t" if name == "in.tsv" else b",")
    outcome = read(name, content)
    assert [(line["id"], line["text"]) for line in outcome.lines] == [("1", "the cat")]
    assert outcome.err.count("note: ") == 1 and "'review'" in outcome.err and "--text-column" in outcome.err
    assert read.texts(name, content, "--column", "review") == ["the cat"]  # the name it once had
    assert "--column" not in call("help", "tokenize").out


@together(
    "hint,shown",
    [
        ("try `dtype='float32'`", "try --dtype float32"),
        ('try `prompt="a b"`', "try --prompt 'a b'"),
        ("`overwrite=True` replaces it", "--overwrite replaces it"),
        ("find it: `labels=['a', 'b c']`", "find it: --labels 'a,b c'"),
        ("find it: `labels=['a,b', 'c']`.", """find it: --labels '"a,b",c'."""),
        ("find it: `labels=['a` or `where=[a.b]`", "find it: `labels=['a` or `where=[a.b]`"),
        ("`normalize=False`, or `top_k=5`.", "--no-normalize, or --top-k 5."),
        ("choose one with `batch_tokens=`", "choose one with --batch-tokens"),
        ("kept in lr=0.1/x: lr=3, x == 1, ?a=b", "kept in lr=0.1/x: lr=3, x == 1, ?a=b"),
        ("set `HF_HUB_OFFLINE=1`", "set `HF_HUB_OFFLINE=1`"),
        ("convert it: `load(DIR, from_tf=True)`", "convert it: `load(DIR, from_tf=True)`"),
        ("`mlxbert doctor --check` or `list` helps", "`mlxbert doctor --check` or `list` helps"),
        ("`top_k` is 3, but `text` and `tokens` are given", "--top-k is 3, but `text` and --chunk-tokens are given"),
        ("`top_k` is 'the `top_k` it\\'s `top_k`'", "--top-k is 'the `top_k` it\\'s `top_k`'"),
        ("my/`top_k`.txt, `top_k`.txt: no such file", "my/`top_k`.txt, `top_k`.txt: no such file"),
        ("`top_k=" + "-" * 3000 + "1`", "`top_k=" + "-" * 3000 + "1`"),
    ],
)
def test_code_in_errors_and_hints_is_said_in_the_words_of_the_command_line(hint: str, shown: str) -> None:
    set_options(["--top-k", "-k", "--chunk-tokens"])
    assert to_options(hint) == shown


def test_format_names_each_format_that_holds_texts() -> None:
    assert typing.get_args(TextFormat) == tuple(format.value for format, known in FORMATS.items() if not known.refused)


def test_only_what_comes_from_a_pipe_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the\n")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("cat\n"))
    writer.start()
    pipe, file = str(tmp_path / "pipe"), str(tmp_path / "in.txt")
    opened = open_input((), InputOptions(input=[file, pipe], format="txt"), "text", pair="a dog")
    assert opened.piped and [*opened.items()] == [("the", "a dog"), ("cat", "a dog")]
    writer.join()
    assert not open_input((), InputOptions(input=[file]), "text").piped
