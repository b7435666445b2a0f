"""Prints the batches, shapes and padding on a GPU for windows of several sizes; runs without a GPU.

`python benchmarks/batches.py [--count 20000]` draws the lengths of texts, in tokens, from log-normal distributions, for
a model with a maximum of 512 tokens.
"""

import argparse
import random
from collections.abc import Sequence

from mlxbert.text import batch

MAX_LENGTH = 512  # tokens
# The mean and the standard deviation of the logarithm of a length.
SETS = {"mixed": (3.2, 0.9), "sentences": (2.5, 0.5), "articles": (6.1, 0.5), "both": (4.0, 1.2)}


def shapes_of(lengths: Sequence[int], window: int, batch_tokens: int) -> list[tuple[int, int]]:
    """The rows and length of each batch, for inputs of these lengths in windows."""
    shapes = []
    for start in range(0, len(lengths), window):
        padded = [batch.padded_length(length, MAX_LENGTH) for length in lengths[start : start + window]]
        for group in batch.plan(padded, batch_tokens):
            length = max(padded[number] for number in group)
            shapes.append((batch.padded_rows(len(group), length, batch_tokens), length))
    return shapes


def main() -> None:
    """Prints a row for each size of a GPU, set and window."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    count = parser.parse_args().count
    vars(batch)["on_gpu"] = lambda: True
    print(f"{count} texts{'':10}tokens a batch{'window':>9}{'batches':>9}{'shapes':>8}{'padding':>9}")
    for size, cuda in (("small", False), ("medium", False), ("large", False), ("large", True)):
        vars(batch)["gpu_size"] = lambda size=size: size
        vars(batch)["batch_cost"] = lambda cuda=cuda: 1 / 8 if cuda else 1 / 16
        for name, (mean, deviation) in SETS.items():
            rng = random.Random(3)
            lengths = [min(3 + int(rng.lognormvariate(mean, deviation)), MAX_LENGTH) for _ in range(count)]
            for window in sorted({batch.WINDOW, batch.window_size(), 2 * batch.window_size()}):
                tokens = batch.default_batch_tokens()
                shapes = shapes_of(lengths, window, tokens)
                padding = 1 - sum(lengths) / sum(rows * length for rows, length in shapes)
                device, few = "CUDA" if cuda else "Metal", len({*shapes})
                print(f"{name:12}{device:8}{tokens:15}{window:9}{len(shapes):9}{few:8}{padding:9.1%}")


if __name__ == "__main__":
    main()
