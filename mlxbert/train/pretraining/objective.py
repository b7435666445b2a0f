"""The objective of pre-training: makes batches of examples, and computes a weighted sum of loss terms.

Shapes: B examples, L length, M masked tokens of the batch (padded).
"""

import functools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from mlxbert.config import EncoderConfig
from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch, KnownIds
from mlxbert.nn.heads import Network
from mlxbert.option_declarations import SMALLEST, Bounds, bounds_of
from mlxbert.tasks.runner import in_halves
from mlxbert.tasks.task import evaluation_mode
from mlxbert.text.batch import padded_length
from mlxbert.train.loop.distributed import ProcessGroup
from mlxbert.train.objectives.objective import LoopObjective, TrainBatch
from mlxbert.train.options.loop_options import TeacherOptions
from mlxbert.train.pretraining.electra_pretraining import Electra, ElectraInputs, GeneratedWords, ReplacedTokens
from mlxbert.train.pretraining.examples import Draws, Examples, Ids, PretrainingExample, in_batches
from mlxbert.train.pretraining.loss_terms import (
    HiddenStates,
    MaskedWords,
    NextSentenceTerm,
    PretrainingTargets,
    SentenceOrderTerm,
    SoftTargets,
    Teacher,
    Term,
    TermInputs,
    Vectors,
)

_MULTIPLE = 32  # the number of masked tokens is padded to a multiple, so that a GPU compiles for few shapes
_RIGHT = {"mlm": "accuracy", "nsp": "next_sentence_accuracy", "sop": "order_accuracy"}
ELECTRA = "electra"  # two terms, for two networks
_TEMPERATURE = 2.0
_WEIGHTS = Bounds(SMALLEST, 1_000_000)
_WEIGHT = 50.0  # of replaced tokens, because a binary choice has a small loss
_ALL: tuple[type[Term], ...] = (MaskedWords, NextSentenceTerm, SentenceOrderTerm, SoftTargets, HiddenStates, Vectors)
TERMS: Mapping[str, type[Term]] = {term.name: term for term in _ALL}


