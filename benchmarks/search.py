"""Searching many chunks: times, recall, memory, size; next to LanceDB, sqlite-vec, faiss and usearch.

Run: python benchmarks/search.py CORPUS.txt.xz --chunks N [--embed M] [--model builtin] [--folder search-benchmark]
     [--threads 2] [--peers PYTHON]

CORPUS has a paragraph in each line; they are put in a random order that is always the same. The last 2,000 are held out
for queries, the first N are the texts of the chunks (where there are fewer, they are used again), five to a document.
The vectors of the first M are the model's. They are kept in FOLDER, and a larger M later embeds only what is missing.
The others are drawn around real ones: each is a random real vector plus noise, scaled to length 1. The noise has the
direction of the difference of two other random real vectors, and the length of the median distance of a real vector to
its nearest neighbour, so that a drawn vector is a near neighbour, and lies where vectors of texts lie.

The index is made through the store, and kept in FOLDER. Then 200 queries are searched for, half of them sentences of
held-out paragraphs, half of them two to five words in a row of such: by the store's `nearest` and `with_words`, and by
`Index.search` in hybrid mode with the vectors of the queries at hand and without. Each without a filter, with one that
half of the documents pass, and one that one in a hundred passes; `first_ms` is the first query with it, which the
others do not count. Recall is that of the first ten against all float32 products.

A new process is measured from its start to the first line that it prints, with the peak of its memory, ten times, each
with another query; the first is not counted.

With --peers PYTHON, an interpreter that has these packages, `search_peers.py` gives them the same vectors. Every step
is a process of its own, on the same cores. Prints lines of JSON.
"""

import argparse
import json
import lzma
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cores import keep_to_cores

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlxbert.search.index import Index

    Vectors = NDArray[np.float32]

# No import of numpy here: the peak memory of a new process is at least that of the one that starts it.
HELD_OUT, SHORTEST = 2_000, 100  # paragraphs, characters of one
TOGETHER, DEPTH, QUERIES, RUNS = 5, 10, 200, 10  # chunks of a document, chunks that are found, queries, processes
FILTERS: dict[str, tuple[int, list[str]]] = {
    "none": (1, []), "half": (2, ["half=yes"]), "hundredth": (100, ["hundredth=yes"])
}  # one in how many documents passes; the condition  # fmt: skip
PEERS = ("lancedb", "lancedb-ivf", "sqlite-vec", "faiss-flat", "faiss-hnsw", "usearch")
SCRIPT = """
import json, sys
import mlxbert
with mlxbert.open_index(sys.argv[1]) as index:
    print(json.dumps([hit.to_dict() for hit in index.search(sys.argv[2], mode=sys.argv[3])]))
"""


def say(**values: Any) -> None:
    """Prints a line; numbers with four digits."""
    rounded = {name: float(f"{one:.4g}") if isinstance(one, float) else one for name, one in values.items()}
    print(json.dumps(rounded, ensure_ascii=False), flush=True)


