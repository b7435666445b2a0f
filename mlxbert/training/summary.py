"""How good a model is on labelled data, and beside simple baselines."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LabelScore:
    """Scores of one label, each from 0 to 1; `support` counts the examples that have it."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """An example that the model gets wrong.

    Attributes:
        text: The text.
        pair: The second text, if there are two.
        expected: The label or labels (joined by commas), or the number.
        predicted: Those that the model gives.
        score: How sure it was of its answer, 0 to 1; the distance, for numbers.
        place: Where it stands: `test.csv, line 17`.
    """

    text: str
    pair: str | None
    expected: str
    predicted: str
    score: float
    place: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good a model is on labelled data.

    Attributes:
        task: `classify`, `multilabel` or `regress`.
        model: The model.
        data: The files.
        examples: How many.
        metric: The name of the main metric.
        score: Its value.
        interval: 95 % of it, from a bootstrap over the examples.
        metrics: All metrics by name.
        labels: Scores of every label; empty for numbers.
        confusion: Rows are expected labels, columns predicted ones, in the order of `labels`; `None` where an example
            may have several labels, or numbers are predicted.
        mistakes: The worst ones first.
        truncated: Inputs that were truncated.
    """

    task: str
    model: str
    data: tuple[str, ...]
    examples: int
    metric: str
    score: float
    interval: tuple[float, float]
    metrics: Mapping[str, float]
    labels: tuple[LabelScore, ...] = ()
    confusion: tuple[tuple[int, ...], ...] | None = None
    mistakes: tuple[Mistake, ...] = ()
    truncated: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The evaluation as plain dicts and lists."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How good a trained model is beside honest baselines, all on the same validation data.

    Attributes:
        metric: The main metric.
        score: That of the model.
        interval: 95 % of it.
        baselines: The same metric of simple methods, by name: `largest class`, `frozen vectors`.
        weakest: What the model is worst at, in a sentence; `None` if nothing stands out.
        deviation: Standard deviation of the score over the seeds; `None` for one seed.
        command: The command that uses the model.
    """

    metric: str
    score: float
    interval: tuple[float, float]
    baselines: Mapping[str, float]
    weakest: str | None
    deviation: float | None
    command: str
