"""Records and compares the behaviour of the program on fixed inputs, to show that a refactoring changes nothing.

`python scripts/behaviour record CHECKOUT OUTDIR [--all] [--model NAME=PATH …]` runs `python -m mlxbert …` of a checkout
in a fixed folder, on models and texts that are generated anew each time. It records the result of each command: exit
status, stdout to the byte, names and SHA-256 of the files that it wrote; also stderr and the files themselves.
`python scripts/behaviour compare OUTDIR_A OUTDIR_B` names each command with a different result, and exits with the
number of differences (at most 125). Nothing of mlxbert is imported. Needs numpy and safetensors in addition to the
dependencies of mlxbert.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cases import EXTRA, Case, cases
from compare import compare
from models import write_cache, write_models
from texts import write_texts

WORK = Path(tempfile.gettempdir()) / "mlxbert-behaviour"
WORKERS = 2  # commands at a time
TIMEOUT = 180  # seconds, against a hanging command
END = b"\0the end of the terminal\0"  # written to the terminal when a command has ended
STOPPED = 124  # the status of a command that hung
MAX_KEPT = 4 * 2**20  # bytes of a written file that is kept together with its hash
MOMENT = 1_600_000_000  # the modification time of all inputs, which enters the hashes of unfinished work
INPUTS = ("models", "texts")
FOLDERS = (*INPUTS, "cache", "no-cache", "home", "tmp")  # in addition to the output folders of commands
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH")
_FIND = "import importlib.util; print(importlib.util.find_spec('mlxbert').origin)"


@dataclass(frozen=True)
class Bench:
    """The folder in which commands run, at the same path for every recording.

    Attributes:
        work: The folder.
        out: The folder for the results of the commands.
    """

    work: Path
    out: Path

    def environment(self, case: Case | None = None) -> dict[str, str]:
        """The environment of a command, without variables of the caller that could influence the program."""
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        cache = "cache" if case is not None and case.cache else "no-cache"
        places = {"HOME": "home", "TMPDIR": "tmp", "HF_HOME": cache, "PYTHONPATH": "checkout"}
        places |= {"PYTHONPYCACHEPREFIX": "bytecode"}
        fixed = {"HF_HUB_OFFLINE": "1", "COLUMNS": "100", "LINES": "50", "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        kept |= {name: str(self.work / place) for name, place in places.items()} | fixed
        return kept | dict(case.variables if case is not None else {})

    def build(self, checkout: Path, goldens: Path, models: Mapping[str, Path]) -> None:
        """Creates the folders from scratch."""
        clear(self.out, "commands")
        clear(self.work, "checkout")
        self.work.mkdir(parents=True, exist_ok=True)
        (self.work / "checkout").symlink_to(checkout)  # so that paths inside the program are equal, too
        for name in ("home", "tmp", "no-cache", "models", "out"):
            (self.work / name).mkdir()
        write_models(goldens, self.work / "models")
        write_texts(self.work / "texts")
        write_cache(self.work / "models", self.work / "cache")
        for name in (*INPUTS, "cache"):
            for path in (self.work / name).rglob("*"):
                os.utime(path, (MOMENT, MOMENT))
        for name, path in models.items():
            (self.work / "models" / name).symlink_to(path.resolve())

    def check(self, checkout: Path) -> None:
        """Refuses to continue if a different mlxbert would run."""
        command = [sys.executable, "-c", _FIND]
        done = subprocess.run(
            command, env=self.environment(), cwd=self.work, capture_output=True, text=True, check=True
        )
        package = Path(done.stdout.strip()).resolve()
        if checkout not in package.parents:
            sys.exit(f"{package} would run, expected a file in {checkout}")

    def write(self, name: str, facts: Mapping[str, object], **streams: bytes) -> None:
        """Writes the result of a command."""
        folder = self.out / "commands" / name
        folder.mkdir(parents=True)
        for stream, content in streams.items():
            (folder / stream).write_bytes(content)
        (folder / "record.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Locks the folder in which commands run against other recordings."""
    work.parent.mkdir(parents=True, exist_ok=True)
    with work.with_name(f"{work.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{work}: in use by another recording; wait, or compare recordings with a different --work")
        yield


def clear(folder: Path, ours: str) -> None:
    """Removes a folder that an earlier recording made, recognized by an entry with this name."""
    if folder.exists() and any(folder.iterdir()) and not os.path.lexists(folder / ours):
        sys.exit(f"{folder}: exists, but was not made by a recording")
    shutil.rmtree(folder, ignore_errors=True)


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of all files in a folder, keyed by name; `link` or `empty folder` for other entries."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            hashes[name] = "link"
        elif path.is_file():
            hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif not any(path.iterdir()):
            hashes[name] = "empty folder"
    return hashes


