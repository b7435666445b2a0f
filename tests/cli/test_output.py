"""Where results go: stdout is data, stderr is talk, bad records keep their place, and a run that ends early resumes."""

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.machine.device import hint_once
from mlxbert.machine.mac import GpuSize
from mlxbert.readers import stream
from mlxbert.tasks import runner
from mlxbert.text import batch
from mlxbert.text.batch import WINDOW
from tests.cli.test_resumable_file import finished_parts
from tests.helpers.batches import as_on_a_gpu
from tests.helpers.cases import fast, together
from tests.helpers.faults import MEMORY, OTHER, small_memory
from tests.helpers.program import (
    ENDING,
    TIMEOUT,
    WITHOUT_PRIVILEGES,
    Outcome,
    call,
    changed,
    command,
    environment,
    names,
    process,
    terminal,
    tiny_model,
)
from tests.helpers.rooms import needs

pytestmark = pytest.mark.usefixtures("loaded_once")

BAD = "mixed.jsonl, line 2: the record has no field 'text' (fields: n)"


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    """Three records, of which the second has no text."""
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"text": "the [MASK]"}\n{"n": 1}\n{"text": "w1 [MASK]"}\n', encoding="utf-8")
    return str(path)


def write_lines(path: Path, lines: Iterable[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_stdout_is_data_and_stderr_is_talk_which_quiet_reduces_to_errors_and_hints(mixed: str, small: str) -> None:
    for more, kinds in ((), ["note", "error", "hint"]), (["--quiet"], ["error", "hint"]):
        outcome = call("fill-mask", "--input", mixed, *more)
        assert len(outcome.lines) == 3
        assert [line.split(": ")[0] for line in outcome.err.splitlines()] == kinds
    loud, quiet = (call("fill-mask", "the [MASK]", "--model", "/no/such", *more).err for more in ((), ("--quiet",)))
    assert loud == quiet and loud.startswith("error: ") and "\nhint: " in loud


def test_bad_records_are_counted_from_the_beginning_of_the_input_and_say_what_is_wrong(
    small: str, tmp_path: Path
) -> None:
    bad = {
        3: ('{"text": "the', "JSON"),
        255: ('{"text": 3}', "a number"),
        256: ('{"text": "\\ud800 [MASK]"}', "surrogate"),
        300: ('{"\\ud800": "the [MASK]"}', "no field 'text'"),
        599: ('{"text": "the"}', "[MASK]"),
    }
    good = ('{"text": "the [MASK]"}', "")
    path = write_lines(tmp_path / "in.jsonl", (bad.get(number, good)[0] for number in range(600)))
    outcome = call("fill-mask", "--input", path, "--model", small)
    outcome.fails(1, "5 of 600")
    assert {place: line["index"] for place, line in enumerate(outcome.lines) if "error" in line} == {n: n for n in bad}
    assert len(outcome.lines) == 600 and all(said in outcome.lines[n]["error"] for n, (_, said) in bad.items())


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_an_error(small: str, tmp_path: Path) -> None:
    (tmp_path / "read-only").mkdir(mode=0o500)
    given = ["fill-mask", "the [MASK]", "--model", small, "--output"]
    read_only = process(*given, str(tmp_path / "read-only" / "out.jsonl"), prelude=WITHOUT_PRIVILEGES)
    read_only.fails(1, "out.jsonl", "ermission denied")
    call(*given, f"{small}/config.json/out.jsonl").fails(1, "cannot be written")


def test_output_from_stdin_says_that_it_cannot_go_on(small: str, tmp_path: Path) -> None:
    arguments = ["tokenize", "--model", small, "--output"]
    outcome = call(*arguments, str(tmp_path / "a.jsonl"), stdin=b"the cat\n")
    assert (outcome.status, outcome.err.count("\n")) == (0, 1)
    assert outcome.err.startswith("note: the input is stdin")
    assert call(*arguments, str(tmp_path / "b.jsonl"), "--quiet", stdin=b"the cat\n").err == ""


def test_a_failed_run_leaves_nothing_where_nothing_is_to_go_on_from(mixed: str, small: str, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    call("fill-mask", "--input", mixed, "--strict", "--model", small, "--output", str(target)).fails(1)
    assert [path.name for path in tmp_path.iterdir()] == ["mixed.jsonl"]


TOTAL = 8 * WINDOW - 300  # the last part is not full


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Lines of many lengths, some too long."""
    lines = (f"{'the cat ' * (number % 14)}w{number % 42}" for number in range(TOTAL))
    return write_lines(tmp_path_factory.mktemp("inputs") / "in.txt", lines)


@pytest.fixture(scope="module")
def whole(small: str, texts: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What an uninterrupted run writes."""
    path = tmp_path_factory.mktemp("whole") / "x.npy"
    assert call(*embed(small, texts, path)).status == 0
    return path.read_bytes()


def embed(model: str, texts: str, path: Path, *more: str) -> list[str]:
    return ["embed", "--model", model, "--input", texts, *more, "--output", str(path)]


def interrupt(arguments: list[str], by: signal.Signals, parts: int = 1) -> str:
    """Stops a run by a signal when it has finished as many parts, and gives what it said."""
    target = Path(arguments[-1])
    last = target.with_name(f"{target.name}.partial") / f"part-{parts - 1:06}.json"
    running = subprocess.Popen(command(*arguments), env=environment(), stderr=subprocess.PIPE)
    while running.poll() is None and not last.exists():
        time.sleep(0.001)
    running.send_signal(by)
    _, said = running.communicate(timeout=TIMEOUT)
    assert running.returncode == (-by if by == signal.SIGKILL else 128 + by)
    assert last.exists() and not target.exists()
    return said.decode()


@pytest.mark.slow
def test_a_killed_command_ends_like_one_that_was_not(small: str, texts: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    arguments = embed(small, texts, path)
    interrupt(arguments, signal.SIGKILL, 2)
    first = finished_parts(path)
    interrupt(arguments, signal.SIGKILL, 4)
    kept = finished_parts(path)
    assert first.items() <= kept.items() and len(kept) >= 8
    outcome = call(*arguments)
    assert outcome.status == 0 and f"after {len(kept) // 2 * WINDOW:,} of an earlier run" in outcome.err
    assert "--overflow" in outcome.err and f" of {TOTAL:,}" in outcome.err
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_another_command_is_refused_and_what_is_finished_is_kept(
    small: str, texts: str, whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    arguments = embed(small, texts, path)
    with interrupted(16):
        assert call(*arguments).status == 130
    kept = finished_parts(path)
    assert kept
    (tmp_path / "other.txt").write_text("the cat\n")
    for change in (
        *(["--pooling", "cls"], ["--dimensions", "8"], ["--prompt", "the"], ["--normalize"], ["--no-normalize"]),
        *(["--overflow", "window"], ["--batch-tokens", "7"], ["--dtype", "float16"]),
        *(["--format", "csv", "--text-column", "the"], ["--input", str(tmp_path / "other.txt")]),
        ["--model", str(tiny_model(tmp_path / "other", hidden_act="relu"))],
    ):
        call(*changed(arguments, *change)).fails(2, "x.npy.partial", "unfinished", "another", "\nhint: ")
        assert finished_parts(path) == kept
    path.write_text("an older file")
    call(*arguments).fails(2, "exists", "hint: --overwrite")
    outcome = call(*arguments, "--overwrite", "--verbose")  # how much is said makes no other command of it
    assert outcome.status == 0 and f"after {len(kept) // 2 * WINDOW:,} of an earlier run" in outcome.err
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("by", "quiet"), [(by, by == signal.SIGINT) for by in ENDING])
@pytest.mark.slow
def test_an_interrupted_run_says_that_it_can_go_on(
    by: signal.Signals, quiet: bool, small: str, texts: str, tmp_path: Path
) -> None:
    said = interrupt(embed(small, texts, tmp_path / "x.npy", *["--quiet"] * quiet), by)
    assert "Traceback" not in said
    assert "hint: " in said and ("note: " in said) <= (not quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy.partial"]


@pytest.mark.usefixtures("small_products")
@pytest.mark.parametrize(
    "command", [pytest.param(["doctor"], marks=needs("doctor")), ["fill-mask", "the [MASK]"], ["inspect"]]
)
def test_tables_in_a_pipe_and_json_at_a_terminal(tiny_folder: Path, command: list[str]) -> None:
    words = [*command, *({"doctor": [], "inspect": [str(tiny_folder)]}.get(command[0], ["--model", str(tiny_folder)]))]
    assert call(*words).lines
    table = call(*words, "--no-json", FORCE_COLOR="")
    assert table.status == 0 and not table.out.startswith("{") and "\x1b" not in table.out
    assert "\x1b[" in call(*words, "--no-json", FORCE_COLOR="1").out
    outcome, shown = terminal(*words, "--json")
    assert outcome.status == 0 and shown.startswith("{")


TASKS = {"embed": "fill-mask", "classify": "sentiment", "answer": "answer"}  # each with a model of `folders`
SMALL = 64  # of a window on a small GPU, which has more
SOME = 2 * SMALL + 8


@contextmanager
def interrupted(after: int | None, copied: tuple[Path, Path] | None = None) -> Iterator[list[int]]:
    """Counts batches; before one of them raises an interrupt, or copies a folder as a killed process would leave it."""
    count, made = [0], batch.make_batch

    def make_batch(*given: Any) -> Any:
        if count[0] == after:
            if copied is not None:
                shutil.copytree(*copied)
            else:
                raise KeyboardInterrupt
        count[0] += 1
        return made(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "make_batch", make_batch)
        yield count


def texts_of(path: Path, count: int) -> Path:
    """Writes texts of many lengths."""
    rng, words = random.Random(1), ("the", "cat", "dog", "sat", "on", "mat", "paris")
    texts = (" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(count))
    path.write_text("".join(json.dumps({"text": text, "question": text}) + "\n" for text in texts))
    return path


def run(task: str, model: Path, texts: Path, output: Path, batch_tokens: int = 24) -> Outcome:
    given = ["--model", str(model), "--input", str(texts), "--batch-tokens", str(batch_tokens)]
    given += ["--context", f"{'the cat sat on the mat ' * 5}in paris"] * (task == "answer")
    return call(task, *given, "--output", str(output))


def batches(task: str, model: Path, texts: Path, output: Path, **options: int) -> int:
    with interrupted(None) as count:
        assert run(task, model, texts, output, **options).status == 0
    return count[0]


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("task", "killed"),
    fast([("embed", True), ("classify", False), ("answer", True)], ("embed", True), ("classify", False)),
)
def test_an_interruption_costs_a_window(
    task: str, killed: bool, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_USUAL_CHARACTERS", 1)  # 512 characters: windows of a few texts
    model, whole, parts = folders[TASKS[task]], tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    texts = texts_of(tmp_path / "in.jsonl", 60)
    total = batches(task, model, texts, whole)
    done = total * 3 // 4
    if killed:
        whole.unlink()
        with interrupted(done, (Path(f"{whole}.partial"), Path(f"{parts}.partial"))):
            assert run(task, model, texts, whole).status == 0
    else:
        with interrupted(done):
            outcome = run(task, model, texts, parts)
        assert outcome.status == 130 and "hint: " in outcome.err and "parts.jsonl.partial" in outcome.err
    kept = [len(results(path)) for path in sorted(Path(f"{parts}.partial").glob("part-*.jsonl"))]
    first, following = (
        batches(task, model, texts_of(tmp_path / "first.jsonl", count), tmp_path / f"{count}.jsonl")
        for count in (sum(kept), min(sum(kept) + max(kept) + 5, 60))
    )
    assert len(kept) > 1 and max(kept) < 30 and first <= done < following
    assert batches(task, model, texts, parts) == total - first
    assert parts.read_bytes() == whole.read_bytes() and not Path(f"{parts}.partial").exists()


@pytest.mark.parametrize("resumed_on", fast(["small", "large"], "small"))
def test_a_run_resumes_with_the_windows_that_are_left(
    resumed_on: GpuSize, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, whole, parts = texts_of(tmp_path / "in.jsonl", SOME), tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    as_on_a_gpu(monkeypatch, "small")
    monkeypatch.setattr(batch, "WINDOWS", {"small": SMALL, "large": 4 * SMALL})
    given: dict[str, int] = {"batch_tokens": 128}
    total = batches("embed", tiny_folder, texts, whole, **given)
    with interrupted(total * 3 // 4):  # within the second window
        assert run("embed", tiny_folder, texts, parts, **given).status == 130
    kept = sorted(Path(f"{parts}.partial").glob("part-*.jsonl"))
    assert [len(results(path)) for path in kept] == [SMALL]
    first = batches(
        "embed", tiny_folder, texts_of(tmp_path / "first.jsonl", SMALL), tmp_path / "first.out.jsonl", **given
    )
    as_on_a_gpu(monkeypatch, resumed_on)
    with interrupted(None) as rest:
        outcome = run("embed", tiny_folder, texts, parts, **given)
    assert outcome.status == 0 and f"resumed: {SMALL:,} results" in outcome.err
    if resumed_on == "small":
        assert rest == [total - first] and parts.read_bytes() == whole.read_bytes()
        return
    found, expected = results(parts), results(whole)
    assert [one["text"] for one in found] == [one["text"] for one in expected] and len(found) == SOME
    apart = np.array([one["embedding"] for one in found]) - np.array([one["embedding"] for one in expected])
    assert np.abs(apart).max() < 1e-5


@together("sentence", [MEMORY[0], MEMORY[3], OTHER[0], OTHER[1]])
def test_an_error_of_the_device_is_one_line_with_a_hint(
    sentence: str, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_memory(monkeypatch, 0, sentence)
    hint_once.cache_clear()
    source = write_lines(tmp_path / "in.txt", (f"the cat sat {'on the mat ' * (n % 3)}" for n in range(40)))
    outcome = call("embed", "--input", source, "--model", small, "--output", str(tmp_path / "vectors.npy"))
    outcome.fails(1, " ".join(sentence.split()))
    kinds = [line.partition(":")[0] for line in outcome.err.splitlines() if not line.startswith("note: ")]
    tried = sentence in MEMORY  # smaller batches
    assert kinds == (["hint"] if tried else []) + ["error", "hint"]
    assert ("--batch-tokens" in outcome.err) == tried and ("mlxbert doctor --check" in outcome.err) != tried
    assert names(tmp_path) == ["in.txt"] and outcome.out == ""
