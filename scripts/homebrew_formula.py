"""Writes the Homebrew formula of a release that PyPI has: `python scripts/homebrew_formula.py v0.1.0 > mlxbert.rb`.

`uv` finds the versions that a Mac with Apple silicon gets, with the addresses and hashes of their files; the formula
(`packaging/homebrew/mlxbert.rb.in`) takes the sdist of mlxbert and the wheels of everything else, for each version of
macOS those that pip would choose there. `UV_DEFAULT_INDEX` names another index than PyPI. The home page is the
repository of `GITHUB_SERVER_URL` and `GITHUB_REPOSITORY`.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging import tags
from packaging.utils import parse_wheel_filename

sys.path.insert(0, str(Path(__file__).parent))
from prepare_release import repository

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "packaging" / "homebrew" / "mlxbert.rb.in"
PYTHON = (3, 13)
# The versions of macOS that MLX has wheels for, in the words of Homebrew.
SYSTEMS = {"on_sonoma :or_older": (14, 0), "on_sequoia": (15, 0), "on_tahoe :or_newer": (26, 0)}
_OLDEST, *_, _NEWEST = SYSTEMS.values()
_SPELLED = ".".join(map(str, PYTHON))


def resolved(version: str) -> dict[str, Any]:
    """What a Mac installs for a version of mlxbert, and what building its wheel needs, as a lock file (PEP 751).

    The versions of packages are those for the oldest system, their wheels those of all systems.

    Raises:
        SystemExit: There is no `uv`, or it cannot resolve the version.
    """
    if shutil.which("uv") is None:
        raise SystemExit("uv is not installed: pip install uv")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    packages = _compiled([f"mlxbert=={version}", *build], _OLDEST)["packages"]
    return _compiled([f"{package['name']}=={package['version']}" for package in packages], _NEWEST)


def _compiled(requirements: Iterable[str], macos: tuple[int, int]) -> dict[str, Any]:
    command = ["uv", "pip", "compile", "-", "--format", "pylock.toml", "--quiet", "--no-header"]
    command += ["--python-platform", "aarch64-apple-darwin", "--python-version", _SPELLED]
    done = subprocess.run(
        command, input="\n".join(requirements), capture_output=True, text=True, check=False,
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": ".".join(map(str, macos))},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"uv finds no packages for macOS {macos[0]}:\n{done.stderr}")
    return tomllib.loads(done.stdout)


def wheel_of(package: Mapping[str, Any], macos: tuple[int, int]) -> Mapping[str, Any]:
    """The wheel of a package that pip prefers on a Mac with a version of macOS.

    Raises:
        SystemExit: The package has no wheel for this version and Apple silicon.
    """
    platforms = list(tags.mac_platforms(macos, "arm64"))
    known = [*tags.cpython_tags(PYTHON, platforms=platforms), *tags.compatible_tags(PYTHON, platforms=platforms)]
    ranks = {tag: rank for rank, tag in enumerate(known)}
    usable = {}
    for wheel in package.get("wheels", ()):
        found = parse_wheel_filename(wheel["url"].rpartition("/")[2])[3]
        if found & ranks.keys():
            usable[min(ranks[tag] for tag in found & ranks.keys())] = wheel
    if not usable:
        raise SystemExit(f"{package['name']} {package['version']} has no wheel for macOS {macos[0]} and Apple silicon")
    return usable[min(usable)]


def formula(version: str, lock: Mapping[str, Any], homepage: str) -> str:
    """The formula of a version, from what it installs."""
    packages = {package["name"]: package for package in lock["packages"]}
    own = packages.pop("mlxbert")
    if own["version"] != version or "sdist" not in own:
        raise SystemExit(f"the index has mlxbert {own['version']}, expected an sdist of {version}")
    resources = (_resource(package) for _, package in sorted(packages.items()))
    values = {
        "HOMEPAGE": homepage, "URL": own["sdist"]["url"], "SHA256": own["sdist"]["hashes"]["sha256"],
        "PYTHON": _SPELLED, "RESOURCES": "\n\n".join(resources),
    }  # fmt: skip
    text = TEMPLATE.read_text(encoding="utf-8").partition("\n")[2]  # without the line about this script
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text.removeprefix("#\n")


def _resource(package: Mapping[str, Any]) -> str:
    wheels = {system: wheel_of(package, macos) for system, macos in SYSTEMS.items()}
    files = {
        system: [f'url "{wheel["url"]}"', f'sha256 "{wheel["hashes"]["sha256"]}"'] for system, wheel in wheels.items()
    }
    lines = next(iter(files.values()))
    if any(file != lines for file in files.values()):
        lines = [line for on, file in files.items() for line in (f"{on} do", *(f"  {line}" for line in file), "end")]
    return "\n".join([f'  resource "{package["name"]}" do', *(f"    {line}" for line in lines), "  end"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__.splitlines()[0])
    version = sys.argv[1].removeprefix("v")
    address = repository(os.environ)
    print(formula(version, resolved(version), address), end="")