def paragraphs(path: Path) -> list[str]:
    """Those of the corpus, each once, in random order."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        found = [*dict.fromkeys(line.strip() for line in file if len(line) >= SHORTEST)]
    random.Random(0).shuffle(found)
    return found


def questions(texts: Sequence[str]) -> list[str]:
    """Sentences of some paragraphs, then as many short parts of sentences."""
    from mlxbert.search.sentences import sentences

    draws = random.Random(1)
    found = [text[start:end] for text in texts for start, end in [draws.choice(sentences(text))]]
    whole = [one for one in dict.fromkeys(found) if 5 <= len(one.split()) <= 40]
    half = QUERIES // 2
    short = []
    for words in map(str.split, whole[half:QUERIES]):
        length = draws.randint(2, 5)
        start = draws.randrange(len(words) - length + 1)
        short.append(" ".join(words[start : start + length]))
    return whole[:half] + short


def embedded(given: argparse.Namespace, texts: Sequence[str]) -> "Vectors":
    """The vectors of the first paragraphs, those that were made before and those that are missing."""
    import numpy as np

    import mlxbert
    from mlxbert.folders.fingerprint import hash_model

    model = mlxbert.load(given.model, task="embed")
    file = given.folder / f"vectors-{hash_model(model.files)[:8]}.npy"
    done = np.load(file) if file.exists() else np.zeros((0, model.embedder.size), np.float32)
    begun, known = time.perf_counter(), len(done)
    while len(done) < given.embed:
        some = mlxbert.embed(model, texts[len(done) : min(len(done) + 1_000, given.embed)], normalize=True)
        done = np.concatenate([done, some])
        np.save(given.folder / "new.npy", done)
        os.replace(given.folder / "new.npy", file)
    say(what="embedded", vectors=given.embed, now=len(done) - known, seconds=time.perf_counter() - begun)
    queries = questions(texts[-HELD_OUT:])
    (given.folder / "queries.json").write_text(json.dumps(queries))
    np.save(given.folder / "queries.npy", mlxbert.embed(model, queries, kind="query", normalize=True))
    return done[: given.embed]


def prepare(given: argparse.Namespace) -> None:
    """Makes the vectors, the queries, and the exact answers."""
    import numpy as np

    real = embedded(given, paragraphs(given.corpus))
    rng = np.random.default_rng(0)
    some = rng.choice(len(real), min(1_000, len(real)), replace=False)
    nearest = np.partition(real[some] @ real.T, -2)[:, -2]  # the best is the vector itself
    distance = float(np.median(np.sqrt(np.maximum(2 - 2 * nearest, 0))))
    file = place(given, "vectors.npy")
    every = np.lib.format.open_memmap(file, "w+", np.float32, (given.chunks, real.shape[1]))
    kept = min(len(real), given.chunks)
    every[:kept] = real[:kept]
    for start in range(kept, given.chunks, 10_000):
        count = min(10_000, given.chunks - start)
        source, one, other = (real[rng.integers(len(real), size=count)] for _ in range(3))
        apart = one - other
        drawn = source + distance * apart / np.maximum(np.linalg.norm(apart, axis=1, keepdims=True), 1e-6)
        every[start : start + count] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    queries = np.load(given.folder / "queries.npy")
    for name, (each, _) in FILTERS.items():
        np.save(place(given, f"exact-{name}.npy"), exact(queries, every, each))
    say(what="vectors", chunks=given.chunks, real=kept, noise=distance)


def exact(queries: "Vectors", every: "Vectors", each: int) -> "NDArray[np.int64]":
    """The best rows for each query, of the documents that pass: (Q, 10), or fewer if there are fewer."""
    import numpy as np

    rows = np.flatnonzero(np.arange(len(every)) // TOGETHER % each == 0)
    scores, found = [], []
    for start in range(0, len(rows), 50_000):
        block = rows[start : start + 50_000]
        products = queries @ every[block].T
        best = np.argsort(-products, axis=1)[:, :DEPTH]
        scores.append(np.take_along_axis(products, best, 1))
        found.append(block[best])
    order = np.argsort(-np.hstack(scores), axis=1)[:, :DEPTH]
    return np.take_along_axis(np.hstack(found), order, 1).astype(np.int64)


def place(given: argparse.Namespace, name: str) -> Path:
    """Where something of this size lies."""
    folder = Path(given.folder, f"{given.chunks}-{given.embed}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def build(given: argparse.Namespace) -> None:
    """Puts all chunks into an index."""
    import numpy as np

    import mlxbert
    from mlxbert.search.store import StoredChunk, StoredDocument, StoredFile

    texts = paragraphs(given.corpus)[:-HELD_OUT]
    vectors = np.load(place(given, "vectors.npy"), mmap_mode="r")
    model = mlxbert.load(given.model, task="embed")
    file = place(given, "unfinished.db")
    file.unlink(missing_ok=True)
    begun, used = time.perf_counter(), time.process_time()
    documents = [*range(0, given.chunks, TOGETHER)]
    with mlxbert.open_index(file, model=model) as index:
        for first in range(0, len(documents), 200):
            with index.store.writing():
                for start in documents[first : first + 200]:
                    rows = range(start, min(start + TOGETHER, given.chunks))
                    chunks = [StoredChunk(texts[row % len(texts)], (), row.to_bytes(16), 1, 1) for row in rows]
                    number = start // TOGETHER
                    passes = {name: "no" if number % each else "yes" for name, (each, _) in FILTERS.items()}
                    owner = StoredDocument("", "", passes, chunks)
                    path = f"/wikipedia/{number % 100:02}/{number}.txt"
                    index.store.put(StoredFile(path), [owner], {row.to_bytes(16): vectors[row] for row in rows})
    os.replace(file, place(given, "index.db"))
    say(what="build", chunks=given.chunks, texts=min(len(texts), given.chunks), seconds=time.perf_counter() - begun,
        cpu_s=time.process_time() - used)  # fmt: skip


def timed(search: Callable[[int], object]) -> dict[str, float]:
    """Milliseconds of each query, of the short ones, and of the first of all; the others are warm."""
    first, *times = [_milliseconds(search, number) for number in (0, *range(QUERIES))]
    cuts = statistics.quantiles(times, n=20)
    short = statistics.median(times[QUERIES // 2 :])
    return {"p50_ms": statistics.median(times), "p95_ms": cuts[-1], "short_p50_ms": short, "first_ms": first}


def _milliseconds(search: Callable[[int], object], number: int) -> float:
    start = time.perf_counter()
    search(number)
    return (time.perf_counter() - start) * 1000


def measure(given: argparse.Namespace) -> None:
    """Times of warm searches, and recall."""
    import numpy as np

    import mlxbert
    from mlxbert.search.filters import make_filter

    queries = json.loads((given.folder / "queries.json").read_text())
    vectors = np.load(given.folder / "queries.npy")
    with mlxbert.open_index(place(given, "index.db")) as index:
        store, stats = index.store, index.stats()
        say(what="index", chunks=stats.chunks, documents=stats.documents, megabytes=stats.size / 1e6)
        for name, (_, where) in FILTERS.items():
            only = make_filter(where)
            spent = timed(lambda one, only=only: store.nearest(vectors[one], DEPTH, only))  # type: ignore[misc]
            answers = np.load(place(given, f"exact-{name}.npy"))
            # Rows were put in order into an empty store, which counts chunks from 1.
            found = [{number - 1 for number, _ in store.nearest(vector, DEPTH, only)} for vector in vectors]
            recall = statistics.mean(len(a & {*b}) / len(b) for a, b in zip(found, answers.tolist(), strict=True))
            say(what="vectors", filter=name, **spent, recall=recall)
            spent = timed(lambda one, only=only: store.with_words(queries[one], DEPTH, only))  # type: ignore[misc]
            say(what="words", filter=name, **spent)
        for what, searched in (("hybrid", with_vectors(index, dict(zip(queries, vectors, strict=True)))),
                               ("hybrid and embedding of the query", index)):  # fmt: skip
            _ = searched.model
            for name, (_, where) in FILTERS.items():
                search = partial(searched.search, where=where)
                say(what=what, filter=name, **timed(lambda one, search=search: search(queries[one])))  # type: ignore[misc]


def with_vectors(index: "Index", known: "dict[str, Vectors]") -> "Index":
    """An index that need not embed queries."""
    from mlxbert.search.index import Index

    class Known(Index):
        def _query(self, query: str) -> "Vectors":
            return known[query]

    return Known(index.store, index.model)


def processes(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What new processes take until they have answered."""
    file = os.fspath(place(given, "index.db"))
    queries = json.loads((given.folder / "queries.json").read_text())
    command = [sys.executable, "-m", "mlxbert", "search"]
    has_command = subprocess.run([*command, "--help"], capture_output=True).returncode == 0
    for mode in ("hybrid", "vectors", "words"):
        runs = []
        for query in queries[:: QUERIES // RUNS]:
            options = [query, "--index", file, "--no-update", "--json", "--mode", mode]
            line = [*command, *options] if has_command else [sys.executable, "-c", SCRIPT, file, query, mode]
            runs.append(process(line))
        kept = {name: [run[name] for run in runs[1:]] for name in ("first_s", "cpu_s", "megabytes")}
        yield {
            "what": f"new process, {mode}, {'mlxbert search' if has_command else 'script'}",
            **{name: statistics.median(values) for name, values in kept.items()},
            "slowest_s": max(kept["first_s"]),
        }


def process(command: Sequence[str]) -> dict[str, Any]:
    """Runs a process that must succeed: seconds until its first line, of the processor, and its peak memory."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    line = child.stdout.readline()
    first = time.perf_counter() - start
    rest = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    assert status == 0, command
    megabytes = used.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e6 / 1024)
    return {"first_s": first, "cpu_s": used.ru_utime + used.ru_stime, "megabytes": megabytes, "out": line + rest}


def peers(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What other libraries take."""
    for name in PEERS:
        files = [place(given, one) for one in (f"{name}.peer", "vectors.npy", "exact-none.npy")]
        command = [given.peers, Path(__file__).with_name("search_peers.py"), name, *files, given.folder / "queries.npy"]
        shutil.rmtree(files[0], ignore_errors=True)
        for step in ("build", "search"):
            run = process([*map(str, command), step, "--threads", str(given.threads)])
            yield {"what": f"{name}, {step}", **json.loads(run["out"]), "megabytes": run["megabytes"]}


def main() -> None:
    """Runs every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--chunks", type=int, required=True)
    parser.add_argument("--embed", type=int, default=6_000)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--folder", type=Path, default=Path("search-benchmark"))
    parser.add_argument("--threads", type=int, default=2, help="cores to run on")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has them")
    parser.add_argument("--step", choices=("prepare", "build", "measure"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    keep_to_cores(given.threads)
    if given.step:
        return {"prepare": prepare, "build": build, "measure": measure}[given.step](given)
    for step, made in (("prepare", "exact-hundredth.npy"), ("build", "index.db"), ("measure", "")):
        if not made or not place(given, made).exists():
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--step", step], check=True)
    for line in processes(given):
        say(**line)
    if given.peers:
        for line in peers(given):
            say(**line)
    return None


if __name__ == "__main__":
    main()
