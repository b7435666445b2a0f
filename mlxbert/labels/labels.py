"""The classes of a classification head, as stored in `config.json`."""

from dataclasses import dataclass
from typing import Any

from mlxbert.errors import ArgumentError
from mlxbert.labels.schemes import allowed, scheme_of
from mlxbert.other_libraries import not_one_of
from mlxbert.results.short_repr import Brief

REGRESSION, SINGLE_LABEL, MULTI_LABEL = "regression", "single_label_classification", "multi_label_classification"
PROBLEM_TYPES = (REGRESSION, SINGLE_LABEL, MULTI_LABEL)
VECTOR_CLASSIFIER = "vector_classifier"  # the key of `config.json` that describes a vector classifier


@dataclass(frozen=True)
class Labels(Brief):
    """The classes of a classification head.

    Attributes:
        names: The names of the classes, in the order of the outputs.
        problem_type: `regression`, `single_label_classification`, `multi_label_classification`, or `None` if the
            checkpoint does not state it.
        thresholds: For `multi_label_classification`: the minimum probability to choose each class; `None` for 0.5.
        crf: For tags of words: whether the model also scores pairs of consecutive tags (see `mlxbert.nn.crf`).
        no_answer_threshold: For question answering: the share of "no answer" above which no answer is given; `None` for
            0.5, 1 to always give an answer.
        head_pooling: For whole texts: the pooling, or several joined by `+`, that makes the vector from which a linear
            layer computes the scores of the classes (see `mlxbert.nn.embedder`); `None` for the head of transformers.
    """

    names: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    problem_type: str | None = None
    thresholds: tuple[float, ...] | None = None
    crf: bool = False
    no_answer_threshold: float | None = None
    head_pooling: str | None = None

    def __post_init__(self) -> None:
        for field in ("names", "thresholds"):
            if isinstance(value := getattr(self, field), list):
                object.__setattr__(self, field, tuple(value))

    def __len__(self) -> int:
        return len(self.names)

    def check(self) -> None:
        """Raises an error for labels that a `config.json` cannot hold; unused labels of a checkpoint are not checked.

        Raises:
            ArgumentError: The names are not distinct strings, the problem type is unknown, or the thresholds do not fit
                the names.
        """
        if not isinstance(self.names, tuple) or not all(isinstance(name, str) for name in self.names):
            raise ArgumentError(f"label names are {self.names!r:.60}, expected a tuple of strings")
        if any("\ud800" <= letter <= "\udfff" for name in self.names for letter in name):
            raise ArgumentError(f"label names are {self.names!r:.60}, expected names without half of a surrogate pair")
        if not self.names or len({*self.names}) < len(self.names):
            raise ArgumentError(f"label names are {self.names!r:.60}, expected one or more different names")
        if self.problem_type not in (None, *PROBLEM_TYPES):
            raise not_one_of("problem_type", self.problem_type, PROBLEM_TYPES)
        if problem := self.crf_problem():
            raise ArgumentError(f"`crf` is {self.crf!r:.60}, expected {problem}")
        if problem := self.thresholds_problem():
            raise ArgumentError(f"`thresholds` are {self.thresholds!r:.60}, expected {problem}")
        if self.no_answer_threshold is not None and not _is_probability(self.no_answer_threshold):
            raise ArgumentError(
                f"`no_answer_threshold` is {self.no_answer_threshold!r:.60}, expected a number from 0 to 1"
            )

    def thresholds_problem(self) -> str | None:
        """Returns what is expected of the thresholds, for an error message; `None` if they are valid."""
        values = self.thresholds
        if values is None:
            return None
        if self.problem_type != MULTI_LABEL:
            return f"none unless problem_type is {MULTI_LABEL!r}"
        numbers = isinstance(values, tuple) and all(map(_is_probability, values))
        if not numbers or len(values) != len(self.names):
            return f"a number from 0 to 1 for each of the {len(self.names)} labels"
        return None

    def crf_problem(self) -> str | None:
        """Returns what is expected of `crf`, for an error message; `None` if it is valid."""
        if not isinstance(self.crf, bool):
            return "true or false"
        try:
            allowed(scheme_of(self.names), self.names) if self.crf else None
        except ArgumentError as problem:
            return f"false, because {problem.message}"
        return None

    def encode(self, name: str) -> int:
        """Returns the index of a class.

        Raises:
            ArgumentError: No class has this name.
        """
        if name not in self.names:
            raise ArgumentError(f"the label is {name!r:.60}, expected one of {', '.join(self.names[:20])}")
        return self.names.index(name)

    def decode(self, index: int) -> str:
        """Returns the name of a class.

        Raises:
            ArgumentError: There is no such index.
        """
        if not isinstance(index, int) or not 0 <= index < len(self.names):
            raise ArgumentError(
                f"label index is {index!r:.60}, expected a whole number from 0 to {len(self.names) - 1}"
            )
        return self.names[index]

    def to_config(self) -> dict[str, Any]:
        """Returns the keys of `config.json` that describe the labels; a key with `None` is left out of the file.

        The last four keys are mlxbert's own, which other programs ignore. The classes of a vector classifier are in the
        last key only: a program that does not know this head must not use their names for another head.
        """
        description = {"labels": [*self.names], "problem_type": self.problem_type, "pooling": self.head_pooling}
        of_vectors = self.head_pooling is not None
        return {
            "id2label": None if of_vectors else {str(index): name for index, name in enumerate(self.names)},
            "label2id": None if of_vectors else {name: index for index, name in enumerate(self.names)},
            "num_labels": None,  # the length of id2label
            "problem_type": None if of_vectors else self.problem_type,
            "thresholds": None if self.thresholds is None else [*map(float, self.thresholds)],
            "crf": self.crf or None,
            "no_answer_threshold": self.no_answer_threshold,
            VECTOR_CLASSIFIER: description if of_vectors else None,
        }


def _is_probability(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
