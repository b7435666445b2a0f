"""Checks the data before training, and reports on them: balance, lengths, duplicates, leaks."""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from mlxbert.errors import InputError
from mlxbert.results.json import without_invisible
from mlxbert.results.short_repr import Brief
from mlxbert.train.data.columns import TaskColumns
from mlxbert.train.data.labelled_texts import SEPARATORS, LabelledText


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


FEW = 16  # with at most this many examples of a label, results vary much from run to run
_DOMINANT = 0.8  # share of the examples at which a label hides the others
_IMBALANCE = 20  # ratio of the most frequent to the rarest label
_TRUNCATED = 0.05  # share of truncated inputs that causes a warning
_CLASSES = 10  # at most this many different whole numbers look like classes
_NUMBERS = 20  # more than this many labels look like measurements if all are numbers
_RECORDS, _LONG = 20, 100  # minimum number of records to check; mean length from which labels are texts
_UNKNOWN = 5  # number of unknown labels that an error names
_BOOLEANS = {"true": "1", "false": "0"}  # booleans in JSON, and their numbers in other files
_NAMED = 3  # number of labels that a warning names


class LocatedRecord(Protocol):
    """A record with a location and labels."""

    @property
    def place(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...


def first_place(records: Sequence[LabelledText]) -> str:
    """Returns the location to name in errors that concern all records: `train.csv, line 2 and below`."""
    return f"{records[0].place} and below" if records else "the training data"


def check_label_column(records: Sequence[LabelledText], column: str) -> None:
    """Raises `InputError` if the label column seems to hold texts instead of class names."""
    counts = Counter(name for record in records for name in record.names)
    once = sum(count == 1 for count in counts.values())
    length = sum(len(name) * count for name, count in counts.items()) / max(len(records), 1)
    if len(records) >= _RECORDS and (2 * once > len(records) or length > _LONG):
        problem = f"{len(counts):,} different values in {len(records):,} records"
        problem += f" ({length:.0f} characters long on average)" if length > _LONG else ""
        raise InputError(
            f"label column {column!r} has {problem}, expected labels", hint="choose the column with `label_column=`"
        )


def check_labels(labels: Collection[str], records: Iterable[LocatedRecord]) -> None:
    """Raises `InputError` if validation records have labels that the training data do not have."""
    unknown = find_unknown({*labels}.__contains__, records)
    if unknown is not None:
        listed = ", ".join(map(repr, sorted(labels)[:20])) + (", …" if len(labels) > 20 else "")
        pairs = ((name, label) for name in unknown.labels for label in sorted(labels) if _fold(label) == _fold(name))
        name, similar = next(pairs, (None, None))
        raise InputError(
            f"{unknown.place}: {unknown} {_is(len(unknown.labels))} not in the training data, which has the labels "
            f"{listed}",
            hint=None if name is None else f"write {similar!r} instead of {name!r}, as in the training data",
        )


@dataclass(frozen=True)
class UnknownLabels:
    """Unknown labels. In string form: `labels 'x' (3 records), 'y' (1 record)`."""

    place: str  # the location of the first record that has an unknown label
    # The number of records with each unknown label, keyed by label. The most frequent label comes first.
    labels: Mapping[str, int]

    def __str__(self) -> str:
        named = [f"{_quoted(name)} ({_count(count, 'record')})" for name, count in [*self.labels.items()][:_UNKNOWN]]
        noun = "label" if len(self.labels) == 1 else "labels"
        return f"{noun} {', '.join(named)}{_more(len(self.labels) - _UNKNOWN)}"

    def of_no_model(self) -> str:
        """Returns the beginning of an error message: `label 'x' (3 records) is not a label of the model`."""
        return f"{self} {'is not a label' if len(self.labels) == 1 else 'are not labels'} of the model"


def find_unknown(is_known: Callable[[str], object], records: Iterable[LocatedRecord]) -> UnknownLabels | None:
    """Finds the unknown labels in records; returns `None` if all labels are known."""
    place, counts = "", Counter[str]()
    for record in records:
        names = {name for name in record.names if not is_known(name)}
        counts.update(names)
        place = place or (record.place if names else "")
    return UnknownLabels(place, dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))) if counts else None


