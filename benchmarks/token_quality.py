"""Measures the retrieval quality of token vectors in each dtype, and the size of the stored vectors.

Run: python benchmarks/token_quality.py FOLDER MODEL [--dense MODEL] [--queries N]

FOLDER is a collection in BEIR's format, for example from `cranfield.py`. Every query ranks all documents by MaxSim,
with the documents' vectors as stored and the query in float32. --dense also ranks them by a model of dense vectors, by
cosine. Prints a line of JSON for each: nDCG@10 with its 95 % interval (bootstrap over queries), bytes per document, and
nDCG@10 minus that in float32, with the interval of the difference over the same queries.
"""

import argparse
import json

import numpy as np
from numpy.typing import NDArray

import mlxbert
from mlxbert.search.late_interaction import restored_rows
from mlxbert.tasks.query_ranking import nearest
from mlxbert.tasks.vector_dtype import TOKEN_DTYPES, rows_as_dtype
from mlxbert.train.data.retrieval import Retrieval, read_retrieval
from mlxbert.train.scores.metrics import retrieval_scores

METRIC, DEPTH, DRAWS = "ndcg@10", 100, 10_000


def scored(data: Retrieval, queries: list[str], best: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the metric of each query, given the indices of its best documents."""
    names = [*data.documents]
    rankings = {query: [names[number] for number in row] for query, row in zip(queries, best.tolist(), strict=True)}
    judged = {query: data.judgements[query] for query in queries}
    return np.asarray(retrieval_scores(rankings, judged).values[METRIC], np.float64)


def interval(values: NDArray[np.float64]) -> list[float]:
    """Returns the 95 % interval of a mean, by bootstrap."""
    draws = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return [round(float(low), 4), round(float(high), 4)]


def main() -> None:
    """Reads the arguments and prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("model")
    parser.add_argument("--dense")
    parser.add_argument("--queries", type=int)
    args = parser.parse_args()
    data = read_retrieval(args.folder)
    queries = [query for query in data.queries if query in data.judgements][: args.queries]
    texts, documents = [data.queries[query] for query in queries], [*data.documents.values()]

    def say(values: NDArray[np.float64], **facts: object) -> None:
        line = {**facts, METRIC: round(float(values.mean()), 4), "interval": interval(values)}
        print(json.dumps(line), flush=True)

    if args.dense:
        model = mlxbert.load(args.dense, task="embed")
        first, second = (mlxbert.embed(model, each, normalize=True) for each in (texts, documents))
        say(scored(data, queries, nearest("cosine", first, second, DEPTH)[0]), vectors="dense", bytes=second[0].nbytes)
    model = mlxbert.load(args.model, task="embed-tokens")
    size = model.token_embedder.size
    asked = mlxbert.embed_tokens(model, texts, kind="query")
    full = mlxbert.embed_tokens(model, documents)
    reference = np.zeros(0)
    for dtype in TOKEN_DTYPES:
        stored = [rows_as_dtype(array, dtype) for array in full]
        restored = [restored_rows(array, dtype, size) for array in stored]
        best = np.stack([
            np.argsort(-mlxbert.maxsim(query, restored), kind="stable")[:DEPTH] for query in asked
        ])  # fmt: skip
        values = scored(data, queries, best)
        reference = values if dtype == "float32" else reference
        facts = {"bytes": round(sum(array.nbytes for array in stored) / len(stored))}
        loss = {"difference": round(float((values - reference).mean()), 4), "of": interval(values - reference)}
        say(values, vectors=f"tokens {dtype}", **facts, **loss)


if __name__ == "__main__":
    main()
