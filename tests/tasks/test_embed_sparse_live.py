"""Sparse vectors are the same as in sentence-transformers and as in the formula of BGE-M3."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from tests.helpers.sparse_folder import TEXTS, save_routed, save_splade
from tests.helpers.tiny import CONFIG, save

pytestmark = pytest.mark.slow
st = pytest.importorskip("sentence_transformers")
torch = pytest.importorskip("torch")

LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "max": save_splade,
    "sum": lambda folder: save_splade(folder, pooling_strategy="sum"),
    "two logarithms": lambda folder: save_splade(folder, activation_function="log1p_relu"),
    "sum of two logarithms": lambda folder: save_splade(
        folder, pooling_strategy="sum", activation_function="log1p_relu"
    ),
    "older dialect": lambda folder: save_splade(folder, old=True),
    "top k": lambda folder: save_splade(folder, settings={"max_active_dims": 5}),
    "prompts": lambda folder: save_splade(folder, settings={"prompts": {"query": "the ", "document": "a "}}),
    "default prompt": lambda folder: save_splade(
        folder, settings={"prompts": {"query": "the ", "document": ""}, "default_prompt_name": "query"}
    ),
    "routed": save_routed,
    "routed, JSON": lambda folder: save_routed(folder, json_weights=True),
    "routed, queries by default": lambda folder: save_routed(folder, default_route="query"),
    "routed, first by default": lambda folder: save_routed(folder, default_route=None),
}


def _full(model: mlxbert.Model, texts: Sequence[str], **options: Any) -> np.ndarray[Any, Any]:
    rows = np.zeros((len(texts), model.config.vocab_size), np.float32)
    for row, result in zip(rows, mlxbert.embed_sparse(model, texts, **options), strict=True):
        row[result.ids] = result.values
    return rows


@pytest.mark.parametrize("name", LAYOUTS)
def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = LAYOUTS[name](tmp_path / "model")
    if name == "routed, JSON":  # sentence-transformers looks for the file in the current folder
        monkeypatch.chdir(folder / "query_0_SparseStaticEmbedding")
    theirs = st.SparseEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    ours = mlxbert.load(folder, task="embed", dtype="float32", device="cpu")
    for kind, encode in (("query", theirs.encode_query), ("document", theirs.encode_document), (None, theirs.encode)):
        expected = encode([*TEXTS], convert_to_sparse_tensor=False).float().numpy()
        found = _full(ours, TEXTS, kind=kind)
        assert (expected != 0).any(1)[:2].all() and (expected == 0).any()
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_layer_of_bge_m3(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    layer = torch.nn.Linear(CONFIG["hidden_size"], 1)
    torch.save(layer.state_dict(), folder / "sparse_linear.pt")
    model = mlxbert.load(folder, task="embed", dtype="float32", device="cpu")
    assert model.vectors == ("sparse",)
    encoder = st.models.Transformer(str(folder)).auto_model.float().eval()
    found = _full(model, TEXTS)
    for text, row in zip(TEXTS, found, strict=True):
        encoding = model.tokenizer.encode(text, overflow="truncate")
        with torch.no_grad():
            states = encoder(torch.tensor([encoding.ids])).last_hidden_state[0]
            weights = torch.relu(layer(states))[:, 0].numpy()
        expected = np.zeros_like(row)
        for number, weight in zip(encoding.ids, weights, strict=True):
            if number not in (0, 1, 2, 3):  # [PAD], [UNK], [CLS], [SEP]
                expected[number] = max(expected[number], weight)
        np.testing.assert_allclose(row, expected, atol=1e-5)
    assert (found[:3] > 0).any(1).any()
