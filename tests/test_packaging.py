"""What is in a wheel, and that a wheel made from the sdist is used from another folder."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
setuptools = pytest.importorskip("setuptools", minversion="77", reason="packaging needs setuptools 77: .[test] has it")


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from an sdist built from this checkout, without network."""
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("no checkout")
    folder = tmp_path_factory.mktemp("packaging")
    ignored = shutil.ignore_patterns(".git", ".venv", ".*cache", "__pycache__")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=ignored)
    build = "import sys; from setuptools import build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
    _run(sys.executable, "-c", build, "sdist", str(folder), cwd=folder / "source")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        filtered: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4
        archive.extractall(folder / "unpacked", **filtered)
    (unpacked,) = (folder / "unpacked").iterdir()
    _run(sys.executable, "-c", build, "wheel", str(folder), cwd=unpacked)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_a_wheel_holds_one_package_with_everything_in_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"mlxbert"}
    for name in ("py.typed", "cli/app.py", "weights/families/registry.py", "serve/http/page/page.js"):
        assert f"mlxbert/{name}" in names
    shipped = {str(path.relative_to(ROOT)) for path in (ROOT / "weights" / "builtin").rglob("*") if path.is_file()}
    assert {f"mlxbert/{name}" for name in shipped} <= set(names)
    for name in ("LICENSE", "LICENSE-APACHE", "NOTICE"):
        assert any(found.endswith(f"licenses/{name}") for found in names)
    assert not any("tests/" in name or "benchmarks/" in name for name in names)


def test_the_built_in_model_is_small_enough() -> None:
    files = (path for path in (ROOT / "weights" / "builtin").rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in files) <= 24_000_000


@pytest.mark.slow
def test_a_wheel_is_used_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    entry = next(path for path in (tmp_path / "site").glob("*.dist-info/entry_points.txt"))
    assert "mlxbert = mlxbert.cli:main" in entry.read_text()
    code = "from mlxbert.cli import main; import mlxbert; import sys; print(mlxbert.__file__, file=sys.stderr); main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "fill-mask", "Tokyo is the largest city in [MASK].", "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert str(tmp_path / "site") in done.stderr
    assert '"token": "japan"' in done.stdout
