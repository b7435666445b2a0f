"""Compares classifiers from few examples with and without `--few-shot`: writes a line of JSON per run.

Run: python benchmarks/few_shot.py SETS RESULTS.jsonl [--model MODEL] [--only sst2|trec|bbc|goemotions]
[--shots 8] [--draws 5]

SETS has the folders sst2, trec, bbc-news and goemotions as published. Each draw takes different training texts of each
class; all are scored on the same 500 test texts. Both sides use the defaults, so each splits off its own validation
data. Runs in RESULTS are not repeated.
"""

import argparse
import csv
import itertools
import json
import random
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

Texts = list[tuple[str, str]]  # texts and their classes
TESTED, TEST_SEED = 500, 0
_FREQUENT = 6  # labels of GoEmotions


def _sst2(folder: Path) -> tuple[Texts, Texts]:
    def read(name: str) -> Texts:
        with (folder / "sst2" / name).open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            return [(row["sentence"], row["label"]) for row in rows]

    return read("train.tsv"), read("dev.tsv")


def _trec(folder: Path) -> tuple[Texts, Texts]:
    def read(name: str) -> Texts:
        lines = (folder / "trec" / name).read_text("latin-1").rstrip("\n").split("\n")
        return [(text, label) for label, _, text in (line.partition(" ") for line in lines)]

    return read("TREC.train.all"), read("TREC.test.all")


def _bbc(folder: Path) -> tuple[Texts, Texts]:
    """The articles of the archive; a random half of them are the test data."""
    with tarfile.open(folder / "bbc-news" / "bbc-news.tar.xz") as archive:
        members = (member for member in archive if member.isfile() and member.name.endswith(".txt"))
        files = sorted(members, key=lambda member: member.name)
        contents = [(archive.extractfile(member), Path(member.name).parent.name) for member in files]
        texts = [(file.read().decode("latin-1"), label) for file, label in contents if file is not None]
    texts = [(text, label) for text, label in texts if label.isalpha() and text.strip()]
    random.Random(TEST_SEED).shuffle(texts)
    return texts[len(texts) // 2 :], texts[: len(texts) // 2]


def _goemotions(folder: Path) -> tuple[Texts, Texts]:
    """The comments with a single label, which is one of the most frequent."""
    names = (folder / "goemotions" / "labels.txt").read_text().split()

    def read(name: str) -> Texts:
        with (folder / "goemotions" / name).open(encoding="utf-8", newline="") as file:
            rows = [*csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
        return [(text, names[int(label)]) for text, label, _ in rows if "," not in label]

    train, test = read("train.tsv"), read("test.tsv")
    frequent = {label for label, _ in Counter(label for _, label in train).most_common(_FREQUENT)}
    return [pair for pair in train if pair[1] in frequent], [pair for pair in test if pair[1] in frequent]


SETS: dict[str, Callable[[Path], tuple[Texts, Texts]]] = {
    "sst2": _sst2,
    "trec": _trec,
    "bbc": _bbc,
    "goemotions": _goemotions,
}


def drawn(texts: Texts, shots: int, draw: int) -> list[dict[str, str]]:
    """Draws `shots` texts of each class, as records."""
    rng = random.Random(f"draw {draw}")
    classes = sorted({label for _, label in texts})
    pairs = [pair for name in classes for pair in rng.sample([pair for pair in texts if pair[1] == name], shots)]
    return [{"text": text, "label": label} for text, label in pairs]


def run(model: str, train: list[dict[str, str]], test: list[dict[str, str]], **options: Any) -> dict[str, Any]:
    """Trains once with the defaults and some options, and scores the test texts."""
    import mlxbert

    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "model"
        finished: Any = [*mlxbert.finetune("classify", train=train, model=model, output=output, **options)][-1]
        spent = time.process_time() - begun
        evaluation = mlxbert.evaluate("classify", mlxbert.load(output, task="classify"), data=test)
    return {"accuracy": evaluation.metrics["accuracy"], "valid": finished.score, "step": finished.step, "cpu": spent}


def main() -> None:
    """Runs everything that is missing in RESULTS."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--only", choices=SETS, action="append")
    parser.add_argument("--shots", type=int, action="append")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--max-length", type=int, help="tokens of a text; by default the maximum of the model")
    args = parser.parse_args()
    lines = args.results.read_text(encoding="utf-8").splitlines() if args.results.exists() else []
    done = [json.loads(line)["run"] for line in lines]
    for draw, name in itertools.product(range(args.draws), args.only or SETS):
        train, test = SETS[name](args.sets)
        tested = random.Random(TEST_SEED).sample(test, TESTED)
        records = [{"text": text, "label": label} for text, label in tested]
        for shots, few_shot in itertools.product(args.shots or (8, 64), (True, False)):
            key = {"set": name, "shots": shots, "draw": draw, "few_shot": few_shot}
            key |= {"max_length": args.max_length} if args.max_length else {}
            if key in done:
                continue
            options = {"few_shot": few_shot, "max_length": args.max_length}
            result = {"run": key, **run(args.model, drawn(train, shots, draw), records, **options)}
            with args.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
