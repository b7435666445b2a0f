"""Measures zero-shot classification with an embedding model: accuracy, and how far scores are from accuracies.

Run: python benchmarks/zero_shot.py SETS [--model MODEL] [--hypothesis "This text is about {}."]

The test texts are those of `few_shot.py`, which measures the same classes with 8 labelled texts each; `emotions` are
the comments of GoEmotions with one of the 27 labels that are not neutral. Only the names of the labels are read, none
of the training texts. "Error of scores" is the expected calibration error: over ten bins of the best label's score, the
mean distance of its score from the share of right labels, weighted by texts.
"""

import argparse
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from few_shot import SETS, TEST_SEED, TESTED, Texts

NAMES = {
    "sst2": {"0": "something bad", "1": "something good"},
    "trec": dict(
        zip("012345", ("an abbreviation", "a definition", "a thing", "a person", "a place", "a number"), strict=True)
    ),
    "bbc": {"tech": "technology"},
    "goemotions": {"neutral": "no emotion"},
}
BINS = 10


def _emotions(folder: Path) -> tuple[Texts, Texts]:
    """The comments with one label that is not neutral, of the test data alone."""
    names = (folder / "goemotions" / "labels.txt").read_text().split()
    lines = (folder / "goemotions" / "test.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")
    rows = [line.split("\t") for line in lines]
    return [], [
        (text, names[int(label)]) for text, label, _ in rows if "," not in label and names[int(label)] != "neutral"
    ]


def calibration_error(scores: list[float], right: list[bool]) -> float:
    """Returns the expected calibration error."""
    bins = np.minimum((np.array(scores) * BINS).astype(int), BINS - 1)
    parts = [bins == number for number in range(BINS)]
    gaps = [
        part.mean() * abs(np.mean(np.array(scores)[part]) - np.mean(np.array(right)[part]))
        for part in parts
        if part.any()
    ]
    return float(sum(gaps))


def main() -> None:
    """Prints a row for each set."""
    import mlxbert

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--hypothesis")
    parser.add_argument("--only", choices=[*SETS, "emotions"], action="append")
    args = parser.parse_args()
    model = mlxbert.load(args.model)
    print("| set | classes | chance | most frequent class | accuracy | error of scores |\n|---|---|---|---|---|---|")
    for name, read in {**SETS, "emotions": _emotions}.items():
        if args.only and name not in args.only:
            continue
        _, test = read(args.sets)
        tested = random.Random(TEST_SEED).sample(test, TESTED)
        described = {label: NAMES.get(name, {}).get(label, label) for label in sorted({label for _, label in test})}
        texts = [text for text, _ in tested]
        results: Any = mlxbert.classify(model, texts, labels=[*described.values()], hypothesis=args.hypothesis)
        best = [result.labels[0] for result in results]
        right = [label.label == described[true] for label, (_, true) in zip(best, tested, strict=True)]
        error = calibration_error([label.score for label in best], right)
        most = Counter(label for _, label in tested).most_common(1)[0][1] / TESTED
        print(
            f"| {name} | {len(described)} | {1 / len(described):.3f} | {most:.3f} "
            f"| {np.mean(right):.3f} | {error:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
