"""MaxSim, the score of late interaction: each token of the query takes its best token of the document.

Shapes: Q tokens of a query, T tokens of a document, W size of a vector, N documents.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from mlxbert.errors import InputError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx, on_gpu
from mlxbert.nn.token_embedder import MAXSIM, MEAN_MAXSIM, TOKEN_SIMILARITIES
from mlxbert.other_libraries import not_one_of

Vectors: TypeAlias = "NDArray[np.floating[Any]]"

_BLOCK = {False: 2**13, True: 2**16}  # tokens of documents that are scored together: on a CPU, and on a GPU
_SMALL = 2**24  # products of numbers: for fewer, waiting for a GPU takes longer than computing them on a CPU


def maxsim(query: "Vectors", documents: "Iterable[Vectors]", *, similarity: str = MAXSIM) -> "NDArray[np.float32]":
    """Scores documents for a query by MaxSim: the sum over the query's tokens of the best dot product.

    Documents are read one after the other, so they may come from a file; only a few thousand tokens of documents are
    scored at a time.

    Example:
        >>> import numpy as np
        >>> query, documents = np.eye(2, 4), [np.eye(3, 4), np.eye(1, 4)]
        >>> mlxbert.maxsim(query, documents)  # array([2., 1.], dtype=float32)

    Args:
        query: (Q, W), as `embed_tokens` with `kind="query"` gives it.
        documents: The vectors (T, W) of each document, in float32 or float16.
        similarity: `maxsim`, or `meanmaxsim`, which divides by Q.

    Returns:
        float32 (N,). A document without vectors has the score 0.

    Raises:
        ArgumentError: `similarity` is unknown.
        InputError: An array has another shape.
    """
    if similarity not in TOKEN_SIMILARITIES:
        raise not_one_of("similarity", similarity, TOKEN_SIMILARITIES)
    query = _floats(query, "the query").astype(np.float32)
    if query.ndim != 2 or not query.size:
        raise InputError(f"the query has shape {query.shape}, expected (tokens, size)")
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        raise InputError(f"`documents` is {documents!r:.60}, expected an iterable of arrays")
    scores = [_scores(query, block) for block in _blocks(documents, query.shape[1])]
    total = np.concatenate([np.zeros(0, np.float32), *scores])
    return np.asarray(total / len(query) if similarity == MEAN_MAXSIM else total, np.float32)


def _floats(vectors: Any, name: str) -> "NDArray[np.floating[Any]]":
    try:
        array = np.asarray(vectors)
    except (TypeError, ValueError) as problem:
        raise InputError(f"{name} is not an array of numbers ({problem})") from None
    if array.dtype.kind != "f":
        raise InputError(
            f"{name} has dtype {array.dtype}, expected float32 or float16",
            hint="vectors in int8 or bits have to be converted to floats first",
        )
    return array


def _blocks(documents: "Iterable[Vectors]", width: int) -> "Iterator[list[Vectors]]":
    gpu = on_gpu()
    most, block, tokens, longest = _BLOCK[gpu], list["Vectors"](), 0, 0
    for number, given in enumerate(documents):
        document = _floats(given, f"document {number}")
        if document.ndim != 2 or document.shape[1] != width:
            raise InputError(f"document {number} has shape {document.shape}, expected (tokens, {width})")
        # On a GPU, all documents of a block take as much memory as the longest.
        padded = (len(block) + 1) * max(longest, len(document)) if gpu else 0
        if block and max(tokens + len(document), padded) > most:
            yield block
            block, tokens, longest = [], 0, 0
        block.append(document)
        tokens, longest = tokens + len(document), max(longest, len(document))
    if block:
        yield block


def _scores(query: "NDArray[np.float32]", block: "Sequence[Vectors]") -> "NDArray[np.float32]":
    lengths = np.array([len(document) for document in block])
    scores = np.zeros(len(block), np.float32)
    filled = lengths > 0
    if not filled.any():
        return scores
    tokens = np.concatenate(block, dtype=np.float32)
    starts = np.concatenate([[0], np.cumsum(lengths[filled])])
    if on_gpu() and len(tokens) * query.size >= _SMALL:
        scores[filled] = _on_gpu(query, tokens, starts)
    else:
        # Reducing along the rows of (Q, T) is thirty times faster than along the columns of (T, Q).
        scores[filled] = np.maximum.reduceat(query @ tokens.T, starts[:-1], axis=1).sum(axis=0)
    return scores


def _on_gpu(
    query: "NDArray[np.float32]", tokens: "NDArray[np.float32]", starts: "NDArray[np.int64]"
) -> "NDArray[np.float32]":
    """Returns the scores of documents, whose tokens a row of indices selects; short rows repeat their last token."""
    lengths = np.diff(starts)
    places = starts[:-1, None] + np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)
    products = mx.array(tokens) @ mx.array(query).T
    return np.array(products[mx.array(places.astype(np.int32))].max(axis=1).sum(axis=1))
