"""Embeds queries and texts for an index, as dense or as sparse vectors."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from mlxbert.errors import ArgumentError
from mlxbert.model import Model
from mlxbert.nn.vector_settings import VectorSettings
from mlxbert.results.embed import Embedding, SparseEmbedding
from mlxbert.search.sparse_vectors import ENTRIES, SIMILARITIES
from mlxbert.search.vector_signs import unit
from mlxbert.tasks.embed import EmbedTask
from mlxbert.tasks.embed_sparse import EmbedSparseTask
from mlxbert.tasks.options import EmbedOptions, SparseOptions
from mlxbert.tasks.query_ranking import scores_of_all
from mlxbert.tasks.sparse_scores import SparseMatrix
from mlxbert.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TextTask = EmbedTask | EmbedSparseTask
_KINDS: tuple[Literal["query", "document"], ...] = ("query", "document")


def is_sparse(model: Model) -> bool:
    """Whether an index has the sparse vectors of a model, because it makes no dense ones."""
    return model.vectors[0] == "sparse"


def settings_and_width(model: Model) -> tuple[VectorSettings, str, int]:
    """Returns the settings of a model's vectors, the name of their pooling, and their size.

    Raises:
        ArgumentError: The vectors are sparse and compared in a way that an index does not know.
        MlxbertError: The model makes no vectors of texts.
    """
    if not is_sparse(model):
        embedder = model.embedder
        return embedder.config, "+".join(embedder.config.poolings), embedder.size
    config = model.sparse_embedder.config
    if config.similarity not in SIMILARITIES:
        raise ArgumentError(
            f"{model.source}: sparse vectors are compared by {config.similarity}, but an index compares them by "
            f"{' or '.join(SIMILARITIES)}",
            hint='set "similarity_fn_name": "dot" in config_sentence_transformers.json of the model',
        )
    return config, "max" if config.largest else "sum", model.config.vocab_size


def text_tokenizer(model: Model) -> Tokenizer:
    """Returns the tokenizer of the model's vectors, with their maximum length."""
    return model.sparse_tokenizer if is_sparse(model) else model.embed_tokenizer


def text_task(model: Model, prompts: tuple[str, str], side: Literal[0, 1], *, overflow: Any = "truncate") -> TextTask:
    """Makes the task that embeds queries (`side` 0) or texts (1).

    Args:
        model: The model.
        prompts: The prompts in front of a query and of a text.
        side: Which of the two is embedded.
        overflow: See `EmbedOptions`.
    """
    if is_sparse(model):
        return EmbedSparseTask(model, SparseOptions(prompt=prompts[side], overflow=overflow), kind=_KINDS[side])
    return EmbedTask(model, EmbedOptions(prompt=prompts[side], overflow=overflow))


def vector_of(result: Any, similarity: str) -> "NDArray[Any]":
    """Returns the vector of a result of `text_task`, with length 1 if the similarity is cosine.

    It is float32 (W,) or, of a sparse vector, `ENTRIES` (K,).
    """
    import numpy as np

    if not isinstance(result, SparseEmbedding):
        assert isinstance(result, Embedding)
        return unit(result.embedding, similarity)
    entries = np.empty(len(result.ids), ENTRIES)
    entries["token"], entries["weight"] = result.ids, unit(result.values, similarity)
    return entries


def scores_of_all_pairs(similarity: str, queries: Iterable[Any], texts: Iterable[Any]) -> "NDArray[np.float32]":
    """Returns the similarity of each of n results for queries with each of m results for texts, (n, m)."""
    import numpy as np

    asked, found = [*queries], [*texts]
    if isinstance(asked[0], SparseEmbedding):
        width = 1 + max((int(each.ids[-1]) for each in (*asked, *found) if len(each.ids)), default=0)
        matrix = SparseMatrix.of(found, width)
        return np.stack([matrix.scores(similarity, query) for query in asked])
    sides = (np.stack([vector_of(each, similarity) for each in side]) for side in (asked, found))
    return np.asarray(scores_of_all(similarity, *sides))
