"""The order of the training data: batches of similar length, as a function of seed and epoch."""

import random
from collections.abc import Sequence

_WINDOW = 50  # batches whose examples are sorted by length together: little padding, and still a random order


def batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch.

    Args:
        lengths: Tokens of each example.
        batch_size: Examples per batch; the last one may have fewer.
        seed: The seed of the run.
        epoch: The number of the epoch, from 0.

    Returns:
        Numbers of examples; each example is in exactly one batch.
    """
    rng = random.Random(f"order {seed} {epoch}")
    order = list(range(len(lengths)))
    rng.shuffle(order)
    window = _WINDOW * batch_size
    for start in range(0, len(order), window):
        order[start : start + window] = sorted(order[start : start + window], key=lambda number: lengths[number])
    found = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    rng.shuffle(found)
    return found


def split(batch: Sequence[int], parts: int) -> list[Sequence[int]]:
    """A batch in parts of as many examples and similar lengths; of a small batch some parts are empty."""
    return [batch[part::parts] for part in range(parts)]


def shares(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Inputs in parts of similar lengths, and of about as many tokens; there may be fewer parts than asked for.

    Args:
        lengths: Tokens of each input.
        parts: How many parts.

    Returns:
        Numbers of inputs, the shortest first; each is in exactly one part.
    """
    most = sum(lengths) / parts
    found: list[list[int]] = [[]]
    full = 0.0
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        if found[-1] and full >= most * len(found):
            found.append([])
        found[-1].append(number)
        full += lengths[number]
    return found
