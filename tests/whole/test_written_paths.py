"""Every path that a command can write, from the options themselves: what is not to be replaced is left as it is.

A new option of a path fails the first test until it is marked as `Written`, or is among those that are read; a marked
one is tried by the others without an edit. Devices are made in the temporary folder: none of the system's is touched.
"""

import os
import re
import runpy
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.helpers.commands import COMMANDS
from tests.helpers.program import call, unprivileged

ROOT = Path(__file__).parents[2]
PATHS = re.compile("FILE|DIR|PATH")
# Options and arguments that name what is read.
READ = {
    *("input", "train", "valid", "data", "context_file", "vectors", "pairs", "files", "paths", "corpus"),
    *("adapter", "vocabulary", "api_key_file"),
}
READ_BY = {("serve", "index"), ("indexes move", "index"), ("models upload", "folder"), ("verify", "against")}
READ_BY |= {(command, "index") for command in ("dedupe", "cluster", "map")}
WRITTEN = [
    (command, one, found.callback.written[one.name])
    for command, found in COMMANDS.items()
    for one in found.params
    if one.name in getattr(found.callback, "written", {})
]
IDS = [f"{command} {one.opts[0]}" for command, one, _ in WRITTEN]
RUN = [one for one in WRITTEN if not one[0].startswith("ray ")]  # processes of Ray outlive a test
RUN_IDS = [f"{command} {one.opts[0]}" for command, one, _ in RUN]
SECONDS = 60  # after which a test waits for nobody: something is being waited for that never comes
KEPT = "precious"


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # a device of its own that swallows what is written
    except PermissionError:
        pytest.skip("only root makes devices")


def _socket(path: Path) -> None:
    if sys.platform == "darwin":
        pytest.skip("only root makes sockets without a process")
    os.mknod(path, stat.S_IFSOCK | 0o600)


def _link_to(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        (path.parent / "far").mkdir()
        make(path.parent / "far" / path.name)
        path.symlink_to(Path("far") / path.name)

    return link


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "notes").write_text(KEPT)


def _file(path: Path) -> None:
    path.write_text(KEPT)


# What is written neither to nor over, whatever the option.
REFUSED: dict[str, Callable[[Path], None]] = {"device": _device, "FIFO": os.mkfifo, "socket": _socket}
REFUSED |= {f"link to a {name}": _link_to(make) for name, make in REFUSED.items()}
OTHER = {"file": (_folder, _link_to(_folder)), "folder": (_file, _link_to(_file))}


def listing(folder: Path) -> dict[str, Any]:
    """Everything in a folder: what it is, which one, and what it holds."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(state.st_mode) else path.is_symlink() and os.readlink(path)
        found[str(path.relative_to(folder))] = (stat.S_IFMT(state.st_mode), state.st_ino, state.st_rdev, content)
    return found


@contextmanager
def deadline() -> Iterator[None]:
    """Ends a test that waits for ever, as for the other end of a FIFO."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def line(command: str, given: Mapping[str, Sequence[str]]) -> list[str]:
    """A command line, from the values of its parameters; of a switch an empty one."""
    words, last = command.split(), list[str]()
    for one in COMMANDS[command].params:
        for value in given.get(one.name, ()):
            if one.param_type_name == "argument":
                last.append(value)
            else:
                words += [one.opts[0], *([value] if value else [])]
    return [*words, "--", *last] if last else words


def test_every_option_of_a_path_says_whether_it_is_written() -> None:
    for command, found in COMMANDS.items():
        for one in found.params:
            named = PATHS.search(one.metavar or "") or type(one.type).__name__ == "TyperPath"
            if named and one.name not in READ and (command, one.name) not in READ_BY:
                assert one.name in getattr(found.callback, "written", {}), f"{command} {one.name}"
    assert {command.split()[0] for command, _, _ in WRITTEN} >= {"embed", "index", "serve", "convert", "finetune"}


@pytest.mark.sampled
@pytest.mark.parametrize(("command", "option", "kind"), WRITTEN, ids=IDS)
def test_a_device_a_fifo_and_a_socket_stay_what_they_are(command: str, option: Any, kind: str, tmp_path: Path) -> None:
    required = {one.name: ["1"] for one in COMMANDS[command].params if one.required}
    for number, make in enumerate([*REFUSED.values(), *OTHER[kind]]):
        path = tmp_path / str(number) / "mine.out"
        path.parent.mkdir()
        try:
            make(path)
        except pytest.skip.Exception:
            continue
        before = listing(path.parent)
        with deadline():
            outcome = call(*line(command, {**required, option.name: [str(path)]}))
        outcome.fails(2, str(path))
        assert listing(path.parent) == before


