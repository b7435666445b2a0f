"""Makes the report on the data from the examples and their lengths."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from mlxbert.data.columns import TaskColumns
from mlxbert.train.data.data_checks import find_warnings
from mlxbert.train.data.data_report import DataReport, SplitReport
from mlxbert.train.data.labelled_texts import LabelledText


@dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """One split of the data, for `describe`."""

    name: str  # `train`, `valid` or `test`
    files: tuple[str, ...]  # the files that the split was read from
    records: Sequence[LabelledText]  # the examples
    lengths: Sequence[int]  # the length of each record in tokens before truncation, special tokens included
    truncated: int  # the number of records that are truncated


def describe(
    train: SplitSummary,
    valid: SplitSummary | None,
    *,
    warn: Callable[[SplitReport, Sequence[LabelledText]], Iterable[str]],
    columns: TaskColumns,
    split_off: float | None,
    max_length: int,
    unused: tuple[str, ...] = (),
) -> DataReport:
    """Makes the report on training and validation data.

    Args:
        split_off: The share of the training data that became validation data; `None` if validation data were
            given.
    """
    parts = [train] if valid is None else [train, valid]
    splits = tuple(map(_describe, parts))
    leaked, only_in = 0, dict[str, tuple[str, ...]]()
    if valid is not None:
        train_keys = {record.key for record in train.records}
        leaked = sum(record.key in train_keys for record in valid.records)
        train_labels, valid_labels = (split.labels for split in splits)
        only_in = {
            train.name: tuple(label for label in train_labels if label not in valid_labels),
            valid.name: tuple(label for label in valid_labels if label not in train_labels),
        }
    report = DataReport(
        columns=columns.to_dict(),
        guessed=columns.guessed,
        splits=splits,
        split_off=split_off,
        leaked=leaked,
        only_in=only_in,
        max_length=max_length,
        warnings=(),
        unused=unused,
    )
    return replace(report, warnings=tuple(find_warnings(report, warn(splits[0], train.records))))


def _describe(part: SplitSummary) -> SplitReport:
    labels = Counter(name for record in part.records for name in record.names)
    numbers = [record.label for record in part.records if isinstance(record.label, float)]
    duplicates, conflicts = _duplicates(part.records)
    return SplitReport(
        name=part.name,
        files=part.files,
        examples=len(part.records),
        labels=dict(sorted(labels.items(), key=lambda item: (-item[1], item[0]))),
        range=(min(numbers), math.fsum(numbers) / len(numbers), max(numbers)) if numbers else None,
        tokens=_spread(part.lengths),
        truncated=part.truncated,
        duplicates=duplicates,
        conflicts=conflicts,
    )


def _duplicates(records: Sequence[LabelledText]) -> tuple[int, int]:
    first: dict[Hashable, Hashable] = {}
    duplicates = conflicts = 0
    for record in records:
        label = frozenset(record.label) if isinstance(record.label, tuple) else record.label
        if record.key in first:
            duplicates += 1
            conflicts += first[record.key] != label
        else:
            first[record.key] = label
    return duplicates, conflicts


def _spread(lengths: Sequence[int]) -> tuple[int, int, int]:
    """Returns the median, the 95th percentile and the maximum of the lengths of inputs."""
    ordered = sorted(lengths) or [0]
    return ordered[(len(ordered) - 1) // 2], ordered[math.ceil(0.95 * len(ordered)) - 1], ordered[-1]
