"""Compares quantized weights with the original model: size, vectors, Spearman, first words, speed.

`python benchmarks/quantized.py MODEL STSB_CSV [SQUAD_JSON] [--rounds 5]`: MODEL is converted to float16 and to 8 and 4
bits; the bits of a weight include its share of the scales. STSB_CSV has a pair of sentences and a score per line:
cosines compare the vectors of all sentences with MODEL's own. In the first 200 paragraphs of SQUAD_JSON, 15 % of the
tokens (seed 0) are replaced with `[MASK]`, if MODEL has a masked-LM head. Speed is the median over 512 sentences,
measured in turn; and that of a batch of 32 x 32 tokens whose weights stay quantized during the computation.
"""

import argparse
import csv
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.nn.heads import Network
from mlxbert.weights.build import build_network, parameters
from mlxbert.weights.checkpoint import open_checkpoint

Vectors = NDArray[np.float32]
VARIANTS: dict[str, dict[str, object]] = {
    "float16": {"dtype": "float16"},
    "8 bits, groups of 64": {"quantize": 8},
    "8 bits, groups of 32": {"quantize": 8, "group_size": 32},
    "4 bits, groups of 64": {"quantize": 4},
    "4 bits, groups of 64, float16": {"quantize": 4, "dtype": "float16"},
    "4 bits, groups of 32": {"quantize": 4, "group_size": 32},
}
PARAGRAPHS, TIMED, BATCH = 200, 512, (32, 32)


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last: NDArray[np.float64] = np.cumsum(counts).astype(np.float64)
    return (last - (counts - 1) / 2)[inverse]


def spearman(first: Vectors, second: Vectors, scores: list[float]) -> float:
    """The rank correlation, times 100, of the cosines of pairs with human scores."""
    cosines = (first * second).sum(axis=1) / (np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1))
    correlations = np.corrcoef(ranks(cosines.astype(np.float64)), ranks(np.array(scores, dtype=np.float64)))
    return 100 * float(correlations[0, 1])


def masked(model: mlxbert.Model, path: Path) -> Iterator[tuple[list[int], list[int]]]:
    """Yields inputs with masks, and the masked places."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    texts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]][:PARAGRAPHS]
    generator, mask = random.Random(0), model.tokenizer.token_id("[MASK]") or 0
    for text in texts:
        ids = list(model.tokenizer.encode(text, overflow="truncate").ids)
        places = sorted(generator.sample(range(1, len(ids) - 1), max(1, round(0.15 * (len(ids) - 2)))))
        yield [mask if place in places else token for place, token in enumerate(ids)], places


def first_words(model: mlxbert.Model, inputs: list[tuple[list[int], list[int]]]) -> NDArray[np.int64]:
    """The most likely token at every masked place."""
    tokens = []
    for ids, places in inputs:
        masked = model.network(mx.array([ids])).select(mx.zeros(len(places), dtype=mx.int32), mx.array(places))
        tokens.append(np.array(mx.argmax(model.network.logits("masked_lm", masked), axis=-1)))
    return np.concatenate(tokens).astype(np.int64)


def seconds(work: Callable[[], object]) -> float:
    """The wall time of a function."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turn(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each function, after one round of warm-up."""
    seconds_of: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            spent = seconds(work)
            if number:
                seconds_of[name].append(spent)
    return {name: statistics.median(times) for name, times in seconds_of.items()}


def forward(network: Network) -> Callable[[], None]:
    """Returns a function that makes a forward pass over a batch."""
    ids = mx.random.randint(0, network.encoder.config.vocab_size, BATCH)
    return lambda: mx.eval(network.encoder(ids).last_hidden_state)


def embedding(model: mlxbert.Model, sentences: list[str]) -> Callable[[], object]:
    """Returns a function that embeds sentences."""
    return lambda: mlxbert.embed(model, sentences)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("stsb", type=Path)
    parser.add_argument("squad", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with args.stsb.open(encoding="utf-8", newline="") as file:
        rows = [(row[0], row[1], float(row[2])) for row in csv.reader(file)]
    sentences, scores = [row[0] for row in rows] + [row[1] for row in rows], [row[2] for row in rows]
    with tempfile.TemporaryDirectory() as place:
        folders = {"as it is": Path(args.model)}
        for name, options in VARIANTS.items():
            folders[name] = Path(place) / name
            took = seconds(partial(mlxbert.convert, args.model, folders[name], **options))  # type: ignore[arg-type]
            print(f"{name}: converted and compared in {took:.1f} s")
        models = {name: mlxbert.load(folder, dtype="float32", device="cpu") for name, folder in folders.items()}
        report(models, sentences, scores, args.squad, args.rounds)


def report(
    models: dict[str, mlxbert.Model], sentences: list[str], scores: list[float], squad: Path | None, rounds: int
) -> None:
    """Measures the models, and prints the table."""
    has_head = squad is not None and "masked_lm" in models["as it is"].network.heads
    inputs = list(masked(models["as it is"], squad)) if squad is not None and has_head else []
    vectors = {name: mlxbert.embed(model, sentences) for name, model in models.items()}
    words = {name: first_words(model, inputs) for name, model in models.items()} if inputs else {}
    times = in_turn({name: embedding(model, sentences[:TIMED]) for name, model in models.items()}, rounds)
    packed: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        checkpoint = open_checkpoint(model.folder)
        packed[name] = forward(build_network(checkpoint, (), mx.float32, packed=True))
    slow = in_turn(packed, 1)
    numbers = sum(array.size for array in parameters(models["as it is"].network).values())
    print("| weights | MB | bits | cosine: mean | lowest | Spearman | first word the same | speed | speed, packed |")
    print("|---|---|---|---|---|---|---|---|---|")
    original, half = vectors["as it is"], len(scores)
    for name, converted in vectors.items():
        size = sum(path.stat().st_size for path in models[name].folder.glob("**/*.safetensors")) / 1e6
        cosines = (original * converted).sum(axis=1) / (
            np.linalg.norm(original, axis=1) * np.linalg.norm(converted, axis=1)
        )
        same = f"{np.mean(words['as it is'] == words[name]):.1%} of {len(words[name]):,}" if words else "-"
        print(
            f"| {name} | {size:.1f} | {8e6 * size / numbers:.1f} | {cosines.mean():.5f} | {cosines.min():.5f} "
            f"| {spearman(converted[:half], converted[half:], scores):.2f} | {same} "
            f"| {times['as it is'] / times[name]:.2f} | {slow['as it is'] / slow[name]:.3f} |"
        )


if __name__ == "__main__":
    main()