class Pretraining(LoopObjective[Any]):
    """A weighted sum of loss terms, some of which may learn from a teacher."""

    name: ClassVar[str] = "pretrain"
    metric = "loss"
    all_words = True
    minimize = True
    pure = True
    config: EncoderConfig

    def __init__(self, terms: Mapping[Term, float], teacher: Teacher | None = None) -> None:
        self.weighted, self._teacher = terms, teacher
        self.losses = tuple(term.name for term in terms) if len(terms) > 1 else ()
        if any(isinstance(term, ReplacedTokens) for term in terms):
            # A better generator makes the discriminator's task harder, so the sum says little about either.
            self.metric = "mlm_loss"

    def use(self, config: EncoderConfig) -> None:
        """Stores the network's configuration, which `collate` needs for padding and segments."""
        self.config = config

    def settings(self) -> dict[str, Any]:
        """Returns the options of the objective by name; a run can be resumed only with the same options."""
        return {
            "terms": {term.name: weight for term, weight in self.weighted.items()},
            **{f"{term.name}_{name}": value for term in self.weighted for name, value in term.settings().items()},
        }

    def totals(self, examples: Sequence[PretrainingExample]) -> dict[str, float]:
        """Returns the divisor of each loss, keyed by term name, and the number of examples under an empty name.

        All are floats, because a GPU would compile the loss anew for each integer. No divisor is less than 1.
        """
        totals = {name: max(float(total), 1.0) for name, total in self._counts(examples).items()}
        return totals | {"": float(len(examples))}

    def _counts(self, examples: Sequence[PretrainingExample]) -> dict[str, float]:
        """Returns the divisor of each summed loss, keyed by the name of the term (see `Term.total`)."""
        return {term.name: term.total(examples) for term in self.weighted}

    def collate(self, examples: Sequence[PretrainingExample], rng: random.Random) -> TrainBatch:
        length = padded_length(max(map(len, examples)), self.config.max_length)
        lengths = np.array([len(example) for example in examples])
        mask = np.arange(length) < lengths[:, None]
        segments = _rows([example.segments for example in examples], length, 0)
        pad = self.config.pad_token_id
        ids, clean = (_rows([getattr(example, name) for example in examples], length, pad) for name in ("ids", "clean"))
        inputs = Batch(
            input_ids=mx.array(ids),
            attention_mask=None if mask.all() else mx.array(mask),
            token_type_ids=mx.array(segments) if self.config.type_vocab_size > 1 and segments.any() else None,
            ids=KnownIds(frozenset(np.unique([ids, clean]).tolist()), int(segments.max())),
        )
        return TrainBatch(inputs, self._targets(examples, mx.array(clean)))

    def _targets(self, examples: Sequence[PretrainingExample], clean: mx.array) -> PretrainingTargets:
        sizes = [len(example.places) for example in examples]
        count = sum(sizes)
        fill = -count % _MULTIPLE if count else _MULTIPLE
        labels = [example.label for example in examples]

        def column(values: Sequence[Any]) -> mx.array:
            return mx.array(np.concatenate([*values, np.zeros(fill)]).astype(np.int32))

        return PretrainingTargets(
            rows=column([np.repeat(np.arange(len(examples)), sizes)]),
            columns=column([example.places for example in examples]),
            originals=column([example.originals for example in examples]),
            counted=mx.array(np.arange(count + fill) < count).astype(mx.float32),
            labels=None if None in labels else mx.array(cast(list[int], labels), dtype=mx.int32),
            clean=clean,
            draws=_filled([example.draws for example in examples], fill),
        )

    def terms(self, network: Network, batch: TrainBatch) -> tuple[Mapping[str, mx.array], mx.array | float]:
        """Returns each term's weighted loss, divided by its divisor from `totals`, and the weight of the batch.

        The weights of all batches of an update add up to 1.
        """
        inputs, totals = self._inputs(network, batch), batch.totals
        losses = {term.name: term.loss(inputs) * (weight / totals[term.name]) for term, weight in self.weighted.items()}
        return losses, batch.inputs.input_ids.shape[0] / totals[""]

    def _inputs(self, network: Network, batch: TrainBatch) -> TermInputs:
        kind = ElectraInputs if isinstance(network, Electra) else TermInputs
        return kind(network, batch.inputs, batch.targets, self._teacher)

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, mx.array | float]:
        """Returns the sum of all terms (see `LoopObjective.loss`)."""
        losses, weight = self.terms(network, batch)
        return mx.stack([*losses.values()]).sum(), weight

    def measure(self, network: Network, examples: Examples, group: ProcessGroup, batch_size: int) -> dict[str, float]:
        """Computes the metrics on examples that are not used for training; the batches are divided among the processes.

        They are `loss`, the loss of each term, `accuracy` and `pseudo_perplexity` of masked tokens, and the accuracies
        of the other heads.
        """
        sums = {f"{kind} {term.name}": 0.0 for term in self.weighted for kind in ("loss", "right", "total")}
        sums |= {f"{kind} {name}": 0.0 for term in self.weighted for name in term.shares for kind in ("some", "of")}
        with evaluation_mode(network):
            for number, numbers in enumerate(in_batches(len(examples), batch_size)):
                if number % group.size == group.rank:
                    batch = [examples[index] for index in numbers]
                    for values in in_halves(batch, functools.partial(self._measured, network)):
                        for name, value in values.items():
                            sums[name] += value
        shared = group.sum({name: mx.array(value) for name, value in sums.items()})
        return self._metrics({name: float(cast(float, array.item())) for name, array in shared.items()})

    def _measured(self, network: Network, examples: Sequence[PretrainingExample]) -> dict[str, float]:
        batch = self.collate(examples, random.Random(0))
        inputs = self._inputs(network, batch)
        values: dict[str, mx.array] = {}
        for term in self.weighted:
            if (right := term.right(inputs)) is not None:
                values[f"right {term.name}"] = right
            values[f"loss {term.name}"] = term.loss(inputs)
            for name, (numerator, denominator) in term.counted(inputs).items():
                values |= {f"some {name}": numerator, f"of {name}": denominator}
        mx.eval(values)
        totals = {f"total {name}": total for name, total in self._counts(examples).items()}
        return {name: float(cast(float, array.item())) for name, array in values.items()} | totals

    def _metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        means = {term.name: sums[f"loss {term.name}"] / max(sums[f"total {term.name}"], 1.0) for term in self.weighted}
        metrics = {"loss": sum(weight * means[term.name] for term, weight in self.weighted.items())}
        metrics |= {f"{name}_loss": mean for name, mean in means.items()} if self.losses else {}
        for term in self.weighted:
            if term.name in _RIGHT:
                metrics[_RIGHT[term.name]] = sums[f"right {term.name}"] / max(sums[f"total {term.name}"], 1.0)
            metrics |= {name: sums[f"some {name}"] / max(sums[f"of {name}"], 1.0) for name in term.shares}
        if "mlm" in means:
            metrics["pseudo_perplexity"] = float(np.exp(min(means["mlm"], 700)))
        return metrics


