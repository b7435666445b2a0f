"""Writes the Homebrew formula of a release that PyPI has: `python scripts/homebrew_formula.py v0.1.0 > mlxbert.rb`.

`uv` finds the versions that a Mac with Apple silicon gets, with the addresses and hashes of their files; the formula
(`packaging/homebrew/mlxbert.rb.in`) takes the sdist of mlxbert and the wheels of everything else. `UV_DEFAULT_INDEX`
names another index than PyPI. The home page is the repository of `GITHUB_SERVER_URL` and `GITHUB_REPOSITORY`.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging import tags
from packaging.utils import parse_wheel_filename

sys.path.insert(0, str(Path(__file__).parent))
from prepare_release import repository

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "packaging" / "homebrew" / "mlxbert.rb.in"
PYTHON, MACOS = (3, 13), (14, 0)  # the oldest system with MLX
_SPELLED = ".".join(map(str, PYTHON))


def resolved(version: str) -> dict[str, Any]:
    """What a Mac installs for a version of mlxbert, and what building its wheel needs, as a lock file (PEP 751).

    Raises:
        SystemExit: There is no `uv`, or it cannot resolve the version.
    """
    if shutil.which("uv") is None:
        raise SystemExit("uv is not installed: pip install uv")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    command = ["uv", "pip", "compile", "-", "--format", "pylock.toml", "--quiet", "--no-header"]
    command += ["--python-platform", "aarch64-apple-darwin", "--python-version", _SPELLED]
    done = subprocess.run(
        command, input="\n".join([f"mlxbert=={version}", *build]), capture_output=True, text=True, check=False,
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": ".".join(map(str, MACOS))},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"uv cannot resolve mlxbert {version}:\n{done.stderr}")
    return tomllib.loads(done.stdout)


def wheel_of(package: Mapping[str, Any]) -> Mapping[str, Any]:
    """The wheel of a package that pip prefers on a Mac.

    Raises:
        SystemExit: The package has no wheel for a Mac with Apple silicon.
    """
    platforms = list(tags.mac_platforms(MACOS, "arm64"))
    known = [*tags.cpython_tags(PYTHON, platforms=platforms), *tags.compatible_tags(PYTHON, platforms=platforms)]
    ranks = {tag: rank for rank, tag in enumerate(known)}
    usable = {}
    for wheel in package.get("wheels", ()):
        found = parse_wheel_filename(wheel["url"].rpartition("/")[2])[3]
        if found & ranks.keys():
            usable[min(ranks[tag] for tag in found & ranks.keys())] = wheel
    if not usable:
        raise SystemExit(f"{package['name']} {package['version']} has no wheel for a Mac with Apple silicon")
    return usable[min(usable)]


def formula(version: str, lock: Mapping[str, Any], homepage: str) -> str:
    """The formula of a version, from what it installs."""
    packages = {package["name"]: package for package in lock["packages"]}
    own = packages.pop("mlxbert")
    if own["version"] != version or "sdist" not in own:
        raise SystemExit(f"the index has mlxbert {own['version']}, expected an sdist of {version}")
    resources = (_resource(name, wheel_of(package)) for name, package in sorted(packages.items()))
    values = {
        "HOMEPAGE": homepage, "URL": own["sdist"]["url"], "SHA256": own["sdist"]["hashes"]["sha256"],
        "PYTHON": _SPELLED, "RESOURCES": "\n\n".join(resources),
    }  # fmt: skip
    text = TEMPLATE.read_text(encoding="utf-8").partition("\n")[2]  # without the line about this script
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text.removeprefix("#\n")


def _resource(name: str, wheel: Mapping[str, Any]) -> str:
    return f'  resource "{name}" do\n    url "{wheel["url"]}"\n    sha256 "{wheel["hashes"]["sha256"]}"\n  end'


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__.splitlines()[0])
    version = sys.argv[1].removeprefix("v")
    address = repository(os.environ)
    print(formula(version, resolved(version), address), end="")
