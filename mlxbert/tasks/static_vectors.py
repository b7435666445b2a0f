"""The vectors of a static model: means of table rows, computed by NumPy without padding and without the network.

Shapes: N texts, T tokens, D hidden size, W size of a vector.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from mlxbert.errors import InputError, TokenizerError
from mlxbert.machine.device import mx, nn
from mlxbert.model import Model
from mlxbert.nn.embedder import SMALLEST_NORM, Embedder, Normalize
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_TOKENS = 4096  # rows that are gathered at once; they should fit into the caches of a core


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
            self._ready = self._tokenizer.truncated_ids({text: None for text in texts if isinstance(text, str)})
        try:
            yield
        finally:
            self._ready = {}

    def encoding(self, text: str) -> Encoding | None:
        """Returns a truncated text's tokens, if `together` has tokenized it."""
        return self._ready.get(text)

    def compute(self, encodings: Sequence[Encoding]) -> "Floats":
        """Returns the vectors (N, W). The vector of a text without tokens is 0."""
        import numpy as np

        table = self._model.network.encoder.embeddings.word.weight
        rows: Any = np.array(table if table.dtype == mx.float32 else table.astype(mx.float32), copy=False)
        vectors = means(rows, [encoding.ids for encoding in encodings])
        for _ in self._embedder.layers:
            _normalize(vectors)
        vectors = vectors[:, : self._embedder.config.dimensions]
        if self._embedder.config.normalize:
            _normalize(vectors)
        return vectors


def means(table: "Floats", texts: Sequence[Sequence[int]]) -> "Floats":
    """Returns the mean of the table's rows for each text, (N, D); 0 for a text without tokens.

    Args:
        table: (V, D).
        texts: The token ids of each text.
    """
    import numpy as np

    lengths = np.array([len(ids) for ids in texts], np.int64)
    ids = np.fromiter(chain.from_iterable(texts), np.int64, int(lengths.sum()))
    ends = lengths.cumsum()
    vectors = np.zeros((len(texts), table.shape[1]), np.float32)
    first = 0
    while first < len(texts):
        start = int(ends[first] - lengths[first])
        last = max(int(np.searchsorted(ends, start + _TOKENS, side="right")), first + 1)
        filled = first + np.flatnonzero(lengths[first:last])
        if filled.size:
            starts = ends[filled] - lengths[filled] - start
            sums = np.add.reduceat(table[ids[start : int(ends[last - 1])]], starts, axis=0)
            vectors[filled] = sums / lengths[filled, None].astype(np.float32)
        first = last
    return vectors


def _normalize(vectors: "Floats") -> None:
    import numpy as np

    vectors /= np.maximum(np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None], SMALLEST_NORM)
