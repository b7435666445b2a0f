"""Benchmarks searching many chunks: times, recall, memory, size; also for LanceDB, sqlite-vec, faiss and usearch.

Run: python benchmarks/search.py CORPUS.txt.xz --chunks N [--embed M] [--model builtin] [--folder search-benchmark]
     [--windows 1] [--threads 2] [--store sqlite] [--peers PYTHON]

CORPUS has a paragraph in each line; the paragraphs are shuffled with a fixed seed. The last 2,000 are held out for
queries, the first N are the texts of the chunks (reused if there are fewer), five per document. The vectors of the
first M texts are computed by the model. They are kept in FOLDER, so that a larger M embeds only the missing texts. The
other vectors are drawn around real ones: each is a random real vector plus noise, scaled to length 1. The noise has the
direction of the difference of two other random real vectors, and the median distance of a real vector to its nearest
neighbour as its length, so that a drawn vector is a near neighbour in a region of real vectors. With --windows W, each
chunk has W vectors, as a text of several windows has.

The index is written through the store, and kept in FOLDER. Then 200 queries are run, half of them sentences of held-out
paragraphs, half of them two to five consecutive words of such sentences: by the store's `nearest` and `with_words`, and
by `Index.search` in hybrid mode with and without precomputed query vectors. Each is run without a filter, with a filter
that passes half of the documents, and with one that passes one in a hundred; `first_ms` is the first query with a
filter, which is excluded from the other times. Recall is that of the first ten hits, relative to all float32 products.

A new process is measured from its start to its first line of output, with its peak memory, ten times with different
queries; the first run is discarded.

With --peers PYTHON, an interpreter with these packages, `search_peers.py` uses the same vectors. Every step is a
separate process, on the same cores. Prints lines of JSON.
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

# No import of numpy here: the peak memory of a new process is at least that of its parent.
HELD_OUT, SHORTEST = 2_000, 100  # paragraphs; characters of a paragraph
TOGETHER, DEPTH, QUERIES, RUNS = 5, 10, 200, 10  # chunks per document, hits per query, queries, processes
FILTERS: dict[str, tuple[int, list[str]]] = {
    "none": (1, []), "half": (2, ["half=yes"]), "hundredth": (100, ["hundredth=yes"])
}  # one document in this number passes; the condition  # fmt: skip
PEERS = ("lancedb", "lancedb-ivf", "sqlite-vec", "faiss-flat", "faiss-hnsw", "usearch")
SCRIPT = """
import json, sys
import mlxbert
with mlxbert.open_index(sys.argv[1]) as index:
    print(json.dumps([hit.to_dict() for hit in index.search(sys.argv[2], mode=sys.argv[3])]))
"""


def say(**values: Any) -> None:
    """Prints a line of JSON; floats are rounded to four digits."""
    rounded = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in values.items()}
    print(json.dumps(rounded, ensure_ascii=False), flush=True)


def paragraphs(path: Path) -> list[str]:
    """The distinct paragraphs of the corpus, shuffled."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        texts = [*dict.fromkeys(line.strip() for line in file if len(line) >= SHORTEST)]
    random.Random(0).shuffle(texts)
    return texts


def questions(texts: Sequence[str]) -> list[str]:
    """Sentences of some paragraphs, followed by the same number of short parts of sentences."""
    from mlxbert.search.chunks import sentences

    draws = random.Random(1)
    drawn = [text[start:end] for text in texts for start, end in [draws.choice(sentences(text))]]
    full = [sentence for sentence in dict.fromkeys(drawn) if 5 <= len(sentence.split()) <= 40]
    half = QUERIES // 2
    short = []
    for words in map(str.split, full[half:QUERIES]):
        length = draws.randint(2, 5)
        start = draws.randrange(len(words) - length + 1)
        short.append(" ".join(words[start : start + length]))
    return full[:half] + short


