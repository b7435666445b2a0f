"""The parameters that a run trains, with their weight decays and the factors of their learning rates.

Of the word embeddings, only the rows that the training data use are trained. The other rows have no gradient: AdamW
merely shrinks them by the weight decay. So they need neither gradients nor optimizer state, which would take most of
the memory of a run with a multilingual vocabulary of 250,000 tokens. The result is the same as if all rows were
trained.

Shapes: V vocabulary, K used tokens, E embedding size.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mlxbert.config import EncoderConfig, RelativeBias
from mlxbert.errors import InputError
from mlxbert.machine.device import mx, nn
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads.masked_lm import MaskedLM
from mlxbert.train.loop.adamw import Arrays
from mlxbert.train.loop.data_order import Training
from mlxbert.train.options.loop_options import TrainingOptions

TABLE = "encoder.embeddings.word.weight"


class SparseRows:
    """The rows of a table of embeddings that the training data use, renumbered from 0.

    Ids up to `fixed`, among them the padding id, keep their numbers: some models compute positions from the padding id.
    """

    def __init__(self, table: mx.array, used: Iterable[int], fixed: int) -> None:
        ids = sorted({*used, *range(fixed + 1)})  # the first ids are special tokens in every vocabulary
        numbers = [-1] * table.shape[0]
        for number, token in enumerate(ids):
            numbers[token] = number
        self._table, self._ids, self._numbers, self._used = table, mx.array(ids), mx.array(numbers), frozenset(ids)

    def take(self) -> mx.array:
        """Returns the used rows of the table, (K, E)."""
        return self._table[self._ids]

    def renumbered(self, batch: Batch) -> Batch:
        """Replaces each token id of a batch with the index of its row among the used rows."""
        if batch.ids is not None and (unused := batch.ids.tokens - self._used):
            raise InputError(f"`input_ids` contain {min(unused)}, which is not a token of the training data")
        return replace(batch, input_ids=self._numbers[batch.input_ids])

    def whole(self, parameters: Arrays, decay: float) -> Arrays:
        """Returns the parameters with the full table in place of the used rows.

        Weight decay has shrunk the other rows by `decay`, the product of the factors of all updates.
        """
        table = self._table if decay == 1 else self._table * decay
        table = mx.array(table)  # a copy, because rows are assigned
        table[self._ids] = parameters[TABLE]
        return {**parameters, TABLE: table}


@dataclass(frozen=True)
class TrainedParameters:
    """The division of a network into trained and frozen parameters; `RunState` holds the values of the trained ones."""

    frozen: Arrays
    rows: SparseRows | None  # the trained rows of the word embeddings; `None` if all rows, or no rows, are trained
    factors: dict[str, float]  # the factor of each trained parameter's learning rate
    decays: dict[str, float]  # the weight decay of each trained parameter
    count: int  # the number of scalar parameters in the network, trained or not

    @property
    def frozen_count(self) -> int:
        """The number of scalar parameters that are not trained."""
        return sum(array.size for array in self.frozen.values())

    def whole(self, parameters: Arrays, decay: float) -> Arrays:
        """Returns the trained parameters of the network, including all rows of its word embeddings."""
        return parameters if self.rows is None else self.rows.whole(parameters, decay)

    def kept_rows(self, lr: float) -> float:
        """Returns the factor by which the weight decay of an update shrinks the untrained rows."""
        return 1 - lr * self.factors.get(TABLE, 0.0) * self.decays.get(TABLE, 0.0)


def split_parameters(training: Training) -> tuple[TrainedParameters, Arrays]:
    """Selects the trained parameters of a run, and returns them with their values before the first update."""
    network, options = training.network, training.options
    parameters: Arrays = dict(nn.utils.tree_flatten(network.parameters()))
    layers = network.encoder.config.num_stored_layers
    frozen = {
        name: array for name, array in parameters.items()
        if is_frozen(name, layers, options) or (training.trained is not None and name not in training.trained)
    }  # fmt: skip
    trained = {name: array for name, array in parameters.items() if name not in frozen}
    rows = _used_rows(training, trained[TABLE]) if TABLE in trained else None
    if rows is not None:
        trained[TABLE] = rows.take()
    factors = depth_factors(list(trained), layers, options)
    decays = weight_decays(trained, network.encoder.config, options)
    count = sum(array.size for array in parameters.values())
    return TrainedParameters(frozen, rows, factors, decays, count), trained


def _used_rows(training: Training, table: mx.array) -> SparseRows | None:
    """Returns the rows of the word embeddings that the examples use; `None` if training may use any row."""
    objective, config = training.objective, training.network.encoder.config
    decodes = any(isinstance(module, MaskedLM) for module in training.network.modules())
    if decodes or objective.all_words:  # a decoder uses the whole table
        return None
    used = {token for example in training.examples for token in objective.tokens(example)}
    positions = config.positions.table  # some models count positions from the id of padding
    last = max(config.pad_token_id, 0 if positions is None else positions.first_position - 1)
    return SparseRows(table, used, last)


_POSITION_BIASES = "encoder.positions.weight"
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


def weight_decays(parameters: Arrays, config: EncoderConfig, options: TrainingOptions) -> dict[str, float]:
    """Returns the weight decay of each parameter: `options.weight_decay` for matrices, 0 for biases and norms."""
    biases = _POSITION_BIASES if isinstance(config.positions, RelativeBias) else None  # a table, but of biases
    matrices = {name for name, array in parameters.items() if array.ndim > 1 and name != biases}
    return {name: options.weight_decay if name in matrices else 0.0 for name in parameters}


def depth_factors(names: list[str], num_layers: int, options: TrainingOptions) -> dict[str, float]:
    """Returns the factor of each parameter's learning rate.

    It is 1 for heads, `layer_decay` for the last layer, the square of `layer_decay` for the layer below, and so on.
    """
    return {name: options.layer_decay ** (num_layers + 1 - _depth(name, num_layers)) for name in names}


def _depth(name: str, num_layers: int) -> int:
    """Returns the depth of a parameter: 0 for embeddings, N for layer N (from 1), `num_layers + 1` for heads."""
    if match := _LAYER.match(name):
        return int(match[1]) + 1
    below = ("encoder.embeddings.", "encoder.positions.", "encoder.convolution.")
    return 0 if name.startswith(below) else num_layers + 1


def is_frozen(name: str, num_layers: int, options: TrainingOptions) -> bool:
    """Returns whether `freeze` excludes a parameter from training.

    Only the embeddings and the first layers can be excluded.
    """
    return options.freeze > 0 and _depth(name, num_layers) <= min(options.freeze, num_layers)
