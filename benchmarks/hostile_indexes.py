"""Checks that damaged and malicious indexes do no harm.

`python benchmarks/hostile_indexes.py [--count 20000] [--seconds 20] [--seed 1] [--vectors dense|sparse|tokens]`:
mutations of a small index, of its log and of single values in it are opened, counted, searched in all modes, read,
checked and written to in a separate process. Prints how many gave hits, and how many were refused and why. Anything
else, such as a crash or a file in another place, is a failure; then the exit status is 1.
"""

import argparse
import json
import os
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1]))
import apsw
from fuzz_mutate import flips

import mlxbert
from mlxbert.errors import ArgumentError, StoreError
from mlxbert.search.database import CHECKSUM, connect
from mlxbert.search.index import MODES, Index, open_index
from tests.helpers.indexes import build, passage, write_files
from tests.helpers.sparse_folder import save_splade
from tests.helpers.tiny import save
from tests.helpers.token_folders import bge_m3

PAGE = 8192
MODELS: dict[str, Callable[[Path], Path]] = {"dense": save, "sparse": save_splade, "tokens": bge_m3}
NAMES = {"index.db", "index.db-wal", "index.db-shm", "index.db.lock"}
TABLES = ("about", "files", "documents", "chunks", "vectors", "signs", "words_data", "words_idx", "words_docsize")
VALUES = (
    *(None, 0, -1, 1, 2**31, 2**62, -(2**63), 0.5, 1e308, "", "x", "[]", "{}", "null", "-1", "1e999", "NaN", "\0", b""),
    *(
        b"\xff\xfe",
        bytes(300),
        b"\xff" * 48,
        "9" * 400,
        "[" * 5000,
        '{"a":' * 5000,
        '["\\ud800"]',
        '"builtin"',
        "é" * 5000,
    ),
)
Mutate = Callable[[random.Random, bytes, bytes], tuple[bytes, bytes]]


def _random(rng: random.Random, main: bytes, log: bytes) -> tuple[bytes, bytes]:
    return flips(rng, main), log


