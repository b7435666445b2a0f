"""Compares search with dense vectors, sparse ones and those of tokens: the quality of the rankings, and their size.

Run: python benchmarks/search_vectors.py FOLDER MODEL [MODEL…] [--every N]

FOLDER is a collection in BEIR's format, for example from `cranfield.py`. Its documents are added to an index of each
model as records, and every query is searched for in each mode; if the index has token vectors, also without
reranking by them. Prints a line of JSON for each: nDCG@10 with its 95 % interval (bootstrap over queries), nDCG@10
minus that of the first model in the same mode, with the interval of the difference over the same queries, the bytes of
the index per chunk, and CPU milliseconds per query, of which the model takes a part. --every N keeps each Nth document
alone, and the queries that these answer.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from token_quality import interval

import mlxbert
from mlxbert.search.index import Index, Mode
from mlxbert.train.data.retrieval import Retrieval, read_retrieval
from mlxbert.train.scores.metrics import retrieval_scores

METRIC, DEPTH = "ndcg@10", 10


def part(data: Retrieval, every: int) -> Retrieval:
    """Returns each Nth document, with the queries that have a relevant one among them."""
    documents = {name: data.documents[name] for name in [*data.documents][::every]}
    judged = {
        query: {name: grade for name, grade in grades.items() if name in documents}
        for query, grades in data.judgements.items()
    }
    queries = {query: text for query, text in data.queries.items() if any(judged.get(query, {}).values())}
    return replace(data, documents=documents, queries=queries, judgements={query: judged[query] for query in queries})


def scored(index: Index, data: Retrieval, mode: Mode, rerank: bool) -> tuple[NDArray[np.float64], float]:
    """Returns the metric of each query, and the CPU milliseconds per query."""
    started = time.process_time()
    ranked = {
        query: [hit.place for hit in index.search(text, top_k=DEPTH, mode=mode, rerank=rerank)]
        for query, text in data.queries.items()
    }
    spent = 1000 * (time.process_time() - started) / len(ranked)
    return np.asarray(retrieval_scores(ranked, data.judgements).values[METRIC], np.float64), spent


def main() -> None:
    """Reads the arguments and prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    args = parser.parse_args()
    data = part(read_retrieval(args.folder), args.every)
    reference: dict[str, NDArray[np.float64]] = {}
    for source in args.models:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "index.db"
            with mlxbert.open_index(path, model=source) as index:
                index.add({"id": name, "text": text} for name, text in data.documents.items())
            with mlxbert.open_index(path, model=source) as index:
                stats = index.stats()
                facts = {"model": source, "vectors": index.about.kind, "chunks": stats.chunks, "windows": stats.vectors}
                facts["bytes_per_chunk"] = round(stats.size / stats.chunks)
                for mode, rerank in product(get_args(Mode), (False, True)):
                    if rerank and (mode == "words" or not index.about.token_size):
                        continue
                    values, spent = scored(index, data, mode, rerank)
                    difference = values - reference.setdefault(mode, values)
                    line = {
                        **facts,
                        "mode": mode,
                        "reranked": rerank,
                        METRIC: round(float(values.mean()), 4),
                        "interval": interval(values),
                    }
                    line |= {"difference": round(float(difference.mean()), 4), "of": interval(difference)}
                    print(json.dumps({**line, "cpu_ms": round(spent, 1)}), flush=True)


if __name__ == "__main__":
    main()
