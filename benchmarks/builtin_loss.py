"""Measures the cost of 8-bit storage for the built-in model: masked-LM loss, and agreement with its checkpoint.

`python benchmarks/builtin_loss.py CHECKPOINT SQUAD_JSON`: in each of the first 400 paragraphs, 15 % of the tokens
(seed 0) are replaced with `[MASK]`; both models see the same inputs, in float32.
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.nn.heads import probabilities


@dataclass
class Sums:
    """Running sums over masked places."""

    places: int = 0
    loss: float = 0.0
    right: float = 0
    in_five: float = 0


def paragraphs(path: Path, count: int) -> Iterator[str]:
    """The first paragraphs of a SQuAD file."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    texts = (paragraph["context"] for article in articles for paragraph in article["paragraphs"])
    return (text for _, text in zip(range(count), texts, strict=False))


def logits(model: mlxbert.Model, ids: list[int], places: list[int]) -> mx.array:
    """Word logits (M, V) of the given places."""
    masked = model.network(mx.array([ids])).select(mx.zeros(len(places), dtype=mx.int32), mx.array(places))
    return model.network.logits("masked_lm", masked)


def number(array: mx.array) -> float:
    """The value of an array with a single element."""
    return cast(float, array.item())


def main() -> None:
    """Prints loss, accuracy and agreement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("squad", type=Path)
    parser.add_argument("--paragraphs", type=int, default=400)
    args = parser.parse_args()
    models = {name: mlxbert.load(name, dtype="float32", device="cpu") for name in (args.checkpoint, "builtin")}
    sums = {name: Sums() for name in models}
    agree, largest = 0.0, 0.0
    generator = random.Random(0)
    for text in paragraphs(args.squad, args.paragraphs):
        encoding = models["builtin"].tokenizer.encode(text, overflow="truncate")
        places = sorted(generator.sample(range(1, len(encoding) - 1), max(1, round(0.15 * (len(encoding) - 2)))))
        truth = mx.array([encoding.ids[place] for place in places])[:, None]
        ids = list(encoding.ids)
        for place in places:
            ids[place] = models["builtin"].tokenizer.token_id("[MASK]") or 0
        best = []
        for name, model in models.items():
            scores = logits(model, ids, places)
            chances = mx.log(probabilities(scores))
            gold = mx.take_along_axis(chances, truth, axis=-1)
            better = (chances > gold).sum(axis=-1)
            total = sums[name]
            total.places += len(places)
            total.loss -= number(gold.sum())
            total.right += number((better == 0).sum())
            total.in_five += number((better < 5).sum())
            best.append((mx.argmax(scores, axis=-1), mx.exp(chances.max(axis=-1))))
        agree += number((best[0][0] == best[1][0]).sum())
        largest = max(largest, number(mx.abs(best[0][1] - best[1][1]).max()))
    for name, total in sums.items():
        print(
            f"{Path(name).name}: {total.places} places, loss {total.loss / total.places:.4f}, "
            f"first {total.right / total.places:.2%}, in the first five {total.in_five / total.places:.2%}"
        )
    share = agree / sums["builtin"].places
    print(f"same first word at {share:.2%} of the places; its probability differs by at most {largest:.3f}")


if __name__ == "__main__":
    main()
