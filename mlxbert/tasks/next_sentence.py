"""Next-sentence prediction: whether one text follows another."""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from mlxbert.errors import InputError
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import probabilities
from mlxbert.results.result import Failure
from mlxbert.results.text_relations import NextSentence
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import NextSentenceOptions
from mlxbert.tasks.task import PreparedItem, Task, check_finite, checked_pair, is_pair, one_or_many

Pair = tuple[str, str]
PairJob = PreparedItem[Pair]


class NextSentenceTask(Task[Pair, PairJob, float, NextSentence]):
    """Computes the probability that the second text of a pair follows the first."""

    name = "next-sentence"

    def is_item(self, value: object) -> bool:
        return is_pair(value)

    def prepare(self, item: Pair) -> PairJob:
        pair = checked_pair(item, "a pair of texts")
        encoding = self.encode(*pair)
        return PreparedItem(pair, [encoding], encoding.truncated)

    def forward(self, batch: Batch, parts: Sequence[tuple[PairJob, int]]) -> mx.array:
        """Returns the probabilities (B,)."""
        scores = probabilities(self.model.network.logits("next_sentence", batch))
        return scores[:, 0]

    def read(self, arrays: mx.array, parts: Sequence[tuple[PairJob, int]]) -> list[float]:
        return cast(list[float], arrays.tolist())

    def result(self, job: PairJob, outputs: Sequence[float]) -> NextSentence:
        check_finite([*outputs])
        return NextSentence(*job.item, outputs[0] > 0.5, outputs[0], job.truncated)


@takes_keywords
def next_sentence(
    model: Model, pairs: Pair | Iterable[Pair | InputError], *, options: NextSentenceOptions, call: CallOptions
) -> NextSentence | Iterator[NextSentence | Failure]:
    """Predicts for pairs of texts whether the second follows the first.

    Example:
        >>> mlxbert.next_sentence(mlxbert.load(), ("The cat was hungry.", "It went to the kitchen.")).is_next

    Args:
        model: A model with a next-sentence head.
        pairs: One pair, a tuple of two texts; or any number of pairs.
        options: See `NextSentenceOptions`.
        call: See `CallOptions`.

    Returns:
        One result for one pair; for several an iterator in their order, in constant memory.

    Raises:
        InputError: The input is not a pair of texts, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
    return one_or_many(NextSentenceTask, model, pairs, options, call, name="pairs")
