"""Computes sparse vectors of texts: a weight for each token of the vocabulary, most of them 0."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from mlxbert.errors import ArgumentError, InputError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.sparse_embedder import SpladePooling, StaticWeights
from mlxbert.nn.vector_settings import VectorSettings
from mlxbert.results.embed import SparseEmbedding
from mlxbert.results.result import Failure
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import Kind, SparseOptions
from mlxbert.tasks.prompted_task import PromptedTask
from mlxbert.tasks.sparse_scores import sparse_score
from mlxbert.tasks.task import RESULT_BYTES, PreparedItem, check_finite, one_or_many
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.usage import Usage

Weights: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.float32]]"  # ids in ascending order, and their weights

_LOG = logging.getLogger("mlxbert")
_ENTRY_BYTES = 16  # the memory of a weight: its id, its number, and a reference to its token
_TOO_LONG = "`overflow='truncate'` truncates the text"


class EmbedSparseTask(PromptedTask["Weights", SparseEmbedding]):
    """Computes the sparse vector of a text.

    Attributes:
        embedder: Turns hidden states into weights, with the settings of the model.
        weights: The part of the embedder for texts of the kind that the options name.
        similarity: The name of the function that compares the vectors, one of `SIMILARITIES`.
    """

    options: SparseOptions
    smaller = "use `top_k=` to keep fewer tokens"

    def __init__(
        self, model: Model, options: SparseOptions, *, usage: Usage | None = None, kind: Kind | None = None
    ) -> None:
        """Makes the task; `kind` is the kind of the texts if `options` states their prompt instead."""
        super().__init__(model, options, usage=usage)
        config = self.embedder.config
        self.weights, self.similarity = self.embedder.of_kind(options.kind or kind), config.similarity
        self._largest = config.largest or not isinstance(self.weights, SpladePooling)
        self._top_k = options.top_k or config.top_k
        self._names = dict[int, str]()  # by token id
        if not config.stated:
            _LOG.warning(
                "%s: no file of the model says that it was trained for sparse vectors, so the weights are those of its "
                "masked-LM head, and most of them say little",
                model.source,
            )

    def text_settings(self) -> tuple[VectorSettings, Tokenizer]:
        self.embedder = self.model.sparse_embedder
        self.routed = self.embedder.queries is not None
        return self.embedder.config, self.model.sparse_tokenizer

    @property
    def output_bytes(self) -> int:
        return _ENTRY_BYTES * self.model.config.vocab_size

    def size(self, item: str, units: int) -> int:
        width = self.model.config.vocab_size
        return RESULT_BYTES + _ENTRY_BYTES * min(self._top_k or width, width)

    def prepare(self, item: str) -> PreparedItem[str]:
        """Tokenizes the prompt and a text; static weights have no use for special tokens or windows."""
        if not isinstance(self.weights, StaticWeights) or not isinstance(item, str):
            return super().prepare(item)
        pieces, limit = self.tokenizer.split(self.prompt + item), self.tokenizer.max_length
        truncated = len(pieces) > limit and not self.windowed
        if truncated and self.options.overflow == "error":
            raise InputError(f"the text has {len(pieces)} tokens, but the model takes at most {limit}", hint=_TOO_LONG)
        encoding = self.tokenizer.assemble([pieces.slice(0, limit) if truncated else pieces], truncated=truncated)
        unknown, only = self.tokenizer.unknown([encoding], self.prompt_length if self.prompt else 0)
        return PreparedItem(item, [encoding], truncated, unknown=unknown, only_unknown=only)

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[str], int]]) -> mx.array:
        """Returns the weights of the vocabulary (B, V), or of the places of the text (B, L)."""
        return self.weights(self.model.network, batch)

    def read(self, arrays: mx.array, parts: Sequence[tuple[PreparedItem[str], int]]) -> Sequence["Weights"]:
        """Returns the ids and the weights of each row that are not 0."""
        rows = np.array(arrays)
        if isinstance(self.weights, SpladePooling):
            ids = map(np.flatnonzero, rows)
            return [(found.astype(np.int32), row[found]) for found, row in zip(ids, rows[: len(parts)], strict=False)]
        return [self._of_places(job.encodings[number], row) for (job, number), row in zip(parts, rows, strict=False)]

    def _of_places(self, encoding: Any, row: "NDArray[np.float32]") -> "Weights":
        """Returns the largest weight of each token of a text; special tokens have none."""
        kept = [
            place
            for place, (number, text) in enumerate(zip(encoding.ids, encoding.sequence_ids, strict=True))
            if text is not None and number not in self.embedder.ignored
        ]
        return _joined([(np.array([encoding.ids[place] for place in kept], np.int32), row[kept])], largest=True)

    def result(self, job: PreparedItem[str], outputs: Sequence["Weights"]) -> SparseEmbedding:
        """Makes the result; a token in several windows has its largest weight, or the sum if the model sums."""
        for _, each in outputs:
            check_finite(each, "weights")
        ids, weights = outputs[0] if len(outputs) == 1 else _joined(outputs, largest=self._largest)
        if self._top_k is not None and len(ids) > self._top_k:
            kept = np.sort(np.argsort(-weights, kind="stable")[: self._top_k])
            ids, weights = ids[kept], weights[kept]
        names = tuple(map(self._name, ids.tolist()))
        tokens = sum(map(len, job.encodings))
        return SparseEmbedding(job.item, ids, weights, names, tokens, job.truncated, job.unknown, job.only_unknown)

    def score(self, query: SparseEmbedding, text: SparseEmbedding) -> float:
        return sparse_score(self.similarity, query, text)

    def _name(self, number: int) -> str:
        """Returns the token with an id. An id that only the embedding table has is named by its number."""
        if number not in self._names:
            try:
                self._names[number] = self.tokenizer.token(number)
            except ArgumentError:
                self._names[number] = f"[id {number}]"
        return self._names[number]


def _joined(parts: Sequence["Weights"], *, largest: bool) -> "Weights":
    """Joins weights by id, with the maximum or the sum of each id, and drops zeros."""
    ids, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    distinct, places = np.unique(ids, return_inverse=True)
    joined = np.full(len(distinct), -np.inf if largest else 0, np.float32)
    (np.maximum if largest else np.add).at(joined, places, weights)
    return distinct[joined != 0], joined[joined != 0]


@takes_keywords
def embed_sparse(
    model: Model, texts: str | Iterable[str | InputError], *, options: SparseOptions, call: CallOptions
) -> SparseEmbedding | Iterator[SparseEmbedding | Failure]:
    """Computes the sparse vectors of texts: the weights of the tokens of the vocabulary that matter for a text.

    Example:
        >>> model = mlxbert.load("naver/splade-v3", task="embed-sparse")
        >>> result = mlxbert.embed_sparse(model, "A man eats.")
        >>> result.weights()  # {"man": 2.1, "eat": 1.9, …}, the heaviest token first

    The model is a SPLADE model, which pools the logits of a masked-LM head, or has a linear layer that weights the
    tokens of the text itself, as BGE-M3. `kind` is for models that compute queries differently, or put a prompt before
    them. Windows of a text that is too long give each token its largest weight (or the sum, if the model sums).

    Args:
        model: A model with a masked-LM head, or with a layer for sparse vectors. A masked-LM model that was not trained
            for sparse vectors gives weights of little use; the log says so.
        texts: One text, or any number of texts.
        options: See `SparseOptions`.
        call: See `CallOptions`.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        MissingHeadError: The model has no masked-LM head, and no layer for sparse vectors.
        InputError: A text is unusable, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
    return one_or_many(EmbedSparseTask, model, texts, options, call)
