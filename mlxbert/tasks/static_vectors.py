"""The vectors of a static model: means of table rows, computed by NumPy without padding and without the network.

Shapes: N texts, T tokens, D hidden size, W size of a vector.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, TypeAlias, cast

from mlxbert.errors import InputError, TokenizerError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx, nn
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder, Normalize
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer, batches

Floats: TypeAlias = "NDArray[np.float32]"

_ROWS = 256  # texts that are summed up together; their sums fit into the cache of a core
_LONG = 512  # tokens; longer texts are summed up alone
_BATCH = 1024  # texts that a thread tokenizes and embeds


class StaticVectors:
    """Tokenizes and embeds texts with a static model, without the parts of an `Encoding` that only a network needs."""

    def __init__(self, model: Model, embedder: Embedder, tokenizer: Tokenizer) -> None:
        self._model, self._embedder, self._tokenizer = model, embedder, tokenizer
        self._ready: dict[str, Encoding] = {}

    @staticmethod
    def suit(model: Model, embedder: Embedder) -> bool:
        """Whether the vectors of a model are such means, perhaps scaled to length 1."""
        word = model.network.encoder.embeddings.word
        plain = type(word) is nn.Embedding and all(isinstance(layer, Normalize) for layer in embedder.layers)
        return model.config.is_static and plain and embedder.config.poolings == ("mean",)

    @contextmanager
    def together(self, texts: Iterable[str]) -> Iterator[None]:
        """Tokenizes texts on all cores; within this context, `encoding` finds them."""
        self._ready = {}
        with suppress(InputError, TypeError, TokenizerError):  # `Tokenizer.encode` says which text is unusable
            for batch in batches({text: None for text in texts if isinstance(text, str)}, least=1):
                self._ready |= zip(batch, map(_encoding, self._tokenizer.truncated_ids(batch)), strict=True)
        try:
            yield
        finally:
            self._ready = {}

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[list[tuple[list[int], int, bool]], "Floats"]]:
        """Tokenizes and embeds texts with a thread per core, in order.

        Yields:
            For a batch of texts, the result of `Tokenizer.truncated_ids` and the vectors (N, W).

        Raises:
            InputError: A text is unusable; the message does not say which one.
        """
        from concurrent.futures import ThreadPoolExecutor

        def compute(first: int) -> tuple[list[tuple[list[int], int, bool]], "Floats"]:
            part = texts[first : first + _BATCH]
            if not all(isinstance(text, str) for text in part):
                raise InputError("expected texts")
            try:
                tokenized = self._tokenizer.truncated_ids(part)
            except TypeError:
                raise InputError("a text is not valid Unicode") from None
            return tokenized, self.compute([ids for ids, _, _ in tokenized], table)

        table = self.table()  # MLX is used on this thread only
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            yield from pool.map(compute, range(0, len(texts), _BATCH))

    def encoding(self, text: str) -> Encoding | None:
        """Returns a truncated text's tokens, if `together` has tokenized it."""
        return self._ready.get(text)

    def table(self) -> "Floats":
        """Returns the table (V, D); its memory is shared with MLX if the model is in float32."""
        table = self._model.network.encoder.embeddings.word.weight
        rows: Any = np.array(table if table.dtype == mx.float32 else table.astype(mx.float32), copy=False)
        return cast("Floats", rows)

    def compute(self, texts: Sequence[Sequence[int]], table: "Floats") -> "Floats":
        """Returns the vectors (N, W) of texts, given their token ids. The vector of a text without tokens is 0."""
        vectors = means(table, texts)
        for _ in self._embedder.layers:
            unit_length(vectors, out=vectors)
        vectors = vectors[:, : self._embedder.config.dimensions]
        if self._embedder.config.normalize:
            unit_length(vectors, out=vectors)
        return vectors


def _encoding(tokenized: tuple[list[int], int, bool]) -> Encoding:
    ids, dropped, truncated = tokenized
    return Encoding(ids, [], [], [], [], [], truncated, dropped)


def means(table: "Floats", texts: Sequence[Sequence[int]]) -> "Floats":
    """Returns the mean of the table's rows for each text, (N, D); 0 for a text without tokens.

    Texts of similar length are summed up together, one token of each at a time: a sum over the tokens of one text after
    the other takes three times as long.

    Args:
        table: (V, D).
    """
    lengths = np.array([len(ids) for ids in texts], np.int64)
    ids = np.fromiter(chain.from_iterable(texts), np.int64, int(lengths.sum()))
    starts = lengths.cumsum() - lengths
    vectors = np.zeros((len(texts), table.shape[1]), np.float32)
    order = np.argsort(-lengths, kind="stable")
    long = int(np.count_nonzero(lengths > _LONG))
    for number in order[:long]:
        for first in range(int(starts[number]), int(starts[number] + lengths[number]), _LONG):
            last = min(first + _LONG, int(starts[number] + lengths[number]))
            vectors[number] += table[ids[first:last]].sum(axis=0)
    for first in range(long, len(order), _ROWS):
        group = order[first : first + _ROWS]
        sums = np.zeros((len(group), table.shape[1]), np.float32)
        # For each position, the number of texts that are longer: they come first.
        counts = len(group) - np.searchsorted(lengths[group][::-1], np.arange(lengths[group[0]]), side="right")
        for position, count in enumerate(counts.tolist()):
            sums[:count] += table[ids[starts[group[:count]] + position]]
        vectors[group] = sums
    vectors /= np.maximum(lengths, 1)[:, None].astype(np.float32)
    return vectors
