"""Measures whether the words that `explain` names decide a label: deletes them, and sees how far its score falls.

Run: python benchmarks/explain.py SETS sst2|bbc MODEL [--texts 200] [--words 40] [--share 0.2] [--steps 20]

SETS has the folders sst2 and bbc-news as published; MODEL was trained by `mlxbert finetune classify` on training texts
of `few_shot.py`. Of each held-out text, cut to its first words, the words with the largest shares in the predicted
label are deleted, and the text is classified again. Ways to choose the words: integrated gradients, occlusion, the
gradient times the word vectors, and chance (the mean of several draws). Intervals are those of a bootstrap over texts.
"""

import argparse
import random
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cores import keep_to_cores
from few_shot import SETS

import mlxbert
from mlxbert.explore import explain as explaining
from mlxbert.explore.options import ExplainOptions
from mlxbert.machine.device import mx

DRAWS, FEWEST = 5, 5  # random choices of each text; words of the shortest text
Spans = list[tuple[int, int, float]]  # the offsets of each word, and its share


def by_explain(model: mlxbert.Model, text: str, method: Any, steps: int) -> Spans:
    """The shares that `mlxbert.explain` computes."""
    words = mlxbert.explain(model, text, task="classify", method=method, steps=steps).words
    return [(word.start, word.end, word.score) for word in words]


def by_product(model: mlxbert.Model, text: str) -> Spans:
    """The gradient of the logit times the word vectors, summed over the tokens of each word."""
    with explaining._evaluating(model):
        (one,) = explaining._find_classify(model, text, None, ExplainOptions())
        here = model.network.encoder.embeddings.word(mx.array([one.encoding.ids]))
        slopes = mx.grad(lambda vectors: one.score(explaining._run(model, one.encoding, vectors)).sum())(here)
        shares = np.array((here * slopes).sum(-1).astype(mx.float32))[0]
    offsets = one.encoding.offsets
    return [(offsets[word[0]][0], offsets[word[-1]][1], float(shares[word].sum())) for word in one.words]


def without(text: str, spans: Sequence[tuple[int, int, float]]) -> str:
    """The text without some words."""
    for start, end, _ in sorted(spans, reverse=True):
        text = text[:start] + text[end:]
    return " ".join(text.split())


def deleted(text: str, words: Spans, share: float) -> str:
    """The text without the words with the largest shares."""
    ordered = sorted(words, key=lambda word: -word[2])
    return without(text, ordered[: max(round(share * len(words)), 1)])


def score(model: mlxbert.Model, texts: Sequence[str], label: str) -> list[float]:
    """The probability of a label for each text."""
    results: Any = mlxbert.classify(model, texts)
    return [next(each.score for each in result.labels if each.label == label) for result in results]


def falls(model: mlxbert.Model, text: str, share: float, ways: dict[str, Callable[[str], Spans]]) -> dict[str, float]:
    """How far the probability of the predicted label falls without the words that each way names."""
    best: Any = mlxbert.classify(model, text)
    found = {name: way(text) for name, way in ways.items()}
    words = next(iter(found.values()))
    rng = random.Random(text)
    chance = [[(start, end, rng.random()) for start, end, _ in words] for _ in range(DRAWS)]
    shorter = [deleted(text, spans, share) for spans in (*found.values(), *chance)]
    left = score(model, shorter, best.labels[0].label)
    fallen = [best.labels[0].score - value for value in left]
    return dict(zip(found, fallen, strict=False)) | {"chance": float(np.mean(fallen[len(found) :]))}


def interval(values: Any) -> str:
    """The mean of some values with its 95 % interval, from 2,000 bootstrap samples."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(len(values), size=(2000, len(values)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Prints the falls for each way, and the differences from the two plain ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path)
    parser.add_argument("name", choices=("sst2", "bbc"))
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--words", type=int, default=40, help="words to which a text is cut")
    parser.add_argument("--share", type=float, default=0.2, help="share of the words that is deleted")
    parser.add_argument("--steps", type=int, default=10, help="points of integrated gradients")
    args = parser.parse_args()
    keep_to_cores(1)
    model = mlxbert.load(args.model, task="classify", dtype="float32")
    ways: dict[str, Callable[[str], Spans]] = {
        "integrated gradients": lambda text: by_explain(model, text, "gradients", args.steps),
        "occlusion": lambda text: by_explain(model, text, "occlusion", args.steps),
        "gradient x input": lambda text: by_product(model, text),
    }
    _, held_out = SETS[args.name](args.sets)
    texts = [" ".join(re.findall(r"\S+", text)[: args.words]) for text, _ in held_out]
    texts = [text for text in texts if len(text.split()) >= FEWEST][: args.texts]
    begun = time.process_time()
    rows = [falls(model, text, args.share, ways) for text in texts]
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    print(f"{args.name}: {len(texts)} texts, {args.share:.0%} of the words, {time.process_time() - begun:.0f} CPU s")
    for name, values in found.items():
        print(f"{name}: {interval(values)}")
    for name in ("integrated gradients", "occlusion"):
        for plain in ("chance", "gradient x input"):
            print(f"{name} minus {plain}: {interval(found[name] - found[plain])}")


if __name__ == "__main__":
    main()