def _filled(draws: Sequence[Draws | None], fill: int) -> mx.array | None:
    """Joins the `draws` of all examples, with `fill` rows of padding, (M, 2); returns `None` if there are none."""
    rows = [row for row in draws if row is not None]
    return mx.array(np.concatenate([*rows, np.zeros((fill, 2), np.float32)])) if rows else None


def _rows(values: Sequence[Ids], length: int, fill: int) -> Ids:
    """Pads each row on the right to `length`, with the value `fill`; returns (B, L)."""
    padded = np.full((len(values), length), fill, np.int32)
    for row, ids in zip(padded, values, strict=True):
        row[: len(ids)] = ids
    return padded


def read_terms(text: str) -> dict[str, float]:
    """Parses an objective, such as `mlm:1,nsp:0.5`; returns the weight of each term by name."""
    if not isinstance(text, str):
        raise ArgumentError(f"`objective` is {text!r:.60}, expected a text such as 'mlm' or 'mlm:1,nsp:0.5'")
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, colon, weight = (piece.strip() for piece in part.partition(":"))
        if name not in (*TERMS, ELECTRA):
            raise ArgumentError(f"`objective` names {name!r:.60}, expected any of {', '.join(TERMS)}, or {ELECTRA}")
        if name in weights:
            raise ArgumentError(f"`objective` is {text!r:.60}, which names {name} twice")
        try:
            weights[name] = float(weight) if colon else (_WEIGHT if name == ELECTRA else 1.0)
        except ValueError:
            raise ArgumentError(f"`objective` has the weight {weight!r:.60} for {name}, expected a number") from None
        _WEIGHTS.check_number("weight", weights[name])
    if ELECTRA in weights and len(weights) > 1:
        raise ArgumentError(f"`objective` is {text!r:.60}, but {ELECTRA} cannot be combined with other losses")
    return weights


def heads_of(terms: Iterable[str]) -> list[str]:
    """Returns the heads that the terms train, without duplicates."""
    kinds = (ReplacedTokens if term == ELECTRA else TERMS[term] for term in terms)
    return [*dict.fromkeys(kind.head for kind in kinds if kind.head is not None)]


def terms_with_teacher(terms: Iterable[str]) -> list[str]:
    """Returns the terms that learn from a teacher."""
    return [term for term in terms if term in TERMS and TERMS[term].of_teacher]


def make_terms(weights: Mapping[str, float], temperature: float = _TEMPERATURE) -> dict[Term, float]:
    """Makes the terms from the result of `read_terms`; `temperature` is used only by the term `soft`."""
    temperature = bounds_of(TeacherOptions, "temperature").check_number("temperature", temperature)
    if temperature != _TEMPERATURE and SoftTargets.name not in weights:
        raise ArgumentError(f"`temperature` is {temperature}, which works only with the loss soft")
    if ELECTRA in weights:
        return {GeneratedWords(): 1.0, ReplacedTokens(): weights[ELECTRA]}
    return {
        SoftTargets(temperature) if name == SoftTargets.name else TERMS[name](): weight
        for name, weight in weights.items()
    }
