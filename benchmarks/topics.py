"""Compares the topics of `cluster` with those of BERTopic's recipe, for the same texts and vectors.

Run: python benchmarks/topics.py TEXTS.jsonl VECTORS.npy [--clusters K] [--way NAME]…

TEXTS has the field `text` and perhaps `label` in each line, VECTORS was written by `mlxbert embed`. The ways are
`kmeans` (`cluster` with K clusters), `hdbscan` (`cluster` without a number) and `recipe`: UMAP with 15 neighbours and 5
dimensions, min_dist 0 and cosine, then HDBSCAN with at least 10 texts of a topic, as BERTopic does by default. Each
prints a line of JSON: CPU and wall seconds, the number of topics, the share of texts in none, with labels NMI and ARI,
and the agreement (NMI and ARI) with the ways before. The words of the three largest topics follow. Needs scikit-learn,
openTSNE, umap-learn and hdbscan.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import mlxbert

WAYS = ("kmeans", "hdbscan", "recipe")


def recipe(vectors: Any) -> Any:
    """Returns the clusters of BERTopic's recipe."""
    from hdbscan import HDBSCAN
    from umap import UMAP

    places = UMAP(n_neighbors=15, n_components=5, min_dist=0.0, metric="cosine", random_state=0).fit_transform(vectors)
    return HDBSCAN(min_cluster_size=10, metric="euclidean", cluster_selection_method="eom").fit_predict(places)


def agreement(first: Any, second: Any) -> dict[str, float]:
    """Returns NMI and ARI of two clusterings."""
    return {
        "nmi": round(float(normalized_mutual_info_score(first, second)), 3),
        "ari": round(float(adjusted_rand_score(first, second)), 3),
    }


def main() -> None:
    """Measures each way."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("texts", type=Path)
    arguments.add_argument("vectors", type=Path)
    arguments.add_argument("--clusters", type=int, default=5)
    arguments.add_argument("--way", action="append", choices=WAYS)
    options = arguments.parse_args()
    rows = [json.loads(line) for line in options.texts.read_text(encoding="utf-8").splitlines()]
    texts, vectors = [row["text"] for row in rows], np.load(options.vectors)
    labels = [row.get("label") for row in rows]
    earlier: dict[str, Any] = {}
    for way in options.way or WAYS:
        wall, cpu = time.perf_counter(), time.process_time()
        if way == "recipe":
            found = recipe(vectors)
        else:
            clusters = options.clusters if way == "kmeans" else None
            topics = mlxbert.cluster(None, texts, vectors=vectors, clusters=clusters)
            found = np.array(topics.labels)
        result: dict[str, Any] = {
            "way": way, "texts": len(texts), "cpu_s": round(time.process_time() - cpu, 1),
            "wall_s": round(time.perf_counter() - wall, 1), "topics": int(found.max() + 1),
            "none": round(float((found < 0).mean()), 3),
        }  # fmt: skip
        if labels[0] is not None:
            result |= agreement(labels, found)
        result |= {f"with {name}": agreement(other, found) for name, other in earlier.items()}
        print(json.dumps(result), flush=True)
        if way != "recipe":
            for topic in topics.topics[:3]:
                print(f"  {topic.size}: {', '.join(word.word for word in topic.words)}", flush=True)
        earlier[way] = found


if __name__ == "__main__":
    main()
