"""Token vectors that PyLate and sentence-transformers compute, and how they open a folder."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def pylate(folder: Path, kind: str, texts: Sequence[str]) -> list[Any]:
    """Returns PyLate's vectors of texts of a kind, `query` or `document`."""
    vectors: list[Any] = (
        importlib.import_module("pylate.models")
        .ColBERT(str(folder), device="cpu")
        .encode([*texts], is_query=kind == "query", show_progress_bar=False)
    )
    return vectors


def multi_vector(folder: Path, kind: str, texts: Sequence[str]) -> list[Any]:
    """Returns the vectors of sentence-transformers' `MultiVectorEncoder`."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folder), device="cpu")
    encode = model.encode_query if kind == "query" else model.encode_document
    return [array.cpu().numpy() for array in encode([*texts])]


PEERS = {"pylate": pylate, "multi_vector": multi_vector}
