"""The terms by name, and a weighted sum of them as it is written: `mlm,nsp`, `mlm:1,vectors:5`, `electra:50`."""

from collections.abc import Iterable, Mapping

from mlxbert.bounds import check_number
from mlxbert.errors import ArgumentError
from mlxbert.pretraining.terms.mlm import MaskedWords
from mlxbert.pretraining.terms.pairs import NextSentence, SentenceOrder
from mlxbert.pretraining.terms.replaced import GeneratedWords, ReplacedTokens
from mlxbert.pretraining.terms.teachers import HiddenStates, SoftTargets, Vectors
from mlxbert.pretraining.terms.term import Term

ELECTRA = "electra"  # two terms, of two networks
_TEMPERATURE = 2.0
_WEIGHT = 50.0  # of replaced tokens: a binary choice has a small loss
_ALL: tuple[type[Term], ...] = (MaskedWords, NextSentence, SentenceOrder, SoftTargets, HiddenStates, Vectors)
TERMS: Mapping[str, type[Term]] = {term.name: term for term in _ALL}


def read_terms(text: str) -> dict[str, float]:
    """The names of terms and their weights.

    Raises:
        ArgumentError: A term is unknown or comes twice, or a weight is no number above 0.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, colon, weight = (piece.strip() for piece in part.partition(":"))
        if name not in (*TERMS, ELECTRA):
            raise ArgumentError(f"objective names {name!r:.60}, expected some of {', '.join(TERMS)}, or {ELECTRA}")
        if name in found:
            raise ArgumentError(f"objective names {name} twice: {text!r:.60}")
        try:
            found[name] = float(weight) if colon else (_WEIGHT if name == ELECTRA else 1.0)
        except ValueError:
            raise ArgumentError(f"objective has the weight {weight!r:.60} for {name}, expected a number") from None
        check_number("weight", found[name])
    if ELECTRA in found and len(found) > 1:
        raise ArgumentError(f"objective is {text!r:.60}, expected {ELECTRA} alone: it consists of two losses")
    return found


def heads_of(terms: Iterable[str]) -> list[str]:
    """The heads that some terms train, each once."""
    kinds = (ReplacedTokens if term == ELECTRA else TERMS[term] for term in terms)
    return [*dict.fromkeys(kind.head for kind in kinds if kind.head is not None)]


def learned_from(terms: Iterable[str]) -> list[str]:
    """Those of some terms that learn from a teacher."""
    return [term for term in terms if term in TERMS and TERMS[term].of_teacher]


def make_terms(weights: Mapping[str, float], temperature: float = _TEMPERATURE) -> dict[Term, float]:
    """The terms with their weights.

    Args:
        weights: From `read_terms`.
        temperature: Of `soft`.

    Raises:
        ArgumentError: The temperature is no number above 0, or no term has one.
    """
    check_number("temperature", temperature)
    if temperature != _TEMPERATURE and SoftTargets.name not in weights:
        raise ArgumentError(f"temperature is {temperature} without soft, the only loss that has one")
    if ELECTRA in weights:
        return {GeneratedWords(): 1.0, ReplacedTokens(): weights[ELECTRA]}
    return {
        SoftTargets(temperature) if name == SoftTargets.name else TERMS[name](): weight
        for name, weight in weights.items()
    }