def keep(folder: Path, kept: Path) -> None:
    """Copies the files of a folder, except for large ones."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_KEPT:
            target = kept / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def drain(descriptor: int) -> bytes:
    """Reads everything that is written to a terminal, up to `END`.

    The inner end stays open until everything is read: when the last one is closed, macOS drops the rest.
    """
    output = bytearray()
    while not output.endswith(END):
        output += os.read(descriptor, 65536)
    return bytes(output.removesuffix(END))


def run_piped(command: list[str], case: Case, bench: Bench) -> tuple[int, bytes, bytes]:
    """Runs a command with pipes; returns its status, stdout, and stderr."""
    stdin = (bench.work / case.stdin).read_bytes() if case.stdin else b""
    environment = bench.environment(case)
    try:
        done = subprocess.run(
            command, input=stdin, env=environment, cwd=bench.work, capture_output=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return STOPPED, b"", b""
    return done.returncode, done.stdout, done.stderr


def run_shown(command: list[str], case: Case, bench: Bench) -> tuple[int, bytes, bytes]:
    """Runs a command whose stdout is a terminal; returns its status, the bytes sent to the terminal, and stderr."""
    outer, inner = os.openpty()
    with tempfile.TemporaryFile() as errors:
        environment = bench.environment(case)
        running = subprocess.Popen(
            command, env=environment, cwd=bench.work, stdin=subprocess.DEVNULL, stdout=inner, stderr=errors
        )
        limit = threading.Timer(TIMEOUT, running.kill)
        limit.start()
        with ThreadPoolExecutor(1) as reading:
            output = reading.submit(drain, outer)
            status = running.wait()
            os.write(inner, END)
        os.close(inner)
        os.close(outer)
        limit.cancel()
        errors.seek(0)
        return status, output.result(), errors.read()


def run(case: Case, bench: Bench, before: list[Future[float]]) -> float:
    """Runs a case after the cases before it, and writes its result; returns its duration in seconds."""
    for other in before:
        other.result()
    command = [sys.executable, "-m", "mlxbert", *case.argv]
    folder = bench.work / "out" / case.name
    folder.mkdir()
    start = time.perf_counter()
    status, out, err = (run_shown if case.terminal else run_piped)(command, case, bench)
    seconds = time.perf_counter() - start
    written = bench.work / "out" / (case.shared or case.name)
    bench.write(case.name, {"argv": case.argv, "status": status, "files": digests(written)}, stdout=out, stderr=err)
    keep(written, bench.out / "commands" / case.name / "files")
    return seconds


def chosen_cases(whole: bool, pattern: str) -> list[Case]:
    """The cases whose names match, and the cases that must run before them."""
    by_name = {case.name: case for case in cases(whole=whole or bool(pattern))}
    names = [name for name in by_name if re.search(pattern, name)]
    for name in names:  # the list grows
        names += [other for other in by_name[name].after if other not in names]
    return [case for name, case in by_name.items() if name in names]


def runnable(chosen: list[Case], models: Mapping[str, Path]) -> Iterator[Case]:
    """The cases whose extra models are available, unless they follow a case that is left out."""
    missing: set[str] = set()
    for case in chosen:
        if case.extra - models.keys() or missing & set(case.after):
            missing.add(case.name)
            print(f"left out: {case.name}")
        else:
            yield case


def record(checkout: Path, bench: Bench, chosen: list[Case]) -> None:
    """Runs commands of a checkout and writes their results, then the final contents of the folders."""
    start = time.perf_counter()
    bench.check(checkout)
    with ThreadPoolExecutor(WORKERS) as pool:
        running: dict[str, Future[float]] = {}
        for case in chosen:  # in order, so that a case waits only for cases that were submitted
            before = [running[name] for name in case.after]
            running[case.name] = pool.submit(run, case, bench, before)
        seconds = {name: future.result() for name, future in running.items()}
    for name in FOLDERS:
        bench.write(f"folder-{name}", {"argv": [], "status": 0, "files": digests(bench.work / name)})
    for name in INPUTS:
        shutil.copytree(bench.work / name, bench.out / "inputs" / name, symlinks=True)
    slowest = sorted(seconds, key=lambda name: -seconds[name])[:5]
    print("slowest: " + ", ".join(f"{name} {seconds[name]:.1f} s" for name in slowest))
    print(f"{len(chosen)} commands in {time.perf_counter() - start:.0f} s: {bench.out}")


def extra_models(pairs: list[str]) -> dict[str, Path]:
    """The models given by `--model`."""
    folders = {name: Path(path) for name, _, path in (pair.partition("=") for pair in pairs)}
    for name, path in folders.items():
        if name not in EXTRA or not path.is_dir():
            sys.exit(f"--model {name}={path}: expected a folder, and one of {', '.join(EXTRA)}")
    return folders


def main() -> None:
    """Records or compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    recorded = actions.add_parser("record")
    recorded.add_argument("checkout", type=Path)
    recorded.add_argument("out", type=Path, metavar="OUTDIR", help="is replaced")
    recorded.add_argument("--model", action="append", default=[], metavar="NAME=PATH", help=f"one of {EXTRA}")
    recorded.add_argument("--all", action="store_true", help="about 370 commands instead of 126")
    recorded.add_argument("--only", default="", metavar="REGEX", help="run only commands whose names match")
    recorded.add_argument("--goldens", type=Path, help="CHECKOUT/mlxbert/goldens")
    recorded.add_argument("--work", type=Path, default=WORK, help="is wiped; must be equal for recordings to compare")
    compared = actions.add_parser("compare")
    compared.add_argument("a", type=Path, metavar="OUTDIR_A")
    compared.add_argument("b", type=Path, metavar="OUTDIR_B")
    compared.add_argument("--stderr", action="store_true", help="also compare stderr, except for reported speeds")
    args = parser.parse_args()
    if args.action == "compare":
        sys.exit(min(compare(args.a, args.b, stderr=args.stderr), 125))
    checkout = args.checkout.resolve()
    goldens = args.goldens or checkout / "mlxbert" / "goldens"
    bench, models = Bench(args.work.resolve(), args.out.resolve()), extra_models(args.model)
    with alone(bench.work):
        bench.build(checkout, goldens, models)
        record(checkout, bench, list(runnable(chosen_cases(args.all, args.only), models)))


if __name__ == "__main__":
    main()
