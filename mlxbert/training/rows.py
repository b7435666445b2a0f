"""Trains only the rows of the word embeddings that the training data use.

The other rows have no gradient: AdamW only shrinks them by the weight decay. So they need no gradients and no optimizer
state, which for a multilingual vocabulary of 250,000 tokens is most of the memory of a run. The result is that of
training all rows.

Shapes: V vocabulary, K used tokens, E embedding size.
"""

from collections.abc import Iterable
from dataclasses import replace

from mlxbert.errors import InputError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.training.optimizer import Arrays

TABLE = "encoder.embeddings.word.weight"


class SparseRows:
    """The used rows of a table, and which they are.

    Args:
        table: (V, E).
        used: Token ids of the training data.
        fixed: Ids up to this one keep their numbers: that of padding, on which the positions of some models depend.
    """

    def __init__(self, table: mx.array, used: Iterable[int], fixed: int) -> None:
        ids = sorted({*used, *range(fixed + 1)})  # the first ids are special tokens in every vocabulary
        numbers = [-1] * table.shape[0]
        for number, token in enumerate(ids):
            numbers[token] = number
        self._table, self._ids, self._numbers, self._used = table, mx.array(ids), mx.array(numbers), frozenset(ids)

    def take(self) -> mx.array:
        """The used rows, (K, E)."""
        return self._table[self._ids]

    def renumbered(self, batch: Batch) -> Batch:
        """A batch whose ids are rows of the small table."""
        if batch.ids is not None and (other := batch.ids.tokens - self._used):
            raise InputError(f"input_ids have {min(other)}, which is not a token of the training data")
        return replace(batch, input_ids=self._numbers[batch.input_ids])

    def whole(self, parameters: Arrays, decay: float) -> Arrays:
        """Parameters with the whole table in place of the used rows.

        Args:
            parameters: Those of a run.
            decay: The factor of the other rows: the product of what weight decay leaves in every update.
        """
        table = self._table if decay == 1 else self._table * decay
        table = mx.array(table)  # not the caller's: rows are assigned
        table[self._ids] = parameters[TABLE]
        return {**parameters, TABLE: table}
