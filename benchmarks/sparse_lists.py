"""Measures the lists of sparse vectors: the size of the index, and the time of a search and of an update.

Run: python benchmarks/sparse_lists.py [--chunks 200000] [--tokens 100] [--asked 30] [--block 4096]

An index is filled with chunks that have no text but random weights: the tokens of a chunk and of a query are drawn by
Zipf's law from a vocabulary of 30,522, so that a query meets the longest lists. --block is the number of vectors in a
block of a list. Prints a line of JSON: bytes per chunk of the whole index and of its lists; CPU milliseconds to find
the nearest 50 chunks (the first query of a new connection, then the median and the 95th percentile of 100 queries);
and CPU milliseconds to replace one chunk.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mlxbert.search import sparse_vectors
from mlxbert.search.filters import Filter
from mlxbert.search.sparse_vectors import ENTRIES
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import IndexSettings, StoredChunk, StoredDocument, StoredFile

WIDTH, NEAREST, QUERIES, TOGETHER = 30_522, 50, 100, 4_096
ABOUT = IndexSettings("random", "", WIDTH, "dot", "max", ("", ""), 256, True, unrelated=(0.0, 1.0), kind="sparse")


def vectors(count: int, tokens: int, seed: int) -> Iterator[Any]:
    """Yields random vectors."""
    draws = np.random.default_rng(seed)
    shares = 1 / np.arange(10, WIDTH + 10)
    limits = np.cumsum(shares / shares.sum())
    for _ in range(count):
        drawn = np.unique(np.searchsorted(limits, draws.random(2 * tokens)))
        entries = np.empty(min(tokens, len(drawn)), ENTRIES)
        entries["token"] = np.sort(draws.permutation(drawn)[:tokens])
        entries["weight"] = draws.gamma(2, 0.4, len(entries))
        yield entries


def put(store: SqliteStore, path: str, first: int, drawn: "list[Any]") -> None:
    """Stores a file with a chunk for each vector."""
    hashes = [f"{number:016}".encode() for number in range(first, first + len(drawn))]
    chunks = [StoredChunk("", (), (hash,)) for hash in hashes]
    with store.writing():
        store.put(StoredFile(path), [StoredDocument("", "", {}, chunks)], dict(zip(hashes, drawn, strict=True)))
        store.prune()


def spent(action: Callable[[], object]) -> float:
    """Returns the CPU milliseconds of an action."""
    started = time.process_time()
    action()
    return 1000 * (time.process_time() - started)


def main() -> None:
    """Reads the arguments and prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=200_000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--asked", type=int, default=30)
    parser.add_argument("--block", type=int, default=sparse_vectors._BLOCK)
    args = parser.parse_args()
    sparse_vectors._BLOCK = args.block
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.db"
        store, drawn = SqliteStore(path, ABOUT), vectors(args.chunks, args.tokens, 0)
        started = time.process_time()
        for first in range(0, args.chunks, TOGETHER):
            put(store, f"/{first}", first, [next(drawn) for _ in range(min(TOGETHER, args.chunks - first))])
        filled = time.process_time() - started
        store.close()
        size, store = os.stat(path).st_size, SqliteStore(path)
        lists = store._connection.row("SELECT sum(length(entries)), count(*) FROM lists")
        asked = [*vectors(QUERIES, args.asked, 1)]
        times = [spent(lambda query=query: store.nearest(query, NEAREST, Filter())) for query in asked]  # type: ignore[misc]
        (new,) = vectors(1, args.tokens, 2)
        put(store, "/more", args.chunks, [new])
        replaced = spent(lambda: put(store, "/more", args.chunks + 1, [new]))
        print(json.dumps({
            "chunks": args.chunks, "block": args.block, "bytes_per_chunk": round(size / args.chunks),
            "list_bytes_per_chunk": round(lists[0] / args.chunks), "rows": lists[1],
            "first_ms": round(times[0], 1), "p50_ms": round(float(np.median(times)), 1),
            "p95_ms": round(float(np.quantile(times, 0.95)), 1), "replace_ms": round(replaced, 1),
            "fill_s": round(filled),
        }))  # fmt: skip


if __name__ == "__main__":
    main()
