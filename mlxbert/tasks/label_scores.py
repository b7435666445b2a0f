"""Common parts of classification with a model's own labels and zero-shot classification."""

from collections.abc import Sequence

from mlxbert.results.classify import Label

HEAD = "sequence_classifier"
THRESHOLD = 0.5  # default for models without their own
_LABEL_BYTES = 160  # the memory of a `Label`, whose name is shared with the model

Item = str | tuple[str, str]


def is_item(value: object) -> bool:
    """Whether `value` is a text, or a pair of texts in a tuple (a list may hold any number of texts)."""
    pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(text, str) for text in value)
    return isinstance(value, str) or pair


def labels_bytes(count: int, top_k: int | None) -> int:
    """Returns the approximate memory of the labels of a result, in bytes."""
    return _LABEL_BYTES * (count if top_k is None else min(count, top_k))


def ranked(
    names: Sequence[str], scores: Sequence[float], top_k: int | None, thresholds: Sequence[float] | None
) -> tuple[Label, ...]:
    """Ranks labels by their scores. With thresholds, each label says whether its score reaches its threshold."""

    def label(index: int) -> Label:
        return Label(names[index], scores[index], None if thresholds is None else scores[index] >= thresholds[index])

    return tuple(map(label, sorted(range(len(scores)), key=lambda index: -scores[index])[:top_k]))
