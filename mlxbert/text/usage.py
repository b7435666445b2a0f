"""Counts of the inputs, tokens and batches of tasks."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Usage:
    """Counts of the work of tasks.

    Attributes:
        inputs: Inputs of the model: texts or windows of texts.
        tokens: Tokens of the inputs, special tokens included.
        padded_tokens: Tokens of the batches, padding included.
        batches: Forward passes.
        texts: Texts with a result.
        truncated: Texts that were truncated to fit the model.
        only_unknown: Texts without any token of the vocabulary: with unknown tokens only, or with no tokens.
    """

    inputs: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    batches: int = 0
    texts: int = 0
    truncated: int = 0
    only_unknown: int = 0

    @property
    def padding(self) -> float:
        """The share of padding among `padded_tokens`, 0 to 1."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    def add(self, lengths: Sequence[int], padded: int, rows: int | None = None) -> None:
        """Counts a batch of inputs of these lengths, each padded to `padded` tokens; `rows` if it has padding rows."""
        self.inputs += len(lengths)
        self.tokens += sum(lengths)
        self.padded_tokens += padded * (len(lengths) if rows is None else rows)
        self.batches += 1
