"""`mlxbert serve`: its arguments; tests/serve has the server itself."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import IndexSettings
from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS
from tests.helpers.program import call

ABOUT = IndexSettings("model", "0" * 64, 8, "cosine", "mean", ("", ""), 200, True, (0.5, 1.0))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command gives to the server, which does not start."""
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(
        "mlxbert.serve.http.server.serve",
        lambda models, options, **more: arguments.update(models=models, options=options, **more),
    )
    return arguments


def test_models_and_indexes_have_names(served: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def models(*words: str, model: str = "") -> dict[str, str]:
        outcome = call("serve", *words, MLXBERT_MODEL=model)
        assert outcome.status == 0, outcome
        return {name: reference.source for name, reference in served["models"].items()}

    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    SqliteStore(tmp_path / "notes.db", ABOUT).close()
    assert models() == {"builtin": "builtin"}
    assert models(model="org/name") == {"org/name": "org/name"}
    assert models("models/mine", "small=org/name") == {"mine": "models/mine", "small": "org/name"}
    models("--index", "notes.db", "--index", "b=notes.db", "--port", "1", "--allow-host", "a", "--offline")
    assert served["indexes"] == {"notes": "notes.db", "b": "notes.db"}
    assert (served["options"].port, served["options"].allow_host) == (1, ["a"])
    assert served["models"]["builtin"].offline
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr("mlxbert.search.index_stores.find_index", lambda paths: tmp_path / "notes.db")
    models("--index", "docs")  # a folder that has an index
    assert served["indexes"] == {"docs": str(tmp_path / "notes.db")}


@pytest.mark.parametrize(("arguments", "expected"), [
    (("a=builtin", "a=builtin"), "'a' is given twice"), (("=builtin",), "'=builtin'"), (("a=",), "'a='"),
    (("--index", "nothing.db"), "nothing.db"), (("--port", "65536"), "--port"),
    (("--host", "0.0.0.0"), "--host is '0.0.0.0'"), (("--api-key-file", "nothing"), "--api-key-file is nothing"),
    (("--allow-origin", "*"), "--allow-origin is '*'"), (("--allow-origin", "http://a.example/"), "--allow-origin"),
    (("--log-file", "nowhere/log"), "--log-file is nowhere/log"),
])  # fmt: skip
def test_wrong_usage(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlxbert.serve.http.server.listen", None)  # it is noticed before
    call("serve", *arguments).fails(2, expected)


@together("given", [("--model", "a dir"), ("--model=a dir",), ("-m", "a dir")])
def test_the_model_is_an_argument(given: tuple[str, ...]) -> None:
    call("serve", *given).fails(2, f"no option {given[0].partition('=')[0]}", "mlxbert serve 'a dir'")
    call("inspect", *given).fails(2, "mlxbert inspect 'a dir'")


def test_what_is_no_index_is_refused_at_the_start(served: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    for content in (b"", b"the cat sat on the mat " * 100):
        file.write_bytes(content)
        call("serve", "--index", str(file)).fails(1, f"{file}: ", "hint: ")
    assert not served


PACKAGING = Path(__file__).parents[3] / "packaging"
CHECKOUT = pytest.mark.skipif(not PACKAGING.is_dir(), reason="no checkout")


def _started(folder: Path, script: str, *arguments: str, **variables: str) -> list[str]:
    """The arguments with which the entry point starts `mlxbert`."""
    program = folder / "bin" / "mlxbert"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["sh", "-c", script, "sh", *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@CHECKOUT
@pytest.mark.slow
def test_a_mounted_model_is_served_offline_and_others_as_the_arguments_say(tmp_path: Path) -> None:
    script = (PACKAGING / "serve-in-container").read_text(encoding="utf-8")
    mounted = tmp_path / "model"
    script = script.replace("/model/", f"{mounted}/").replace("=/model", f"={mounted}")
    assert _started(tmp_path, script, "a b", "--quiet") == ["serve", "--host", "0.0.0.0", "a b", "--quiet"]
    mounted.mkdir()
    (mounted / "config.json").touch()
    for name, variables in (("model", {}), ("mine", {"MLXBERT_NAME": "mine"})):
        words = _started(tmp_path, script, "--quiet", **variables)
        assert words == ["serve", "--host", "0.0.0.0", "--offline", f"{name}={mounted}", "--quiet"]
    context = COMMANDS["serve"].make_context("serve", words[1:])
    assert context.params["offline"] is True and [*context.params["models"]] == [f"mine={mounted}"]


@CHECKOUT
def test_the_image_runs_the_entry_point_without_root() -> None:
    lines = (PACKAGING / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    words = [step for step, _ in steps]
    assert dict(steps)["ENTRYPOINT"] == '["serve-in-container"]' and os.access(
        PACKAGING / "serve-in-container", os.X_OK
    )
    assert dict(steps)["USER"] == "10001" and words.index("USER") > max(
        n for n, step in enumerate(words) if step == "RUN"
    )
    port = next(option.default for option in COMMANDS["serve"].params if option.name == "port")
    assert dict(steps)["EXPOSE"] == str(port) and f":{port}/health" in dict(steps)["HEALTHCHECK"]
    (run,) = [shlex.split(rest) for step, rest in steps if step == "RUN"]
    assert "--uid" in run and run[run.index("--uid") + 1] == "10001"
