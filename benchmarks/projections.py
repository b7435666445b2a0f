"""Compares ways to project vectors to two dimensions (for `map`) and to five (for `cluster`).

Run: python benchmarks/projections.py VECTORS.npy [--labels FILE.jsonl] [--rows N]

VECTORS is a file that `mlxbert embed` wrote. The labels are the field `label` of each line. For each way, in a process
of its own, prints a line of JSON: CPU seconds, wall seconds, the peak memory, the share of the 10 nearest vectors that
are among the 10 nearest points (`kept`), and with labels, the share of the 10 nearest points with the same label
(`same`). After that come clusters of HDBSCAN in the coordinates, with their number, the share of texts in none, and
with labels NMI and ARI. Needs scikit-learn, umap-learn, openTSNE and hdbscan; a package that is missing is left out.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WAYS = ("pca-2", "pca-5", "pca-50", "tsne-2", "opentsne-2", "umap-2", "umap-5")
NEAR, SMALLEST = 10, 10


def project(way: str, vectors: Any) -> Any:
    """Returns the coordinates of vectors."""
    import numpy as np

    name, _, size = way.partition("-")
    dimensions = int(size)
    if name == "pca":
        centred = vectors - vectors.mean(0)
        _, directions = np.linalg.eigh(centred.T @ centred)
        return centred @ directions[:, ::-1][:, :dimensions]
    if name == "tsne":
        from sklearn.manifold import TSNE

        return TSNE(dimensions, init="pca", random_state=0).fit_transform(vectors)
    if name == "opentsne":
        from openTSNE import TSNE

        return np.asarray(TSNE(dimensions, metric="cosine", random_state=0).fit(vectors))
    from umap import UMAP

    # BERTopic's settings for five dimensions, and the usual ones for two.
    least = 0.0 if dimensions > 2 else 0.1
    return UMAP(n_neighbors=15, n_components=dimensions, min_dist=least, metric="cosine", random_state=0).fit_transform(
        vectors
    )


def measure(way: str, path: Path, labels_path: Path | None, rows: int | None) -> None:
    """Prints the measurements of a way."""
    import numpy as np
    from sklearn.cluster import HDBSCAN
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
    from sklearn.neighbors import NearestNeighbors

    vectors = np.load(path)[:rows]
    labels = None
    if labels_path is not None:
        labels = np.array([json.loads(line)["label"] for line in labels_path.read_text().splitlines()])[:rows]
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        coordinates = project(way, vectors)
    except ImportError as problem:
        print(json.dumps({"way": way, "missing": str(problem)}), flush=True)
        return
    result = {
        "way": way, "cpu_s": round(time.process_time() - cpu, 1), "wall_s": round(time.perf_counter() - wall, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }  # fmt: skip
    chosen = np.random.default_rng(0).choice(len(vectors), min(2000, len(vectors)), replace=False)
    near, near_points = (
        NearestNeighbors(n_neighbors=NEAR + 1).fit(all_of).kneighbors(all_of[chosen], return_distance=False)[:, 1:]
        for all_of in (vectors, coordinates)
    )
    result["kept"] = round(float(np.mean([len({*a} & {*b}) / NEAR for a, b in zip(near, near_points, strict=True)])), 3)
    if labels is not None:
        result["same"] = round(float((labels[near_points] == labels[chosen, None]).mean()), 3)
    cpu = time.process_time()
    found = HDBSCAN(min_cluster_size=SMALLEST, copy=True).fit_predict(coordinates)
    result |= {"hdbscan_cpu_s": round(time.process_time() - cpu, 1), "clusters": int(found.max() + 1)}
    result["outliers"] = round(float((found < 0).mean()), 3)
    if labels is not None:
        result["nmi"] = round(float(normalized_mutual_info_score(labels, found)), 3)
        result["ari"] = round(float(adjusted_rand_score(labels, found)), 3)
    print(json.dumps(result), flush=True)


def main() -> None:
    """Measures each way in a process of its own."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("vectors", type=Path)
    arguments.add_argument("--labels", type=Path)
    arguments.add_argument("--rows", type=int)
    arguments.add_argument("--way", action="append", choices=WAYS)
    arguments.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    for way in options.way or WAYS:
        if options.here:
            measure(way, options.vectors, options.labels, options.rows)
        else:
            subprocess.run([sys.executable, *sys.argv, "--way", way, "--here"], env=os.environ, check=False)


if __name__ == "__main__":
    main()