def _header(rng: random.Random, main: bytes, log: bytes) -> tuple[bytes, bytes]:
    """Changes bytes at the beginning of a page, where its header is; the header of the first page is longer."""
    changed = bytearray(main)
    page = rng.choice((0, rng.randrange(len(main) // PAGE))) * PAGE
    for _ in range(rng.choice((1, 2, 4))):
        changed[page + rng.randrange(120)] = rng.choice((0, 1, 2, 5, 10, 13, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(changed), log


def _truncated(rng: random.Random, main: bytes, log: bytes) -> tuple[bytes, bytes]:
    return main[: rng.choice((rng.randrange(len(main)), rng.randrange(len(main) // PAGE) * PAGE))], log


def _pages(rng: random.Random, main: bytes, log: bytes) -> tuple[bytes, bytes]:
    """Swaps pages, copies a page over another, or clears a page."""
    pages = [main[start : start + PAGE] for start in range(0, len(main), PAGE)]
    for _ in range(rng.choice((1, 1, 3))):
        first, second = rng.randrange(len(pages)), rng.randrange(len(pages))
        match rng.randrange(3):
            case 0:
                pages[first], pages[second] = pages[second], pages[first]
            case 1:
                pages[first] = pages[second]
            case _:
                pages[first] = bytes(PAGE)
    return b"".join(pages), log


def _log(rng: random.Random, main: bytes, log: bytes) -> tuple[bytes, bytes]:
    return main, flips(rng, log)


def _sealed_log(rng: random.Random, main: bytes, log: bytes) -> tuple[bytes, bytes]:
    """Changes frames of a log, and updates their checksums."""
    frames = [log[start : start + 24 + PAGE] for start in range(32, len(log), 24 + PAGE)]
    for _ in range(rng.choice((1, 2, 4))):
        place = rng.randrange(len(frames))
        head, page = frames[place][:24], frames[place][24:]
        if rng.random() < 0.3:
            head = flips(rng, head[:8])[:8].ljust(8, b"\0") + head[8:]
        else:
            page = _sealed(flips(rng, page)[:PAGE].ljust(PAGE, b"\0"))
        frames[place] = head + page
    order = "big" if log[3] & 1 else "little"
    sums, sealed = _sums(log[:24], (0, 0), order), [log[:32]]
    for frame in frames:
        sums = _sums(frame[:8] + frame[24:], sums, order)
        sealed.append(frame[:16] + b"".join(total.to_bytes(4, "big") for total in sums) + frame[24:])
    return main, b"".join(sealed)


def _sealed(pages: bytes) -> bytes:
    """Updates the checksums of pages, as the author of a malicious index would."""
    insides = (pages[start : start + PAGE - CHECKSUM] for start in range(0, len(pages), PAGE))
    sums = ((inside, _sums(inside[: len(inside) // 8 * 8], (0, 0), "little")) for inside in insides)
    return b"".join(inside + b"".join(total.to_bytes(4, "little") for total in both) for inside, both in sums)


def _sums(data: bytes, sums: tuple[int, int], order: Any) -> tuple[int, int]:
    """The checksum of a log, as computed by SQLite."""
    first, second = sums
    words = (
        memoryview(data).cast("I")
        if order == sys.byteorder
        else [int.from_bytes(data[place : place + 4], order) for place in range(0, len(data), 4)]
    )
    for place in range(0, len(words), 2):
        first = (first + words[place] + second) & 0xFFFFFFFF
        second = (second + words[place + 1] + first) & 0xFFFFFFFF
    return first, second


def _values(rng: random.Random, path: Path) -> None:
    """Changes values of an index that stays valid for SQLite."""
    connection = connect(str(path), "rwc")
    connection.execute("PRAGMA synchronous = OFF")
    for _ in range(rng.choice((1, 1, 2, 5))):
        table = rng.choice(TABLES)
        column = rng.choice([row[1] for row in connection.execute(f"PRAGMA table_info({table})")])
        rows = connection.rows(f"SELECT {column} FROM {table}")
        if not rows:
            continue
        old = rng.choice(rows)[0]
        new = rng.choice((*VALUES, rng.choice(rows)[0]))
        if isinstance(old, str | bytes) and rng.random() < 0.5:
            data = flips(rng, old if isinstance(old, bytes) else old.encode())
            new = data if isinstance(old, bytes) else data.decode("utf-8", "replace")
        with suppress(apsw.Error, OverflowError, UnicodeEncodeError):
            if rng.random() < 0.1:
                connection.execute(f"DELETE FROM {table} WHERE {column} IS ?", (old,))
            else:
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} IS ?", (new, old))
    connection.close()


WAYS: dict[str, Mutate] = {
    "bytes": _random,
    "headers": _header,
    "truncated": _truncated,
    "pages": _pages,
    "log": _log,
    "sealed log": _sealed_log,
}


def write_mutated(rng: random.Random, way: str, main: bytes, log: bytes, whole: bytes, path: Path) -> None:
    """Writes a damaged index.

    Args:
        rng: The random number generator.
        way: The kind of damage, one of `WAYS` or "values".
        main: A file whose latest changes are in its log.
        log: The log of `main`.
        whole: A file that needs no log.
        path: The path of the index.
    """
    if way == "values":
        path.write_bytes(whole)
        _values(rng, path)
        return
    in_log = "log" in way
    changed, changed_log = WAYS[way](rng, main if in_log else whole, log)
    path.write_bytes(changed if in_log or rng.random() < 0.2 else _sealed(changed))
    if in_log:
        Path(f"{path}-wal").write_bytes(changed_log)


def steps(path: str, model: mlxbert.Model) -> list[str]:
    """Uses an index in all ways; returns the errors, of which failures begin with an exclamation mark."""
    outcomes = []

    def tried(step: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return step(*arguments, **options)
        except StoreError as problem:
            reason = problem.message.replace(path, "").split(":", 1)[-1]
            outcomes.append("refused: " + re.sub(r"\d+|0x\w+", "N", " ".join(reason.split()))[:70])
        except Exception as problem:
            outcomes.append(f"! {type(problem).__name__}: {problem}"[:300])
            traceback.print_exc()
        return None

    index = tried(open_index, path, model=model)
    if index is None:
        return outcomes
    tried(index.stats)
    passages = dict[int, None]()
    for query, where in (("the cat sat", ()), ('"dog went" mat', ["year>1990", "path=*.jsonl"])):
        for mode in MODES:
            hits = tried(index.search, query, mode=mode, where=where, all_chunks=bool(where)) or []
            tried(json.dumps, [hit.to_dict(why=True) for hit in hits])
            passages |= {hit.chunk: None for hit in hits[:2]}
    for number in passages:
        tried(_read, index, number)
    tried(index.check)
    tried(index.add, [{"id": "new", "text": "the dog went to the store"}])
    tried(index.remove, ["new"])
    tried(index.close)
    return outcomes


def _read(index: Index, number: int) -> object:
    try:
        return index.read(number, around=3)
    except ArgumentError:  # a damaged index may list chunks that it does not have
        raise StoreError(f"{index.path}: no such chunk") from None


def work(model_folder: str) -> None:
    """Answers each path on standard input with the result of `steps` for the index there."""
    model = mlxbert.load(model_folder, dtype="float32")
    for line in sys.stdin:
        print(json.dumps(steps(line.rstrip("\n"), model)), flush=True)


class Worker:
    """A process that opens indexes, restarted after a crash.

    Args:
        model: The folder of the model of the indexes.
        seconds: The maximum time for an index.
    """

    def __init__(self, model: Path, seconds: float) -> None:
        self._model, self._seconds = model, seconds
        self._process: subprocess.Popen[str] | None = None

    def ask(self, path: Path) -> list[str]:
        """Returns the result of `steps` for an index, or a failure if the process crashed or hung."""
        if self._process is None:
            command = [sys.executable, __file__, "--worker", str(self._model)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin and self._process.stdout
        print(path, file=self._process.stdin, flush=True)
        ready = select.select([self._process.stdout], [], [], self._seconds)[0]
        line = self._process.stdout.readline() if ready else ""
        if line:
            return list(json.loads(line))
        self._process.kill()
        status, self._process = self._process.wait(), None
        return [f"! crash: {status}" if ready else f"! more than {self._seconds:.0f} s"]

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def seeds(folder: Path, vectors: str) -> tuple[Path, bytes, bytes, bytes]:
    """The folder of a model; an index with a log, the log, and the index without a log."""
    model = MODELS[vectors](folder / "model")
    path = folder / "seed.db"
    with build(path, write_files(folder / "files", 24), model) as index:
        whole = connect(str(path), "rwc")
        whole.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        whole.close()
        (folder / "files" / "002.md").write_text(passage("other"))
        for _ in index.update():
            pass
        main, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    return model, main, log, path.read_bytes()


def main() -> int:
    """Tests mutated indexes, and prints the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vectors", choices=MODELS, default="dense")
    parser.add_argument("--worker")
    args = parser.parse_args()
    if args.worker:
        work(args.worker)
        return 0
    ways, outcomes, slowest, begun = [*WAYS, "values", "values"], Counter[str](), 0.0, time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        model, before, log, whole = seeds(Path(name), args.vectors)
        worker, case = Worker(model, args.seconds), Path(name) / "case"
        for number in range(args.count):
            way = ways[number % len(ways)]
            shutil.rmtree(case, ignore_errors=True)
            case.mkdir()
            write_mutated(random.Random(f"{args.seed} {number}"), way, before, log, whole, case / "index.db")
            start = time.perf_counter()
            problems = worker.ask(case / "index.db")
            slowest = max(slowest, time.perf_counter() - start)
            if unexpected := {*os.listdir(case)} - NAMES:
                problems.append(f"! wrote {sorted(unexpected)}")
            failed = [outcome for outcome in problems if outcome.startswith("!")]
            outcomes[f"{way}: {'FAILED' if failed else 'refused' if problems else 'hits'}"] += 1
            outcomes.update(failed or problems[:1])
            for outcome in failed:
                print(f"mutation {number} ({way}): {outcome}", flush=True)
        worker.close()
    for outcome, count in outcomes.most_common():
        print(f"{count:7,}  {outcome}")
    print(f"{args.count:,} indexes in {time.perf_counter() - begun:.0f} s, the slowest took {slowest:.2f} s")
    return int(any(outcome.startswith("!") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
