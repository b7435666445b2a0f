"""Static models next to model2vec: quality, speed, the time to the first vector, memory, and a classifier.

Run: python benchmarks/static.py quality OURS THEIRS STSB.csv CRANFIELD   (CRANFIELD: a folder that cranfield.py wrote)
     python benchmarks/static.py speed MODEL STSB.csv
     python benchmarks/static.py start MODEL
     python benchmarks/static.py memory MODEL
     python benchmarks/static.py classify MODEL TRAIN.csv TEST.csv        (columns: text, label)

OURS and THEIRS are folders of the same teacher, by `mlxbert distill-static` and by model2vec. Needs model2vec, with
`[train]` for `classify`, and scipy for `quality`.
"""

import csv
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from in_turn import drop_unusual_settings

TEXTS, ROUNDS = 100_000, 5
_LIBRARIES = "import numpy, tokenizers, typer, rich"


def encoders(ours: str, theirs: str) -> dict[str, Callable[[list[str]], Any]]:
    """Returns the function of each library that computes vectors."""
    from model2vec import StaticModel

    import mlxbert

    return {"mlxbert": mlxbert.load(ours).embed, "model2vec": StaticModel.from_pretrained(theirs).encode}


def sentences(path: str) -> list[tuple[str, str, float]]:
    """Reads the pairs of STS-B."""
    with open(path, encoding="utf-8", newline="") as file:
        return [(first, second, float(score)) for first, second, score in csv.reader(file)]


def quality(ours: str, theirs: str, stsb: str, cranfield: str) -> None:
    """Prints Spearman's correlation on STS-B and nDCG@10 on Cranfield, both times 100."""
    from scipy.stats import spearmanr

    from mlxbert.train.data.retrieval import read_beir
    from mlxbert.train.scores.metrics import retrieval_scores

    pairs = sentences(stsb)
    documents, queries, judgements, _ = read_beir(Path(cranfield), "test")
    grades: dict[str, dict[str, float]] = {}
    for query, document, grade in judgements:
        grades.setdefault(query, {})[document] = max(grade, 0)
    names = np.array([*documents])
    for name, encode in encoders(ours, theirs).items():
        first, second = (unit(encode(texts)) for texts in ([a for a, _, _ in pairs], [b for _, b, _ in pairs]))
        spearman = spearmanr((first * second).sum(axis=1), [pair[2] for pair in pairs]).statistic
        scores = unit(encode([*queries.values()])) @ unit(encode([*documents.values()])).T
        ranked = {
            query: names[np.argsort(-row, kind="stable")[:100]].tolist()
            for query, row in zip(queries, scores, strict=True)
        }
        ndcg = retrieval_scores(ranked, grades).means()["ndcg@10"]
        print(f"{name}: STS-B {100 * spearman:.2f}, Cranfield nDCG@10 {100 * ndcg:.2f}")


def unit(vectors: Any) -> Any:
    """Scales vectors to length 1."""
    vectors = np.asarray(vectors, np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def speed(model: str, stsb: str) -> None:
    """Prints texts per second of both libraries, in turn, by the clock and by the time of all cores."""
    from itertools import cycle, islice

    pairs = sentences(stsb)
    once = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    texts = [f"{text} {number}" for number, text in enumerate(islice(cycle(once), TEXTS))]
    functions = encoders(model, model)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, encode in functions.items():
            clock, work = time.perf_counter(), time.process_time()
            encode(texts)
            seconds[name].append((time.perf_counter() - clock, time.process_time() - work))
    ours, theirs = ([min(kind) for kind in zip(*seconds[name], strict=True)] for name in functions)
    for what, mine, other in zip(("clock", "cores"), ours, theirs, strict=True):
        print(f"{what}: mlxbert {TEXTS / mine:,.0f} texts/s, model2vec {TEXTS / other:,.0f}, ratio {other / mine:.2f}")


def start(model: str) -> None:
    """Prints the time from the start of a process to the first vector, and of the libraries alone."""
    code = f"from model2vec import StaticModel; print(StaticModel.from_pretrained({model!r}).encode('A text.')[0])"
    commands = {
        "mlxbert embed": [sys.executable, "-m", "mlxbert", "embed", "A text.", "--model", model, "--json"],
        "model2vec": [sys.executable, "-c", code],
        "libraries": [sys.executable, "-c", _LIBRARIES],
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            clock, work = time.perf_counter(), _work_of_children()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            seconds[name].append((time.perf_counter() - clock, _work_of_children() - work))
    for name, values in seconds.items():
        clock, work = (min(kind) for kind in zip(*values, strict=True))
        print(f"{name}: {clock:.3f} s, {work:.3f} s of all cores")


def _work_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def memory(model: str) -> None:
    """Prints the peak memory after 100,000 texts and after a million, which `embed_stream` reads one by one."""
    import mlxbert

    loaded = mlxbert.load(model)
    results = mlxbert.embed_stream(loaded, (f"The cat number {number} sat on the mat." for number in range(10 * TEXTS)))
    for count, _ in enumerate(results, 1):
        if count in (TEXTS, 10 * TEXTS):
            print(f"{count:,} texts: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


def classify(model: str, train: str, test: str) -> None:
    """Trains a classifier with both libraries; prints seconds and accuracy on the test data."""
    from model2vec.train import StaticModelForClassification

    import mlxbert

    def read(path: str) -> tuple[list[str], list[str]]:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [*csv.DictReader(file)]
        return [row["text"] for row in rows], [row["label"] for row in rows]

    (texts, labels), (test_texts, test_labels) = read(train), read(test)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        ours = mlxbert.finetune("classify", train=train, model=model, output=Path(folder) / "out", few_shot=False).run()
        took = time.perf_counter() - begun
    results = [result for result in ours.classify(test_texts) if isinstance(result, mlxbert.Classification)]
    right = [result.labels[0].label == label for result, label in zip(results, test_labels, strict=True)]
    print(f"mlxbert: {took:.1f} s, accuracy {np.mean(right):.3f}", flush=True)
    begun = time.perf_counter()
    theirs = StaticModelForClassification.from_pretrained(model)
    theirs.fit(texts, labels)
    took = time.perf_counter() - begun
    print(f"model2vec: {took:.1f} s, accuracy {np.mean(theirs.predict(test_texts) == np.array(test_labels)):.3f}")


if __name__ == "__main__":
    drop_unusual_settings()
    parts = {function.__name__: function for function in (quality, speed, start, memory, classify)}
    parts[sys.argv[1]](*sys.argv[2:])
