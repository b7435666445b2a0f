"""Folders of sparse models survive `save`, `convert` and `inspect`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mlxbert
from tests.helpers.rooms import needs
from tests.helpers.sparse_folder import TEXTS, save_routed, save_splade

LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "splade": save_splade,
    "prompts": lambda folder: save_splade(folder, settings={"prompts": {"query": "the "}, "max_active_dims": 9}),
    "routed": save_routed,
    "routed, JSON, at the root": lambda folder: save_routed(folder, json_weights=True, root=True),
}


@pytest.mark.parametrize(
    ("name", "convert"),
    [
        *((name, False) for name in LAYOUTS),
        *(pytest.param(name, True, marks=needs("export")) for name in ("prompts", "routed, JSON, at the root")),
    ],
)
def test_a_copy_makes_the_same_vectors(name: str, convert: bool, tmp_path: Path) -> None:
    source = LAYOUTS[name](tmp_path / "source")
    model = mlxbert.load(source, dtype="float32", device="cpu")
    if convert:
        mlxbert.convert(source, tmp_path / "copy")
    else:
        mlxbert.save(model, tmp_path / "copy")
    copy = mlxbert.load(tmp_path / "copy", task="embed", dtype="float32", device="cpu")
    assert copy.vectors == model.vectors == ("sparse",)
    for kind in ("query", "document"):
        first, second = (mlxbert.embed_sparse(each, TEXTS[0], kind=kind) for each in (model, copy))
        assert first.ids.tolist() == second.ids.tolist() and len(first.ids)
        np.testing.assert_allclose(first.values, second.values, atol=1e-6)


def test_inspect_says_which_vectors_a_model_makes(tmp_path: Path) -> None:
    embedding = mlxbert.inspect(save_splade(tmp_path / "m")).embedding
    assert "sparse vectors" in getattr(embedding, "problem", "")
