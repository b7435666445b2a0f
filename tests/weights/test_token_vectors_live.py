"""Token vectors next to PyLate, or sentence-transformers from version 6, whichever is installed."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from tests.helpers import token_folders, token_peers

pytestmark = pytest.mark.slow
NEEDS = {"pylate": "pylate", "multi_vector": "sentence_transformers.multi_vector_encoder"}
TEXTS: dict[Any, tuple[str, ...]] = {"query": token_folders.QUERIES, "document": token_folders.DOCUMENTS}


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("peer", NEEDS)
def test_every_layout_gives_the_vectors_of_the_peer(peer: str, tmp_path: Path) -> None:
    if not _installed(NEEDS[peer]):
        pytest.skip(f"needs {NEEDS[peer]}")
    for name, write in token_folders.PEERS[peer].items():
        folder = write(tmp_path / name)
        model = mlxbert.load(folder, task="embed")
        for kind, texts in TEXTS.items():
            theirs = token_peers.PEERS[peer](folder, kind, texts)
            for found, expected in zip(mlxbert.embed_tokens(model, texts, kind=kind), theirs, strict=True):
                assert found.shape == expected.shape, name
                assert np.abs(found - expected).max(initial=0) < 1e-5, name
