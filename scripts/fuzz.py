"""Damages every file that is read, in child processes: `python scripts/fuzz.py [READER…] [--mutants N] [--seed N]`.

Each mutant must load, or be refused by an `MlxbertError`, in a few seconds and with little memory. The exit status is
the number of those that did otherwise, at most 125; `--keep FOLDER` writes them down. A mutant is made of seed, reader
and number alone.
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
SECONDS = 5  # for one mutant
ROOM = 2**30  # bytes of addresses that a child may take beyond what it starts with
GROWTH = 128 * 2**20  # bytes of memory that one mutant may take
BATCH = 1000  # mutants of one child
_MIB = 2**20
FINDINGS = ("exception", "crash", "hang", "memory")


@dataclass
class Result:
    """What became of the mutants of one reader."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    growth: int = 0
    findings: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Result") -> None:
        """Counts another batch, too."""
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


def _memory(*, anew: bool = False) -> int:
    """The most bytes of memory that this process had, since it was asked `anew` where the system can tell that."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
    if anew:
        with contextlib.suppress(OSError, AttributeError):  # mlxbert keeps what is freed: it would be taken unseen
            ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    (line,) = (line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def _limit() -> None:
    """Takes the room away in which memory could grow; where the system cannot, `GROWTH` alone counts."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM,) * 2)


def mutant(name: str, seed: int, number: int, seeds: Sequence[Files]) -> tuple[int, Files]:
    """Which seed is damaged, and the files that are."""
    rng = Random(f"{seed} {name} {number}")
    chosen = rng.randrange(len(seeds))
    return chosen, ALL[name].mutate(rng, seeds[chosen])


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _put(folder: Path, files: Files) -> None:
    for name, data in files.items():
        path = folder / name
        path.unlink(missing_ok=True)  # who still holds the old file keeps it
        path.write_bytes(data)


def outcome(load: Callable[[Path], object], folder: Path) -> tuple[int, str]:
    """Loads a folder; how many bytes of memory that took, and what came of it."""
    before = _memory(anew=True)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)  # nobody handles it: it ends the process
    try:
        load(folder)
        found = "loaded"
    except MlxbertError:
        found = "refused"
    except BaseException as problem:  # a panic of Rust is no Exception
        found = f"exception {type(problem).__name__}: {problem!s:.200}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    grown = _memory() - before
    return grown, f"memory {grown // _MIB} MiB" if grown > GROWTH else found


def child(name: str, seed: int, numbers: Sequence[int]) -> None:
    """Loads mutants one by one; writes each number before, and behind it what came of it."""
    reader = ALL[name]
    with tempfile.TemporaryDirectory() as place:
        folders = reader.seeds(Path(place))
        seeds = [_files(folder) for folder in folders]
        for folder in folders:
            reader.load(folder)  # which must not fail
        _limit()
        for number in numbers:
            chosen, changed = mutant(name, seed, number, seeds)
            _put(folders[chosen], changed)
            print(number, end=" ", flush=True)
            begin = time.perf_counter()
            grown, said = outcome(reader.load, folders[chosen])
            took = time.perf_counter() - begin
            print(f"{took:.4f} {grown} {said.encode('unicode_escape').decode()}", flush=True)
            _put(folders[chosen], {key: seeds[chosen][key] for key in changed})


def batch(command: Sequence[str], numbers: Sequence[int]) -> Iterator[tuple[int, float, int, str]]:
    """Number, seconds, growth and outcome of each mutant; a child that dies is followed by another.

    Args:
        command: Starts a child; the first number and the one behind the last are put behind it.
        numbers: Of the mutants, without gaps.
    """
    first, end = numbers[0], numbers[-1] + 1
    while first < end:
        with tempfile.TemporaryDirectory() as place:  # what a child that dies leaves behind is gone with it
            whole = [*command, str(first), str(end)]
            own = os.environ | {"TMPDIR": place}
            run = subprocess.run(whole, capture_output=True, text=True, check=False, env=own)
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
    """What becomes of a range of mutants, in a child that `command` starts."""
    result = Result()
    own = [sys.executable, __file__, name, "--seed", str(seed), "--child"]
    for number, seconds, growth, said in batch(command or own, numbers):
        kind = said.split(" ", 1)[0]
        result.counts[kind] += 1
        result.slowest, result.growth = max(result.slowest, seconds), max(result.growth, growth)
        if kind in FINDINGS:
            result.findings.append((number, said))
    return result


def keep(folder: Path, name: str, seed: int, number: int) -> None:
    """Writes the model folder of a mutant."""
    with tempfile.TemporaryDirectory() as place:
        seeds = [_files(found) for found in ALL[name].seeds(Path(place))]
    chosen, changed = mutant(name, seed, number, seeds)
    for path, data in {**seeds[chosen], **changed}.items():
        target = folder / f"{name.strip('.').replace(' ', '-')}-{seed}-{number}" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def main() -> int:
    """Fuzzes what is asked for, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"some of: {', '.join(ALL)}")
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder for the mutants that were found")
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.readers) - ALL.keys():
        parser.error(f"no reader {min(unknown)!r}, expected some of {', '.join(ALL)}")
    if given.child:
        child(given.readers[0], given.seed, range(*given.child))
        return 0
    found = 0
    print(HEADER, flush=True)
    with ThreadPoolExecutor(given.workers) as pool:
        for name in given.readers or ALL:
            spans = [range(at, min(at + BATCH, given.mutants)) for at in range(0, given.mutants, BATCH)]
            total = Result()
            for result in pool.map(functools.partial(fuzz, name, given.seed), spans):
                total.add(result)
            print(total.row(name), flush=True)
            for number, said in total.findings:
                print(f"{name} {number}: {said}", file=sys.stderr, flush=True)
                if given.keep:
                    keep(given.keep, name, given.seed, number)
            found += len(total.findings)
    return min(found, 125)


if __name__ == "__main__":
    sys.exit(main())
