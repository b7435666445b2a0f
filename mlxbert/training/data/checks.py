"""What is wrong with data, or looks as if it were, before training."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mlxbert.data.labelled import Labelled
from mlxbert.errors import InputError
from mlxbert.training.data.report import DataReport, SplitReport

FEW = 16  # examples of a label, up to which results differ much from run to run
_DOMINANT = 0.8  # share of the examples that makes a label hide the others
_IMBALANCE = 20  # times as many examples as the rarest label has
_TRUNCATED = 0.05  # share of the inputs
_CLASSES = 10  # whole numbers, up to which they look like names of classes
_NUMBERS = 20  # labels, from which those that are numbers look like measurements
_NAMED = 3  # labels that a sentence names


def check_examples(records: Sequence[Labelled], task: str) -> None:
    """Refuses training data from which nothing can be learned.

    Raises:
        InputError: There is only one class, no label at all, or only one number.
    """
    labels = {name for record in records for name in record.names}
    if task == "classify" and len(labels) < 2:
        raise InputError(
            f"{_place(records)}: every example has the label {min(labels, default='')!r}, expected two labels or more"
        )
    if task == "multilabel" and not labels:
        raise InputError(f"{_place(records)}: no example has a label")
    if task == "regress" and len({record.label for record in records}) < 2:
        raise InputError(f"{_place(records)}: every example has the number {records[0].label}, expected different ones")


def _place(records: Sequence[Labelled]) -> str:
    return f"{records[0].place} and below" if records else "the training data"


def check_labels(labels: Collection[str], records: Iterable[Labelled]) -> None:
    """Refuses examples with a label that the model does not have.

    Args:
        labels: Those that it has.
        records: Validation or test data.

    Raises:
        InputError: It names the first such label and where it stands.
    """
    known = {*labels}
    for record in records:
        for name in record.names:
            if name not in known:
                shown = ", ".join(map(repr, sorted(known)[:20])) + (", …" if len(known) > 20 else "")
                similar = next((label for label in sorted(known) if _alike(label) == _alike(name)), None)
                raise InputError(
                    f"{record.place}: label {name!r} is not in the training data, which have {shown}",
                    hint=None if similar is None else f"write it {similar!r}, as there",
                )


def _alike(label: str) -> str:
    """What is the same for labels that may be meant to be one."""
    number = _number(label)
    return " ".join(label.casefold().split()) if number is None else repr(number)


def _number(label: str) -> float | None:
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def find_warnings(report: DataReport, task: str, numbers: Collection[float]) -> Iterator[str]:
    """What a careful person would look at first, in sentences.

    Args:
        report: The report; its own warnings do not count.
        task: `classify`, `multilabel` or `regress`.
        numbers: The numbers to predict in the training data.
    """
    train = report.splits[0]
    if train.labels:
        yield from _about_balance(train, task)
        yield from _about_names(train.labels, task)
    values = {*numbers}
    if task == "regress" and len(values) <= _CLASSES and all(value.is_integer() for value in values):
        shown = ", ".join(f"{value:.0f}" for value in sorted(values))
        yield f"The numbers are only {shown}: if they stand for classes, train 'classify' instead."
    for split in report.splits:
        yield from _about_texts(split, report.max_length)
    if report.leaked:
        yield (
            f"{_count(report.leaked, 'validation example')} of {report.splits[1].examples:,} "
            f"{_is(report.leaked)} in the training data, too: the score will look better than it is."
        )
    for name, labels in report.only_in.items():
        if labels:
            yield f"{_listed(labels)} {_is(len(labels))} in {name} only."


def _about_balance(train: SplitReport, task: str) -> Iterator[str]:
    few = {name: count for name, count in train.labels.items() if count <= FEW}
    rarest, least = list(train.labels.items())[-1]
    most_common, most = next(iter(train.labels.items()))
    if few:
        has = "has" if len(few) == 1 else "have"
        yield (
            f"{len(few)} of {_count(len(train.labels), 'label')} {has} {FEW} training examples or fewer "
            f"({_listed([*few][::-1])}): scores will differ much from run to run."
        )
    if task == "classify" and most >= _DOMINANT * train.examples:
        yield (
            f"{most / train.examples:.0%} of the training examples are {_quoted(most_common)}: who always says so is "
            "right as often; look at macro F1 rather than at accuracy."
        )
    elif most >= _IMBALANCE * least:
        yield (
            f"{_quoted(most_common)} has {most // least} times as many training examples as {_quoted(rarest)}: "
            "balanced class weights may help."
        )


def _about_names(labels: Mapping[str, int], task: str) -> Iterator[str]:
    first: dict[str, str] = {}
    alike = [(other, name) for name in labels if (other := first.setdefault(_alike(name), name)) != name]
    if alike:
        shown = "; ".join(f"{_quoted(a)} and {_quoted(b)}" for a, b in alike[:_NAMED])
        yield f"Labels that look the same are different classes: {shown}{_more(len(alike) - _NAMED)}."
    if task == "classify" and len(labels) > _NUMBERS and all(_number(name) is not None for name in labels):
        yield f"The {len(labels):,} labels are all numbers: if they measure something, train 'regress' instead."


def _about_texts(split: SplitReport, max_length: int) -> Iterator[str]:
    if split.truncated > _TRUNCATED * split.examples:
        yield (
            f"{split.truncated / split.examples:.0%} of the inputs of {split.name} are longer than {max_length} tokens "
            "and will be truncated."
        )
    if split.conflicts:
        yield (
            f"{_count(split.conflicts, 'example')} of {split.name} {_is(split.conflicts)} labelled otherwise than the "
            "same text earlier on."
        )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _quoted(name: str) -> str:
    return repr(name if len(name) <= 40 else name[:39] + "…")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names[:_NAMED])) + _more(len(names) - _NAMED)


def _more(number: int) -> str:
    return f" and {number} more" if number > 0 else ""
