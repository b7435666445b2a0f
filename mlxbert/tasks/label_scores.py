"""Common parts of classification with a model's own labels and zero-shot classification."""

from collections.abc import Sequence
from typing import Any

from mlxbert.results.text_results import Classification, Label, Regression
from mlxbert.tasks.options import ClassifyOptions
from mlxbert.tasks.task import RESULT_BYTES, AnyJob, Output, Task, is_pair

HEAD = "sequence_classifier"
THRESHOLD = 0.5  # default for models without their own
_LABEL_BYTES = 160  # the memory of a `Label`, whose name is shared with the model

Item = str | tuple[str, str]


class LabelsTask(Task[Item, AnyJob, Output, Classification | Regression]):
    """A task that scores labels for a text or a pair of texts."""

    name = "classify"
    options: ClassifyOptions
    # The labels to choose from.
    labels: Any  # the names, or `Labels`

    def size(self, item: Item, units: int) -> int:
        top_k, count = self.options.top_k, len(self.labels)
        return RESULT_BYTES + _LABEL_BYTES * (count if top_k is None else min(count, top_k))

    def is_item(self, value: object) -> bool:
        return isinstance(value, str) or is_pair(value)


def ranked(
    names: Sequence[str], scores: Sequence[float], top_k: int | None, thresholds: Sequence[float] | None
) -> tuple[Label, ...]:
    """Ranks labels by their scores. With thresholds, each label says whether its score reaches its threshold."""

    def label(index: int) -> Label:
        return Label(names[index], scores[index], None if thresholds is None else scores[index] >= thresholds[index])

    return tuple(map(label, sorted(range(len(scores)), key=lambda index: -scores[index])[:top_k]))
