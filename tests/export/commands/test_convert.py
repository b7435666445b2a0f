"""`mlxbert convert` as a program: what it says, what it refuses, and what is left when it is cut short."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mlxbert import convert
from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError
from mlxbert.export.compare.reports import Difference
from mlxbert.export.views import conversion
from mlxbert.weights.save import parse_size
from tests.helpers.program import (
    WITHOUT_PRIVILEGES,
    call,
    command,
    environment,
    names,
    process,
    snapshot,
    terminal,
    tiny_model,
)

MANIFEST = "conversion.json"
# Writes so slowly that it can be stopped half-way.
SLOW = """
import time
from mlxbert.weights import save
write_file = save.write_file
def slowly(*arguments):
    write_file(*arguments)
    time.sleep(0.2)
save.write_file = slowly
"""
SHARDS = ["--max-shard-size", "4KB"]


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "a")


@pytest.mark.usefixtures("measurement")
def test_json_says_what_was_done(a: Path, tmp_path: Path) -> None:
    done = call("convert", str(a), str(tmp_path / "b"), "--dtype", "float16")
    assert done.status == 0, done.err
    (found,) = done.lines
    manifest = json.loads((tmp_path / "b" / MANIFEST).read_text(encoding="utf-8"))
    assert found == manifest | {"folder": str(tmp_path / "b")}
    assert found["source"] == "a" and found["format"] == "safetensors" and found["family"] == "bert"
    assert found["changed"] == ["dtype: F32 \u2192 F16", 'config.json: dtype is "float16"']
    assert found["difference"]["agree"] and found["left_out"] == []
    assert {"config.json", "model.safetensors", "vocab.txt", "README.md"} == found["written"].keys()
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.usefixtures("measurement")
def test_people_see_what_was_done(a: Path, tmp_path: Path) -> None:
    done, shown = terminal("convert", str(a), str(tmp_path / "b"), *SHARDS)
    assert done.status == 0, done.err
    for piece in ("from", "files", "changed", "weights: in 1 ", "outputs against the source", str(tmp_path / "b")):
        assert piece in shown, piece


def test_people_see_what_was_left_out_and_that_the_result_differs(a: Path, tmp_path: Path) -> None:
    found = convert(a, tmp_path / "b")
    tensor = Difference("tensor", "x", 0, 1, "x: 0 in A; 1 in B")
    wrong = replace(found.difference, agree=False, differences=(tensor,), notes=("a note",))
    left_out = ("bert/x/kernel/adam_m", "bert/x/lamb_v", "optimizer.exp_avg_sq", "good_steps", "adamant.weight")
    screen = console.stdout()
    with screen.capture() as captured:
        screen.print(*conversion(replace(found, left_out=left_out, difference=wrong)))
    shown = captured.get()
    assert "1 tensor: adamant.weight" in shown and "4 of an optimizer: bert/x/kernel/adam_m" in shown
    assert "does not agree" in shown and "x: 0 in A; 1 in B" in shown and "a note" in shown


@pytest.mark.usefixtures("measurement")
def test_the_built_in_model_is_converted(tmp_path: Path) -> None:
    done = call("convert", "builtin", str(tmp_path / "b"))
    assert done.status == 0, done.err
    assert "dtype: F16, I8 \u2192 F16" in done.lines[0]["changed"]
    assert done.lines[0]["source"] == "builtin" and str(tmp_path) not in (tmp_path / "b" / "README.md").read_text()
    assert "Only mlxbert" not in (tmp_path / "b" / "README.md").read_text()  # transformers opens the folder


@pytest.mark.usefixtures("measurement")
def test_an_empty_folder_is_filled_if_not_current(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "far" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "b")
    monkeypatch.chdir(tmp_path / "here")
    for place in (".", "./", "../here", str(tmp_path / "here")):
        call("convert", str(a), place).fails(2, "is the current folder")
    assert names(tmp_path / "here") == []
    monkeypatch.chdir(tmp_path)
    for place in ("here/", "link", "x/y/b"):
        assert call("convert", str(a), place).status == 0
        assert MANIFEST in names(tmp_path / place)
    assert (tmp_path / "link").is_symlink() and names(tmp_path / "far") == names(tmp_path / "x" / "y") == ["b"]
    assert names(tmp_path) == ["a", "far", "here", "link", "x"]


def test_a_place_that_is_taken_is_refused(a: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.md").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = snapshot(tmp_path)
    refused = {
        str(tmp_path / "file"): "is a file",
        str(tmp_path / "dangling"): "expected a folder",
        str(tmp_path / "full"): "was not written by mlxbert",
        str(a): "is the folder of the source",
        str(a / "b"): "is inside the folder of the source",
        str(a / ".." / "a"): "is the folder of the source",
        str(tmp_path): "contains the folder of the source",
        str(tmp_path / "file" / "b"): "annot be written" if sys.platform == "darwin" else "",
    }
    for options in ([], ["--overwrite"]):
        for place, said in refused.items():
            done = call("convert", str(a), place, *options)
            assert done.status in (1, 2) and "Traceback" not in done.err
            assert "error: " in done.err and said in done.err.replace("\n", " "), (place, done.err)
        assert snapshot(tmp_path) == before
    call("convert", "org/none", str(tmp_path), HF_HUB_OFFLINE="1").fails(2, "was not written by mlxbert")


@pytest.mark.slow
def test_a_place_where_one_may_not_write_is_refused(a: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked").chmod(0o555)
    done = process("convert", str(a), str(tmp_path / "locked" / "b"), prelude=WITHOUT_PRIVILEGES)
    if "capabilities stay" in done.err:
        pytest.skip("root keeps its capabilities here")
    done.fails(1, "locked", "Permission denied")
    assert names(tmp_path / "locked") == []


@pytest.mark.usefixtures("measurement")
def test_only_a_former_conversion_is_replaced(a: Path, tmp_path: Path) -> None:
    b = tmp_path / "b"
    again = ("convert", str(a), str(b), "--overwrite")
    assert call(*again[:3], "--dtype", "float16", *SHARDS).status == 0
    before = snapshot(b)
    call(*again[:3]).fails(2, "already exists", "--overwrite replaces the folder")
    call("convert", str(tmp_path / "none"), str(b), "--overwrite").fails(1, "none")
    assert snapshot(b) == before
    (b / "runs").mkdir()
    for mine in (b / "mine.md", b / "runs" / "log"):
        mine.write_text("next to it")
        call(*again).fails(2, mine.name, "mlxbert did not write", "move this file away")
        assert mine.read_text() == "next to it"
        mine.unlink()
    for manifest in ("", "{}", "[]", '{"written": 1}', "[" * 100_000):
        (b / MANIFEST).write_text(manifest)
        call(*again).fails(2, "mlxbert did not write")
    (b / MANIFEST).write_bytes(before[MANIFEST])
    assert snapshot(b) == before
    done = call(*again)
    assert done.status == 0 and done.lines[0]["changed"] == []
    assert set(snapshot(b)) == {*done.lines[0]["written"], MANIFEST} and names(tmp_path) == ["a", "b"]


@pytest.mark.usefixtures("measurement")
def test_what_another_program_calls_partial_is_left_alone(a: Path, tmp_path: Path) -> None:
    for name in ("b.partial", "b.replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.md").write_text("mine")
    call("convert", str(a), str(tmp_path / "b")).fails(2, "b.partial: already exists")
    (tmp_path / "b.partial" / "notes.md").unlink()
    (tmp_path / "b.partial").rmdir()
    for options in ([], ["--overwrite"]):
        assert call("convert", str(a), str(tmp_path / "b"), *options).status == 0
        assert names(tmp_path) == ["a", "b", "b.replaced"]
        assert (tmp_path / "b.replaced" / "notes.md").read_text() == "mine"


@pytest.mark.slow
def test_a_killed_run_leaves_no_model_and_the_next_one_cleans_up(a: Path, tmp_path: Path) -> None:
    b, partial = tmp_path / "b", tmp_path / "b.partial"
    words = command("convert", str(a), str(b), *SHARDS, prelude=SLOW)
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        while running.poll() is None and len(list(partial.glob("model-*"))) < 2:
            time.sleep(0.05)
        assert running.poll() is None and not b.exists() and not (partial / "config.json").exists()
        call("convert", str(a), str(b)).fails(2, "another")
        running.kill()
    assert names(tmp_path) == ["a", "b.partial"]
    call("inspect", str(partial)).fails(1)
    (partial / "inner").mkdir()
    done = call("convert", str(a), str(b))
    assert done.status == 0, done.err
    assert names(tmp_path) == ["a", "b"] and set(snapshot(b)) == {*done.lines[0]["written"], MANIFEST}
    assert not list(b.glob("model-*")) and not (b / "inner").exists()


@pytest.mark.parametrize("limit", [0, 100, 1500, 20_000])
@pytest.mark.slow
def test_a_full_disk_ends_in_an_error_and_leaves_nothing(limit: int, a: Path, tmp_path: Path) -> None:
    full = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    assert max(path.stat().st_size for path in a.iterdir()) > 20_000
    done = process("convert", str(a), str(tmp_path / "b"), prelude=full, PYTHONDONTWRITEBYTECODE="1")
    done.fails(1, str(tmp_path / "b.partial"))
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(("options", "said"), [
    (["--max-shard-size=-1"], "a size such as"), (["--quantize", "x"], "quantize"), (["--quantize=-4"], "4 or 8 bits"),
    (["--group-size", "32"], "--quantize is not given"),
    (["--quantize", "4", "--group-size", "128"], "--group-size is 128"),
    (["--dtype", "FLOAT99"], "float32"), (["--what"], "--what"),
    (["--to", "gguf", "--quantize", "4"], "llama-quantize"), (["--to", "gguf", "--group-size", "64"], "--group-size"),
    (["--to", "gguf", "--max-shard-size", "1GB"], "--max-shard-size"), (["--to", "gguf"], "does not end in .gguf"),
], ids=str)  # fmt: skip
def test_wrong_options_are_refused(options: list[str], said: str, a: Path, tmp_path: Path) -> None:
    call("convert", str(a), str(tmp_path / "b"), *options).fails(2, said)
    assert names(tmp_path) == ["a"]


def test_sizes_are_those_of_their_units() -> None:
    for size, count in (
        ("7B", 7), ("2000000", 2_000_000), ("1KB", 1000), ("1KiB", 1024), ("1.5 mb", 1_500_000), ("5GB", 5 * 10**9),
    ):  # fmt: skip
        assert parse_size(size) == count
    for size in ("0", "abc", "-1", "", "1e9", "0.1", "5TB", "nan"):
        with pytest.raises(ArgumentError, match="a size such as"):
            parse_size(size)
    for size in ("10", "999999", "1.5"):
        with pytest.raises(ArgumentError, match=size) as caught:
            parse_size(size)
        assert caught.value.hint == f"write {size}MB"


def test_a_source_that_is_none_is_refused(a: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (a / "model.safetensors").rename(tmp_path / "weights")
    for source in (tmp_path / "none", tmp_path / "empty", a, tmp_path / "weights"):
        call("convert", str(source), str(tmp_path / "b"), "--offline").fails(1, str(source))
    assert names(tmp_path) == ["a", "empty", "weights"]
    call("convert", str(a)).fails(2, "DIR")
    assert os.path.isdir(a)


@pytest.mark.slow
def test_a_former_conversion_is_back_if_the_new_one_fails(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = tmp_path / "b"
    assert call("convert", str(a), str(b)).status == 0
    before, replace = snapshot(b), os.replace

    def refuse(source: Path, target: Path) -> None:
        if Path(source).suffix == ".partial":
            raise PermissionError(13, "Permission denied", str(source), None, str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    call("convert", str(a), str(b), "--dtype", "float16", "--overwrite").fails(1, f"{b}: Permission denied")
    assert snapshot(b) == before and names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("ending", ["gguf", "onnx"])
def test_the_ending_of_a_file_says_its_format(ending: str, a: Path, tmp_path: Path) -> None:
    pytest.importorskip(ending)
    file = tmp_path / f"a.{ending}"
    done = call("convert", str(a), str(file))
    assert (done.status, done.lines[0]["file"]) == (0, str(file)) and {*tmp_path.iterdir()} == {a, file}
    if ending == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        assert onnxruntime.InferenceSession(str(file)).get_outputs() and "tokenizer" in done.err
    else:
        found = done.lines[0]
        assert file.read_bytes()[:4] == b"GGUF" and file.stat().st_size == found["bytes"]
        assert (found["architecture"], found["type"]) == ("bert", "F32")
        assert found["left_out"] and all(phrase in done.err for phrase in found["left_out"])
        done, shown = terminal("convert", str(a), str(tmp_path / "b.gguf"), "--task", "embed")
        call("convert", str(a), "/dev/null", "--to", "gguf").fails(2, "not a regular file")
        call("convert", str(a), str(tmp_path), "--to", "gguf").fails(2, "expected a file")
        assert done.status == 0 and "runs as" in shown and shown.count("masked-LM head") == 1
    before = file.read_bytes()
    call("convert", str(a), str(file)).fails(2, "already exists", "--overwrite replaces the file")
    other = {"gguf": "onnx", "onnx": "safetensors"}[ending]
    call("convert", str(a), str(file), "--to", other, "--overwrite").fails(2, f"--to is {other}", "hint: ")
    assert file.read_bytes() == before
    assert call("convert", str(a), str(file), "--overwrite").status == 0
