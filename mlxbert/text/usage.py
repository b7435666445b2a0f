"""Counts inputs, tokens and batches of tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass
class Usage:
    """Counts of the work that tasks have done.

    Attributes:
        inputs: Number of model inputs: texts, or windows of texts.
        tokens: Number of tokens in the inputs, special tokens included.
        padded_tokens: Number of tokens in the batches, padding included.
        batches: Number of forward passes.
        texts: Number of texts that have a result.
        truncated: Number of texts that were truncated to fit the model.
        only_unknown: Number of texts without any token of the vocabulary: they have only unknown tokens, or no tokens.
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

    def include(self, other: "Usage") -> None:
        """Adds the counts of another `Usage`."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def add(self, lengths: Sequence[int], padded: int, rows: int | None = None) -> None:
        """Counts a batch: inputs of these lengths, padded to `padded` tokens each, and to `rows` rows if it is set."""
        self.inputs += len(lengths)
        self.tokens += sum(lengths)
        self.padded_tokens += padded * (len(lengths) if rows is None else rows)
        self.batches += 1
