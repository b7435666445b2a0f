"""How good a model is on labelled data, and next to simple baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlxbert.labels.schemes import OUTSIDE
from mlxbert.results.brief import Brief
from mlxbert.results.notebook import Shown, to_html
from mlxbert.training.options.training_tasks import TASKS, TaskSpec

_MARGIN = 0.05  # how far below the mean F1 a label stands out


@dataclass(frozen=True, kw_only=True)
class LabelScore(Brief):
    """Scores of one label, each from 0 to 1; `support` counts the examples that have it."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, kw_only=True)
class Mistake(Brief):
    """An example that the model gets wrong.

    Attributes:
        text: The text.
        pair: The second text, if there are two.
        expected: The label; the labels, joined by commas, empty for none; or the number.
        predicted: What the model gives, in the same form.
        score: How sure it was, 0 to 1: the probability of the label it predicts; where there may be several, how sure
            it was that a label is there, or is not, where it was most wrong. The distance, for numbers.
        place: Where it stands: `test.csv, line 17`.
        label: Where there may be several: the label about which it was most wrong, which `score` is of.
    """

    text: str
    pair: str | None
    expected: str
    predicted: str
    score: float
    place: str
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation(Shown):
    """How good a model is on labelled data.

    Attributes:
        task: The name of the task, one of `TASKS`.
        model: The model.
        data: The files.
        examples: How many.
        metric: The name of the main metric.
        score: Its value.
        interval: 95 % of it, from a bootstrap over the examples; of accuracy, Wilson's interval.
        metrics: All metrics by name.
        labels: Scores of every label; empty for numbers.
        confusion: Rows are expected labels, columns predicted ones, in the order of `classes`; `None` where an example
            may have several labels, or numbers are predicted. Of tags it counts words.
        classes: The rows of `confusion`: the names of `labels`; where these are types of entities, `O` after them.
        mistakes: Those that the model was surest about, or the largest distances; ten at most, the worst first.
        truncated: Inputs that were truncated.
        constant: The main metric of predicting the same for every example, by the name of what is predicted, which the
            data themselves decide: `{"largest class": 0.28}`. A score means something only next to it. Empty where such
            a prediction says nothing.
        seen: Rows that stand in files that the model was trained on, or chosen by.
        unknown: Labels of the data that the model does not have, with how many examples have them. Only `multilabel`
            and `tag` have such. The scores of `multilabel` are those of the labels that the model has; of `tag`, what
            it does not know counts as missed.
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
        """Whether numbers are predicted, which are more or less wrong."""
        return self.spec.numeric

    @property
    def spec(self) -> TaskSpec:
        """What the task is."""
        return TASKS[self.task]

    def _repr_html_(self) -> str:
        """The table of a notebook, with the names of the classes at the confusion matrix."""
        shown = self.to_dict()
        classes = shown.pop("classes")
        if self.confusion is not None:
            shown["confusion"] = [
                {"expected \\ predicted": name} | dict(zip(classes, row, strict=True))
                for name, row in zip(classes, self.confusion, strict=True)
            ]
        return to_html(shown)


@dataclass(frozen=True, kw_only=True)
class Summary(Brief):
    """How good a trained model is next to honest baselines, all on the same validation data.

    Attributes:
        metric: The main metric.
        score: That of the model.
        interval: 95 % of it.
        baselines: The same metric of simple methods, by name: `largest class`, `frozen vectors`, …
        weakest: What the model is worst at, in a sentence; `None` if nothing stands out.
        deviation: Standard deviation of the score over the seeds; `None` for one seed.
        command: The command that uses the model.
        advice: What may give a better model, where a baseline is as good as this one.
    """

    metric: str
    score: float
    interval: tuple[float, float]
    baselines: Mapping[str, float]
    weakest: str | None
    deviation: float | None
    command: str
    advice: str | None = None


def weakest(evaluation: Evaluation) -> str | None:
    """What a model is worst at, in a sentence, or `None` if nothing stands out.

    Labels: the one with the lowest F1, if that is clearly below their mean. Numbers: the largest distance.
    """
    if evaluation.numeric:
        return _farthest(evaluation)
    known = [number for number, label in enumerate(evaluation.labels) if label.support]
    if len(known) < 2:
        return None
    worst = min(known, key=lambda number: evaluation.labels[number].f1)
    label = evaluation.labels[worst]
    mean = sum(evaluation.labels[number].f1 for number in known) / len(known)
    if label.f1 > mean - _MARGIN:
        return None
    examples = _count(label.support, evaluation.spec.of_words and OUTSIDE in evaluation.classes)
    matrix = evaluation.confusion or ()
    if label.recall <= label.precision:
        taken = _most(evaluation, matrix[worst] if matrix else (), worst, ", most often taken for {}")
        return f"{label.label}: recall {label.recall:.2f} on {examples}{taken}"
    taken = _most(evaluation, [row[worst] for row in matrix], worst, ", most often in place of {}")
    return f"{label.label}: precision {label.precision:.2f} ({examples} in all){taken}"


def _count(number: int, entities: bool) -> str:
    kind = ("entity", "entities") if entities else ("example", "examples")
    return f"{number} {kind[number != 1]}"


def _most(evaluation: Evaluation, counts: Sequence[int], label: int, sentence: str) -> str:
    """A sentence with the other label that counts most; empty where none counts."""
    others = {other: count for other, count in enumerate(counts) if other != label and count}
    return sentence.format(evaluation.classes[max(others, key=others.__getitem__)]) if others else ""


def _farthest(evaluation: Evaluation) -> str | None:
    if not evaluation.mistakes:
        return None
    worst = evaluation.mistakes[0]
    average = f"; by {evaluation.metrics['mae']:.3g} on average" if "mae" in evaluation.metrics else ""
    return (
        f"off by {worst.score:.3g} at most: {worst.expected} is predicted as {worst.predicted} ({worst.place}){average}"
    )
