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
    ],
)
def test_texts_are_read_as_they_are(
    read: Tokenizing, name: str, content: bytes, options: list[str], texts: list[str]
) -> None:
    assert read.texts(name, content, *options) == texts


def test_an_ending_that_says_nothing_needs_a_format(read: Tokenizing) -> None:
    read("in.data", b"the\n").fails(2, "'.data'", "hint: ", "--format")
    read("in.data.gz", b"").fails(2, "'.gz'", "hint: ", "--format jsonl")


@together(
    "name,options",
    [
        ("in.csv", ["--field", "text"]),
        ("in.txt", ["--field", "text"]),
        ("in.txt", ["--text-column", "text"]),
        ("in.jsonl", ["--field", "text", "--text-column", "text"]),
        ("in.txt", ["--format", "xml"]),
        ("in.txt", ["an argument"]),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(read: Tokenizing, name: str, options: list[str]) -> None:
    outcome = read(name, b"text\nthe\n", *options)
    outcome.fails(2)
    assert outcome.out == ""


def test_a_dash_is_a_text_and_stdin_is_pointed_to(small: str) -> None:
    outcome = call("tokenize", "-", "--model", small, stdin=b"the cat\n")
    assert [line["text"] for line in outcome.lines] == ["-"]
    assert "hint: " in outcome.err and "--input -" in outcome.err


@pytest.mark.parametrize("name", ["in.txt", "in.md"])
def test_a_file_given_as_a_text_is_pointed_to(
    small: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("the cat")
    monkeypatch.chdir(tmp_path)
    outcome = call("tokenize", name, "--model", small)
    assert [line["text"] for line in outcome.lines] == [name]
    assert "hint: " in outcome.err and f"--input {name}" in outcome.err


def test_piped_texts_are_read_without_being_asked_for(small: str) -> None:
    piped = call("fill-mask", "--model", small, stdin=b"the [MASK]\r\nw1 [MASK]\r\n")
    assert (piped.status, piped.err) == (0, "")
    assert [line["text"] for line in piped.lines] == ["the [MASK]", "w1 [MASK]"]
    assert piped.out == call("fill-mask", "--model", small, "--input", "-", stdin=b"the [MASK]\nw1 [MASK]\n").out
    given = call("fill-mask", "the [MASK]", "--model", small, stdin=b"w1 [MASK]\n")
    assert [line["text"] for line in given.lines] == ["the [MASK]"]


def test_the_first_line_of_stdin_may_be_long_and_end_with_a_carriage_return(small: str) -> None:
    text = "the cat " * 20_000
    for content, expected in (
        (f"{text}\nthe\n", [text, "the"]),
        (f'{{"text": "{text}"}}\n{{"text": "the"}}\n', [text, "the"]),
        ("the\rcat\r", ["the", "cat"]),
        ('{"text": "the"}\r{"text": "cat"}\r', ["the", "cat"]),
    ):
        found = call("embed", "--model", small, "--quiet", stdin=content.encode())
        assert [line["text"] for line in found.lines] == expected


def test_json_lines_are_known_by_the_first_line_of_stdin(small: str) -> None:
    lines = b'\xef\xbb\xbf{"text": "the [MASK]"}\n{"text": "w1 [MASK]"}\n'
    first = call("fill-mask", "--model", small, stdin=lines)
    assert (first.status, first.err.splitlines()[0].partition(": ")[0]) == (0, "note")
    second = call("tokenize", "--model", small, "--input", "-", stdin=first.out.encode())
    for outcome in (first, second):
        assert [line["text"] for line in outcome.lines] == ["the [MASK]", "w1 [MASK]"]
    plain = call("tokenize", "--model", small, "--format", "txt", "--overflow", "truncate", "--quiet", stdin=lines[3:])
    assert [line["text"] for line in plain.lines] == lines[3:].decode().splitlines()
    assert [line["text"] for line in call("tokenize", "--model", small, stdin=b'["the"]\n{"text": 1}\n').lines] == [
        *('["the"]', '{"text": 1}')
    ]


def test_a_table_in_a_pipe_is_texts_and_says_so(small: str) -> None:
    rows = b"id,text\n1,the [MASK]\n"
    said = call("tokenize", "--model", small, stdin=rows)
    assert [line["text"] for line in said.lines] == ["id,text", "1,the [MASK]"] and "--format csv" in said.err
    named = call("tokenize", "--model", small, "--format", "csv", stdin=rows)
    assert [line["text"] for line in named.lines] == ["the [MASK]"] and "note" not in named.err


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
    read("in.csv", content, "--keep", "text").fails(2, "--keep text", "tokens")
    objects = b'{"text": "the"}\n{}\n{"text": "the", "note": 1}\n'
    assert [line.get("note") for line in read("in.jsonl", objects, "--keep", "note").lines] == [None, None, 1]
    missing = read("in.jsonl", objects, "--keep", "note,nota")
    missing.fails(2, "--keep nota", "'note'")
    assert missing.out == ""
    table = str(read.folder / "in.csv")
    assert [line.get("n") for line in read("a.jsonl", b'{"text": "the"}\n', "-i", table, "--keep", "n").lines][::3] == [
        None, "y",
    ]  # fmt: skip
    read("a.jsonl", b'{"text": "the"}\n', "-i", table, "--keep", "nota").fails(2, "--keep nota")
    read("in.txt", b"the\n", "--keep", "id").fails(2, "--keep works only with")
    call("tokenize", "the", "--keep", "id", "--model", read.model).fails(2, "--keep")


@together("name", ["index", "error", "unknown_tokens"])
def test_what_only_some_results_have_is_not_kept(read: Tokenizing, name: str) -> None:
    """Otherwise the first bad record would end the run."""
    outcome = read("in.csv", f"text,{name}\nthe,1\n2\n".encode(), "--keep", name)
    outcome.fails(2, f"--keep {name}", "hint: ")
    assert outcome.out == ""


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
    opened = [
        open_input((), PairInputOptions(input=[str(tmp_path / "in.csv")], **options), "text") for options in given
    ]
    assert len({source.read_as for source in opened}) == len(given)


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


def test_stdin_takes_the_format_that_options_name(small: str) -> None:
    arguments = ["tokenize", "--model", small, "--input", "-"]
    objects, table = b'{"text": "the", "x": "cat"}\n', b"text,x\nthe,cat\n"
    for stdin, options, text in (
        (objects, ["--format", "jsonl"], "the"),
        (objects, ["--field", "x"], "cat"),
        (table, ["--format", "csv"], "the"),
        (table, ["--text-column", "x"], "cat"),
        (table.replace(b",", b"\t"), ["--format", "tsv", "--text-column", "x"], "cat"),
    ):
        assert [line["text"] for line in call(*arguments, *options, stdin=stdin).lines] == [text]


def test_without_texts_at_a_terminal_the_program_does_not_wait(small: str) -> None:
    outcome, _ = terminal("fill-mask", "--model", small, on=["stdin"])
    outcome.fails(2, "no input", "hint: ")


def test_options_of_tables_are_refused_elsewhere(read: Tokenizing) -> None:
    read("in.csv", b"1,2\n", "--no-header").fails(1, "'text'", "1, 2", "hint: ", "--text-column")
    read("in.jsonl", b"{}\n", "--no-header").fails(2, "--no-header works only with .csv, .tsv")
    call("tokenize", "the", "--no-header", "--model", read.model).fails(2, "--no-header")


@pytest.mark.parametrize("task", ["tokenize", "fill-mask"])
@pytest.mark.slow
def test_a_result_arrives_before_the_next_input(small: str, task: str) -> None:
    running = subprocess.Popen(
        command(task, "--model", small), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert running.stdin is not None
    assert running.stdout is not None
    guard = threading.Timer(
        TIMEOUT / 12, running.kill
    )  # were the input read to its end first, this would wait for ever
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
    assert outcome.lines[0]["text"] == "the"
    assert outcome.lines[1] == {
        "index": 1,
        "error": f"{read.folder / 'in.parquet'}, row 2: column 'text' is null, expected a string",
    }
    outcome.fails(1, "1 of 2 inputs failed")
    read("in.parquet", content, "--text-column", "body").fails(1, "'body'", "text, other, n", "hint: ", "--text-column")
    read("in.parquet", content, "--field", "text").fails(2, "--field works only with .jsonl")


@needs("train")
@pytest.mark.parametrize("name", ["in.csv", "in.tsv"])
def test_the_column_of_the_text_is_guessed(read: Tokenizing, name: str) -> None:
    content = b"id,review\n1,the cat\n".replace(b",", b"\t" if name == "in.tsv" else b",")
    outcome = read(name, content)
    assert [(line["id"], line["text"]) for line in outcome.lines] == [("1", "the cat")]
    assert outcome.err.count("note: ") == 1 and "'review'" in outcome.err and "--text-column" in outcome.err
    assert read.texts(name, content, "--column", "review") == ["the cat"]  # the name it once had
    assert "--column" not in call("help", "tokenize").out


def test_hints_of_the_library_name_options(read: Tokenizing) -> None:
    read("in.csv", b"n,m\n1,2\n").fails(1, "'text'", "n, m", "hint: ", "--text-column")
    read("in.jsonl", b'{"body": "the"}\n', "--strict").fails(1, "'text'", "body", "hint: ", "--field")
    call("tokenize", "the", "--model", "").fails(1, "error: --model is ''")


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


@together(
    "name,said",
    [("a.docx", ".txt"), ("a.xlsx", ".csv"), ("a.org", "--format txt"), ("a.npy", "vectors"), ("a.xml", "--format")],
)
def test_files_of_other_programs_are_told_what_to_do_with(name: str, said: str, small: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    outcome = call("tokenize", "--input", str(tmp_path / name), "--model", small)
    outcome.fails(2, ".parquet", "hint: ", said)
    assert ".conll" not in outcome.err
    call("tokenize", "--input", str(tmp_path / name), "--format", "txt", "--model", small).fails(1, "zip", ".csv")


@together(
    "name,content,options",
    [
        ("in.txt", "café\ncat", []),
        ("in.csv", "1,café\n2,cat\n", ["--no-header", "--text-column", "2"]),
        ("in.json", '[{"text": "café"},\n {"text": "cat"}]', []),
    ],
)
def test_a_file_has_the_encoding_that_is_named(read: Tokenizing, name: str, content: str, options: list[str]) -> None:
    raw = content.encode("latin-1")
    assert read.texts(name, raw, *options, "--encoding", "latin-1") == ["café", "cat"]
    assert "--encoding latin-1" in read(name, raw, *options).err
    read(name, raw, *options, "--encoding", "latin-99").fails(2, "latin-99", "hint: ", "--encoding latin-1")


def test_an_encoding_is_that_of_files(read: Tokenizing) -> None:
    call("tokenize", "the", "--encoding", "latin-1", "--model", read.model).fails(2, "--encoding")
    read("in.parquet", b"", "--encoding", "latin-1").fails(2, "--encoding works only with .txt")


@pytest.mark.parametrize(("ending", "content"), [("jsonl", '{"utf-8": "cat"}'), ("csv", "utf-8\ncat\n")])
def test_a_field_may_be_called_like_an_encoding(read: Tokenizing, ending: str, content: str) -> None:
    option = "--field" if ending == "jsonl" else "--text-column"
    assert read.texts(f"in.{ending}", content.encode(), option, "utf-8") == ["cat"]


def test_stdin_may_be_an_array_or_in_another_encoding(small: str) -> None:
    arguments = ["tokenize", "--model", small, "--encoding", "latin-1"]
    for text in ('[{"text": "café"}]', '[\n  {"text": "café"}\n]', '{"text": "café"}\n', "café\n"):
        assert [line["text"] for line in call(*arguments, stdin=text.encode("latin-1")).lines] == ["café"]
    lines = call("tokenize", "--model", small, stdin=b"[MASK] the cat\n[x]\n").lines
    assert [line["text"] for line in lines] == ["[MASK] the cat", "[x]"]


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
