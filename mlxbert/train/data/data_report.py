"""The report on the data before training: balance, lengths, duplicates, leaks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxbert.results.short_repr import Brief


@dataclass(frozen=True, kw_only=True)
class SplitReport(Brief):
    """The report on one split of the data.

    Attributes:
        name: `train`, `valid` or `test`.
        files: The files that the split was read from.
        examples: The number of examples.
        labels: The number of examples of each label, the most frequent label first, then by name. Empty if numbers are
            predicted.
        range: Minimum, mean and maximum of the numbers to predict; `None` for labels.
        tokens: Median, 95th percentile and maximum of the input lengths, in tokens, before truncation.
        truncated: The number of inputs that are longer than `max_length`.
        duplicates: The number of examples whose text (and pair) occurred earlier in the same split.
        conflicts: The number of duplicates with a different label than the first occurrence.
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
    """The report on training and validation data.

    Attributes:
        columns: The column that is read for each role: `{"text": "sentence", "label": "label"}`.
        guessed: The roles whose column was guessed, because the caller named none.
        splits: The reports on the splits: training data first, then validation data.
        split_off: The share of the training data that became validation data; `None` if validation data were given.
        leaked: The number of validation examples whose text also occurs in the training data.
        only_in: The labels that occur in only one of the splits: `{"train": ["x"], "valid": []}`.
        max_length: The length in tokens to which inputs are truncated.
        warnings: Warnings about the data, each a complete sentence.
        unused: The columns that are not read.
        facts: Further facts, keyed by name: `{"tags": "iob1, written as iob2"}`.
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
