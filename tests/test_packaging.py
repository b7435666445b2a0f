"""What is in an sdist and in a wheel, and that a wheel made from the sdist is used from another folder."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlxbert.version import __version__
from tests.helpers.commands import COMMANDS, PROGRAM

ROOT = Path(__file__).parents[1]
GROUPS = [name for name, command in PROGRAM.commands.items() if hasattr(command, "commands")]
setuptools = pytest.importorskip("setuptools", minversion="77", reason="packaging needs setuptools 77: .[test] has it")
pytest.importorskip("pip", reason="pip builds the wheel of the sdist; environments of uv have none")


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass(frozen=True)
class Built:
    """A release as it is built: the sdist, the wheel of the checkout, and the wheel that pip makes of the sdist."""

    sdist: Path
    direct: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The files of a release: those in `MLXBERT_TEST_DIST`, or built from this checkout, without network."""
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("no checkout")
    folder = tmp_path_factory.mktemp("packaging")
    if given := os.environ.get("MLXBERT_TEST_DIST"):
        return _with_wheel_of_sdist(ROOT / given, folder)
    ignored = shutil.ignore_patterns(".git", ".venv", ".*cache", "__pycache__", "build", "dist", "man", "*.egg-info")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=ignored)
    _run(sys.executable, str(ROOT / "scripts" / "man_pages.py"), str(folder / "source" / "man"), cwd=folder)
    build = "import sys; from setuptools import build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
    for kind in ("sdist", "wheel"):
        _run(sys.executable, "-c", build, kind, str(folder), cwd=folder / "source")
    return _with_wheel_of_sdist(folder, folder)


def _with_wheel_of_sdist(dist: Path, folder: Path) -> Built:
    """Adds the wheel that pip makes of the sdist in `dist`, without network."""
    (sdist,), (direct,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    options = ("--no-index", "--no-build-isolation", "--no-deps", "--wheel-dir", "of-sdist")
    _run(sys.executable, "-m", "pip", "wheel", *options, str(sdist), cwd=folder)
    (wheel,) = (folder / "of-sdist").glob("*.whl")
    return Built(sdist, direct, wheel)


def _package_files() -> set[str]:
    """The files that a wheel should hold below `mlxbert/`: all next to the source but the goldens of formats."""
    found = set()
    for folder, inside in (("mlxbert", "mlxbert"), ("cli", "mlxbert/cli"), ("weights", "mlxbert/weights")):
        for path in (ROOT / folder).rglob("*"):
            linked = any(parent.is_symlink() for parent in path.parents)
            if path.is_file() and not linked and "__pycache__" not in path.parts and path.name != ".DS_Store":
                found.add(f"{inside}/{path.relative_to(ROOT / folder).as_posix()}")
    of_formats = re.compile(r"mlxbert/goldens/(tf1/|torch/|[^/]*(?<!\.py)$)")
    return {name for name in found if not of_formats.match(name)}


@pytest.mark.slow
def test_a_wheel_holds_the_packages_their_data_the_licenses_and_manual_pages_and_nothing_else(built: Built) -> None:
    names = {name for name in zipfile.ZipFile(built.wheel).namelist() if not name.endswith("/")}
    assert {name for name in names if name.startswith("mlxbert/")} == _package_files()
    info = f"mlxbert-{__version__}.dist-info"
    facts = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}
    facts |= {f"licenses/{name}" for name in ("LICENSE", "LICENSE-APACHE", "NOTICE")}
    assert {name for name in names if name.startswith(info)} == {f"{info}/{name}" for name in facts}
    rest = {name for name in names if not name.startswith(("mlxbert/", info))}
    pages = f"mlxbert-{__version__}.data/data/share/man/man1"
    commands = (f"mlxbert {name}".strip().replace(" ", "-") for name in ("", *COMMANDS, *GROUPS))
    assert rest == {f"{pages}/{name}.1" for name in commands}


@pytest.mark.slow
def test_the_wheel_of_the_sdist_has_the_same_files_as_that_of_the_checkout(built: Built) -> None:
    """The record of a wheel has the hash of each of its files."""
    records = [
        zipfile.ZipFile(path).read(f"mlxbert-{__version__}.dist-info/RECORD") for path in (built.direct, built.wheel)
    ]
    assert len(records[0].splitlines()) > 800
    assert sorted(records[0].splitlines()) == sorted(records[1].splitlines())


@pytest.mark.slow
def test_an_sdist_holds_what_its_pages_and_tests_need(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    needed = {"CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "docs/terminal.svg", "man/mlxbert.1"}
    for folder in ("docs", "tests", "examples", "scripts", "packaging", "benchmarks"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "cache" not in str(path.parent))
        needed |= {path.relative_to(ROOT).as_posix() for path in files if path.name != ".DS_Store"}
    assert needed - names == set()
    assert not any(part.startswith(".") or part == "__pycache__" for name in names for part in name.split("/"))


@pytest.mark.slow
def test_the_files_of_a_release_are_those_that_pypi_takes(built: Built) -> None:
    pytest.importorskip("twine", reason="`.[dev]` has it")
    _run(sys.executable, "-m", "twine", "check", "--strict", str(built.sdist), str(built.wheel), cwd=built.sdist.parent)


def test_the_built_in_model_is_small_enough() -> None:
    files = (path for path in (ROOT / "weights" / "builtin").rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in files) <= 24_000_000


@pytest.mark.slow
def test_a_wheel_is_used_from_another_folder(built: Built, tmp_path: Path) -> None:
    zipfile.ZipFile(built.wheel).extractall(tmp_path / "site")
    entry = next(path for path in (tmp_path / "site").glob("*.dist-info/entry_points.txt"))
    assert "mlxbert = mlxbert.cli:main" in entry.read_text()
    code = "from mlxbert.cli import main; import mlxbert; import sys; print(mlxbert.__file__, file=sys.stderr); main()"
    command = [sys.executable, "-c", code, "fill-mask", "Tokyo is the largest city in [MASK].", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert str(tmp_path / "site") in done.stderr
    assert '"token": "japan"' in done.stdout
