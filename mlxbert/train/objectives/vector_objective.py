"""The losses over a batch of vectors: they define which texts are compared, and how.

Shapes: B examples in a batch, T texts in a batch, W size of a vector.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.option_declarations import bounds_of, check_listed
from mlxbert.other_libraries import not_one_of
from mlxbert.text.encoding import Encoding
from mlxbert.train.data.related_texts import Related
from mlxbert.train.nn import vector_losses as losses
from mlxbert.train.objectives.objective import Example
from mlxbert.train.options.loop_options import VectorLossName
from mlxbert.train.options.training_tasks import VectorLearning

_FITTING = {"texts": ("in-batch",), "pairs": ("in-batch", "triplet"), "scored": ("cosent", "cosine")}  # by kind
LOSSES: tuple[str, ...] = get_args(VectorLossName)
KIND_NAMES = {"texts": "texts alone", "pairs": "texts that belong together", "scored": "scored pairs"}


@dataclass(frozen=True)
class TextGroup(Example):
    """The texts of a record."""

    # The inputs after the first one: the positive, then the negatives. A single text is its own positive.
    others: tuple[Encoding, ...] = ()
    texts: tuple[str, ...] = ()  # all texts of the record as strings
    kind: str = "pairs"  # the kind of the record: `texts`, `pairs` or `scored`
    halves: tuple[Encoding, ...] = ()  # the two halves of a single text, which replace it in evaluations

    def __len__(self) -> int:
        return sum(map(len, self.encodings))

    @property
    def encodings(self) -> Sequence[Encoding]:
        return (self.encoding, *self.others)

    @property
    def evaluated(self) -> Sequence[Encoding]:
        """The inputs that evaluations use."""
        return self.halves if self.kind == "texts" else self.encodings


@dataclass(frozen=True)
class VectorLoss:
    """A loss over the vectors of a batch."""

    # The name of the loss in `LOSSES`. `None` chooses `cosent` for pairs with scores, and otherwise `in-batch`.
    name: str | None
    temperature: float = 0.05  # the number by which `in-batch` and `cosent` divide the cosines
    margin: float = 5.0  # for `triplet`: by how much the negative should be farther from the text than the positive
    symmetric: bool = False  # for `in-batch`: whether each positive must also find its text
    # Sizes to which vectors can be truncated later (Matryoshka). The loss is the sum over these sizes.
    dimensions: tuple[int, ...] | None = None
    # The score of the most similar pairs. Scores are divided by it.
    max_score: float = 1.0
    dots: bool = False  # whether `in-batch` compares vectors by dot product instead of by cosine

    def __post_init__(self) -> None:
        if self.name is not None and self.name not in LOSSES:
            raise not_one_of("loss", self.name, LOSSES)
        for name in ("temperature", "margin", "max_score"):
            object.__setattr__(self, name, bounds_of(VectorLearning, name).check_number(name, getattr(self, name)))
        check_listed("dimensions", self.dimensions or ())
        bounds = bounds_of(VectorLearning, "dimensions")
        if self.dimensions is not None:
            sizes = tuple(bounds.check_whole("dimensions", size) for size in self.dimensions)
            object.__setattr__(self, "dimensions", sizes)

    def chosen(self, kind: str) -> "VectorLoss":
        """Returns the loss that suits a kind of data: the one that `name` chooses or, if it is `None`, the default."""
        name = self.name or _FITTING[kind][0]
        if name not in _FITTING[kind]:
            raise ArgumentError(f"`loss` is {name!r}, expected {' or '.join(_FITTING[kind])} for {KIND_NAMES[kind]}")
        return replace(self, name=name)

    def check(self, records: Sequence[Related]) -> None:
        """Raises `InputError` if nothing can be learned from the training data."""
        place = f"{records[0].place} and below"
        if self.name == "triplet" and (lacking := next((record for record in records if not record.negatives), None)):
            raise InputError(f"{lacking.place}: the record has no negative, which the loss 'triplet' needs")
        if self.name == "in-batch" and len({record.text for record in records}) < 2:
            raise InputError(f"{place}: every example has the same text, expected different texts")
        if records[0].label is not None and len({record.label for record in records}) < 2:
            raise InputError(f"{place}: every pair has the score {records[0].label:g}, expected different scores")
        if self.name == "cosine":
            self._check_scores(records)

    def _check_scores(self, records: Sequence[Related]) -> None:
        scores = [record.label or 0.0 for record in records]
        for record, score in zip(records, scores, strict=True):
            if not -1 <= score / self.max_score <= 1:
                largest = max(map(abs, scores))
                raise InputError(
                    f"{record.place}: the score is {score:g}, expected a number from {-self.max_score:g} to "
                    f"{self.max_score:g}",
                    hint=f"use `max_score={largest:g}` to divide all scores by {largest:g}, or `loss='cosent'` for "
                    "scores of any size",
                )

    def targets(self, examples: Sequence[TextGroup]) -> dict[str, mx.array]:
        """Returns the arrays that the loss needs for B examples: which of the T vectors to compare, and scores."""
        sizes = [len(example.encodings) for example in examples]
        first = np.cumsum([0, *sizes[:-1]])
        targets = {"anchors": mx.array(first), "positives": mx.array(first + 1)}
        if self.name == "in-batch":
            negatives = [np.arange(start + 2, start + size) for start, size in zip(first, sizes, strict=True)]
            candidates = mx.array(np.concatenate([first + 1, *negatives]))
            return targets | {"candidates": candidates, "excluded": mx.array(_excluded(examples))}
        if self.name == "triplet":
            return targets | {"negatives": mx.array(first + 2)}
        return targets | {"scores": mx.array([example.target / self.max_score for example in examples])}

    def __call__(self, vectors: mx.array, targets: Mapping[str, mx.array]) -> tuple[mx.array, float]:
        """Computes the loss and its weight."""
        loss = functools.partial(self._of, targets)
        weight = 1.0 if self.name == "cosent" else float(len(targets["anchors"]))  # cosent has one loss per batch
        return (losses.matryoshka(loss, vectors, self.dimensions) if self.dimensions else loss(vectors)), weight

    def _of(self, targets: Mapping[str, mx.array], v: mx.array) -> mx.array:
        """Computes the loss of vectors (T, W'), which may be truncated."""
        anchors, positives = v[targets["anchors"]], v[targets["positives"]]
        if self.name == "in-batch":
            options: Any = {"temperature": self.temperature, "symmetric": self.symmetric, "dots": self.dots}
            return losses.in_batch_negatives(anchors, v[targets["candidates"]], targets["excluded"], **options)
        if self.name == "triplet":
            return losses.triplet(anchors, positives, v[targets["negatives"]], margin=self.margin)
        if self.name == "cosine":
            return losses.cosine_error(anchors, positives, targets["scores"])
        return losses.cosent(anchors, positives, targets["scores"], temperature=self.temperature)


def _excluded(examples: Sequence[TextGroup]) -> NDArray[np.bool_]:
    """Returns, for each anchor, which candidates do not count as its negatives, (B, B + M) for M explicit negatives.

    Candidates do not count if they are copies of the anchor's text or of its positive, or if they are positives of
    another anchor with the same text. The anchor's own positive is not marked, because it is the right answer.
    """
    ids: dict[str, int] = {}
    numbers = [[ids.setdefault(text, len(ids)) for text in example.texts] for example in examples]
    anchors, positives = (np.array([row[place] for row in numbers]) for place in (0, 1))
    negatives = [number for row in numbers for number in row[2:]]
    candidates = np.array([*positives, *negatives])
    same = (candidates == positives[:, None]) | (candidates == anchors[:, None])
    equals = np.pad(anchors == anchors[:, None], ((0, 0), (0, len(negatives))))
    return (same | equals) & ~np.eye(len(anchors), len(candidates), dtype=bool)
