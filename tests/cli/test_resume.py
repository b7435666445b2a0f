"""What a later run finds in `X.partial` and makes of it, and what an output must not cost: files of the user."""

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mlxbert.cli.output.resumable_file import FileOutput, check_output
from mlxbert.cli.output.written_paths import check_written
from mlxbert.cli.views import progress
from mlxbert.errors import ArgumentError
from mlxbert.progress import OnProgress
from mlxbert.readers.stream import Record, RecordStream
from mlxbert.results.text_relations import NextSentence
from tests.helpers.cases import together
from tests.helpers.program import call, command, environment, terminal, tiny_model

FILE: dict[str, Any] = {"task": "t", "input": "a hash"}
STDIN: dict[str, Any] = {"task": "t", "input": None}
PART = 8


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.cli.output.resumable_file.PART", PART)


def result(number: int, *, truncated: bool = False) -> NextSentence:
    return NextSentence(str(number), "b", True, 0.5, truncated)


def killed(path: Path, manifest: dict[str, Any], results: int = PART + 5) -> None:
    """A run that wrote some results and then was killed: its lock goes with it, its folder stays."""
    output = FileOutput(path, manifest, overwrite=False).__enter__()
    for number in range(results):
        output.write(result(number, truncated=number % 2 == 0))
    assert output._lock is not None
    output._lock.close()


def finish(path: Path, manifest: dict[str, Any], total: int) -> tuple[int, int]:
    """A run to the end; gives how many results it took over, and how many were cut in all."""
    with FileOutput(path, manifest, overwrite=False) as output:
        taken = output.done
        for number in range(taken, total):
            output.write(result(number, truncated=number % 2 == 0))
    return taken, output.truncated


def test_a_killed_run_over_stdin_is_never_gone_on_with(tmp_path: Path) -> None:
    killed(tmp_path / "x.jsonl", STDIN)
    assert finish(tmp_path / "x.jsonl", STDIN, 7) == (0, 4)
    assert (tmp_path / "x.jsonl").read_text().count("\n") == 7
    killed(tmp_path / "y.jsonl", STDIN)
    assert finish(tmp_path / "y.jsonl", FILE, PART + 10)[0] == 0


