"""The results of an evaluation on labelled data, and the comparison of a trained model with simple baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlxbert.labels.schemes import OUTSIDE
from mlxbert.results.result import Shown, to_html
from mlxbert.results.short_repr import Brief
from mlxbert.train.options.training_tasks import TASKS, TaskSpec

_MARGIN = 0.05  # a label stands out if its F1 is this far below the mean


@dataclass(frozen=True, kw_only=True)
class LabelScore(Brief):
    """The scores of one label, each from 0 to 1. `support` is the number of examples that have the label."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, kw_only=True)
class Mistake(Brief):
    """An example that the model gets wrong."""

    text: str
    pair: str | None  # the second text; `None` if there is none
    # The label to predict; several labels, joined by commas (empty if there are none); or the number to predict.
    expected: str
    predicted: str  # the model's prediction, in the same form
    # The model's confidence, 0 to 1: the probability of the predicted label or, if there may be several labels, the
    # confidence in the wrong presence or absence of `label`. If numbers are predicted, the distance between the
    # expected and the predicted number.
    score: float
    place: str  # the location of the example: `test.csv, line 17`
    # If there may be several labels, the one that was most confidently predicted or left out wrongly.
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation(Shown):
    """The evaluation of a model on labelled data.

    Attributes:
        task: The name of the task, one of `TASKS`.
        model: The name or the folder of the model.
        data: The names of the files with the data.
        examples: The number of examples.
        metric: The name of the main metric.
        score: The value of the main metric.
        interval: The score's 95 % interval, from a bootstrap over the examples; for accuracy, Wilson's interval.
        metrics: All metrics, keyed by name.
        labels: The scores of every label; empty if numbers are predicted.
        confusion: The confusion matrix, with a row for each expected label and a column for each predicted label, in
            the order of `classes`. `None` if examples may have several labels, or if numbers are predicted. For tags,
            it counts words.
        classes: The names of the rows of `confusion`: the names of `labels` and, after entity types, `O`.
        mistakes: The mistakes with the highest confidence, or the largest distances: at most ten, the worst first.
        truncated: The number of truncated inputs.
        constant: The main metric of predicting the same for every example, keyed by the name of the prediction, which
            is fitted to the same data: `{"largest class": 0.28}`. A score is meaningful only next to it. Empty if such
            a prediction is meaningless.
        seen: The number of evaluated rows from files on which the model was trained or selected.
        unknown: The labels of the data that the model does not have, with their example counts; for `multilabel` and
            `tag` only. The scores of `multilabel` leave these labels out; in `tag`, they count as missed.
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
    classes: tuple[str, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    truncated: int = 0
    constant: Mapping[str, float] = field(default_factory=dict)
    seen: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.confusion is not None and not self.classes:
            object.__setattr__(self, "classes", tuple(score.label for score in self.labels))

    @property
    def numeric(self) -> bool:
        """Whether numbers are predicted. Mistakes are then distances."""
        return self.spec.numeric

    @property
    def spec(self) -> TaskSpec:
        """The declaration of the task in the registry."""
        return TASKS[self.task]

    def _repr_html_(self) -> str:
        """Returns an HTML table for notebooks, with the names of the classes in the confusion matrix."""
        values = self.to_dict()
        classes = values.pop("classes")
        if self.confusion is not None:
            values["confusion"] = [
                {"expected \\ predicted": name} | dict(zip(classes, row, strict=True))
                for name, row in zip(classes, self.confusion, strict=True)
            ]
        return to_html(values)


@dataclass(frozen=True, kw_only=True)
class Summary(Brief):
    """The comparison of a trained model with honest baselines, all on the same validation data."""

    metric: str  # the main metric
    score: float  # the score of the model
    interval: tuple[float, float]  # the score's 95 % interval
    # The same metric for simple methods, keyed by name: `largest class`, `frozen vectors`, …
    baselines: Mapping[str, float]
    weakest: str | None  # a sentence about what the model does worst; `None` if nothing stands out
    deviation: float | None  # the standard deviation of the score over the seeds; `None` for a single seed
    command: str  # the command that uses the model
    advice: str | None = None  # a suggestion for a better model, if a baseline is as good as this one; otherwise `None`


def weakest(evaluation: Evaluation) -> str | None:
    """Returns a sentence about what a model does worst; `None` if nothing stands out.

    For labels, this is the label with the lowest F1, if its F1 is clearly below the mean. For numbers, this is the
    largest distance.
    """
    if evaluation.numeric:
        return _largest_error(evaluation)
    present = [number for number, label in enumerate(evaluation.labels) if label.support]
    if len(present) < 2:
        return None
    worst = min(present, key=lambda number: evaluation.labels[number].f1)
    label = evaluation.labels[worst]
    mean = sum(evaluation.labels[number].f1 for number in present) / len(present)
    if label.f1 > mean - _MARGIN:
        return None
    examples = _count(label.support, evaluation.spec.of_words and OUTSIDE in evaluation.classes)
    matrix = evaluation.confusion or ()
    if label.recall <= label.precision:
        confused = _confused(evaluation, matrix[worst] if matrix else (), worst, ", most often predicted as {}")
        return f"{label.label}: recall {label.recall:.2f} on {examples}{confused}"
    confused = _confused(evaluation, [row[worst] for row in matrix], worst, ", most often instead of {}")
    return f"{label.label}: precision {label.precision:.2f} ({examples} in all){confused}"


def _count(number: int, entities: bool) -> str:
    kind = ("entity", "entities") if entities else ("example", "examples")
    return f"{number} {kind[number != 1]}"


def _confused(evaluation: Evaluation, counts: Sequence[int], label: int, phrase: str) -> str:
    """Returns `phrase` with the name of the label most often confused with `label`; empty without confusions."""
    confusions = {other: count for other, count in enumerate(counts) if other != label and count}
    return phrase.format(evaluation.classes[max(confusions, key=confusions.__getitem__)]) if confusions else ""


def _largest_error(evaluation: Evaluation) -> str | None:
    if not evaluation.mistakes:
        return None
    worst = evaluation.mistakes[0]
    average = f"; by {evaluation.metrics['mae']:.3g} on average" if "mae" in evaluation.metrics else ""
    return (
        f"off by {worst.score:.3g} at most: {worst.expected} is predicted as {worst.predicted} ({worst.place}){average}"
    )
