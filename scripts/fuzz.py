"""Fuzzes every file reader in child processes: `python scripts/fuzz.py [READER…] [--mutants N] [--seed N]`.

Each mutant must load, or be refused with an `MlxbertError`, within a few seconds and with little memory. The exit
status is the number of mutants that fail this, at most 125; `--keep FOLDER` saves them. A mutant depends only on seed,
reader and number.
"""

import argparse
import contextlib
import ctypes
import functools
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))
from fuzz_readers import READERS, Files
from fuzz_tokenizers import TOKENIZERS

from mlxbert.errors import MlxbertError

ALL = READERS | TOKENIZERS
SECONDS = 5  # limit per mutant
ROOM = 2**30  # bytes of address space that a child may use in addition to its initial size
GROWTH = 128 * 2**20  # bytes of memory that one mutant may use
BATCH = 1000  # mutants per child
_MIB = 2**20
FINDINGS = ("exception", "crash", "hang", "memory")


@dataclass
class Result:
    """The outcomes of the mutants of one reader."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    growth: int = 0
    findings: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Result") -> None:
        """Adds the counts of another batch."""
        self.counts += other.counts
        self.slowest, self.growth = max(self.slowest, other.slowest), max(self.growth, other.growth)
        self.findings += other.findings

    def row(self, name: str) -> str:
        """A line of the table."""
        counts = [sum(self.counts.values()), *(self.counts[kind] for kind in ("loaded", "refused", *FINDINGS))]
        numbers = " | ".join(f"{count:,}" for count in counts)
        return f"| {name} | {numbers} | {1000 * self.slowest:.1f} | {self.growth / _MIB:.1f} |"


HEADER = (
    "| reader | mutants | loaded | refused | other exceptions | crashes | hangs | too much memory | slowest, ms "
    "| largest growth, MiB |\n|---|---|---|---|---|---|---|---|---|---|"
)


def _memory(*, reset: bool = False) -> int:
    """The peak memory of this process in bytes; `reset` restarts the measurement where the system supports it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
    if reset:
        with contextlib.suppress(
            OSError, AttributeError
        ):  # the allocator keeps freed memory, whose reuse would not count
            ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    (line,) = (line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def _limit() -> None:
    """Limits the address space of this process; where the system does not support it, only `GROWTH` applies."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM,) * 2)


def mutant(name: str, seed: int, number: int, seeds: Sequence[Files]) -> tuple[int, Files]:
    """Creates a mutant: the index of the seed, and its changed files."""
    rng = Random(f"{seed} {name} {number}")
    chosen = rng.randrange(len(seeds))
    return chosen, ALL[name].mutate(rng, seeds[chosen])


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _put(folder: Path, files: Files) -> None:
    for name, data in files.items():
        path = folder / name
        path.unlink(missing_ok=True)  # an open old file stays intact
        path.write_bytes(data)


def outcome(load: Callable[[Path], object], folder: Path) -> tuple[int, str]:
    """Loads a folder; returns the memory used in bytes, and the outcome."""
    before = _memory(reset=True)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)  # the signal has no handler, so it ends the process
    try:
        load(folder)
        result = "loaded"
    except MlxbertError:
        result = "refused"
    except BaseException as problem:  # a Rust panic is not an Exception
        result = f"exception {type(problem).__name__}: {problem!s:.200}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    grown = _memory() - before
    return grown, f"memory {grown // _MIB} MiB" if grown > GROWTH else result


def child(name: str, seed: int, numbers: Sequence[int]) -> None:
    """Loads mutants one by one; prints each number before the load, and the outcome after it."""
    reader = ALL[name]
    with tempfile.TemporaryDirectory() as place:
        folders = reader.seeds(Path(place))
        seeds = [_files(folder) for folder in folders]
        for folder in folders:
            reader.load(folder)  # seeds must load
        _limit()
        for number in numbers:
            chosen, changed = mutant(name, seed, number, seeds)
            _put(folders[chosen], changed)
            print(number, end=" ", flush=True)
            start = time.perf_counter()
            grown, outcome_text = outcome(reader.load, folders[chosen])
            seconds = time.perf_counter() - start
            print(f"{seconds:.4f} {grown} {outcome_text.encode('unicode_escape').decode()}", flush=True)
            _put(folders[chosen], {key: seeds[chosen][key] for key in changed})


def batch(command: Sequence[str], numbers: Sequence[int]) -> Iterator[tuple[int, float, int, str]]:
    """Yields number, seconds, growth and outcome of each mutant; replaces children that die.

    Args:
        command: The command that starts a child; the first number and the end of the range are appended.
        numbers: The numbers of the mutants, consecutive.
    """
    first, end = numbers[0], numbers[-1] + 1
    while first < end:
        with tempfile.TemporaryDirectory() as place:  # removes the leftovers of a dead child
            full_command = [*command, str(first), str(end)]
            environment = os.environ | {"TMPDIR": place}
            run = subprocess.run(full_command, capture_output=True, text=True, check=False, env=environment)
        lines = run.stdout.splitlines()
        for line in lines:
            parts = line.split(" ", 3)
            if len(parts) == 4:
                yield int(parts[0]), float(parts[1]), int(parts[2]), parts[3]
                first = int(parts[0]) + 1
        if run.returncode == 0:
            return
        if not lines or len(lines[-1].split(" ", 3)) == 4:
            raise RuntimeError(f"{' '.join(command)}: a child failed before a mutant: {run.stderr[-2000:]}")
        if run.returncode == -signal.SIGALRM:
            yield first, SECONDS, 0, f"hang of more than {SECONDS} s"
        else:
            yield first, 0.0, 0, f"crash with status {run.returncode}: {run.stderr[-300:]!r}"
        first += 1


def fuzz(name: str, seed: int, numbers: range, command: Sequence[str] = ()) -> Result:
    """Loads a range of mutants in children that `command` starts."""
    result = Result()
    own_command = [sys.executable, __file__, name, "--seed", str(seed), "--child"]
    for number, seconds, growth, outcome_text in batch(command or own_command, numbers):
        kind = outcome_text.split(" ", 1)[0]
        result.counts[kind] += 1
        result.slowest, result.growth = max(result.slowest, seconds), max(result.growth, growth)
        if kind in FINDINGS:
            result.findings.append((number, outcome_text))
    return result


def keep(folder: Path, name: str, seed: int, number: int) -> None:
    """Saves the model folder of a mutant."""
    with tempfile.TemporaryDirectory() as place:
        seeds = [_files(folder_of_seed) for folder_of_seed in ALL[name].seeds(Path(place))]
    chosen, changed = mutant(name, seed, number, seeds)
    for path, data in {**seeds[chosen], **changed}.items():
        target = folder / f"{name.strip('.').replace(' ', '-')}-{seed}-{number}" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def main() -> int:
    """Fuzzes the chosen readers and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"some of: {', '.join(ALL)}")
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="save failing mutants in this folder")
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.readers) - ALL.keys():
        parser.error(f"no reader {min(unknown)!r}, expected some of {', '.join(ALL)}")
    if args.child:
        child(args.readers[0], args.seed, range(*args.child))
        return 0
    findings = 0
    print(HEADER, flush=True)
    with ThreadPoolExecutor(args.workers) as pool:
        for name in args.readers or ALL:
            spans = [range(at, min(at + BATCH, args.mutants)) for at in range(0, args.mutants, BATCH)]
            total = Result()
            for result in pool.map(functools.partial(fuzz, name, args.seed), spans):
                total.add(result)
            print(total.row(name), flush=True)
            for number, outcome_text in total.findings:
                print(f"{name} {number}: {outcome_text}", file=sys.stderr, flush=True)
                if args.keep:
                    keep(args.keep, name, args.seed, number)
            findings += len(total.findings)
    return min(findings, 125)


if __name__ == "__main__":
    sys.exit(main())
