"""Where texts come from: arguments, .txt, .jsonl, .csv, .tsv and stdin, read as they are and as they come."""

import gzip
import io
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.inputs import open_input
from mlxbert.cli.options import PairInputOptions
from mlxbert.cli.views import console
from tests.helpers.program import TIMEOUT, Outcome, call, command, environment, terminal, tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def read(tiny: str, tmp_path: Path) -> "Reader":
    return Reader(tiny, tmp_path)


class Reader:
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


def test_a_txt_has_a_text_per_line(read: Reader) -> None:
    assert read.texts("in.txt", b"the cat\nthe dog\n") == ["the cat", "the dog"]
    assert read.texts("in.txt", b"the cat\nthe dog") == ["the cat", "the dog"]
    assert read.texts("in.txt", b"") == []


def test_an_empty_line_is_an_empty_text_and_spaces_stay(read: Reader) -> None:
    assert read.texts("in.txt", b"the\n\n  cat \n\n") == ["the", "", "  cat ", ""]


def test_a_byte_order_mark_and_crlf_are_taken_off(read: Reader) -> None:
    assert read.texts("in.txt", b"\xef\xbb\xbfthe\r\n\r\ncat\r\n") == ["the", "", "cat"]


def test_only_a_newline_ends_a_line(read: Reader) -> None:
    text = "the\u2028cat\u2029sat\x85on\x0bthe\x0cmat\x1cw1\rw2"
    assert read.texts("in.txt", f"{text}\ndog\n".encode()) == [text, "dog"]
    line = json.dumps({"text": text}, ensure_ascii=False)
    assert read.texts("in.jsonl", f"{line}\n".encode()) == [text]
    assert read.texts("in.csv", "text,n\nthe\u2028cat\u2029sat\x85,1\n".encode()) == ["the\u2028cat\u2029sat\x85"]


def test_a_jsonl_has_a_text_per_object_in_a_field(read: Reader) -> None:
    content = b'\xef\xbb\xbf{"text": "the", "other": "cat"}\r\n\n{"text": "\\u2026", "other": "dog"}\n'
    assert read.texts("in.jsonl", content) == ["the", "…"]
    assert read.texts("in.jsonl", content, "--field", "other") == ["cat", "dog"]


def test_a_csv_has_a_text_per_row_in_a_column(read: Reader) -> None:
    content = b'\xef\xbb\xbftext,other\r\n"the, ""cat""\nsat",x\r\n\r\ndog,y\r\n'
    assert read.texts("in.csv", content) == ['the, "cat"\nsat', "dog"]
    assert read.texts("in.csv", content, "--column", "other") == ["x", "y"]


def test_quotes_are_data_in_a_tsv(read: Reader) -> None:
    assert read.texts("in.tsv", b'text\tn\n"the, cat\t1\ndog"\t2\n') == ['"the, cat', 'dog"']


def test_a_csv_field_may_be_longer_than_the_library_s_limit(read: Reader) -> None:
    text = "w1 " * 100_000
    assert read.texts("in.csv", f"text\n{text}\n".encode(), "--overflow", "truncate", "--quiet") == [text]


