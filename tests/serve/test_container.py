"""The container: its entry point starts the server with options that exist."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.helpers.commands import COMMANDS

PACKAGING = Path(__file__).parents[2] / "packaging"
if not PACKAGING.is_dir():
    pytest.skip("no checkout", allow_module_level=True)


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
