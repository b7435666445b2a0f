"""Checks the data before training, with errors and warnings."""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mlxbert.errors import InputError
from mlxbert.invisible_characters import without_invisible
from mlxbert.train.data.data_report import DataReport, SplitReport
from mlxbert.train.data.labelled_texts import LabelledText

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


class Named(Protocol):
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
            f"label column {column!r} has {problem}, expected labels", hint="choose the column with label_column="
        )


def check_labels(labels: Collection[str], records: Iterable[Named]) -> None:
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
class Unknown:
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


def find_unknown(is_known: Callable[[str], object], records: Iterable[Named]) -> Unknown | None:
    """Finds the unknown labels in records; returns `None` if all labels are known."""
    place, counts = "", Counter[str]()
    for record in records:
        names = {name for name in record.names if not is_known(name)}
        counts.update(names)
        place = place or (record.place if names else "")
    return Unknown(place, dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))) if counts else None


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
            f"Most labels are lists, such as {_quoted(next(iter(lists)))}, which combine the same few names; train "
            "'multilabel' instead if each name is a label."
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
    """Returns the labels that contain commas, if they look like lists of labels; otherwise an empty list.

    Labels look like lists if most examples have a label with a comma, and if splitting all labels with commas gives
    fewer distinct parts than there are labels with commas.
    """
    lists = [name for name in labels if "," in name]
    parts = {part.strip() for name in lists for part in name.split(",")}
    common = 2 * sum(labels[name] for name in lists) > sum(labels.values())
    return lists if common and len(parts) < len(lists) else []


def _about_texts(split: SplitReport, max_length: int) -> Iterator[str]:
    if split.truncated > _TRUNCATED * split.examples:
        far = "; most of each is ignored, so a smaller max_length= trains faster" * (split.tokens[0] > 2 * max_length)
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
