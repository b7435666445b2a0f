"""`mlxbert.evaluate_words`: measures how well a model predicts masked tokens."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError
from mlxbert.model import Model
from mlxbert.nn.heads import HEADS
from mlxbert.option_declarations import COUNT, LENGTH, STEPS
from mlxbert.other_libraries import no_argument
from mlxbert.progress import OnProgress
from mlxbert.results.result import Shown
from mlxbert.tasks.argument_checks import check_model
from mlxbert.text.batch import default_batch_tokens
from mlxbert.train.loop.distributed import ProcessGroup
from mlxbert.train.pretraining.corpus_material import ExampleMaker
from mlxbert.train.pretraining.objective import Pretraining, heads_of, make_terms, read_terms
from mlxbert.train.pretraining.pretraining_settings import Settings, files_of, pairs_of

_OBJECTIVES = ("mlm", "nsp", "sop")


@dataclass(frozen=True)
class WordEvaluation(Shown):
    """How well a model predicts masked tokens.

    Attributes:
        model: The name or path of the model.
        data: The text files.
        examples: The number of examples made from the files.
        hidden: The number of masked tokens.
        metrics: `loss`, `accuracy` and `pseudo_perplexity` (the exponential of the mean loss per masked token). For an
            objective with pairs, the losses and accuracies of both heads.
    """

    model: str
    data: tuple[str, ...]
    examples: int
    hidden: int
    metrics: dict[str, float]


def evaluate_words(
    model: Model,
    data: str | Path | Sequence[str | Path],
    *,
    objective: str = "mlm",
    examples: int | None = 1000,
    length: int = 128,
    batch_tokens: int | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> WordEvaluation:
    """Evaluates a model on plain text. The choice of masked tokens depends only on the data and the tokenizer.

    Example:
        >>> mlxbert.evaluate_words(mlxbert.load(), "notes.txt").metrics["accuracy"]

    Args:
        model: A model with a masked-LM head.
        data: Text files, as for `mlxbert.pretrain`.
        objective: `mlm`; or `mlm,nsp` or `mlm,sop`, which also evaluate a head on pairs of texts.
        examples: The number of examples, drawn at random; `None` for all.
        length: The number of tokens per example.
        batch_tokens: The number of tokens per batch, padding included.
        on_progress: Called with the bytes read so far, and the bytes of all files.
        **options: `field`, `encoding`, `documents`, `across_documents`, `whole_words` and `mask_probability`, as for
            `mlxbert.pretrain`.

    Raises:
        ArgumentError: An argument is invalid.
        MissingHeadError: The model lacks a head that the objective needs.
        InputError: A file cannot be used.
    """
    check_model(model, data)
    if examples is not None:
        examples = STEPS.check_whole("examples", examples)
    length = LENGTH.check_whole("length", length)
    batch_tokens = default_batch_tokens() if batch_tokens is None else batch_tokens
    batch_tokens = COUNT.check_whole("batch_tokens", batch_tokens)
    weights = read_terms(objective)
    pretraining = Pretraining(make_terms(weights))
    if other := [name for name in weights if name not in _OBJECTIVES]:
        raise ArgumentError(f"`objective` names {other[0]}, expected any of {', '.join(_OBJECTIVES)}")
    for head in heads_of(weights):
        if head not in model.network.heads:
            if task := HEADS[head].task:
                model.require(task)
            else:
                raise ArgumentError(f"{model.source}: has no {HEADS[head].title}")
    chosen = {name: value for name, value in options.items() if value is not None}
    allowed = ("field", "encoding", "documents", "across_documents", "whole_words", "mask_probability")
    for name in chosen:
        if name not in allowed:
            raise no_argument(name, allowed, f"evaluate_words has no option {name!r}")
    settings = Settings(corpus=files_of(data, "data"), length=str(length), **chosen)
    pairs = pairs_of([*weights], settings.across_documents)
    pretraining.use(model.config)
    maker = ExampleMaker(settings, model.tokenizer, pairs, model.config.max_length)
    with tempfile.TemporaryDirectory(prefix="mlxbert-") as folder:
        drawn = maker.all_of(settings.corpus, Path(folder), examples, on_progress)
        metrics = pretraining.measure(model.network, drawn, ProcessGroup(), max(batch_tokens // length, 1))
        masked = sum(len(drawn[number].places) for number in range(len(drawn)))
    return WordEvaluation(model.source, tuple(map(str, settings.corpus)), len(drawn), masked, metrics)
