"""Tasks that only the protocol of TEI has: hidden states of all tokens, and logits of a classifier."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.tasks.classify import ClassifyTask
from mlxbert.tasks.embed import EmbedTask
from mlxbert.tasks.options import EmbedOptions
from mlxbert.tasks.task import RESULT_BYTES, PreparedItem, check_no_window
from mlxbert.text.usage import Usage

if TYPE_CHECKING:
    from mlxbert.tasks.embed import Vector


class EmbedTokensTask(EmbedTask):
    """Computes the vectors (L, D) of the L tokens of a text and its prompt."""

    def __init__(self, model: Model, options: EmbedOptions, *, usage: Usage | None = None) -> None:
        check_no_window(options)
        super().__init__(model, options, usage=usage)

    @property
    def output_bytes(self) -> int:
        return 4 * self.model.config.hidden_size * self.tokenizer.max_length

    def size(self, item: str, units: int) -> int:
        return RESULT_BYTES + 4 * self.model.config.hidden_size * units

    def most_units(self, item: str) -> int:
        return min(self.prompt_length + super().most_units(item), self.tokenizer.max_length)

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[str], int]]) -> mx.array:
        """Returns the hidden states (B, L, D)."""
        output = self.model.network.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return output.last_hidden_state.astype(mx.float32)

    def read(self, arrays: mx.array, parts: Sequence[tuple[PreparedItem[str], int]]) -> Sequence["Vector"]:
        """Returns the token vectors of each row, without padding."""
        rows = super().read(arrays, parts)
        return [row[: len(job.encodings[number])] for row, (job, number) in zip(rows, parts, strict=True)]


class ClassifyLogitsTask(ClassifyTask):
    """Classification with the logits of the model as scores."""

    logits = True
