"""The loss of a batch of vectors, by name: which texts are compared, and how.

Shapes: B examples of a batch, T texts of a batch, W size of a vector.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mlxbert.counterparts import not_one_of
from mlxbert.data.related_texts import Related
from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.nn import vector_losses as losses
from mlxbert.options import bounds_of, check_listed
from mlxbert.text.encoding import Encoding
from mlxbert.training.objectives.objective import Example
from mlxbert.training.options.loop_options import VectorLossName
from mlxbert.training.options.training_tasks import VectorLearning

_FITTING = {"texts": ("in-batch",), "pairs": ("in-batch", "triplet"), "scored": ("cosent", "cosine")}  # by kind
LOSSES: tuple[str, ...] = get_args(VectorLossName)
WHAT = {"texts": "texts alone", "pairs": "texts that belong together", "scored": "scored pairs"}


@dataclass(frozen=True)
class TextGroup(Example):
    """The texts of a record.

    Attributes:
        others: The inputs after the first one: the positive, then the negatives. A text alone is its own positive.
        texts: The texts themselves.
        kind: What the record is: `texts`, `pairs` or `scored`.
        halves: Of a text alone its two halves, by which it is evaluated.
    """

    others: tuple[Encoding, ...] = ()
    texts: tuple[str, ...] = ()
    kind: str = "pairs"
    halves: tuple[Encoding, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.encodings))

    @property
    def encodings(self) -> Sequence[Encoding]:
        """See `Example.encodings`."""
        return (self.encoding, *self.others)

    @property
    def evaluated(self) -> Sequence[Encoding]:
        """The inputs by which it is evaluated."""
        return self.halves if self.kind == "texts" else self.encodings


@dataclass(frozen=True)
class VectorLoss:
    """A loss over the vectors of a batch.

    Attributes:
        name: One of `LOSSES`; `None` for `cosent` where there are scores, and `in-batch` elsewhere.
        temperature: Divides the cosines of `in-batch` and `cosent`.
        margin: Of `triplet`: how much farther the negative should be.
        symmetric: Of `in-batch`: whether each positive must find its text, too.
        dimensions: Sizes to which vectors can be truncated later (Matryoshka): the loss is the sum over them.
        max_score: The score of the most similar pair: scores are divided by it.
    """

    name: str | None
    temperature: float = 0.05
    margin: float = 5.0
    symmetric: bool = False
    dimensions: tuple[int, ...] | None = None
    max_score: float = 1.0

    def __post_init__(self) -> None:
        if self.name is not None and self.name not in LOSSES:
            raise not_one_of("loss", self.name, LOSSES)
        for name in ("temperature", "margin", "max_score"):
            bounds_of(VectorLearning, name).check_number(name, getattr(self, name))
        check_listed("dimensions", self.dimensions or ())
        for size in self.dimensions or ():
            bounds_of(VectorLearning, "dimensions").check_whole("dimensions", size)

    def chosen(self, kind: str) -> "VectorLoss":
        """The loss for data of a kind."""
        name = self.name or _FITTING[kind][0]
        if name not in _FITTING[kind]:
            raise ArgumentError(f"loss is {name!r}, for {WHAT[kind]} expected {' or '.join(_FITTING[kind])}")
        return replace(self, name=name)

    def check(self, records: Sequence[Related]) -> None:
        """Refuses training data from which nothing can be learned."""
        first = f"{records[0].place} and below"
        if self.name == "triplet" and (lacking := next((one for one in records if not one.negatives), None)):
            raise InputError(f"{lacking.place}: there is no negative, which loss 'triplet' needs")
        if self.name == "in-batch" and len({record.text for record in records}) < 2:
            raise InputError(f"{first}: every example has the same text, expected different ones")
        if records[0].label is not None and len({record.label for record in records}) < 2:
            raise InputError(f"{first}: every pair has the score {records[0].label:g}, expected different ones")
        if self.name == "cosine":
            self._check_scores(records)

    def _check_scores(self, records: Sequence[Related]) -> None:
        scores = [record.label or 0.0 for record in records]
        for record, score in zip(records, scores, strict=True):
            if not -1 <= score / self.max_score <= 1:
                largest = max(map(abs, scores))
                raise InputError(
                    f"{record.place}: the score is {score:g}, expected {-self.max_score:g} to {self.max_score:g}",
                    hint=f"max_score={largest:g} divides all scores by {largest:g}; loss='cosent' takes any scores",
                )

    def targets(self, examples: Sequence[TextGroup]) -> dict[str, mx.array]:
        """What the loss needs to know of B examples, by name: rows of their T vectors, and which are compared."""
        sizes = [len(one.encodings) for one in examples]
        first = np.cumsum([0, *sizes[:-1]])
        found = {"anchors": mx.array(first), "positives": mx.array(first + 1)}
        if self.name == "in-batch":
            negatives = [np.arange(start + 2, start + size) for start, size in zip(first, sizes, strict=True)]
            candidates = mx.array(np.concatenate([first + 1, *negatives]))
            return found | {"candidates": candidates, "excluded": mx.array(_excluded(examples))}
        if self.name == "triplet":
            return found | {"negatives": mx.array(first + 2)}
        return found | {"scores": mx.array([one.target / self.max_score for one in examples])}

    def __call__(self, vectors: mx.array, targets: Mapping[str, mx.array]) -> tuple[mx.array, float]:
        """The loss, and its weight.

        Args:
            vectors: Of all texts of the examples, (T, W), in their order.
            targets: What `targets` gives for the examples.
        """
        loss = functools.partial(self._of, targets)
        weight = 1.0 if self.name == "cosent" else float(len(targets["anchors"]))  # one number for the batch
        return (losses.matryoshka(loss, vectors, self.dimensions) if self.dimensions else loss(vectors)), weight

    def _of(self, targets: Mapping[str, mx.array], v: mx.array) -> mx.array:
        """The loss of vectors (T, W')."""
        anchors, positives = v[targets["anchors"]], v[targets["positives"]]
        if self.name == "in-batch":
            how: Any = {"temperature": self.temperature, "symmetric": self.symmetric}
            return losses.in_batch_negatives(anchors, v[targets["candidates"]], targets["excluded"], **how)
        if self.name == "triplet":
            return losses.triplet(anchors, positives, v[targets["negatives"]], margin=self.margin)
        if self.name == "cosine":
            return losses.cosine_error(anchors, positives, targets["scores"])
        return losses.cosent(anchors, positives, targets["scores"], temperature=self.temperature)


def _excluded(examples: Sequence[TextGroup]) -> NDArray[np.bool_]:
    """Which candidates are not negatives of an anchor, (B, B + M): its own text, its positive, and those of its equals.

    Its own positive is not excluded: it is the right answer.
    """
    known: dict[str, int] = {}
    numbers = [[known.setdefault(text, len(known)) for text in one.texts] for one in examples]
    anchors, positives = (np.array([one[place] for one in numbers]) for place in (0, 1))
    negatives = [number for one in numbers for number in one[2:]]
    candidates = np.array([*positives, *negatives])
    same = (candidates == positives[:, None]) | (candidates == anchors[:, None])
    equals = np.pad(anchors == anchors[:, None], ((0, 0), (0, len(negatives))))
    return (same | equals) & ~np.eye(len(anchors), len(candidates), dtype=bool)
