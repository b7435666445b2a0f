"""Runs GGUF files with llama.cpp, through the package llama-cpp-python."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

NO_POOLING, RANK = 0, 4


class LlamaCpp:
    """A GGUF file that llama.cpp has loaded."""

    def __init__(self, library: Any, path: Path, pooling: int | None = None, context: int = 512) -> None:
        """Takes the package `llama_cpp`, the file, the pooling (by default the file's), and a number of tokens."""
        self._library = library
        library.llama_log_set(_SILENT(library), None)
        library.llama_backend_init()
        settings = library.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = library.llama_model_load_from_file(str(path).encode(), settings)
        assert self._model, f"llama.cpp does not load {path}"
        options = library.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = context
        options.n_threads = options.n_threads_batch = 1
        options.embeddings = True
        if pooling is not None:
            options.pooling_type = pooling
        self._context = library.llama_init_from_model(self._model, options)
        self._vocabulary = library.llama_model_get_vocab(self._model)
        self.pooling = int(library.llama_pooling_type(self._context))

    def tokenize(self, text: str) -> list[int]:
        data = text.encode()
        ids = (self._library.llama_token * (len(data) + 8))()
        count = self._library.llama_tokenize(self._vocabulary, data, len(data), ids, len(ids), True, True)
        return list(ids[:count])

    def run(self, ids: Sequence[int]) -> np.ndarray:
        """Returns the hidden states of an input, a row for each token, or the vector or the scores of its pooling."""
        library = self._library
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        batch = library.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place] = token, place
            batch.n_seq_id[place], batch.seq_id[place][0], batch.logits[place] = 1, 0, True
        status = library.llama_decode(self._context, batch)
        library.llama_batch_free(batch)
        assert status == 0, f"llama.cpp refuses an input of {len(ids)} tokens ({status})"
        width = library.llama_model_n_embd(self._model)
        if self.pooling == NO_POOLING:
            rows = [library.llama_get_embeddings_ith(self._context, place)[:width] for place in range(len(ids))]
            return np.array(rows)
        values = library.llama_get_embeddings_seq(self._context, 0)
        return np.array(values[: library.llama_model_n_cls_out(self._model) if self.pooling == RANK else width])

    def close(self) -> None:
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)


def _SILENT(library: Any) -> Any:
    global _callback  # kept: the library calls it later
    _callback = library.llama_log_callback(lambda level, text, data: None)
    return _callback


_callback: Any = None
