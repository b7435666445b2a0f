"""Embeds the queries and the texts of an index, in the way that its model allows.

Legend: W values per vector, T tokens that have a vector.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from mlxbert.errors import ArgumentError, StoreError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.token_embedder import TokenEmbedder, TokenSide
from mlxbert.nn.vector_settings import VectorSettings
from mlxbert.results.embed import Embedding, SparseEmbedding, TokenVectors
from mlxbert.search.late_interaction import scores_of_tokens
from mlxbert.search.nearest_vectors import unit
from mlxbert.search.sparse_vectors import ENTRIES, SIMILARITIES
from mlxbert.search.store import VectorWithTokens
from mlxbert.tasks.embed import EmbedTask
from mlxbert.tasks.embed_sparse import EmbedSparseTask
from mlxbert.tasks.options import EmbedOptions, SparseOptions, TokenVectorOptions
from mlxbert.tasks.prompt_kinds import KINDS, own_prompt
from mlxbert.tasks.query_ranking import scores_of_all
from mlxbert.tasks.sparse_scores import SparseMatrix
from mlxbert.tasks.task import PreparedItem, check_finite
from mlxbert.tasks.token_vectors import TokenVectorsTask
from mlxbert.tasks.vector_dtype import rows_as_dtype
from mlxbert.text.token_inputs import TokenInputs
from mlxbert.text.tokenizer import Tokenizer

Vector: TypeAlias = "NDArray[np.float32]"

TextTask = EmbedTask | EmbedSparseTask | TokenVectorsTask
_SIDES: tuple[Literal["query", "document"], ...] = ("query", "document")


class TextVectors:
    """Embeds texts as dense vectors.

    Attributes:
        kind: The kind of the vectors that a search compares with that of the query, one of `store.KINDS`.
        settings: How texts are prepared and vectors compared.
        pooling: The name of the pooling.
        width: The size of a vector; of a sparse one, the size of the vocabulary.
        similarity: How vectors are compared.
        tokenizer: The tokenizer, with the maximum length of a text.
        token_size: The size of the token vectors that are kept, too; 0 if there are none.
        token_dtype: The dtype in which token vectors are kept, one of `TOKEN_DTYPES`; empty if there are none.
        only_tokens: Whether the model makes only token vectors; then the prompts are those of its files.
    """

    kind = "dense"
    token_size, token_dtype, only_tokens = 0, "", False
    settings: VectorSettings
    pooling: str
    width: int
    similarity: str
    tokenizer: Tokenizer

    def __init__(self, model: Model) -> None:
        self.model = model
        self.settings, self.similarity = model.embedder.config, model.embedder.config.similarity
        self.pooling, self.width = "+".join(model.embedder.config.poolings), model.embedder.size
        self.tokenizer = model.embed_tokenizer

    def task(self, prompts: tuple[str, str], side: Literal[0, 1], *, overflow: Any = "truncate") -> TextTask:
        """Makes the task that embeds queries (`side` 0) or texts (1).

        Args:
            prompts: The prompts in front of a query and of a text.
            side: Which of the two is embedded.
        """
        return EmbedTask(self.model, EmbedOptions(prompt=prompts[side], overflow=overflow))

    def vector(self, result: Any) -> Any:
        """Returns the vector of a result of `task`, with length 1 if the similarity is cosine.

        It is float32 (W,) or, of a sparse vector, `ENTRIES` (K,).
        """
        assert isinstance(result, Embedding)
        return unit(result.embedding, self.similarity)

    def tokens(self, result: Any) -> "NDArray[np.float32] | None":
        """Returns the token vectors of a result, (T, token_size); `None` if the index has no such vectors."""
        return result.embeddings if self.token_size else None

    def stored(self, result: Any) -> Any:
        """Returns what a store keeps of a result: the vector, with those of the tokens if the index has them.

        Raises:
            StoreError: A value is too large for float16.
        """
        tokens = self.tokens(result)
        if tokens is None:
            return self.vector(result)
        with np.errstate(over="ignore"):
            kept = rows_as_dtype(tokens, self.token_dtype)
        if not np.isfinite(kept).all():
            raise StoreError(
                f"{self.model.source}: a token vector has the value {np.abs(tokens).max():.3g}, which is too "
                "large for float16"
            )
        return VectorWithTokens(self.vector(result), kept)

    def scores(self, queries: Iterable[Any], texts: Iterable[Any]) -> "NDArray[np.float32]":
        """Returns the similarity of each of n results for queries with each of m results for texts, (n, m)."""
        sides = (np.stack([self.vector(each) for each in side]) for side in (queries, texts))
        return np.asarray(scores_of_all(self.similarity, *sides))

    def token_scores(self, queries: Iterable[Any], texts: Iterable[Any]) -> "NDArray[np.float32]":
        """Returns the MaxSim of each of n results for queries with each of m results for texts, (n, m).

        It is divided by the number of the query's tokens, and the vectors of the texts are as they are kept.
        """
        stored = [self.stored(each).tokens for each in texts]
        rows = (self.tokens(query) for query in queries)
        return np.stack([
            scores_of_tokens(row, stored, self.token_dtype, self.token_size) for row in rows if row is not None
        ])  # fmt: skip


class SparseTextVectors(TextVectors):
    """Embeds texts as sparse vectors.

    Raises:
        ArgumentError: The vectors are compared in a way that an index does not know.
    """

    kind = "sparse"

    def __init__(self, model: Model) -> None:
        self.model, config = model, model.sparse_embedder.config
        if config.similarity not in SIMILARITIES:
            raise ArgumentError(
                f"{model.source}: sparse vectors are compared by {config.similarity}, but an index compares them by "
                f"{' or '.join(SIMILARITIES)}",
                hint='set "similarity_fn_name": "dot" in config_sentence_transformers.json of the model',
            )
        self.settings, self.similarity = config, config.similarity
        self.pooling, self.width = "max" if config.largest else "sum", model.config.vocab_size
        self.tokenizer = model.sparse_tokenizer

    def task(self, prompts: tuple[str, str], side: Literal[0, 1], *, overflow: Any = "truncate") -> TextTask:
        return EmbedSparseTask(self.model, SparseOptions(prompt=prompts[side], overflow=overflow), kind=_SIDES[side])

    def vector(self, result: Any) -> Any:
        entries = np.empty(len(result.ids), ENTRIES)
        entries["token"], entries["weight"] = result.ids, unit(result.values, self.similarity)
        return entries

    def scores(self, queries: Iterable[Any], texts: Iterable[Any]) -> "NDArray[np.float32]":
        asked: list[SparseEmbedding] = [*queries]
        matrix = SparseMatrix.of([*texts], self.width)
        return np.stack([matrix.scores(self.similarity, query) for query in asked])


class TokenTextVectors(TextVectors):
    """Embeds texts as token vectors, for late interaction; the vector of a text is the mean of those."""

    pooling, similarity, only_tokens = "mean of the token vectors", "cosine", True

    def __init__(self, model: Model) -> None:
        self.model, embedder = model, model.token_embedder
        config = embedder.config
        self.settings = VectorSettings(prompts={"query": config.query.prompt, "document": config.document.prompt})
        self.width = embedder.size
        self.token_size, self.token_dtype = embedder.size, _kept_dtype(embedder)
        inputs = TokenInputs(model.tokenizer.adapted(lower_case=config.lower_case), config.document)
        self.tokenizer = inputs.tokenizer.adapted(max_length=inputs.tokenizer.max_length - inputs.markers)

    def task(self, prompts: tuple[str, str], side: Literal[0, 1], *, overflow: Any = "truncate") -> TextTask:
        """See `TextVectors`; the task puts the prompts itself."""
        return TokenVectorsTask(self.model, TokenVectorOptions(kind=_SIDES[side], overflow=overflow))

    def vector(self, result: Any) -> Any:
        assert isinstance(result, TokenVectors)
        return unit(result.embeddings.sum(axis=0), self.similarity)


class DenseAndTokenVectors(TextVectors):
    """Embeds texts as dense vectors and as token vectors, in one pass through the encoder."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.token_size, self.token_dtype = model.token_embedder.size, _kept_dtype(model.token_embedder)

    def task(self, prompts: tuple[str, str], side: Literal[0, 1], *, overflow: Any = "truncate") -> TextTask:
        """See `TextVectors`; the model has no prompts."""
        return _DenseAndTokensTask(self.model, TokenVectorOptions(kind=_SIDES[side], overflow=overflow))

    def vector(self, result: Any) -> Any:
        assert isinstance(result, _DenseAndTokens)
        return unit(result.vector, self.similarity)


