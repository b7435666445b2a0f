"""`mlxbert serve`: its arguments, and the service files that it prints; tests/serve has the server itself."""

import configparser
import plistlib
import shlex
import sys
from pathlib import Path

import pytest

from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import About
from tests.helpers.program import call

ABOUT = About("model", "0" * 64, 8, "cosine", "mean", ("", ""), 200, True)


def printed(*arguments: str, model: str = "") -> list[str]:
    """The command of a service file of launchd."""
    outcome = call("serve", *arguments, "--print-launchd", MLXBERT_MODEL=model)
    assert outcome.status == 0, outcome
    words = plistlib.loads(outcome.out.encode())["ProgramArguments"]
    assert words[:4] == [sys.executable, "-m", "mlxbert", "serve"]
    found: list[str] = words[4:]
    return found


def test_a_service_has_the_given_arguments_with_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlxbert.folders.inspect.inspect", lambda source, *, offline: None)  # some are of the hub
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "key").write_text("a-key-of-some-length")
    SqliteStore(tmp_path / "notes.db", ABOUT).close()
    assert printed() == ["builtin"]
    assert printed(model="org/name") == ["org/name"]
    assert printed("models/mine", "small=org/name") == [f"mine={tmp_path}/models/mine", "small=org/name"]
    given = ("--index", "notes.db", "--port", "1", "--api-key-file", "key", "--allow-host", "a", "--allow-host", "b")
    assert printed("x=builtin", *given, "--log-texts", "--offline") == [
        *("x=builtin", "--index", f"notes={tmp_path}/notes.db", "--offline", "--port", "1"),
        *("--allow-host", "a", "--allow-host", "b", "--api-key-file", f"{tmp_path}/key", "--log-texts"),
    ]


def test_a_service_of_systemd_starts_the_same(tmp_path: Path) -> None:
    arguments = ("--allow-host", 'a "b" 100% $HOME')
    unit = configparser.RawConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    outcome = call("serve", *arguments, "--print-systemd", MLXBERT_API_KEY="a-secret-of-mine")
    unit.read_string(outcome.out)
    words = shlex.split(unit["Service"]["ExecStart"].replace("%%", "%").replace("$$", "$"))
    assert words[4:] == printed(*arguments) and "a-secret-of-mine" not in outcome.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("a=builtin", "a=builtin"), "'a' is given twice"),
        (("=builtin",), "'=builtin'"),
        (("a=",), "'a='"),
        (("--index", "nothing.db"), "nothing.db"),
        (("--port", "65536"), "--port"),
        (("--host", "0.0.0.0"), "--host is '0.0.0.0'"),
        (("--api-key-file", "nothing"), "--api-key-file is nothing"),
        (("--allow-origin", "*"), "--allow-origin is '*'"),
        (("--allow-origin", "http://a.example/"), "--allow-origin"),
        (("--allow-host", "a\nb", "--print-systemd"), "service file"),
        (("--log-file", "nowhere/log"), "--log-file is nowhere/log"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlxbert.serve.http.server.listen", refused)
    call("serve", *arguments).fails(2, expected)


@pytest.mark.parametrize("given", [("--model", "a dir"), ("--model=a dir",), ("-m", "a dir")])
def test_the_model_is_an_argument(given: tuple[str, ...]) -> None:
    call("serve", *given).fails(2, f"no option {given[0].partition('=')[0]}", "mlxbert serve 'a dir'")
    call("inspect", *given).fails(2, "mlxbert inspect 'a dir'")


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("no/such/model",), 1, "no/such/model"),
        (("damaged",), 1, "damaged"),
        (("--api-key-file", "nothing"), 2, "--api-key-file is nothing"),
        (("--host", "0.0.0.0"), 2, "--host"),
        (("--allow-origin", "*"), 2, "--allow-origin is '*'"),
        (("--log-file", "nowhere/log"), 2, "--log-file is nowhere/log"),
    ],
)
def test_a_service_that_could_not_start_is_not_printed(
    arguments: tuple[str, ...], status: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{}")
    for kind in ("--print-systemd", "--print-launchd"):
        outcome = call("serve", *arguments, kind, HF_HUB_OFFLINE="1", MLXBERT_API_KEY="a-secret-of-mine")
        outcome.fails(status, expected)
        assert not outcome.out


def test_what_is_no_index_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    for content in (b"", b"the cat sat on the mat " * 100):
        file.write_bytes(content)
        call("serve", "--index", str(file), "--print-launchd").fails(1, f"{file}: ", "hint: ")


def refused(*_: object) -> None:
    """Stands for opening an address, which fast tests may not."""
    raise AssertionError("wrong usage was not noticed before")
