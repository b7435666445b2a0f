"""Measures another library with the vectors of `search.py`: time to build, import, open and search; recall.

Run: python benchmarks/search_peers.py NAME PLACE VECTORS.npy EXACT.npy QUERIES.npy build|search [--threads 2]

`search.py --peers PYTHON` runs this. NAME is one of `PEERS`; all store their data at PLACE and compare by cosine, with
vectors of length 1. `lancedb` and `sqlite-vec` compare with all vectors, as does `faiss-flat` in memory; `lancedb-ivf`
is IVF_PQ with 8 bits for 8 values, reads 20 lists and compares 100 vectors exactly; `faiss-hnsw` and `usearch` are
graphs with 32 and 16 neighbours, in float32 and float16. sqlite-vec needs a `sqlite3` with support for extensions, or
pysqlite3. Prints a line of JSON.
"""

import argparse
import importlib
import json
import os
import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cores import keep_to_cores
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Search = Callable[[Vectors], list[int]]  # from a vector to the rows of its nearest neighbours
COUNT, BLOCK = 10, 10_000  # hits per query; vectors that are added at a time


class Lance:
    """LanceDB, with or without a vector index."""

    def __init__(self, place: Path, threads: int, *, indexed: bool = False) -> None:
        os.environ |= {"LANCE_CPU_THREADS": str(threads), "LANCE_IO_THREADS": str(threads)}
        import lancedb

        self.base, self.indexed = lancedb.connect(place), indexed

    def build(self, vectors: Vectors) -> None:
        """Adds all vectors."""
        import pyarrow

        width = vectors.shape[1]
        schema = pyarrow.schema([("row", pyarrow.int64()), ("vector", pyarrow.list_(pyarrow.float32(), width))])
        table = self.base.create_table("chunks", schema=schema)
        for start in range(0, len(vectors), 10 * BLOCK):
            part = vectors[start : start + 10 * BLOCK]
            column = pyarrow.FixedSizeListArray.from_arrays(part.ravel(), width)
            table.add(pyarrow.table([np.arange(start, start + len(part)), column], schema=schema))
        if self.indexed:
            lists = max(round(len(vectors) ** 0.5), 1)
            table.create_index(metric="cosine", num_partitions=lists, num_sub_vectors=width // 8, index_type="IVF_PQ")

    def open(self) -> Search:
        """Opens the stored vectors; returns the search function."""
        table = self.base.open_table("chunks")

        def search(vector: Vectors) -> list[int]:
            query = table.search(vector).distance_type("cosine").limit(COUNT).select(["row", "_distance"])
            if self.indexed:
                query = query.nprobes(20).refine_factor(10)
            return list(query.to_arrow()["row"].to_pylist())

        return search


class SqliteVec:
    """sqlite-vec."""

    def __init__(self, place: Path, threads: int) -> None:
        import sqlite_vec

        name = "sqlite3" if hasattr(sqlite3.Connection, "enable_load_extension") else "pysqlite3"
        place.mkdir(exist_ok=True)
        self.base = importlib.import_module(name).connect(place / "vectors.db")
        self.base.enable_load_extension(True)
        sqlite_vec.load(self.base)

    def build(self, vectors: Vectors) -> None:
        """Adds all vectors."""
        width = vectors.shape[1]
        self.base.execute(f"CREATE VIRTUAL TABLE chunks USING vec0 (vector float[{width}] distance_metric=cosine)")
        rows = ((row, vector.tobytes()) for row, vector in enumerate(vectors))
        self.base.executemany("INSERT INTO chunks (rowid, vector) VALUES (?, ?)", rows)
        self.base.commit()

    def open(self) -> Search:
        """Opens the stored vectors; returns the search function."""
        statement = f"SELECT rowid FROM chunks WHERE vector MATCH ? AND k = {COUNT} ORDER BY distance"
        return lambda vector: [row for (row,) in self.base.execute(statement, (vector.tobytes(),))]


class Faiss:
    """faiss: exhaustive search, or a graph."""

    def __init__(self, place: Path, threads: int, *, graph: bool = False) -> None:
        import faiss

        faiss.omp_set_num_threads(threads)
        place.mkdir(exist_ok=True)
        self.faiss, self.file, self.graph = faiss, os.fspath(place / "index.faiss"), graph

    def build(self, vectors: Vectors) -> None:
        """Adds all vectors."""
        width, kind = vectors.shape[1], self.faiss.METRIC_INNER_PRODUCT
        index = self.faiss.IndexHNSWFlat(width, 32, kind) if self.graph else self.faiss.IndexFlatIP(width)
        if self.graph:
            index.hnsw.efSearch = 64
        for start in range(0, len(vectors), BLOCK):
            index.add(np.ascontiguousarray(vectors[start : start + BLOCK]))
        self.faiss.write_index(index, self.file)

    def open(self) -> Search:
        """Opens the stored vectors; returns the search function."""
        index = self.faiss.read_index(self.file)
        return lambda vector: list(index.search(vector[None], COUNT)[1][0].tolist())


class Usearch:
    """usearch."""

    def __init__(self, place: Path, threads: int) -> None:
        from usearch.index import Index

        place.mkdir(exist_ok=True)
        self.index, self.file, self.threads = Index, place / "index.usearch", threads

    def build(self, vectors: Vectors) -> None:
        """Adds all vectors."""
        index = self.index(ndim=vectors.shape[1], metric="cos", dtype="f16")
        for start in range(0, len(vectors), BLOCK):
            part = np.ascontiguousarray(vectors[start : start + BLOCK])
            index.add(np.arange(start, start + len(part)), part, threads=self.threads)
        index.save(self.file)

    def open(self) -> Search:
        """Opens the stored vectors; returns the search function."""
        index = self.index.restore(self.file)
        return lambda vector: list(index.search(vector, COUNT).keys.tolist())


PEERS: dict[str, Callable[[Path, int], Any]] = {
    "lancedb": Lance,
    "lancedb-ivf": lambda place, threads: Lance(place, threads, indexed=True),
    "sqlite-vec": SqliteVec,
    "faiss-flat": Faiss,
    "faiss-hnsw": lambda place, threads: Faiss(place, threads, graph=True),
    "usearch": Usearch,
}


def measure(search: Search, queries: Vectors, answers: list[list[int]]) -> dict[str, float]:
    """Milliseconds of the first query and of warm queries; recall of the first ten hits."""
    times, hits = [], []
    for vector in [queries[0], *queries]:
        start = time.perf_counter()
        hits.append(search(vector))
        times.append((time.perf_counter() - start) * 1000)
    first, *warm = times
    recall = statistics.mean(len({*a} & {*b}) / len(b) for a, b in zip(hits[1:], answers, strict=True))
    p95 = statistics.quantiles(warm, n=20)[-1]
    return {"p50_ms": statistics.median(warm), "p95_ms": p95, "first_ms": first, "recall": recall}


def main() -> None:
    """Prints the measurements of one step of a library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PEERS)
    for name in ("place", "vectors", "exact", "queries"):
        parser.add_argument(name, type=Path)
    parser.add_argument("step", choices=("build", "search"))
    parser.add_argument("--threads", type=int, default=2, help="cores to run on")
    args = parser.parse_args()
    keep_to_cores(args.threads)
    begun, used = time.perf_counter(), time.process_time()
    peer = PEERS[args.name](args.place, args.threads)
    result = {"import_s": time.perf_counter() - begun, "import_cpu_s": time.process_time() - used}
    begun, used = time.perf_counter(), time.process_time()
    if args.step == "build":
        peer.build(np.load(args.vectors, mmap_mode="r"))
        result |= {"seconds": time.perf_counter() - begun, "build_cpu_s": time.process_time() - used}
    else:
        search = peer.open()
        result["open_s"] = time.perf_counter() - begun
        result |= measure(search, np.load(args.queries), np.load(args.exact).tolist())
        result["disk_megabytes"] = sum(file.stat().st_size for file in args.place.rglob("*") if file.is_file()) / 1e6
    print(json.dumps(result))


if __name__ == "__main__":
    main()
