"""The terms by name, and a weighted sum of them as it is written: `mlm,nsp`, `mlm:1,vectors:5`."""

import math
from collections.abc import Mapping

from mlxbert.errors import ArgumentError
from mlxbert.pretraining.terms.mlm import MaskedWords
from mlxbert.pretraining.terms.pairs import NextSentence, SentenceOrder
from mlxbert.pretraining.terms.term import Term

TERMS: Mapping[str, type[Term]] = {term.name: term for term in (MaskedWords, NextSentence, SentenceOrder)}


def read_terms(text: str) -> dict[str, float]:
    """The names of terms and their weights.

    Raises:
        ArgumentError: A term is unknown or comes twice, or a weight is no number above 0.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, colon, weight = (piece.strip() for piece in part.partition(":"))
        if name not in TERMS:
            raise ArgumentError(f"objective names {name!r:.60}, expected some of {', '.join(TERMS)}")
        if name in found:
            raise ArgumentError(f"objective names {name} twice: {text!r:.60}")
        try:
            found[name] = float(weight) if colon else 1.0
        except ValueError:
            found[name] = 0.0
        if not 0 < found[name] < math.inf:
            raise ArgumentError(f"the weight of {name} is {weight!r:.60}, expected a number above 0")
    return found
