"""The schedule of pre-training: phases with examples of different lengths, each with its own passes over the corpus.

The number of an example encodes its phase, its pass and its chunk, so that its masks depend only on the seed and the
number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlxbert.errors import ArgumentError
from mlxbert.option_declarations import check_listed
from mlxbert.train.pretraining.chunks import Chunks, FeistelPermutation


@dataclass(frozen=True)
class Length:
    """A requested phase: the maximum number of tokens per example, and the phase's share of all updates."""

    tokens: int
    share: float


@dataclass(frozen=True)
class Phase:
    """A phase of the schedule."""

    chunks: Chunks  # the chunks that become its examples
    tokens: int  # the maximum number of tokens per example
    share: float  # the share of all updates
    batch_size: int  # the number of examples per batch
    others: Chunks  # the chunks from which the second text of a negative pair may be drawn

    @property
    def batches(self) -> int:
        """The number of batches in a single pass over the chunks."""
        return math.ceil(len(self.chunks) / self.batch_size)


@dataclass(frozen=True)
class ExamplePosition:
    """The position of an example in the schedule: its phase, the pass in this phase, and its chunk, all as numbers."""

    phase: int
    epoch: int
    chunk: int


class Phases:
    """An `Order` whose updates go through the phases.

    There are `steps` updates; if `steps` is `None`, there are as many as `epochs` passes over the corpus take.
    """

    def __init__(
        self, phases: Sequence[Phase], *, steps: int | None, epochs: float, gradient_accumulation: int, seed: int
    ) -> None:
        self.phases, self._accumulation, self._seed = phases, gradient_accumulation, seed
        if steps is None:
            steps = max(round(epochs * sum(phase.share * phase.batches for phase in phases) / gradient_accumulation), 1)
        self.end_after(steps)

    def end_after(self, steps: int) -> None:
        """See `Order`; each phase keeps its share of the updates."""
        self.steps, phases = steps, self.phases
        self._ends = [round(steps * sum(phase.share for phase in phases[: n + 1])) for n in range(len(phases))]
        self._ends[-1] = steps
        self.epoch_steps = min(max(round(phases[0].batches / self._accumulation), 1), max(steps // 10, 1))

    def batches(self, step: int) -> list[list[int]]:
        phase, first = self._phase(step)
        per_pass = self.phases[phase].batches
        places = ((step - first) * self._accumulation + number for number in range(self._accumulation))
        return [
            [self._number(ExamplePosition(phase, place // per_pass, chunk)) for chunk in self._batch(phase, place)]
            for place in places
        ]

    def _batch(self, phase: int, place: int) -> list[int]:
        """Returns the numbers of the chunks in a batch; `place` counts the batches from the start of the phase."""
        epoch, number = divmod(place, self.phases[phase].batches)
        count, size = len(self.phases[phase].chunks), self.phases[phase].batch_size
        order = FeistelPermutation(count, f"order {self._seed} {phase} {epoch}")
        return [order[index] for index in range(number * size, min((number + 1) * size, count))]

    def _phase(self, step: int) -> tuple[int, int]:
        """Returns the number of the phase that an update belongs to, and the first update of that phase."""
        phase = next(number for number, end in enumerate(self._ends) if step < end)
        return phase, self._ends[phase - 1] if phase else 0

    def _number(self, place: ExamplePosition) -> int:
        per_epoch = max(len(phase.chunks) for phase in self.phases)
        return (place.epoch * per_epoch + place.chunk) * len(self.phases) + place.phase

    def place(self, number: int) -> ExamplePosition:
        """Converts the number of an example to its position in the schedule."""
        rest, phase = divmod(number, len(self.phases))
        return ExamplePosition(phase, *divmod(rest, max(len(phase.chunks) for phase in self.phases)))

    def epochs(self, step: int) -> float:
        done = 0.0
        for number, phase in enumerate(self.phases):
            first = self._ends[number - 1] if number else 0
            done += max(min(step, self._ends[number]) - first, 0) * self._accumulation / phase.batches
        return round(done, 4)

    def tokens(self, numbers: Sequence[int]) -> int:
        """See `Order`; special tokens are not counted."""
        return sum(self.phases[place.phase].chunks[place.chunk].size for place in map(self.place, numbers))


def read_lengths(text: str | int, limit: int) -> list[Length]:
    """Parses the requested lengths: one number, such as `128`, or phases with shares, such as `128:0.9,512:0.1`.

    `limit` is the maximum number of tokens that the model accepts.
    """
    lengths, parts = [], str(text).split(",")
    check_listed("length", parts)
    for part in parts:
        tokens, colon, share = part.partition(":")
        try:
            lengths.append(Length(int(tokens), float(share) if colon else 1.0))
        except ValueError:
            raise ArgumentError(
                f"`length` is {text!r:.60}, expected a number of tokens, or phases such as 128:0.9,512:0.1"
            ) from None
    total = sum(length.share for length in lengths)
    if not math.isclose(total, 1.0, abs_tol=1e-6) or any(not 0 < length.share <= 1 for length in lengths):
        raise ArgumentError(
            f"`length` is {text!r:.60}, whose shares add up to {total:g}, expected shares above 0 that add up to 1"
        )
    for length in lengths:
        if not 8 <= length.tokens <= limit:
            raise ArgumentError(
                f"`length` is {length.tokens}, expected 8 to {limit} tokens, the maximum length of the model"
            )
    return lengths
