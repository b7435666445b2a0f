"""Compare four ways to rank the same texts: by words (BM25), words reranked, by vectors, and hybrid.

    python examples/rerank.py
    python examples/rerank.py --reranker cross-encoder/ms-marco-MiniLM-L6-v2

Words find names and codes (E-42), but nothing that is said in other words; vectors find meanings. Reranking orders the
best texts of the first stage anew, and so cannot find what that stage has missed ("-"): that is why "reranked" is below
"hybrid", which takes candidates from both sides.

For each query the table shows the place of the text that answers it, and below the mean of 1/place (MRR). Measure on
queries that people really ask: the 16 queries of one manual here, most of them in other words than the text, show how
it is done, not which way is best for you. Without `--reranker`, the vectors of the built-in model rerank; a
cross-encoder, which reads query and text together, is slower and better.
"""

import argparse
import csv
import tempfile
from pathlib import Path

import mlxbert

DATA = Path(__file__).parent / "data"


def read(name):
    """Reads the rows of a CSV file in the folder of data as dicts."""
    with open(DATA / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rankings(index, query, reranker, top_k):
    """Returns the ids of the texts, best first, for each way to rank them."""
    found = {
        mode: index.search(query, mode=mode, top_k=top_k, all_chunks=True) for mode in ("words", "vectors", "hybrid")
    }
    ids = {mode: [hit.place for hit in hits] for mode, hits in found.items()}
    texts = [hit.text for hit in found["words"]]
    again = mlxbert.rerank(reranker, query, texts) if reranker else mlxbert.similarity(index.model, query, texts)
    ids["reranked"] = [ids["words"][result.index] for result in again]
    return ids


def main():
    """Indexes the texts, ranks them for each query, and prints places and their mean."""
    arguments = argparse.ArgumentParser(description="Compare ways to rank texts.")
    arguments.add_argument("--reranker", help="a cross-encoder")
    arguments.add_argument("--top-k", type=int, default=10)
    given = arguments.parse_args()
    reranker = mlxbert.load(given.reranker, task="classify") if given.reranker else None
    ways, queries = ("words", "reranked", "vectors", "hybrid"), read("queries.csv")
    totals = dict.fromkeys(ways, 0.0)
    print("".join(f"{way:>9}" for way in ways))
    with tempfile.TemporaryDirectory() as folder, mlxbert.open_index(Path(folder, "articles.db")) as index:
        index.add(read("articles.csv"))
        for row in queries:
            ids = rankings(index, row["query"], reranker, given.top_k)
            places = [ids[way].index(row["id"]) + 1 if row["id"] in ids[way] else None for way in ways]
            for way, place in zip(ways, places, strict=True):
                totals[way] += 1 / place if place else 0
            print("".join(f"{place or '-':>9}" for place in places), "", row["query"])
    print("".join(f"{totals[way] / len(queries):9.2f}" for way in ways), " MRR")


if __name__ == "__main__":
    main()