def _fold(label: str) -> str:
    """Normalizes a label: `1`, `1.0` and `true` become the same, and so do the Unicode forms of `café`."""
    folded = " ".join(unicodedata.normalize("NFD", without_invisible(label)).casefold().split())
    number = _number(_BOOLEANS.get(folded, folded))
    return folded if number is None else repr(number)


def _number(label: str) -> float | None:
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def find_warnings(report: DataReport, about_labels: Iterable[str]) -> Iterator[str]:
    """Yields warnings about the data, each a complete sentence."""
    yield from about_labels
    for split in report.splits:
        yield from _about_texts(split, report.max_length)
    if report.leaked:
        yield (
            f"{_count(report.leaked, 'validation example')} of {report.splits[1].examples:,} "
            f"{_is(report.leaked)} also in the training data, so the score will look better than it is."
        )
    for name, labels in report.only_in.items():
        if labels:
            yield f"{_listed(labels)} {_is(len(labels))} in {name} only."


def few_examples(train: SplitReport, advice: str | None) -> Iterator[str]:
    """Yields a warning if labels have few examples; the warning ends with `advice`."""
    few = {name: count for name, count in train.labels.items() if count <= FEW}
    if few:
        has = "has" if len(few) == 1 else "have"
        yield (
            f"{len(few)} of {_count(len(train.labels), 'label')} {has} {FEW} training examples or fewer "
            f"({_listed([*few][::-1])}), so scores will vary much from run to run{f'; {advice}' if advice else ''}."
        )


def dominant_label(train: SplitReport) -> Iterator[str]:
    """Yields a warning if nearly all examples have the same label."""
    most_common, count = next(iter(train.labels.items()))
    if count >= _DOMINANT * train.examples:
        yield (
            f"{count / train.examples:.0%} of the training examples are {_quoted(most_common)}, so a model that always "
            "predicts this label is right as often; look at macro F1 rather than accuracy."
        )


def imbalance(train: SplitReport, advice: str) -> Iterator[str]:
    """Yields a warning if one label has many times as many examples as another; the warning ends with `advice`."""
    most_common, largest = next(iter(train.labels.items()))
    rarest, smallest = list(train.labels.items())[-1]
    if largest >= _IMBALANCE * smallest:
        times = f"{largest // smallest} times as many training examples as {_quoted(rarest)}"
        yield f"{_quoted(most_common)} has {times}: {advice}"


def alike_names(labels: Iterable[str]) -> Iterator[str]:
    """Yields a warning if several labels probably mean the same, such as `Yes` and `yes`."""
    first: dict[str, str] = {}
    alike = [(other, name) for name in labels if (other := first.setdefault(_fold(name), name)) != name]
    if alike:
        pairs = "; ".join(map(_distinguished, alike[:_NAMED]))
        yield f"Labels that look or mean the same are different classes: {pairs}{_more(len(alike) - _NAMED)}."


def other_than_classes(labels: Mapping[str, int]) -> Iterator[str]:
    """Yields warnings if the classes look like lists of labels, or like measurements."""
    if lists := _label_lists(labels):
        yield (
            f"Labels such as {_quoted(lists[0])} look like lists that combine the same few names; train 'multilabel' "
            "instead if each name is a label."
        )
    if len(labels) > _NUMBERS and all(_number(name) is not None for name in labels):
        yield f"The {len(labels):,} labels are all numbers; train 'regress' instead if the numbers measure something."


def other_than_numbers(records: Sequence[LabelledText]) -> Iterator[str]:
    """Yields a warning if the numbers to predict look like classes."""
    values = {record.label for record in records if isinstance(record.label, float)}
    if len(values) <= _CLASSES and all(value.is_integer() for value in values):
        listed = ", ".join(f"{value:.0f}" for value in sorted(values))
        yield f"The only numbers are {listed}; train 'classify' instead if the numbers stand for classes."