def test_format_says_what_the_ending_does_not(read: Reader) -> None:
    read("in.data", b"the\n").fails(2, "'.data'", "hint: ", "--format")
    assert read.texts("in.data", b"the\n", "--format", "txt") == ["the"]
    assert read.texts("in.txt", b'{"text": "the"}\n', "--format", "jsonl") == ["the"]
    assert read.texts("IN.JSONL", b'{"text": "the"}\n') == ["the"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("in.csv", ["--field", "text"]),
        ("in.txt", ["--field", "text"]),
        ("in.jsonl", ["--column", "text"]),
        ("in.txt", ["--column", "text"]),
        ("in.jsonl", ["--field", "text", "--column", "text"]),
        ("in.txt", ["--format", "xml"]),
        ("in.txt", ["an argument"]),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(read: Reader, name: str, options: list[str]) -> None:
    outcome = read(name, b"text\nthe\n", *options)
    outcome.fails(2)
    assert outcome.out == ""


def test_piped_texts_are_read_without_being_asked_for(tiny: str) -> None:
    piped = call("fill-mask", "--model", tiny, stdin=b"the [MASK]\r\nw1 [MASK]\r\n")
    assert (piped.status, piped.err) == (0, "")
    assert [line["text"] for line in piped.lines] == ["the [MASK]", "w1 [MASK]"]
    assert piped.out == call("fill-mask", "--model", tiny, "--input", "-", stdin=b"the [MASK]\nw1 [MASK]\n").out


def test_the_first_line_of_stdin_may_be_long_and_end_with_a_carriage_return(tiny: str) -> None:
    text = "the cat " * 20_000
    for content, expected in (
        (f"{text}\nthe\n", [text, "the"]),
        (f'{{"text": "{text}"}}\n{{"text": "the"}}\n', [text, "the"]),
        ("the\rcat\r", ["the", "cat"]),
        ('{"text": "the"}\r{"text": "cat"}\r', ["the", "cat"]),
    ):
        found = call("embed", "--model", tiny, "--quiet", stdin=content.encode())
        assert [line["text"] for line in found.lines] == expected


def test_json_lines_are_known_by_the_first_line_of_stdin(tiny: str) -> None:
    lines = b'\xef\xbb\xbf{"text": "the [MASK]"}\n{"text": "w1 [MASK]"}\n'
    first = call("fill-mask", "--model", tiny, stdin=lines)
    assert (first.status, first.err.splitlines()[0].partition(": ")[0]) == (0, "note")
    second = call("tokenize", "--model", tiny, "--input", "-", stdin=first.out.encode())
    for outcome in (first, second):
        assert [line["text"] for line in outcome.lines] == ["the [MASK]", "w1 [MASK]"]
    plain = call("tokenize", "--model", tiny, "--format", "txt", "--overflow", "truncate", "--quiet", stdin=lines[3:])
    assert [line["text"] for line in plain.lines] == lines[3:].decode().splitlines()
    assert [line["text"] for line in call("tokenize", "--model", tiny, stdin=b'["the"]\n{"text": 1}\n').lines] == [
        *('["the"]', '{"text": 1}')
    ]


def test_a_table_in_a_pipe_is_texts_and_says_so(tiny: str) -> None:
    rows = b"id,text\n1,the [MASK]\n"
    said = call("tokenize", "--model", tiny, stdin=rows)
    assert [line["text"] for line in said.lines] == ["id,text", "1,the [MASK]"] and "--format csv" in said.err
    named = call("tokenize", "--model", tiny, "--format", "csv", stdin=rows)
    assert [line["text"] for line in named.lines] == ["the [MASK]"] and "note" not in named.err


def test_several_processes_do_not_wait_for_stdin(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.cli.inputs.first_line", None)
    call("embed", "--model", tiny, stdin=b"the\n", MLX_RANK="0").fails(2, "stdin", "hint: ")


def test_several_inputs_are_read_one_after_the_other(tiny: str, tmp_path: Path) -> None:
    contents = {"a.csv": b"n,text\n1,the\n", "b.txt": b"cat\n\xe9\n", "c.jsonl": b'{"text": "dog"}\n{"body": "mat"}\n'}
    arguments = ["tokenize", "--model", tiny]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        arguments += ["--input", str(tmp_path / name)]
    outcome = call(*arguments, "-i", "-", stdin=b"sat\n")
    outcome.fails(1, "2 of 6", "hint: ")
    assert [line.get("text") for line in outcome.lines] == ["the", "cat", None, "dog", None, "sat"]
    assert [line["index"] for line in outcome.lines if "index" in line] == [2, 4]
    assert outcome.lines[2]["error"].startswith(f"{tmp_path / 'b.txt'}, record 2: line 2: byte 0xe9")
    assert outcome.lines[4]["error"].startswith(f"{tmp_path / 'c.jsonl'}, record 2: no field 'text'")
    numbers = call(*arguments, "--column", "n")
    assert [line.get("text") for line in numbers.lines] == ["1", "cat", None, "dog", None]
    call(*arguments, "-i", "-", "-i", "-").fails(2, "given twice")
    call(*arguments, str(tmp_path / "b.txt")).fails(2, "arguments and --input", "hint: ", "b.txt")
    call(*arguments, "-i", str(tmp_path / "none.txt")).fails(1, "none.txt")
    call("tokenize", "--field", "x", "-i", str(tmp_path / "b.txt"), "-i", str(tmp_path / "a.csv")).fails(2, "txt, csv")


@pytest.mark.parametrize(
    "options",
    [["--targets", "a", "--targets", "b"], ["-m", "x", "--model", "y"], ["--strict", "--top-k", "1", "--top-k", "1"]],
)
def test_an_option_that_takes_one_value_is_not_repeated(options: list[str]) -> None:
    call("fill-mask", "the [MASK]", *options).fails(2, "2 times")


def test_an_option_and_its_opposite_contradict_each_other() -> None:
    call("embed", "the", "--normalize", "--no-normalize").fails(2, "--normalize", "2 times")


def test_results_carry_columns_of_the_input(read: Reader) -> None:
    content = b"id,text,n\n7,the,x\n8\n9,cat,y\n"
    assert [line.get("id") for line in read("in.csv", content).lines] == ["7", None, "9"]
    kept = read("in.csv", content, "--keep", "n", "--keep", "n")
    assert [next(iter(line)) for line in kept.lines] == ["n", "index", "n"] and kept.lines[2]["n"] == "y"
    target = read.folder / "out.jsonl"
    read("in.csv", content, "--keep", "n", "--output", str(target))
    assert target.read_text() == kept.out
    read("in.csv", content, "--keep", "text").fails(2, "--keep text", "tokens")
    read("in.txt", b"the\n", "--keep", "id").fails(2, "--keep works only with")
    call("tokenize", "the", "--keep", "id", "--model", read.model).fails(2, "--keep")


@pytest.mark.parametrize("name", ["index", "error", "unknown_tokens"])
def test_what_only_some_results_have_is_not_kept(read: Reader, name: str) -> None:
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


def test_a_table_of_vectors_carries_columns(tiny: str, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "the", "n": 1}\n{"text": "cat", "n": "x"}\n{"text": "dog"}\n')
    arguments = ["embed", "--model", tiny, "--input", str(tmp_path / "in.jsonl"), "--keep", "n", "--output"]
    assert call(*arguments, str(tmp_path / "x.parquet")).status == 0
    assert pq.read_table(tmp_path / "x.parquet")["n"].to_pylist() == ["1", "x", None]
    call(*arguments, str(tmp_path / "x.npy")).fails(2, "--keep", ".parquet")


def test_arguments_win_over_stdin(tiny: str) -> None:
    assert [line["text"] for line in call("tokenize", "the", "--model", tiny, stdin=b"cat\n").lines] == ["the"]


def test_stdin_takes_the_format_that_options_name(tiny: str) -> None:
    arguments = ["tokenize", "--model", tiny, "--input", "-"]
    objects, table = b'{"text": "the", "x": "cat"}\n', b"text,x\nthe,cat\n"
    for stdin, options, text in (
        (objects, ["--format", "jsonl"], "the"),
        (objects, ["--field", "x"], "cat"),
        (table, ["--format", "csv"], "the"),
        (table, ["--column", "x"], "cat"),
        (table.replace(b",", b"\t"), ["--format", "tsv", "--column", "x"], "cat"),
    ):
        assert [line["text"] for line in call(*arguments, *options, stdin=stdin).lines] == [text]


def test_without_texts_at_a_terminal_the_program_does_not_wait(tiny: str) -> None:
    outcome, _ = terminal("fill-mask", "--model", tiny, on=["stdin"])
    outcome.fails(2, "no input", "hint: ")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("in.jsonl", b'{"a": "the cat", "b": "sat"}\n{"b": "w2", "a": "w1"}\n'),
        ("in.csv", b"n,b,a\n1,sat,the cat\n2,w2,w1\n"),
        ("in.tsv", b"a\tb\nthe cat\tsat\nw1\tw2\n"),
    ],
)
def test_pairs_are_the_fields_a_and_b(tiny: str, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    outcome = call("next-sentence", "--model", tiny, "--input", str(tmp_path / name))
    assert outcome.status == 0
    assert [(line["a"], line["b"]) for line in outcome.lines] == [("the cat", "sat"), ("w1", "w2")]


def test_pairs_from_stdin_are_json_lines(tiny: str) -> None:
    outcome = call("next-sentence", "--model", tiny, stdin=b'{"a": "the cat", "b": "sat"}\n')
    assert [(line["a"], line["b"]) for line in outcome.lines] == [("the cat", "sat")]


@pytest.mark.parametrize(("name", "options"), [("in.txt", []), ("in.jsonl", ["--field", "a"])])
def test_pairs_are_no_lines_of_text_and_no_single_column(
    tiny: str, tmp_path: Path, name: str, options: list[str]
) -> None:
    (tmp_path / name).write_bytes(b"the\n")
    call("next-sentence", "--model", tiny, "--input", str(tmp_path / name), *options).fails(2, "a and b", "hint: ")


def test_columns_of_pairs_are_named_in_one_way(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"one,two\nthe cat,sat\n")
    arguments = ["next-sentence", "--model", tiny, "--input", str(path)]
    call(*arguments).fails(1, "'a'", "one, two", "hint: ", "--text-column and --pair-column")
    named = call(*arguments, "--text-column", "one", "--pair-column", "two")
    assert [(line["a"], line["b"]) for line in named.lines] == [("the cat", "sat")]
    numbered = call(*arguments, "--no-header", "--text-column", "2", "--pair-column", "1")
    assert [(line["a"], line["b"]) for line in numbered.lines] == [("two", "one"), ("sat", "the cat")]


def test_columns_of_a_table_without_a_header_have_numbers(read: Reader) -> None:
    assert read.texts("in.csv", b"1,the\n2,cat\n", "--no-header", "--column", "2") == ["the", "cat"]
    read("in.csv", b"1,the\n", "--no-header").fails(1, "'text'", "1, 2", "hint: ", "--column")
    read("in.jsonl", b"{}\n", "--no-header").fails(2, "--no-header works only with .csv, .tsv")
    call("tokenize", "the", "--no-header", "--model", read.model).fails(2, "--no-header")


@pytest.mark.parametrize("task", ["tokenize", "fill-mask"])
@pytest.mark.slow
def test_a_result_arrives_before_the_next_input(tiny: str, task: str) -> None:
    running = subprocess.Popen(
        command(task, "--model", tiny), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
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


@pytest.mark.slow
def test_a_named_pipe_is_an_input(tiny: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    running = subprocess.Popen(
        command("tokenize", "--model", tiny, "--input", str(pipe)), env=environment(), stdout=subprocess.PIPE
    )
    with pipe.open("w", encoding="utf-8") as writer:
        writer.write("the cat\n")
    out, _ = running.communicate(timeout=TIMEOUT)
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["the cat"]


def test_a_parquet_has_a_text_per_row_in_a_column(read: Reader) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    written = io.BytesIO()
    pq.write_table(pa.table({"text": ["the", None], "other": ["cat", "dog"], "n": [1, 2]}), written)
    content = written.getvalue()
    assert read.texts("in.parquet", content, "--column", "other") == ["cat", "dog"]
    assert read.texts("in.data", content, "--column", "other", "--format", "parquet") == ["cat", "dog"]
    outcome = read("in.parquet", content)
    assert outcome.lines[0]["text"] == "the"
    assert outcome.lines[1] == {"index": 1, "error": "column 'text' is null, expected a string"}
    outcome.fails(1, "1 of 2 inputs failed")
    read("in.parquet", content, "--column", "body").fails(1, "'body'", "text, other, n", "hint: ", "--column")
    read("in.parquet", content, "--field", "text").fails(2, "--field works only with .jsonl")


def test_a_compressed_file_is_read_as_what_it_holds(read: Reader) -> None:
    assert read.texts("in.txt.gz", gzip.compress(b"the\ncat\n")) == ["the", "cat"]
    assert read.texts("in.csv.gz", gzip.compress(b"x,y\nthe,cat\n"), "--column", "y") == ["cat"]
    assert read.texts("in.data.gz", gzip.compress(b'{"x": "the"}\n'), "--format", "jsonl", "--field", "x") == ["the"]
    read("in.data.gz", b"").fails(2, "'.gz'", "hint: ", "--format jsonl")


def test_hints_of_the_library_name_options(read: Reader) -> None:
    read("in.csv", b"body\nthe\n").fails(1, "'text'", "body", "hint: ", "--column")
    read("in.jsonl", b'{"body": "the"}\n', "--strict").fails(1, "'text'", "body", "hint: ", "--field")


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("try dtype='float32'", "try --dtype float32"),
        ('try prompt="a b"', "try --prompt 'a b'"),
        ("overwrite=True replaces it", "--overwrite replaces it"),
        ("normalize=False, or top_k=5.", "--no-normalize, or --top-k 5."),
        ("choose one with batch_tokens=", "choose one with --batch-tokens"),
        ("kept in /runs/lr=0.1/x: lr=0.1/x, lr=3.txt", "kept in /runs/lr=0.1/x: lr=0.1/x, lr=3.txt"),
        ("x == 1, a==b, HF_HUB_OFFLINE=1, ?a=b", "x == 1, a==b, HF_HUB_OFFLINE=1, ?a=b"),
    ],
)
def test_arguments_in_hints_become_options(hint: str, shown: str) -> None:
    assert console.to_options(hint) == shown


def test_rows_that_a_quote_swallows_are_told_with_their_lines(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "open.csv"
    path.write_text('id,text\n1,"the cat\n2,dog\n3,"mat"\n4,paris\n5,a,b\n')
    outcome = call("tokenize", "--input", str(path), "--model", tiny)
    outcome.fails(1, "2 of 3 inputs failed", "hint: ")
    first, _, last = outcome.lines
    assert "line 2: " in first["error"] and "to line 4" in first["error"] and "line 6: 3 columns" in last["error"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("a.docx", ".txt"), ("a.xlsx", ".csv"), ("a.npy", "vectors"), ("a.xml", "--format")],
)
def test_files_of_other_programs_are_told_what_to_do_with(name: str, said: str, tiny: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    outcome = call("tokenize", "--input", str(tmp_path / name), "--model", tiny)
    outcome.fails(2, ".parquet", "hint: ", said)
    assert ".conll" not in outcome.err
    call("tokenize", "--input", str(tmp_path / name), "--format", "txt", "--model", tiny).fails(1, "zip", ".csv")


def test_an_existing_folder_is_no_output_file(tiny: str, tmp_path: Path) -> None:
    call("tokenize", "the", "--model", tiny, "--output", str(tmp_path)).fails(2, "is a folder")
