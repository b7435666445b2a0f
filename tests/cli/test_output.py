"""Where results go: stdout is data, stderr is talk, bad records keep their place, and `--output` survives a kill."""

import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from mlxbert.text.batch import WINDOW
from tests.cli.test_resumable_file import finished_parts
from tests.helpers.cases import together
from tests.helpers.program import (
    ENDING,
    TIMEOUT,
    WITHOUT_PRIVILEGES,
    call,
    changed,
    command,
    environment,
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


def test_stdout_is_data_and_stderr_is_talk(mixed: str) -> None:
    outcome = call("fill-mask", "--input", mixed)
    assert len(outcome.lines) == 3
    talk = outcome.err.splitlines()
    assert [line.split(": ")[0] for line in talk] == ["note", "error", "hint"]


def test_quiet_silences_notes_but_neither_hints_nor_errors(mixed: str, small: str) -> None:
    assert call("fill-mask", "the [MASK]", "--quiet").err == ""
    assert call("fill-mask", "--input", mixed, "--quiet").err.startswith("error: ")
    for arguments in (["--model", "/no/such/model"], ["--targets", "playwrights"]):
        assert "\nhint: " in call("fill-mask", "the [MASK]", *arguments).err
        quiet = call("fill-mask", "the [MASK]", *arguments, "--quiet")
        assert "error: " in quiet.err and "hint: " in quiet.err and "note: " not in quiet.err
        assert quiet.err.startswith("error: ")


def test_bad_records_are_counted_from_the_beginning_of_the_input(small: str, tmp_path: Path) -> None:
    bad = (3, 255, 256, 300, 599)
    path = write_lines(tmp_path / "in.txt", ("the" if number in bad else "[MASK]" for number in range(600)))
    outcome = call("fill-mask", "--input", path, "--model", small)
    assert [(place, line["index"]) for place, line in enumerate(outcome.lines) if "error" in line] == [
        (place, place) for place in bad
    ]
    assert len(outcome.lines) == 600


@together(
    "line,said",
    [
        ('{"text": "the', "JSON"),
        ('{"text": 3}', "a number"),
        ('{"text": "\\ud800 [MASK]"}', "surrogate"),
        ('{"\\ud800": "the [MASK]"}', "no field 'text'"),
        ('{"text": "the"}', "[MASK]"),
    ],
)
def test_whatever_is_wrong_with_a_record_is_said_in_its_place(line: str, said: str, small: str, tmp_path: Path) -> None:
    good = '{"text": "the [MASK]"}'
    path = write_lines(tmp_path / "in.jsonl", [good, line, good])
    outcome = call("fill-mask", "--input", path, "--model", small)
    outcome.fails(1, "1 of 3")
    assert ["error" in result for result in outcome.lines] == [False, True, False]
    assert outcome.lines[1]["index"] == 1
    assert said in outcome.lines[1]["error"]


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_an_error(small: str, tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    arguments = ["fill-mask", "the [MASK]", "--model", small, "--output", str(folder / "out.jsonl")]
    outcome = process(*arguments, prelude=WITHOUT_PRIVILEGES)
    outcome.fails(1, "out.jsonl", "ermission denied")
    below_a_file = call(*arguments[:-1], f"{small}/config.json/out.jsonl")
    below_a_file.fails(1, "cannot be written")


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
    interrupt(arguments, signal.SIGKILL, 4)
    kept = finished_parts(path)
    assert len(kept) >= 8
    outcome = call(*arguments)
    assert outcome.status == 0 and f"after {len(kept) // 2 * WINDOW:,} of an earlier run" in outcome.err
    assert "--overflow" in outcome.err and f" of {TOTAL:,}" in outcome.err
    assert path.read_bytes() == whole


@pytest.fixture
def killed(small: str, texts: str, tmp_path: Path) -> list[str]:
    """The command of a run that was killed after its first part."""
    arguments = embed(small, texts, tmp_path / "x.npy")
    interrupt(arguments, signal.SIGKILL)
    return arguments


@pytest.mark.slow
def test_another_command_is_refused_and_what_is_finished_is_kept(
    killed: list[str], whole: bytes, tmp_path: Path
) -> None:
    path = Path(killed[-1])
    kept = finished_parts(path)
    assert kept
    other_model = str(tiny_model(tmp_path / "other", hidden_act="relu"))
    (tmp_path / "other.txt").write_text("the cat\n")
    for change in (
        ["--pooling", "cls"],
        ["--dimensions", "8"],
        ["--prompt", "the"],
        ["--normalize"],
        ["--no-normalize"],
        ["--overflow", "window"],
        ["--batch-tokens", "7"],
        ["--dtype", "float16"],
        ["--format", "csv", "--text-column", "the"],
        ["--model", other_model],
        ["--input", str(tmp_path / "other.txt")],
    ):
        call(*changed(killed, *change)).fails(2, "x.npy.partial", "unfinished", "another", "\nhint: ")
        assert finished_parts(path) == kept
    outcome = call(*killed[:-1], str(path), "--quiet")  # how much is said makes no other command of it
    assert (outcome.status, path.read_bytes()) == (0, whole)


@pytest.mark.slow
def test_overwrite_does_not_throw_away_what_can_be_gone_on_from(killed: list[str], whole: bytes) -> None:
    path = Path(killed[-1])
    taken = len(finished_parts(path)) // 2 * WINDOW
    path.write_text("an older file")
    call(*killed).fails(2, "exists", "hint: --overwrite")
    outcome = call(*killed, "--overwrite")
    assert outcome.status == 0 and f"after {taken:,} of an earlier run" in outcome.err
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("by", "quiet"), [*((by, False) for by in ENDING), (signal.SIGINT, True)])
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
