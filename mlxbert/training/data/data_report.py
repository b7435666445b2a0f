"""What is known about the data before training: balance, lengths, duplicates, leaks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxbert.results.brief import Brief


@dataclass(frozen=True, kw_only=True)
class SplitReport(Brief):
    """One part of the data.

    Attributes:
        name: `train`, `valid` or `test`.
        files: Where it comes from.
        examples: How many there are.
        labels: Examples by label, the most frequent first, then by name; empty for numbers.
        range: Smallest, mean and largest of the numbers to predict; `None` for labels.
        tokens: Median, 95th percentile and longest input, in tokens, before truncation.
        truncated: Inputs that are longer than `max_length`.
        duplicates: Examples whose text (and pair) stood earlier in the same part.
        conflicts: Duplicates with another label than the earlier one.
    """

    name: str
    files: tuple[str, ...]
    examples: int
    labels: Mapping[str, int]
    range: tuple[float, float, float] | None
    tokens: tuple[int, int, int]
    truncated: int
    duplicates: int
    conflicts: int


@dataclass(frozen=True, kw_only=True)
class DataReport(Brief):
    """What the data look like.

    Attributes:
        columns: What is read from where: `{"text": "sentence", "label": "label"}`.
        guessed: Which of these were guessed.
        splits: The parts: training data first, then validation data.
        split_off: The share of the training data that became validation data; `None` where there is a file.
        leaked: Validation examples whose text is in the training data, too.
        only_in: Labels that occur in one part only: `{"train": ["x"], "valid": []}`.
        max_length: Inputs are truncated to that many tokens.
        warnings: What a careful person would look at first, in sentences.
        unused: Columns that are not read.
        facts: What else is said of the data, by name: `{"tags": "iob1, written as iob2"}`.
    """

    columns: Mapping[str, str]
    guessed: tuple[str, ...]
    splits: tuple[SplitReport, ...]
    split_off: float | None
    leaked: int
    only_in: Mapping[str, tuple[str, ...]]
    max_length: int
    warnings: tuple[str, ...]
    unused: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
