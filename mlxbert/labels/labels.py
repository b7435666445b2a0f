"""The classes of a classification head, as `config.json` holds them."""

from dataclasses import dataclass
from typing import Any

from mlxbert.counterparts import not_one_of
from mlxbert.errors import ArgumentError
from mlxbert.labels.schemes import allowed, scheme_of
from mlxbert.results.brief import Brief

REGRESSION, SINGLE_LABEL, MULTI_LABEL = "regression", "single_label_classification", "multi_label_classification"
PROBLEM_TYPES = (REGRESSION, SINGLE_LABEL, MULTI_LABEL)
VECTOR_CLASSIFIER = "vector_classifier"  # the key of `config.json` that describes a classifier of vectors


@dataclass(frozen=True)
class Labels(Brief):
    """The classes of a classification head.

    Attributes:
        names: Their names, in the order of the outputs.
        problem_type: `regression`, `single_label_classification`, `multi_label_classification`, or `None` where the
            checkpoint does not name one.
        thresholds: Of `multi_label_classification`: for each class the probability from which on it is chosen; `None`
            for 0.5.
        crf: Of the tags of words: whether the model has a score for every tag after every other, too, see
            `mlxbert.nn.crf`.
        no_answer_threshold: Of question answering: the share of "no answer" above which no answer is given; `None` for
            0.5, 1 for an answer always.
        head_pooling: Of whole texts: the pooling, or several joined by `+`, whose vector the scores of the classes are
            a linear function of, see `mlxbert.nn.embedder`; `None` for the head that transformers has.
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
        """Refuses what a `config.json` cannot hold; files may have such labels, as long as nobody uses them.

        Raises:
            ArgumentError: The names are not different strings, the problem type is unknown, or the thresholds do not
                fit them.
        """
        if not isinstance(self.names, tuple) or not all(isinstance(name, str) for name in self.names):
            raise ArgumentError(f"names of labels are {self.names!r:.60}, expected a tuple of strings")
        if any("\ud800" <= letter <= "\udfff" for name in self.names for letter in name):
            raise ArgumentError(f"names of labels are {self.names!r:.60}: one contains half of a surrogate pair")
        if not self.names or len({*self.names}) < len(self.names):
            raise ArgumentError(f"names of labels are {self.names!r:.60}, expected at least one, all different")
        if self.problem_type not in (None, *PROBLEM_TYPES):
            raise not_one_of("problem_type", self.problem_type, PROBLEM_TYPES)
        if problem := self.crf_problem():
            raise ArgumentError(f"crf is {self.crf!r:.60}, expected {problem}")
        if problem := self.thresholds_problem():
            raise ArgumentError(f"thresholds are {self.thresholds!r:.60}, expected {problem}")
        if self.no_answer_threshold is not None and not _is_probability(self.no_answer_threshold):
            raise ArgumentError(
                f"no_answer_threshold is {self.no_answer_threshold!r:.60}, expected a number from 0 to 1"
            )

    def thresholds_problem(self) -> str | None:
        """What is expected instead of the thresholds, if they cannot be used."""
        given = self.thresholds
        if given is None:
            return None
        if self.problem_type != MULTI_LABEL:
            return f"none: problem_type is not {MULTI_LABEL!r}"
        numbers = isinstance(given, tuple) and all(map(_is_probability, given))
        if not numbers or len(given) != len(self.names):
            return f"a number from 0 to 1 for each of the {len(self.names)} labels"
        return None

    def crf_problem(self) -> str | None:
        """What is expected instead of `crf`, if it cannot be used."""
        if not isinstance(self.crf, bool):
            return "true or false"
        try:
            allowed(scheme_of(self.names), self.names) if self.crf else None
        except ArgumentError as problem:
            return f"none: {problem.message}"
        return None

    def encode(self, name: str) -> int:
        """The index of a class.

        Raises:
            ArgumentError: No class has this name.
        """
        if name not in self.names:
            raise ArgumentError(f"label is {name!r:.60}, expected one of {', '.join(self.names[:20])}")
        return self.names.index(name)

    def decode(self, index: int) -> str:
        """The name of a class.

        Raises:
            ArgumentError: There is no such index.
        """
        if not isinstance(index, int) or not 0 <= index < len(self.names):
            raise ArgumentError(f"label index is {index!r:.60}, expected 0 to {len(self.names) - 1}")
        return self.names[index]

    def to_config(self) -> dict[str, Any]:
        """The keys of `config.json` that describe them; `None` for a key that is omitted.

        The last four are keys of mlxbert's own, which other programs ignore. The classes of a classifier of vectors are
        in the last one: a program that does not know the classifier must not give their names to another one.
        """
        own = {"labels": [*self.names], "problem_type": self.problem_type, "pooling": self.head_pooling}
        alone = self.head_pooling is not None
        return {
            "id2label": None if alone else {str(index): name for index, name in enumerate(self.names)},
            "label2id": None if alone else {name: index for index, name in enumerate(self.names)},
            "num_labels": None,  # the length of id2label
            "problem_type": None if alone else self.problem_type,
            "thresholds": None if self.thresholds is None else [*map(float, self.thresholds)],
            "crf": self.crf or None,
            "no_answer_threshold": self.no_answer_threshold,
            VECTOR_CLASSIFIER: own if alone else None,
        }


def _is_probability(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