@dataclass(frozen=True, eq=False)
class _DenseAndTokens(TokenVectors):
    """A text as one vector per token, and as one vector."""

    vector: Any = None  # float32 (W,)


class _DenseAndTokensTask(TokenVectorsTask):
    """Computes the token vectors of a text, and the vector of the text."""

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[str], int]]) -> Any:
        output = self.model.network.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return self.model.embedder(output, batch.attention_mask, 0), self.embedder(output.last_hidden_state)

    def read(self, arrays: Any, parts: Sequence[tuple[PreparedItem[str], int]]) -> Sequence[Any]:
        vectors, tokens = arrays
        return [*zip(np.array(vectors), super().read(tokens, parts), strict=True)]

    def result(self, job: PreparedItem[str], outputs: Sequence[Any]) -> TokenVectors:
        vector, tokens = (check_finite(values, "vectors") for values in outputs[0])
        return _DenseAndTokens(job.item, tokens, len(job.encodings[0]), job.truncated, vector=vector)


def text_vectors(model: Model, *, tokens: bool = True) -> TextVectors:
    """Returns what embeds the texts of an index.

    Args:
        tokens: Whether token vectors are kept, too, if the model makes them next to dense vectors.

    Raises:
        MlxbertError: The model makes no vectors that an index can hold.
    """
    made = _OF_KIND[model.vectors[0]]
    return DenseAndTokenVectors(model) if made is TextVectors and tokens and _has_both(model) else made(model)


_OF_KIND = {"dense": TextVectors, "sparse": SparseTextVectors, "tokens": TokenTextVectors}


def _has_both(model: Model) -> bool:
    """Whether a model makes vectors of texts and their token vectors from the same inputs, as BGE-M3 does."""
    if "tokens" not in model.vectors or model.embedder.needs_attentions:
        return False
    dense, config = model.embedder.config, model.token_embedder.config
    prompted = any(dense.prompts.get(own_prompt(dense.prompts, kind) or "") for kind in KINDS)
    plain = TokenSide(skip_first=True, length=dense.max_length)
    return config.query == config.document == plain and config.lower_case == dense.lower_case and not prompted


def _kept_dtype(embedder: TokenEmbedder) -> str:
    """Returns the dtype in which token vectors are kept: `binary`, a bit per value, if they have length 1."""
    return "binary" if embedder.unit and embedder.size % 8 == 0 else "float16"
