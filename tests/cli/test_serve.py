"""`mlxbert serve`: its arguments, and the service files that it prints; tests/serve has the server itself."""

import configparser
import plistlib
import shlex
import sys
from pathlib import Path

import pytest

from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import About
from mlxbert.serve import units
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
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    outcome = call("serve", *arguments, "--print-systemd", MLXBERT_API_KEY="a-secret-of-mine")
    unit.read_string(outcome.out)
    words = shlex.split(unit["Service"]["ExecStart"].replace("%%", "%").replace("$$", "$"))
    assert words[4:] == printed(*arguments) and "a-secret-of-mine" not in outcome.out


def variables(kind: str, **given: str) -> dict[str, str]:
    """The environment in a service file; nothing of it comes from the environment of the tests."""
    outcome = call("serve", f"--print-{kind}", **given)  # type: ignore[arg-type]
    assert outcome.status == 0, outcome
    if kind == "launchd":
        found: dict[str, str] = plistlib.loads(outcome.out.encode()).get("EnvironmentVariables", {})
        return found
    lines = [line.partition("=") for line in outcome.out.splitlines()]
    words = [shlex.split(value) for name, _, value in lines if name == "Environment"]  # quotes are those of systemd
    assert all(len(one) == 1 for one in words)
    return dict(one[0].replace("%%", "%").split("=", 1) for one in words)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without what a service gets."""
    for name in (*units.PATHS, *units._ADDRESSES, *units._VALUES, *units._SECRETS):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", ["launchd", "systemd"])
def test_a_service_has_the_environment_that_it_does_not_inherit(
    kind: str, bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/me")
    assert variables(kind) == variables(kind, MLX_ENABLE_TF32="0", MLX_SDPA_VJP_FALLBACK="1") == {}
    given = {
        "HF_ENDPOINT": 'https://mirror.example/a%20b"c"=\\d&e=$HOME', "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "localhost, .example", "MLX_ENABLE_TF32": "1", "MLX_SDPA_VJP_FALLBACK": "0",
        "MLXBERT_DEVICE": "cpu",
    }  # fmt: skip
    paths = {"HF_HOME": "~/models", "MLXBERT_DATA": "some data", "SSL_CERT_FILE": "/etc/ours.pem"}
    made = {"HF_HOME": "/me/models", "MLXBERT_DATA": f"{tmp_path}/some data", "SSL_CERT_FILE": "/etc/ours.pem"}
    assert variables(kind, **given, **paths, EDITOR="vi", HF_HUB_OFFLINE="") == {**given, **made}


@pytest.mark.parametrize("kind", ["launchd", "systemd"])
def test_no_secret_of_the_environment_stands_in_a_service_file(kind: str, bare: None) -> None:
    secret = "hf_a-secret-of-mine"
    given = {"HF_TOKEN": secret, "HTTPS_PROXY": f"http://me:{secret}@proxy:3128", "http_proxy": f"me:{secret}@proxy"}
    given["HF_ENDPOINT"] = "https://mirror.example/@a"
    outcome = call("serve", f"--print-{kind}", **given)  # type: ignore[arg-type]
    assert outcome.status == 0 and secret not in outcome.out + outcome.err
    assert (
        all(name in outcome.err for name in ("HF_TOKEN", "HTTPS_PROXY", "http_proxy"))
        and "hf auth login" in outcome.err
    )
    assert "HF_ENDPOINT" not in outcome.err and "https://mirror.example/@a" in outcome.out
    for name, value in (
        ("HF_ENDPOINT", f"https://mirror.example/x?token={secret}"),
        ("HF_ENDPOINT", f"https://me:{secret}@mirror.example/@a"),
        ("HF_ENDPOINT", f"https://mirror.example/#{secret}"),
        ("HTTPS_PROXY", f"me:{secret}/ss@proxy:3128"),
        ("HTTPS_PROXY", f"http://me:{secret}/ss@proxy:3128"),
        ("all_proxy", f"{secret}/ss@proxy"),
    ):
        outcome = call("serve", f"--print-{kind}", **{name: value})  # type: ignore[arg-type]
        assert outcome.status == 0 and secret not in outcome.out + outcome.err and f"{name} is not" in outcome.err
    for value in ("http://proxy:3128", "proxy:3128", "http://[::1]:3128/", "http://[::1]:3128/@", "socks5h://proxy"):
        assert variables(kind, ALL_PROXY=value) == {"ALL_PROXY": value}
    folder = "/data/me?/x:y@z"
    assert variables(kind, HF_HOME=folder, XDG_DATA_HOME=folder) == {"HF_HOME": folder, "XDG_DATA_HOME": folder}
    assert "auth login" not in call("serve", f"--print-{kind}", HTTPS_PROXY=given["HTTPS_PROXY"]).err


def test_a_variable_that_a_file_cannot_say_is_refused(bare: None) -> None:
    for value in ("/a\nExecStart=/bin/x", "/a\udcff"):
        outcome = call("serve", "--print-systemd", HF_HOME=value)
        outcome.fails(2, "service file")
        assert not outcome.out


def test_launchd_does_not_throttle_the_server() -> None:
    assert plistlib.loads(call("serve", "--print-launchd").out.encode())["ProcessType"] == "Interactive"


def test_a_mac_says_which_files_its_services_cannot_read(
    bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxbert.folders.inspect.inspect", lambda source, *, offline: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("Documents/model", "documents2/model", "Desktop", "code"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "Desktop")
    (tmp_path / "Desktop/key").write_text("a-key-of-some-length")
    SqliteStore(tmp_path / "Desktop/notes.db", ABOUT).close()
    models = (str(tmp_path / "code/../Documents/model"), str(tmp_path / "documents2/model"))
    given = ("serve", f"a={models[0]}", f"b={models[1]}", "--index", f"{tmp_path}/link/notes.db")
    closed = f"{tmp_path}/Library/Mobile Documents/x"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "code/.venv"))
    said = call(*given, "--print-launchd", "--api-key-file", f"{tmp_path}/Desktop/key", HF_HOME=closed).err
    notes = [line for line in said.splitlines() if "lets no service read" in line]
    assert [line.partition(" lies in ~/")[2].partition(",")[0] for line in notes] == [
        "Documents", "Desktop", "Desktop", "Library/Mobile Documents",
    ]  # fmt: skip
    assert said.count("Full Disk Access") == 1
    assert "no service" not in call("serve", f"b={models[1]}", "--print-launchd").err
    for name in units.PATHS:
        assert f"{closed} lies in" in call("serve", "--print-launchd", **{name: closed}).err  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "DOWNLOADS/.venv"))
    assert "DOWNLOADS/.venv lies in ~/Downloads" in call("serve", "--print-launchd").err
    assert "no service" not in call(*given, "--print-systemd").err


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
