"""The order of the training data: batches of similar length, as a function of seed and epoch."""

import math
import random
from collections.abc import Sequence, Sized
from typing import Protocol

from mlxbert.training.options import TrainingOptions


class Order(Protocol):
    """Which examples each update of a run is computed from.

    Attributes:
        steps: Updates in all.
        epoch_steps: Updates between two evaluations, where nothing else is asked for.
    """

    steps: int
    epoch_steps: int

    def batches(self, step: int) -> list[list[int]]:
        """The batches of an update, counted from 0: numbers of examples."""

    def epochs(self, step: int) -> float:
        """How many passes over the data the first `step` updates are."""

    def tokens(self, numbers: Sequence[int]) -> int:
        """How many tokens some examples have."""


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


class Epochs:
    """An `Order` in which every example comes once per epoch.

    Args:
        examples: The examples; `len` of one is its tokens.
        options: How many epochs, which batches, which seed.
        mixed: Whether batches have examples of any length.
    """

    def __init__(self, examples: Sequence[Sized], options: TrainingOptions, *, mixed: bool = False) -> None:
        self._lengths, self._options, self._mixed = [len(example) for example in examples], options, mixed
        self.epoch_steps = math.ceil(math.ceil(len(examples) / options.batch_size) / options.accumulate)
        self.steps = self.epoch_steps * options.epochs
        self._last: tuple[int, list[list[int]]] = (-1, [])

    def batches(self, step: int) -> list[list[int]]:
        """See `Order`."""
        epoch, place = divmod(step, self.epoch_steps)
        if self._last[0] != epoch:
            sorted_by = [0] * len(self._lengths) if self._mixed else self._lengths
            self._last = (epoch, batches(sorted_by, self._options.batch_size, self._options.seed, epoch))
        first = place * self._options.accumulate
        return self._last[1][first : first + self._options.accumulate]

    def epochs(self, step: int) -> float:
        """See `Order`."""
        return round(step / self.epoch_steps, 4)

    def tokens(self, numbers: Sequence[int]) -> int:
        """See `Order`."""
        return sum(self._lengths[number] for number in numbers)


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
