"""Checks that Macs need wheels only: `python scripts/mac_wheels.py`.

For each Python that mlxbert supports, and for the oldest and the newest macOS that MLX has wheels for, `uv` resolves
mlxbert with all of its extras to packages that have wheels there. If it cannot, each extra is tried alone, so that the
failure names it. `UV_DEFAULT_INDEX` names another index than PyPI.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from homebrew_formula import SYSTEMS

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def problem(python: str, macos: int, *extras: str) -> str | None:
    """Returns what uv says if it finds no wheels for mlxbert with options that choose extras; otherwise `None`."""
    command = ["uv", "pip", "compile", str(PROJECT), *extras, "--only-binary", ":all:", "--quiet", "--no-header"]
    command += ["--python-platform", "aarch64-apple-darwin", "--python-version", python]
    variables = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": f"{macos}.0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    return done.stderr if done.returncode else None


def main() -> int:
    """Prints a line for each Python and macOS; returns the number of failures."""
    if shutil.which("uv") is None:
        raise SystemExit("uv is not installed: pip install uv")
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    pythons = re.findall(r":: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    systems = [macos for macos, _ in SYSTEMS.values()]
    failures = 0
    for python, macos in itertools.product(pythons, (systems[0], systems[-1])):
        found = problem(python, macos, "--all-extras")
        print(f"Python {python}, macOS {macos}: {'wheels only' if found is None else 'FAILED'}", flush=True)
        if found is not None:
            failures += 1
            choices = {"no extra": (), **{extra: ("--extra", extra) for extra in project["optional-dependencies"]}}
            alone = {name: said for name, extras in choices.items() if (said := problem(python, macos, *extras))}
            for name, said in (alone or {"all extras together": found}).items():
                print(f"{name}:\n{said}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
