"""What classification by a model's own labels and by any labels share: inputs, and labels in the order of scores."""

from collections.abc import Sequence

from mlxbert.results.classify import Label

HEAD = "sequence_classifier"
THRESHOLD = 0.5  # where the model has none of its own
_LABEL_BYTES = 160  # of a `Label`, whose name is the model's

Item = str | tuple[str, str]


def is_item(given: object) -> bool:
    """Whether `given` is a text or one pair: a tuple of two texts, since a list may hold any number of texts."""
    pair = isinstance(given, tuple) and len(given) == 2 and all(isinstance(text, str) for text in given)
    return isinstance(given, str) or pair


def labels_bytes(count: int, top_k: int | None) -> int:
    """About how much memory the labels of a result take."""
    return _LABEL_BYTES * (count if top_k is None else min(count, top_k))


def ranked(
    names: Sequence[str], found: Sequence[float], top_k: int | None, thresholds: Sequence[float] | None
) -> tuple[Label, ...]:
    """Labels with their scores, best first; where there are thresholds, each says whether it reaches its own."""

    def label(number: int) -> Label:
        return Label(names[number], found[number], None if thresholds is None else found[number] >= thresholds[number])

    return tuple(map(label, sorted(range(len(found)), key=lambda number: -found[number])[:top_k]))