def test_a_folder_without_a_manifest_is_begun_afresh(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.partial").mkdir()
    (tmp_path / "x.jsonl.partial" / "manifest.json.unfinished").write_text("{")
    assert finish(tmp_path / "x.jsonl", FILE, 3)[0] == 0


def test_a_run_killed_before_its_first_part_is_in_nobodys_way(tmp_path: Path) -> None:
    killed(tmp_path / "x.jsonl", FILE | {"input": "another"}, results=5)
    assert finish(tmp_path / "x.jsonl", FILE, 3)[0] == 0


def test_the_work_of_another_command_is_refused_and_kept(tmp_path: Path) -> None:
    killed(tmp_path / "x.jsonl", FILE)
    for other in (STDIN, FILE | {"input": "another"}):
        with pytest.raises(ArgumentError, match="unfinished work of another"):
            finish(tmp_path / "x.jsonl", other, 5)
    assert finish(tmp_path / "x.jsonl", FILE, PART + 1)[0] == PART


def test_overwrite_drops_the_work_of_another_command_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(tmp_path / "x.jsonl", FILE)
    with pytest.raises(ArgumentError) as refused:
        finish(tmp_path / "x.jsonl", FILE | {"input": "mended"}, 5)
    assert refused.value.hint and "--overwrite" in refused.value.hint
    with FileOutput(tmp_path / "x.jsonl", FILE | {"input": "mended"}, overwrite=True) as output:
        assert output.done == 0
        output.write(result(0))
    assert "unfinished work of another run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_a_file_that_came_while_the_run_went_on_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(ArgumentError, match="exists"), FileOutput(path, FILE, overwrite=False) as output:
        for number in range(PART):
            output.write(result(number))
        path.write_text("precious")
    assert path.read_text() == "precious"
    path.rename(tmp_path / "kept")
    assert finish(path, FILE, PART) == (PART, 0)


def test_a_folder_with_files_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "x.jsonl.partial"
    folder.mkdir()
    (folder / "my notes.md").write_text("mine")
    with pytest.raises(ArgumentError, match=r"x\.jsonl\.partial: contains my notes\.md"):
        finish(tmp_path / "x.jsonl", FILE, 3)
    assert (folder / "my notes.md").read_text() == "mine"
    (folder / "my notes.md").unlink()
    assert finish(tmp_path / "x.jsonl", FILE, 3) == (0, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_the_input_is_no_output(tmp_path: Path) -> None:
    path = tmp_path / "io.jsonl"
    path.write_text("{}")
    (tmp_path / "link.jsonl").symlink_to(path)
    for other in (path, tmp_path / "link.jsonl"):
        with pytest.raises(ArgumentError, match=r"\.jsonl: is also an input"):
            check_output(other, True, sources=[str(path)])
    check_output(path, True, sources=[str(tmp_path / "other.jsonl")])


def test_what_is_no_ordinary_file_is_no_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ArgumentError, match="is a FIFO, not a regular file") as problem:
        check_output(tmp_path / "pipe.jsonl", True)
    assert problem.value.hint == "without --output results go to stdout"
    with pytest.raises(ArgumentError) as problem:
        check_written("log_file", tmp_path / "pipe.jsonl", "file")
    assert "stderr" in (problem.value.hint or "")


def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link, target = tmp_path / "x.jsonl", tmp_path / "far" / "real.jsonl"
    link.symlink_to(target)
    finish(link, FILE, 3)
    assert link.is_symlink() and len(target.read_text().splitlines()) == 3
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["real.jsonl"]


@together("counts", ["[1]", "{}", '{"bytes": 1}', '{"results": "3"}', "null", "\udcff", "{"])
def test_a_damaged_count_beside_a_part_makes_it_be_made_again(counts: str, tmp_path: Path) -> None:
    killed(tmp_path / "x.jsonl", FILE)
    nearby = tmp_path / "x.jsonl.partial" / "part-000000.json"
    assert json.loads(nearby.read_text())["results"] == PART
    nearby.write_bytes(counts.encode("utf-8", "surrogateescape"))
    assert finish(tmp_path / "x.jsonl", FILE, PART + 3)[0] == 0
    texts = [json.loads(line)["a"] for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert texts == [str(number) for number in range(PART + 3)]
    (tmp_path / "x.jsonl").unlink()


@together(
    "changes,said",
    [
        ({"input": "a" * 64}, r"\(another input\)"),
        ({"model": "b" * 64, "options": {"top_k": 3}}, r"\(another model; top_k is 3, was 1\)"),
        ({"options": {"top_k": 3}}, r"\(top_k is 3, was 1\)"),
    ],
)
def test_what_another_run_does_otherwise_is_said(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    manifest = FILE | {"model": "a", "options": {"top_k": 1}}
    if not (tmp_path / "x.jsonl.partial").exists():
        killed(tmp_path / "x.jsonl", manifest)
    with pytest.raises(ArgumentError, match=said):
        finish(tmp_path / "x.jsonl", manifest | changes, 3)


def test_a_run_over_several_files_resumes_among_them(tmp_path: Path) -> None:
    model, target, arguments = tiny_model(tmp_path / "model"), tmp_path / "x.jsonl", ["tokenize"]
    for name, content in (("a.txt", "the\n" * 5), ("b.txt", "cat\n" * 10 + "dog " * 30 + "\n")):
        (tmp_path / name).write_text(content)
        arguments += ["--input", str(tmp_path / name)]
    arguments += ["--model", str(model)]
    with mock.patch("mlxbert.cli.views.progress.records", side_effect=interrupted_after(10)):
        assert call(*arguments, "--output", str(target)).status == 130
    swapped = [arguments[0], *arguments[3:5], *arguments[1:3], *arguments[5:]]
    call(*swapped, "--output", str(target)).fails(2, "another input")
    with mock.patch("mlxbert.cli.views.progress.records", wraps=progress.records) as bar:
        call(*arguments, "--output", str(target)).fails(1, "1 of 16")
    assert bar.call_args.kwargs["before"][1] == 8
    assert target.read_text() == call(*arguments).out
    assert json.loads(target.read_text().splitlines()[-1])["error"].startswith(f"{tmp_path / 'b.txt'}, line 11: ")


def test_a_named_pipe_is_read_once_and_whole(tmp_path: Path) -> None:
    model, pipe = tiny_model(tmp_path / "model"), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("the [MASK]\n" * 5))
    writer.start()
    arguments = ["fill-mask", "--input", str(pipe), "--format", "txt", "--model", str(model)]
    outcome = call(*arguments, "--output", str(tmp_path / "x.jsonl"))
    writer.join()
    assert outcome.status == 0 and "cannot be resumed" in outcome.err
    assert (tmp_path / "x.jsonl").read_text().count("\n") == 5


def test_the_bar_of_a_resumed_run_begins_where_it_stopped(tmp_path: Path) -> None:
    model, texts, target = tiny_model(tmp_path / "model"), tmp_path / "in.txt", tmp_path / "x.jsonl"
    texts.write_text("the cat\n" * 60)
    arguments = ["tokenize", "--input", str(texts), "--model", str(model), "--output", str(target)]
    with mock.patch("mlxbert.cli.views.progress.records", side_effect=interrupted_after(45)):
        outcome = call(*arguments)
    assert outcome.status == 130 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("hint: 40 ") and f"{target}.partial" in outcome.err
    _, shown = terminal(*arguments, on=("stdout", "stderr"))
    assert shown.index("resumed: 40 results") < shown.index("done")
    counts = [int(count.replace(",", "")) for count in re.findall(r"([\d,]+) done", shown)]
    assert (counts[0], counts[-1]) == (40, 60)


def interrupted_after(results: int) -> Callable[..., Any]:
    """A bar during which the user presses Ctrl-C."""

    @contextmanager
    def progress(*arguments: object, **options: object) -> Iterator[OnProgress]:
        def update(done: int, count: int) -> None:
            if count == results:
                raise KeyboardInterrupt

        yield update

    return progress


@pytest.mark.slow
def test_a_folder_whose_name_is_no_text_is_named_all_the_same() -> None:
    arguments = [*command("inspect"), b"bad\xff"]
    done = subprocess.run(arguments, capture_output=True, env=environment(), check=False)
    assert done.returncode == 1 and b"error: " in done.stderr and b"Traceback" not in done.stderr
    outcome, shown = terminal("inspect", "bad\udcff", on=("stdout", "stderr"))
    # macOS has no such names, and Python before 3.14 passes on what it says of them.
    assert outcome.status == 1 and re.search(r" bad\\udcff: (no such folder|.*Illegal byte sequence)", shown)


def test_records_that_have_results_do_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Resumed(FileOutput):
        done = 900

    class Counted(RecordStream):
        def checked(self, record: Record, result: Any, before: int = 0) -> Any:
            waiting.append(len(self._waiting))
            return super().checked(record, result, before)

    waiting: list[int] = []
    monkeypatch.setattr("mlxbert.cli.session.FileOutput", Resumed)
    monkeypatch.setattr("mlxbert.cli.inputs.RecordStream", Counted)
    (tmp_path / "in.txt").write_text("the\n" * 1000)
    model = str(tiny_model(tmp_path / "tiny"))
    arguments = ["--model", model, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "x.jsonl")]
    assert call("tokenize", *arguments).status == 0
    assert waiting == [*range(99, -1, -1)]