def _label_lists(labels: Mapping[str, int]) -> list[str]:
    """Returns the labels that look like lists: most of their parts are labels, too, or parts of other lists."""
    for mark in SEPARATORS:
        lists = [name for name in labels if mark in name]
        counts = Counter(part for name in labels for part in {part.strip() for part in name.split(mark)})
        parts = {part.strip() for name in lists for part in name.split(mark)}
        if 2 * sum(counts[part] > 1 for part in parts) > len(parts):
            return lists
    return []


def _about_texts(split: SplitReport, max_length: int) -> Iterator[str]:
    if split.truncated > _TRUNCATED * split.examples:
        far = "; most of each is ignored, so a smaller `max_length=` trains faster" * (split.tokens[0] > 2 * max_length)
        yield (
            f"{split.truncated / split.examples:.0%} of the inputs of {split.name} are longer than {max_length} tokens "
            f"and will be truncated{far}."
        )
    if split.conflicts:
        yield (
            f"{_count(split.conflicts, 'example')} of {split.name} {_is(split.conflicts)} labelled differently from "
            "an earlier copy of the same text."
        )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _quoted(name: str) -> str:
    return repr(name if len(name) <= 40 else name[:39] + "…")


def _distinguished(pair: tuple[str, str]) -> str:
    """Joins two labels for a warning. If they look the same, both are written in ASCII, which shows the difference."""
    looks = {unicodedata.normalize("NFD", without_invisible(name)) for name in pair}
    return " and ".join(map(_quoted if len(looks) > 1 else ascii, pair))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names[:_NAMED])) + _more(len(names) - _NAMED)


def _more(number: int) -> str:
    return f" and {number} more" if number > 0 else ""


def describe(
    splits: Sequence[SplitReport],
    records: Sequence[Sequence[LabelledText]],
    *,
    warn: Callable[[SplitReport, Sequence[LabelledText]], Iterable[str]],
    columns: TaskColumns,
    split_off: float | None,
    max_length: int,
    unused: tuple[str, ...] = (),
) -> DataReport:
    """Makes the report on training and validation data.

    Args:
        splits: The report on the training data and, if there are any, on the validation data.
        records: The records of each of these splits.
        split_off: The share of the training data that became validation data; `None` if validation data were given.
    """
    leaked, only_in = 0, dict[str, tuple[str, ...]]()
    if len(splits) > 1:
        train_keys = {record.key for record in records[0]}
        leaked = sum(record.key in train_keys for record in records[1])
        only_in = {
            split.name: tuple(label for label in split.labels if label not in other.labels)
            for split, other in (splits, splits[::-1])
        }
    report = DataReport(
        columns=columns.to_dict(),
        guessed=columns.guessed,
        splits=tuple(splits),
        split_off=split_off,
        leaked=leaked,
        only_in=only_in,
        max_length=max_length,
        warnings=(),
        unused=unused,
    )
    return replace(report, warnings=tuple(find_warnings(report, warn(splits[0], records[0]))))


def describe_split(
    name: str, files: tuple[str, ...], records: Sequence[LabelledText], lengths: Sequence[int], truncated: int
) -> SplitReport:
    """Makes the report on a split, given the length of each record in tokens before truncation."""
    labels = Counter(name for record in records for name in record.names)
    numbers = [record.label for record in records if isinstance(record.label, float)]
    duplicates, conflicts = _duplicates(records)
    return SplitReport(
        name=name,
        files=files,
        examples=len(records),
        labels=dict(sorted(labels.items(), key=lambda item: (-item[1], item[0]))),
        range=(min(numbers), math.fsum(numbers) / len(numbers), max(numbers)) if numbers else None,
        tokens=_spread(lengths),
        truncated=truncated,
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
