"""The order of the training data, a function of seed and epoch, and the parts in which a batch is computed."""

import itertools
import math
import random
from collections.abc import Sequence, Sized
from typing import Protocol

from mlxbert.machine.device import on_gpu
from mlxbert.training.options.loop_options import TrainingOptions


class Order(Protocol):
    """Which examples each update of a run is computed from.

    Attributes:
        steps: Updates in all.
        epoch_steps: Updates between two evaluations, where nothing else is asked for.
    """

    steps: int
    epoch_steps: int

    def end_after(self, steps: int) -> None:
        """Changes how many updates there are in all."""

    def batches(self, step: int) -> list[list[int]]:
        """The batches of an update, counted from 0: numbers of examples."""

    def epochs(self, step: int) -> float:
        """How many passes over the data the first `step` updates are."""

    def tokens(self, numbers: Sequence[int]) -> int:
        """How many tokens some examples have."""


# What a part of a batch costs besides its tokens, in tokens: sums of gradients, and small products.
_PART, _PART_ON_GPU = 48, 4096
_SIZES_ON_GPU = 4  # how many numbers of examples a part can have there, where a shape is compiled


def batches(count: int, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch, in random order.

    Lengths play no part in it: batches of similar length would save padding, but learn worse (measured on WNUT-17).
    Padding is saved by computing a batch in `parts`.

    The last two batches share what is left, so that none has fewer than half of the examples of a full one. A batch of
    two would change the weights as much as a full one, by a noisy gradient; and where examples are compared with each
    other, its loss would say nothing. (Batches that are all nearly equal would have more shapes, which a GPU compiles.)

    Args:
        count: How many examples there are.
        batch_size: Examples per batch, at most.
        seed: The seed of the run.
        epoch: The number of the epoch, from 0.

    Returns:
        Numbers of examples; each example is in exactly one batch.
    """
    rng = random.Random(f"order {seed} {epoch}")
    order = list(range(count))
    rng.shuffle(order)
    full, rest = divmod(count, batch_size)
    bounds = [*range(0, count + 1, batch_size)]
    if rest and full:
        bounds[-1] -= (batch_size - rest) // 2
    if rest:
        bounds.append(count)
    return [order[start:end] for start, end in itertools.pairwise(bounds)]


class Epochs:
    """An `Order` in which every example comes once per epoch.

    Args:
        examples: The examples; `len` of one is its tokens.
        options: How many epochs, which batches, which seed.
    """

    def __init__(self, examples: Sequence[Sized], options: TrainingOptions) -> None:
        self._lengths, self._options = [len(example) for example in examples], options
        self.epoch_steps = math.ceil(math.ceil(len(examples) / options.batch_size) / options.gradient_accumulation)
        self.steps = self.epoch_steps * options.epochs
        self._last: tuple[int, list[list[int]]] = (-1, [])

    def end_after(self, steps: int) -> None:
        """See `Order`."""
        self.steps = steps

    def batches(self, step: int) -> list[list[int]]:
        """See `Order`."""
        epoch, place = divmod(step, self.epoch_steps)
        if self._last[0] != epoch:
            size, seed = self._options.batch_size, self._options.seed
            self._last = (epoch, batches(len(self._lengths), size, seed, epoch))
        first = place * self._options.gradient_accumulation
        return self._last[1][first : first + self._options.gradient_accumulation]

    def epochs(self, step: int) -> float:
        """See `Order`."""
        return round(step / self.epoch_steps, 4)

    def tokens(self, numbers: Sequence[int]) -> int:
        """See `Order`."""
        return sum(self._lengths[number] for number in numbers)


def parts(lengths: Sequence[int], at_once: int) -> list[list[int]]:
    """Examples in parts of similar lengths: as many as are computed at once, or a multiple where that saves padding.

    Args:
        lengths: Tokens of each example.
        at_once: How many parts are computed at once; these have as many examples of the same lengths.

    Returns:
        Numbers of examples, the shortest first; each is in exactly one part. The parts with most tokens come first, so
        that the last ones, which not every core has, are small.
    """
    ordered = sorted(range(len(lengths)), key=lambda number: lengths[number])
    cost, step = (_PART_ON_GPU, -(-len(ordered) // _SIZES_ON_GPU)) if on_gpu() else (_PART, 1)
    groups = _groups(ordered, lengths, at_once * cost, step)
    found = [part for group in groups for worker in range(at_once) if (part := group[worker::at_once])]
    return sorted(found, key=lambda part: -len(part) * lengths[part[-1]])


def _groups(ordered: list[int], lengths: Sequence[int], cost: int, step: int) -> list[list[int]]:
    """Divides examples, the shortest first, wherever that saves more tokens of padding than it costs.

    All parts but the last have a multiple of `step` examples.
    """
    longest = lengths[ordered[-1]]
    saved = {place: place * (longest - lengths[ordered[place - 1]]) for place in range(0, len(ordered), step)}
    cut = max(saved, key=saved.__getitem__)
    if saved[cut] <= cost:
        return [ordered]
    return _groups(ordered[:cut], lengths, cost, step) + _groups(ordered[cut:], lengths, cost, step)


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
