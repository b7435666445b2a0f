"""Prepares a checkout for the build of a release: `python scripts/prepare_release.py v0.1.0`, then `python -m build`.

A tag is refused if it is not the version of the package, or if its section of the changelog has no date.

The repository does not know its own address. The script takes it from `GITHUB_SERVER_URL` and `GITHUB_REPOSITORY`,
which GitHub sets in workflows, and writes

- `[project.urls]` into `pyproject.toml`; the documentation has an address there only if `DOCUMENTATION_URL` names one;
- `PYPI.md`, the README for PyPI, and its name into `pyproject.toml`. On PyPI there is no repository around the README,
  so all of its links and pictures are absolute, and it installs mlxbert from PyPI.
"""

import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[([^]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")  # a picture or link to a file
_README = 'readme = "README.md"\n'
_ON_PYPI = {  # what the README says in a clone, and what it says on PyPI
    " In a clone of this repository:\n": "\n",
    "&& pip install . &&": "&& pip install mlxbert &&",
    "To run the tests:\n": "To run the tests, in a clone of the [repository](README.md):\n",
}


def check_tag(tag: str, root: Path) -> None:
    """Refuses a tag that does not fit the version of the package, or the changelog.

    Raises:
        SystemExit: The tag is not `v` and the version, or the section of the changelog is missing or has no date.
    """
    source = (root / "mlxbert" / "version.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)[0]
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}, expected v{version}, the version in mlxbert/version.py")
    head = f"## {version} "
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    heads = [line for line in changes if line.startswith(head)]
    if not any(re.fullmatch(r"\(\d{4}-\d\d-\d\d\)", line.removeprefix(head)) for line in heads):
        raise SystemExit(f"CHANGELOG.md has {heads[0] if heads else 'no section'}, expected {head}(YYYY-MM-DD)")


def readme_for_pypi(text: str, address: str, tag: str) -> str:
    """The README with absolute links into the repository at the tag, which installs mlxbert from PyPI.

    Raises:
        SystemExit: The README no longer has one of the lines that are different on PyPI.
    """
    for here, there in _ON_PYPI.items():
        if text.count(here) != 1:
            raise SystemExit(f"README.md has {here.strip()!r} {text.count(here)} times, expected once")
        text = text.replace(here, there)
    return _LINK.sub(
        lambda link: f"{link[1]}[{link[2]}]({address}/{'raw' if link[1] else 'blob'}/{tag}/{link[3]})", text
    )


def repository(environment: Mapping[str, str]) -> str:
    """The address of the repository.

    Raises:
        SystemExit: The environment does not name it.
    """
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
    if missing := [name for name in names if not environment.get(name)]:
        raise SystemExit(f"{' and '.join(missing)} must be set: the address of the repository")
    return "/".join(environment[name].rstrip("/") for name in names)


def urls(address: str, tag: str, documentation: str | None) -> dict[str, str]:
    """The addresses that PyPI shows next to the package, by their names."""
    return {
        "Homepage": address,
        **({"Documentation": documentation} if documentation else {}),
        "Source": f"{address}/tree/{tag}",
        "Issues": f"{address}/issues",
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
    }


def prepare(tag: str, root: Path, environment: Mapping[str, str]) -> None:
    """Writes the addresses into `pyproject.toml`, and `PYPI.md`.

    Raises:
        SystemExit: The tag is refused, the address is unknown, or `pyproject.toml` has addresses already.
    """
    check_tag(tag, root)
    address = repository(environment)
    path = root / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    if "urls" in tomllib.loads(text)["project"]:
        raise SystemExit("pyproject.toml has [project.urls] already: prepare a fresh checkout")
    block = "".join(
        f'{name} = "{url}"\n' for name, url in urls(address, tag, environment.get("DOCUMENTATION_URL")).items()
    )
    readme = readme_for_pypi((root / "README.md").read_text(encoding="utf-8"), address, tag)
    text = text.replace(_README, _README.replace("README", "PYPI"))
    text = text.replace("\n[project.scripts]\n", f"\n[project.urls]\n{block}\n[project.scripts]\n")
    written = tomllib.loads(text)["project"]
    if written["readme"] != "PYPI.md" or "urls" not in written:
        raise SystemExit(f"pyproject.toml has no line {_README.strip()}, or no section [project.scripts]")
    (root / "PYPI.md").write_text(readme, encoding="utf-8")
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__.splitlines()[0])
    prepare(sys.argv[1], ROOT, os.environ)
