"""The order of the data of a run, which depends on the seed and the epoch alone, and the parts of a batch.

`Training` holds all inputs of the training loop.
"""

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlxbert.machine.device import mx, on_gpu
from mlxbert.nn.heads import Network
from mlxbert.train.loop.distributed import ProcessGroup
from mlxbert.train.loop.phase_times import Times
from mlxbert.train.objectives.objective import LoopObjective
from mlxbert.train.options.loop_options import TrainingOptions


class Order(Protocol):
    """Determines the examples of each update of a run."""

    steps: int  # the total number of updates
    epoch_steps: int  # the number of updates between two evaluations, if `eval_every` is not set

    def end_after(self, steps: int) -> None:
        """Sets the total number of updates."""

    def batches(self, step: int) -> list[list[int]]:
        """Returns the batches of an update, each as a list of example indices. Updates are counted from 0."""

    def epochs(self, step: int) -> float:
        """Returns the number of passes over the data in the first `step` updates."""

    def tokens(self, numbers: Sequence[int]) -> int:
        """Returns the total number of tokens of the examples with these indices."""


# The overhead of a part of a batch, in tokens: the sums of gradients, and the inefficiency of small products.
_PART_COST, _PART_COST_ON_GPU = 48, 4096
_SIZES_ON_GPU = 4  # number of different part sizes on a GPU, which compiles each shape


def batches(count: int, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Returns the batches of an epoch, in random order, each as a list of example indices.

    The order ignores lengths. Batches of examples with similar lengths would save padding, but the model would learn
    worse (measured on WNUT-17). Dividing each batch into `parts` saves padding instead.

    The last two batches share the remaining examples, so that none has less than half the size of a full batch. A batch
    of two examples would change the weights as much as a full batch, but with a noisy gradient; and a loss that
    compares examples would be meaningless. (If all batches had nearly equal sizes, a GPU would have to compile more
    shapes.)
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
    """An `Order` in which every example occurs once per epoch."""

    def __init__(self, examples: Sequence[Sized], options: TrainingOptions) -> None:
        self._lengths, self._options = [len(example) for example in examples], options
        self.epoch_steps = math.ceil(math.ceil(len(examples) / options.batch_size) / options.gradient_accumulation)
        self.steps = self.epoch_steps * options.epochs
        self._last: tuple[int, list[list[int]]] = (-1, [])

    def end_after(self, steps: int) -> None:
        self.steps = steps

    def batches(self, step: int) -> list[list[int]]:
        epoch, place = divmod(step, self.epoch_steps)
        if self._last[0] != epoch:
            size, seed = self._options.batch_size, self._options.seed
            self._last = (epoch, batches(len(self._lengths), size, seed, epoch))
        first = place * self._options.gradient_accumulation
        return self._last[1][first : first + self._options.gradient_accumulation]

    def epochs(self, step: int) -> float:
        return round(step / self.epoch_steps, 4)

    def tokens(self, numbers: Sequence[int]) -> int:
        return sum(self._lengths[number] for number in numbers)


# Whether a part fits into memory, from the number of its examples and the tokens of the longest.
Fits = Callable[[int, int], bool]


def parts(lengths: Sequence[int], at_once: int, fits: Fits = lambda count, length: True) -> list[list[int]]:
    """Divides examples of these lengths into `at_once` parts, or into a multiple of them if this saves padding.

    Parts that are computed at the same time hold similar numbers of examples, which have similar lengths. A part is
    halved until it `fits`, or has one example. Returns the indices of the examples in each part, the shortest example
    first. The largest parts come first, so that the last parts, which occupy only some of the cores, are small.
    """
    ordered = sorted(range(len(lengths)), key=lambda number: lengths[number])
    cost, step = (_PART_COST_ON_GPU, -(-len(ordered) // _SIZES_ON_GPU)) if on_gpu() else (_PART_COST, 1)
    groups = _groups(ordered, lengths, at_once * cost, step)
    usual = [part for group in groups for worker in range(at_once) if (part := group[worker::at_once])]
    result = [half for part in usual for half in _halved(part, lengths, fits)]
    return sorted(result, key=lambda part: -len(part) * lengths[part[-1]])


def _halved(part: list[int], lengths: Sequence[int], fits: Fits) -> list[list[int]]:
    half = len(part) // 2  # a GPU compiles each shape, and halves have few sizes
    if not half or fits(len(part), lengths[part[-1]]):
        return [part]
    return _halved(part[:half], lengths, fits) + _halved(part[half:], lengths, fits)


def _groups(ordered: list[int], lengths: Sequence[int], cost: int, step: int) -> list[list[int]]:
    """Divides examples, sorted by length, into groups, wherever a division saves more than `cost` tokens of padding.

    The size of each group, except for the last, is a multiple of `step`.
    """
    longest = lengths[ordered[-1]]
    saved = {place: place * (longest - lengths[ordered[place - 1]]) for place in range(0, len(ordered), step)}
    best = max(saved, key=saved.__getitem__)
    if saved[best] <= cost:
        return [ordered]
    return _groups(ordered[:best], lengths, cost, step) + _groups(ordered[best:], lengths, cost, step)


def shares(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Divides inputs of these lengths into parts with similar numbers of tokens, and of inputs of similar lengths.

    Returns the indices of the inputs in each part, the shortest input first.
    """
    target = sum(lengths) / parts
    result: list[list[int]] = [[]]
    tokens = 0.0
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        if result[-1] and tokens >= target * len(result):
            result.append([])
        result[-1].append(number)
        tokens += lengths[number]
    return result


@dataclass(frozen=True, kw_only=True)
class Training:
    """The inputs of one run."""

    network: Network  # the network, with float32 weights
    objective: LoopObjective[Any]
    examples: Sequence[Any]
    # Returns the location of an example in the data, given its index. Errors name this location.
    place: Callable[[int], str]
    order: Order  # determines the examples of each update
    options: TrainingOptions
    dtype: mx.Dtype  # the dtype of computation
    # Computes the metrics of the current network; `None` without validation data.
    evaluate: Callable[[], Mapping[str, float]] | None
    # Makes sample texts with the current network, to be shown with an evaluation.
    show: Callable[[], tuple[str, ...]] = tuple
    # The names of the trained parameters; `None` for all parameters that `freeze` does not exclude.
    trained: AbstractSet[str] | None = None
    streams: int = 1  # the number of parts of a batch that one process computes at the same time
    group: ProcessGroup = field(default_factory=ProcessGroup)  # the processes that share the work
    run: int = 0  # the number of the run, for events
    times: Times = field(default_factory=Times)  # measures the phases of the call