def embedded(args: argparse.Namespace, texts: Sequence[str]) -> "Vectors":
    """The vectors of the first paragraphs; embeds those that earlier runs did not."""
    import numpy as np

    import mlxbert
    from mlxbert.folders.fingerprint import hash_model

    model = mlxbert.load(args.model, task="embed")
    file = args.folder / f"vectors-{hash_model(model.files)[:8]}.npy"
    done = np.load(file) if file.exists() else np.zeros((0, model.embedder.size), np.float32)
    begun, earlier = time.perf_counter(), len(done)
    while len(done) < args.embed:
        new = mlxbert.embed(model, texts[len(done) : min(len(done) + 1_000, args.embed)], normalize=True)
        done = np.concatenate([done, new])
        np.save(args.folder / "new.npy", done)
        os.replace(args.folder / "new.npy", file)
    say(what="embedded", vectors=args.embed, now=len(done) - earlier, seconds=time.perf_counter() - begun)
    queries = questions(texts[-HELD_OUT:])
    (args.folder / "queries.json").write_text(json.dumps(queries))
    np.save(args.folder / "queries.npy", mlxbert.embed(model, queries, kind="query", normalize=True))
    return done[: args.embed]


def prepare(args: argparse.Namespace) -> None:
    """Prepares the vectors, the queries, and the exact answers."""
    import numpy as np

    real = embedded(args, paragraphs(args.corpus))
    rng = np.random.default_rng(0)
    sample = rng.choice(len(real), min(1_000, len(real)), replace=False)
    nearest = np.partition(real[sample] @ real.T, -2)[:, -2]  # the nearest is the vector itself
    distance = float(np.median(np.sqrt(np.maximum(2 - 2 * nearest, 0))))
    file = place(args, "vectors.npy")
    rows = args.chunks * args.windows
    vectors = np.lib.format.open_memmap(file, "w+", np.float32, (rows, real.shape[1]))
    real_count = min(len(real), rows)
    vectors[:real_count] = real[:real_count]
    for start in range(real_count, rows, 10_000):
        count = min(10_000, rows - start)
        source, first, second = (real[rng.integers(len(real), size=count)] for _ in range(3))
        noise = first - second
        drawn = source + distance * noise / np.maximum(np.linalg.norm(noise, axis=1, keepdims=True), 1e-6)
        vectors[start : start + count] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    queries = np.load(args.folder / "queries.npy")
    for name, (one_in, _) in FILTERS.items():
        np.save(place(args, f"exact-{name}.npy"), exact(queries, vectors, one_in, args.windows) // args.windows)
    say(what="vectors", chunks=args.chunks, vectors=rows, real=real_count, noise=distance)


def exact(queries: "Vectors", vectors: "Vectors", one_in: int, windows: int) -> "NDArray[np.int64]":
    """The best rows for each query among the documents that pass, (Q, 10), or fewer columns if there are fewer rows."""
    import numpy as np

    rows = np.flatnonzero(np.arange(len(vectors)) // (TOGETHER * windows) % one_in == 0)
    scores, best_rows = [], []
    for start in range(0, len(rows), 50_000):
        block = rows[start : start + 50_000]
        products = queries @ vectors[block].T
        best = np.argsort(-products, axis=1)[:, :DEPTH]
        scores.append(np.take_along_axis(products, best, 1))
        best_rows.append(block[best])
    order = np.argsort(-np.hstack(scores), axis=1)[:, :DEPTH]
    return np.take_along_axis(np.hstack(best_rows), order, 1).astype(np.int64)


def place(args: argparse.Namespace, name: str) -> Path:
    """The path of a file for this number of chunks and vectors."""
    folder = Path(args.folder, f"{args.chunks}-{args.embed}" + (f"-{args.windows}" if args.windows > 1 else ""))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def location(args: argparse.Namespace, path: Path) -> str:
    """The name of an index with the chosen store."""
    return os.fspath(path) if args.store == "sqlite" else f"lance:{path}"


def build(args: argparse.Namespace) -> None:
    """Writes all chunks to an index."""
    import numpy as np

    import mlxbert
    from mlxbert.search.store import StoredChunk, StoredDocument, StoredFile

    texts = paragraphs(args.corpus)[:-HELD_OUT]
    vectors = np.load(place(args, "vectors.npy"), mmap_mode="r")
    model = mlxbert.load(args.model, task="embed")
    file = place(args, f"unfinished.{args.store}")
    file.unlink(missing_ok=True) if args.store == "sqlite" else shutil.rmtree(file, ignore_errors=True)
    begun, cpu = time.perf_counter(), time.process_time()
    documents = [*range(0, args.chunks, TOGETHER)]
    with mlxbert.open_index(location(args, file), model=model) as index:
        for first in range(0, len(documents), 200):
            with index.store.writing():
                for start in documents[first : first + 200]:
                    rows = range(start, min(start + TOGETHER, args.chunks))
                    hashes = {row: [*range(row * args.windows, (row + 1) * args.windows)] for row in rows}
                    chunks = [
                        StoredChunk(texts[row % len(texts)], (), tuple(each.to_bytes(16) for each in hashes[row]), 1, 1)
                        for row in rows
                    ]
                    number = start // TOGETHER
                    passes = {name: "no" if number % one_in else "yes" for name, (one_in, _) in FILTERS.items()}
                    owner = StoredDocument("", "", passes, chunks)
                    path = f"/wikipedia/{number % 100:02}/{number}.txt"
                    new = {each.to_bytes(16): vectors[each] for row in rows for each in hashes[row]}
                    index.store.put(StoredFile(path), [owner], new)
        with index.store.writing():
            index.store.prune()  # at the end of an update, Lance tidies the table and makes its indexes
    os.replace(file, place(args, f"index.{args.store}"))
    say(what="build", store=args.store, chunks=args.chunks, texts=min(len(texts), args.chunks),
        seconds=time.perf_counter() - begun, cpu_s=time.process_time() - cpu)  # fmt: skip


def timed(search: Callable[[int], object]) -> dict[str, float]:
    """Milliseconds per query: quantiles of all queries and of the short ones when warm, and the first query."""
    first, *times = [_milliseconds(search, number) for number in (0, *range(QUERIES))]
    cuts = statistics.quantiles(times, n=20)
    short = statistics.median(times[QUERIES // 2 :])
    return {"p50_ms": statistics.median(times), "p95_ms": cuts[-1], "short_p50_ms": short, "first_ms": first}


def _milliseconds(search: Callable[[int], object], number: int) -> float:
    start = time.perf_counter()
    search(number)
    return (time.perf_counter() - start) * 1000


def measure(args: argparse.Namespace) -> None:
    """Prints the times of warm searches, and recall."""
    import numpy as np

    import mlxbert
    from mlxbert.search.filters import make_filter

    queries = json.loads((args.folder / "queries.json").read_text())
    vectors = np.load(args.folder / "queries.npy")
    with mlxbert.open_index(location(args, place(args, f"index.{args.store}"))) as index:
        store, stats = index.store, index.stats()
        say(what="index", chunks=stats.chunks, documents=stats.documents, megabytes=stats.size / 1e6)
        for name, (_, where) in FILTERS.items():
            filter_ = make_filter(where)
            spent = timed(lambda number, filter_=filter_: store.nearest(vectors[number], DEPTH, filter_))  # type: ignore[misc]
            answers = np.load(place(args, f"exact-{name}.npy"))
            # Rows were written in order to an empty store; both number chunks from 1.
            rows = [{number - 1 for number, _ in store.nearest(vector, DEPTH, filter_)} for vector in vectors]
            wanted = map(set, answers.tolist())  # several windows of a chunk may be among the best
            recall = statistics.mean(len(a & b) / len(b) for a, b in zip(rows, wanted, strict=True))
            say(what="vectors", filter=name, **spent, recall=recall)
            spent = timed(lambda number, filter_=filter_: store.with_words(queries[number], DEPTH, filter_))  # type: ignore[misc]
            say(what="words", filter=name, **spent)
        for what, searched in (("hybrid", with_vectors(index, dict(zip(queries, vectors, strict=True)))),
                               ("hybrid and embedding of the query", index)):  # fmt: skip
            _ = searched.model
            for name, (_, where) in FILTERS.items():
                search = partial(searched.search, where=where)
                say(what=what, filter=name, **timed(lambda number, search=search: search(queries[number])))  # type: ignore[misc]


def with_vectors(index: "Index", vectors: "dict[str, Vectors]") -> "Index":
    """An index with precomputed query vectors."""
    from mlxbert.search.index import Index

    class Known(Index):
        def _query(self, query: str) -> "tuple[Vectors, None]":
            return vectors[query], None

    return Known(index.store, index.model)


def processes(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measures new processes until they have answered."""
    file = location(args, place(args, f"index.{args.store}"))
    queries = json.loads((args.folder / "queries.json").read_text())
    command = [sys.executable, "-m", "mlxbert", "search"]
    has_command = subprocess.run([*command, "--help"], capture_output=True).returncode == 0
    for mode in ("hybrid", "vectors", "words"):
        runs = []
        for query in queries[:: QUERIES // RUNS]:
            options = [query, "--index", file, "--no-update", "--json", "--mode", mode]
            line = [*command, *options] if has_command else [sys.executable, "-c", SCRIPT, file, query, mode]
            runs.append(process(line))
        measured = {name: [run[name] for run in runs[1:]] for name in ("first_s", "cpu_s", "megabytes")}
        yield {
            "what": f"new process, {mode}, {'mlxbert search' if has_command else 'script'}",
            **{name: statistics.median(values) for name, values in measured.items()},
            "slowest_s": max(measured["first_s"]),
        }


def process(command: Sequence[str]) -> dict[str, Any]:
    """Runs a process that must succeed; returns seconds to its first line, CPU seconds, peak memory, and its output."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    line = child.stdout.readline()
    first = time.perf_counter() - start
    rest = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, command
    megabytes = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e6 / 1024)
    return {"first_s": first, "cpu_s": usage.ru_utime + usage.ru_stime, "megabytes": megabytes, "out": line + rest}


def peers(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measures other libraries."""
    for name in PEERS:
        files = [place(args, file) for file in (f"{name}.peer", "vectors.npy", "exact-none.npy")]
        command = [args.peers, Path(__file__).with_name("search_peers.py"), name, *files, args.folder / "queries.npy"]
        shutil.rmtree(files[0], ignore_errors=True)
        for step in ("build", "search"):
            run = process([*map(str, command), step, "--threads", str(args.threads)])
            yield {"what": f"{name}, {step}", **json.loads(run["out"]), "megabytes": run["megabytes"]}


def main() -> None:
    """Runs every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--chunks", type=int, required=True)
    parser.add_argument("--embed", type=int, default=6_000)
    parser.add_argument("--windows", type=int, default=1, help="vectors of a chunk")
    parser.add_argument("--store", choices=("sqlite", "lance"), default="sqlite")
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--folder", type=Path, default=Path("search-benchmark"))
    parser.add_argument("--threads", type=int, default=2, help="cores to run on")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter with their packages")
    parser.add_argument("--step", choices=("prepare", "build", "measure"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peers and args.windows > 1:
        parser.error("other libraries have one vector for each chunk")
    args.folder.mkdir(parents=True, exist_ok=True)
    keep_to_cores(args.threads)
    if args.step:
        return {"prepare": prepare, "build": build, "measure": measure}[args.step](args)
    for step, result in (("prepare", "exact-hundredth.npy"), ("build", f"index.{args.store}"), ("measure", "")):
        if not result or not place(args, result).exists():
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--step", step], check=True)
    for line in processes(args):
        say(**line)
    if args.peers:
        for line in peers(args):
            say(**line)
    return None


if __name__ == "__main__":
    main()
