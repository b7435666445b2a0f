"""The report on the data before training: balance, lengths, duplicates, leaks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxbert.results.short_repr import Brief


@dataclass(frozen=True, kw_only=True)
class SplitReport(Brief):
    """The report on one split of the data."""

    name: str  # `train`, `valid` or `test`
    files: tuple[str, ...]  # the files that the split was read from
    examples: int  # the number of examples
    # The number of examples of each label, the most frequent label first, then by name. Empty if numbers are predicted.
    labels: Mapping[str, int]
    range: tuple[float, float, float] | None  # minimum, mean and maximum of the numbers to predict; `None` for labels
    # Median, 95th percentile and maximum of the input lengths, in tokens, before truncation.
    tokens: tuple[int, int, int]
    truncated: int  # the number of inputs that are longer than `max_length`
    duplicates: int  # the number of examples whose text (and pair) occurred earlier in the same split
    conflicts: int  # the number of duplicates with a different label than the first occurrence


@dataclass(frozen=True, kw_only=True)
class DataReport(Brief):
    """The report on training and validation data."""

    columns: Mapping[str, str]  # the column that is read for each role: `{"text": "sentence", "label": "label"}`
    guessed: tuple[str, ...]  # the roles whose column was guessed, because the caller named none
    splits: tuple[SplitReport, ...]  # the reports on the splits: training data first, then validation data
    # The share of the training data that became validation data; `None` if validation data were given.
    split_off: float | None
    leaked: int  # the number of validation examples whose text also occurs in the training data
    # The labels that occur in only one of the splits: `{"train": ["x"], "valid": []}`.
    only_in: Mapping[str, tuple[str, ...]]
    max_length: int  # the length in tokens to which inputs are truncated
    warnings: tuple[str, ...]  # warnings about the data, each a complete sentence
    unused: tuple[str, ...] = ()  # the columns that are not read
    # Further facts, keyed by name: `{"tags": "iob1, written as iob2"}`.
    facts: Mapping[str, str] = field(default_factory=dict)
