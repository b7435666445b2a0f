"""Builds a release and installs it as a user does: `python scripts/check_release.py [PYTHON…]`; needs `.[dev]`.

The committed files are built as the release workflow builds them. The wheel and all dependencies, as wheels, become
an index on this machine, the only one that the installations know. With each PYTHON (by default each of python3.11 to
python3.14 on the `PATH`), `pip install mlxbert` runs in a fresh environment where no compiler works, then the first
command; `uvx` and `pipx run` follow, if they are installed. A table says how long that takes, and how large it is.
"""

import contextlib
import functools
import http.server
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = tuple(f"python3.{minor}" for minor in range(11, 15))
ASKED, EXPECTED = ("fill-mask", "Tokyo is the largest city in [MASK].", "--top-k", "1"), '"token": "japan"'
RUNS = 15  # starts of Python that are measured
MOST_IMPORT = 20.0  # milliseconds that `import mlxbert` may add to the start of Python
SLOW = f", expected at most {MOST_IMPORT:.0f}"


def run(*command: str | Path, env: Mapping[str, str], cwd: Path) -> str:
    """Runs a command and returns its output; ends the script if the command fails."""
    done = subprocess.run(
        [str(word) for word in command], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> Path:
    """Builds the sdist and the wheel from the committed files; returns the folder that holds them."""
    environment, source = dict(os.environ), folder / "source"
    source.mkdir()
    run("git", "archive", "--output", folder / "source.tar", "HEAD", env=environment, cwd=ROOT)
    shutil.unpack_archive(folder / "source.tar", source, filter="data")
    run(sys.executable, source / "scripts" / "man_pages.py", source / "man", env=environment, cwd=source)
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", env=environment, cwd=source)
    files = sorted((folder / "dist").iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files, env=environment, cwd=folder)
    return folder / "dist"


def fill_index(index: Path, wheel: Path, pythons: Sequence[str]) -> None:
    """Fills an index (PEP 503: a folder for each name) with the wheel and the wheels of all that it needs."""
    flat = index.with_name("wheels")
    for python in pythons:
        fetch = ("-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest")
        run(python, *fetch, flat, wheel, env=os.environ, cwd=index.parent)
    for path in flat.iterdir():
        home = index / re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower()
        home.mkdir(parents=True, exist_ok=True)
        path.rename(home / path.name)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Lists folders and sends files, without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing."""


@contextlib.contextmanager
def served(index: Path) -> Iterator[str]:
    """Serves an index on this machine; yields its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(index))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def user(folder: Path, address: str) -> dict[str, str]:
    """The environment variables of a new user, whose only index is at `address`, and whose compilers fail."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "OPENBLAS_"))}
    kept = {name: kept[name] for name in kept.keys() - {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}}
    folders = {"HOME": "home", "XDG_CACHE_HOME": "cache", "PIPX_HOME": "pipx", "UV_CACHE_DIR": "uv"}
    return {
        **kept, **{name: str(folder / path) for name, path in folders.items()},
        "CC": shutil.which("false") or "false", "CXX": shutil.which("false") or "false", "CARGO": "false",
        "PIP_INDEX_URL": address, "UV_DEFAULT_INDEX": address, "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1", "HF_HUB_OFFLINE": "1", "MLXBERT_DEVICE": "cpu",
    }  # fmt: skip


def size(folder: Path) -> float:
    """The size of a folder in MB; a file with several names counts once."""
    files = (path.stat() for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum({(file.st_dev, file.st_ino): file.st_size for file in files}.values()) / 1e6


def import_time(python: Path, environment: Mapping[str, str], folder: Path) -> float:
    """The milliseconds of CPU time that `import mlxbert` adds to a start of Python: the difference of two medians.

    CPU time, because other programs on the machine hardly change it.
    """
    times: dict[str, list[float]] = {"": [], "import mlxbert": []}
    for _ in range(RUNS):
        for code, measured in times.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run(python, "-c", code, env=environment, cwd=folder)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            measured.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    bare, imported = (statistics.median(measured) for measured in times.values())
    return (imported - bare) * 1000


def answers(*command: str | Path, env: Mapping[str, str], cwd: Path) -> float:
    """Runs `fill-mask` with the start of a command; returns the seconds; ends the script if the answer is wrong."""
    start = time.perf_counter()
    if EXPECTED not in (out := run(*command, *ASKED, env=env, cwd=cwd)):
        raise SystemExit(f"{command[0]} printed {out!r}, expected {EXPECTED}")
    return time.perf_counter() - start


def with_pip(python: str, folder: Path, address: str) -> dict[str, str]:
    """Installs with pip and runs the first command; returns what the table shows."""
    folder.mkdir()
    environment, venv, start = user(folder, address), folder / "venv", time.perf_counter()
    run(python, "-m", "venv", venv, env=environment, cwd=folder)
    run(venv / "bin" / "python", "-m", "pip", "install", "--quiet", "mlxbert", env=environment, cwd=folder)
    installed = time.perf_counter() - start
    first = answers(venv / "bin" / "mlxbert", env=environment, cwd=folder)
    packages = run(venv / "bin" / "python", "-m", "pip", "list", "--format=freeze", env=environment, cwd=folder).split()
    taken = size(folder)
    added = import_time(venv / "bin" / "python", environment, folder)
    return {
        "how": f"pip, {run(python, '--version', env=environment, cwd=folder).strip()}", "install": f"{installed:.1f} s",
        "first answer": f"{first:.2f} s", "packages": str(len(packages) - 1), "size": f"{taken:.0f} MB",
        "import": f"{added:.1f} ms{'' if added <= MOST_IMPORT else SLOW}", "man": manual(venv, environment, folder),
    }  # fmt: skip


def manual(venv: Path, environment: Mapping[str, str], folder: Path) -> str:
    """Whether `man` finds the pages of an active environment."""
    page = venv / "share" / "man" / "man1" / "mlxbert.1"
    if not page.is_file():
        raise SystemExit(f"{page} is missing")
    if shutil.which("man") is None:
        return "no man"
    path = f"{venv / 'bin'}{os.pathsep}{environment['PATH']}"
    found = run("man", "-w", "mlxbert", env={**environment, "PATH": path}, cwd=folder).strip()
    if Path(found).resolve() != page.resolve():
        raise SystemExit(f"man finds {found or 'nothing'}, expected {page}")
    return "found"


def with_runner(command: Sequence[str], python: str, folder: Path, address: str) -> dict[str, str]:
    """Runs the first command with a program that installs and runs at once; returns what the table shows."""
    folder.mkdir()
    environment = user(folder, address)
    chosen = shutil.which(python) or python
    first = answers(*command, "--python", chosen, "mlxbert", env=environment, cwd=folder)
    again = answers(*command, "--python", chosen, "mlxbert", env=environment, cwd=folder)
    return {
        "how": " ".join(command), "first answer": f"{first:.2f} s, then {again:.2f} s", "size": f"{size(folder):.0f} MB"
    }  # fmt: skip


def main(pythons: Sequence[str]) -> None:
    """Builds, serves and installs a release, and prints the table."""
    pythons = pythons or [python for python in PYTHONS if shutil.which(python)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (wheel,) = build(folder).glob("*.whl")
        fill_index(folder / "index", wheel, pythons)
        rows = []
        with served(folder / "index") as address:
            for number, python in enumerate(pythons):
                rows.append(with_pip(python, folder / f"pip-{number}", address))
            for command in (["uvx"], ["pipx", "run"]):
                if shutil.which(command[0]):
                    rows.append(with_runner(command, pythons[-1], folder / command[0], address))
        columns = list(rows[0])
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for row in rows:
            print(f"| {' | '.join(row.get(column, '') for column in columns)} |")
        if any(SLOW in row.get("import", "") for row in rows):
            raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
