"""Reranking: a cross-encoder reads the query and each text together, and gives each text a score."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import cast

from mlxbert.errors import ArgumentError, CheckpointError, InputError, TokenizerError
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.results.result import Failure, Listed
from mlxbert.results.text_relations import Reranked
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.label_scores import HEAD
from mlxbert.tasks.options import RerankOptions
from mlxbert.tasks.prompted_task import check_texts
from mlxbert.tasks.query_ranking import Scored, check_query, rank, reranked, scored_texts, with_query
from mlxbert.tasks.task import PreparedItem, Task, check_finite
from mlxbert.tasks.token_vectors import token_tasks
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.usage import Usage
from mlxbert.weights.rerankers import gives_probabilities

Pair = tuple[str, str]


class RerankTask(Task[Pair, PreparedItem[Pair], tuple[float, float], Scored]):
    """Computes the scores of pairs of a query and a text."""

    name = "classify"
    options: RerankOptions

    def __init__(self, model: Model, options: RerankOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        check_one_score(model)
        self.probabilities = gives_probabilities(model.files)  # whether the scores are probabilities
        if options.prompt is not None:
            self.tokenizer = _instructed(self.tokenizer, options.prompt)

    def is_item(self, value: object) -> bool:
        """Whether `value` is a query with a text, in a tuple (a list may hold any number of pairs)."""
        return isinstance(value, tuple)

    def check_query(self, query: str) -> None:
        """Raises InputError if a query leaves no room for a text."""
        if self.options.overflow != "truncate":
            room = self.tokenizer.max_length // 2
            if len(tokens := self.tokenizer.pieces(query)) > room:
                raise InputError(
                    f"the query has {len(tokens)} tokens, expected at most {room}, half of the model's maximum",
                    hint="`overflow='truncate'` truncates the query",
                )
        self.tokenizer.encode(query, "", overflow="truncate")

    def texts(self, item: Pair) -> Sequence[str]:
        return self.tokenizer.inside(*item)

    def prepare(self, item: Pair) -> PreparedItem[Pair]:
        query, text = item
        if not isinstance(text, str):
            raise InputError(f"expected a text, found {type(text).__name__}")
        if self.windowed:
            return PreparedItem(item, self.tokenizer.windows(query, text, stride=0), False)
        encoding = self.encode(query, text)
        return PreparedItem(item, [encoding], encoding.truncated)

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[Pair], int]]) -> tuple[mx.array, mx.array]:
        """Returns the logits and the scores, (B,) each."""
        logits = self.model.network.logits(HEAD, batch).astype(mx.float32)[:, 0]
        return logits, mx.sigmoid(logits) if self.probabilities else logits

    def read(
        self, arrays: tuple[mx.array, mx.array], parts: Sequence[tuple[PreparedItem[Pair], int]]
    ) -> list[tuple[float, float]]:
        """Returns the logit and the score of each row."""
        logits, scores = (cast(list[float], array.tolist()) for array in arrays)
        return [*zip(logits, scores, strict=True)]

    def result(self, job: PreparedItem[Pair], outputs: Sequence[tuple[float, float]]) -> Scored:
        """Returns the text with the score of its best window."""
        check_finite([logit for logit, _ in outputs])
        logit, score = max(outputs)
        return Scored(score, job.item[1], job.truncated, logit=logit)


def _instructed(tokenizer: Tokenizer, instruction: str) -> Tokenizer:
    if not isinstance(instruction, str):
        raise ArgumentError(f"`prompt` is {instruction!r:.60}, expected a text")
    if tokenizer.prompt is None:
        raise ArgumentError(
            f"`prompt` is {instruction!r:.60}, but the model takes only the query and the text",
            hint="only rerankers such as Qwen3-Reranker take an instruction",
        )
    try:
        return tokenizer.adapted(prompt=replace(tokenizer.prompt, instruction=instruction))
    except TokenizerError as problem:
        raise ArgumentError(f"`prompt` is {instruction!r:.60}: {problem.message}") from None


def check_one_score(model: Model) -> None:
    """Raises CheckpointError if a model computes more than one score for a pair of texts."""
    assert model.labels is not None  # a model with the head has labels
    if len(model.labels) != 1:
        raise CheckpointError(
            f"{model.source}: the model gives {len(model.labels)} scores per pair of texts, expected one score",
            hint="use a cross-encoder, or use classify to get the labels of pairs of texts",
        )


@takes_keywords
def rerank(
    model: Model, query: str, texts: Iterable[str | InputError], *, options: RerankOptions, call: CallOptions
) -> list[Reranked] | list[Reranked | Failure]:
    """Ranks texts by how well they answer a query, with a cross-encoder or a model for late interaction.

    A model for late interaction, such as ColBERT, compares the token vectors (see `maxsim`). A cross-encoder
    reads the query together with each text, which is slower and more accurate: usually only the best texts of a search
    are reranked. A text in windows gets the score of its best window; each window contains the whole query.

    Example:
        >>> model = mlxbert.load("cross-encoder/ms-marco-MiniLM-L6-v2", task="classify")
        >>> mlxbert.rerank(model, "Who wrote Emma?", ["Jane Austen did.", "It rains."])[0].text

    Args:
        model: A cross-encoder: a sequence classifier with one output, as sentence-transformers trains them; a
            Qwen3-Reranker; or a model for late interaction, which takes no windows.
        query: The query.
        texts: Any number of texts.
        options: See `RerankOptions`.
        call: See `CallOptions`.

    Returns:
        The texts, best first according to the logit; equally good texts are in the order of the input. Scores are
        probabilities, or any numbers, depending on the files of the model; they equal the scores of
        sentence-transformers' `CrossEncoder`, or MaxSim. Failures come last, and `top_k` drops none of them.

    Raises:
        ArgumentError: An argument has an invalid value.
        CheckpointError: The model gives several scores, or its files name a function that mlxbert does not know.
        InputError: A text is unusable, or the query is unusable (whatever `on_error` says).
    """
    check_model(model, query, texts)
    check_query(query, texts)
    best, failures = rank(score_pairs(model, query, check_texts(texts), options, call), options.top_k)
    return Listed([*(reranked(query, text) for text in best), *failures])


def score_pairs(
    model: Model, query: str, texts: Iterable[str | InputError], options: RerankOptions, call: CallOptions
) -> Iterator[Scored | Failure]:
    """Yields the score of each text for a query, in the order of the texts (see `rerank`)."""
    if ranks_by_tokens(model):
        if options.prompt is not None:
            raise ArgumentError(f"`prompt` is {options.prompt!r:.60}, but a model for late interaction takes none")
        return scored_texts(*token_tasks(model, options, call.usage), query, texts, call.on_error)
    task = RerankTask(model, options, usage=call.usage)
    task.check_query(query)  # once, instead of an error for each text
    return task.run(with_query(query, texts), call.on_error, early=False)


def ranks_by_tokens(model: Model) -> bool:
    """Whether `rerank` compares token vectors: the model gives them, and has no head for pairs of texts."""
    return HEAD not in model.network.heads and "tokens" in model.vectors