ENDINGS = {"plot": ".svg", "index": ".db"}
# Where a new path, or one that leads elsewhere, is written; and where nothing can be.
ALLOWED = {"dangling link": lambda path: path.symlink_to(Path("far") / path.name)}
ALLOWED |= {"link to a file": _link_to(_file), "link to a folder": _link_to(_folder)}


@pytest.fixture(scope="session")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[str]]]:
    """Arguments with which each command works, by the names of its parameters."""
    fuzzer, folder = runpy.run_path(str(ROOT / "scripts" / "fuzz_options.py")), tmp_path_factory.mktemp("usual")
    fuzzer["Files"](folder).write()
    given: dict[str, dict[str, list[str]]] = fuzzer["usual"](folder)
    given["serve"] = {"models": given["serve"]["models"], "host": ["256.256.256.256"]}  # it opens its log, and ends
    return given


def run(command: str, option: Any, path: Path, usual: dict[str, dict[str, list[str]]]) -> Any:
    """Runs a command that would work, with a path of the test."""
    given = {**usual[command], option.name: [str(path)]}
    if option.name == "output" and "dry_run" in given:
        given = {name: value for name, value in given.items() if name != "dry_run"} | {"epochs": ["1"]}
    if "overwrite" in {one.name for one in COMMANDS[command].params}:
        given["overwrite"] = [""]
    where: dict[str, Any] = {
        "MLXBERT_DATA": str(path.parents[1] / "data"),
        "MLXBERT_API_KEY": "k" * 20,
        "HF_HUB_OFFLINE": "1",
    }
    with deadline(), mock.patch("mlxbert.search.mcp.serve", lambda prepare: prepare()):  # without its stdin
        return call(*line(command, given), **where)


@pytest.fixture
def place(option: Any, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path in an empty folder, for what an option names; commands run in another one."""
    (tmp_path / "place").mkdir()
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    ending = ".npz" if command == "attention" else ENDINGS.get(option.name, ".jsonl")
    return tmp_path / "place" / f"mine{ending}"


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.parametrize(("command", "option", "kind"), RUN, ids=RUN_IDS)
def test_a_command_that_would_work_refuses_them(
    command: str, option: Any, kind: str, how: str, place: Path, usual: dict[str, dict[str, list[str]]]
) -> None:
    REFUSED[how](place)
    before = listing(place.parent)
    run(command, option, place, usual).fails(2, str(place))
    assert listing(place.parent) == before


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("how", ALLOWED)
@pytest.mark.parametrize(("command", "option", "kind"), RUN, ids=RUN_IDS)
def test_a_link_stays_and_what_it_leads_to_is_written_or_kept(
    command: str, option: Any, kind: str, how: str, place: Path, usual: dict[str, dict[str, list[str]]]
) -> None:
    far = place.parent / "far"
    ALLOWED[how](place)
    far.mkdir(exist_ok=True)
    before, inode = listing(place.parent), place.lstat().st_ino
    outcome = run(command, option, place, usual)
    after = listing(place.parent)
    assert place.is_symlink() and place.lstat().st_ino == inode and os.readlink(place) == f"far/{place.name}"
    assert {name for name in after if "/" not in name} == {"far", place.name}  # nothing is left next to the link
    if how == "link to a folder":
        assert (far / place.name / "notes").read_text() == KEPT
    if outcome.status == 0 and how == "dangling link" and kind == "file" and option.name != "plot":  # of a dry run
        assert (far / place.name).stat().st_size > 0 or option.name == "log"
    elif outcome.status and command != "serve":  # which fails after it has opened its log
        outcome.fails(outcome.status)
        assert after == before


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option", "kind"), RUN, ids=RUN_IDS)
def test_a_folder_that_cannot_be_written_to_is_refused(
    command: str, option: Any, kind: str, place: Path, usual: dict[str, dict[str, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("mlxbert.train.event_outputs.require", lambda *_: None)  # what draws need not be installed
    place.parent.chmod(0o500)
    try:
        with unprivileged():
            outcome = run(command, option, place, usual)
    finally:
        place.parent.chmod(0o700)
    outcome.fails(outcome.status or -1, place.name)
    assert not listing(place.parent)
