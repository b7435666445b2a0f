"""Decoders and biases of their own, next to transformers: the file decides, as there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from tests.helpers.families import FAMILIES, make_model
from tests.helpers.frozen import add_vocabulary
from tests.helpers.program import change_config

torch = pytest.importorskip("torch", reason="parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.slow
COPIES = {
    "bert": ("cls.predictions.decoder", "cls.predictions.bias"),
    "roberta": ("lm_head.decoder", "lm_head.bias"),
    "distilbert": ("vocab_projector", None),
    "albert": ("predictions.decoder", "predictions.bias"),
    "modernbert": ("decoder", None),
    "electra": ("generator_lm_head", None),
}


@pytest.mark.parametrize("states", [None, True, False])
@pytest.mark.parametrize("own", ["matrix", "bias", "both"])
@pytest.mark.parametrize("family", COPIES)
def test_a_decoder_of_its_own_is_run(family: str, own: str, states: bool | None, tmp_path: Path) -> None:
    stem, bias = COPIES[family]
    if own != "matrix" and bias is None:
        pytest.skip("the bias has one name")
    made = make_model(FAMILIES[family], "ForMaskedLM").eval()
    made.save_pretrained(tmp_path / "a")
    add_vocabulary(tmp_path / "a", 43)
    path = tmp_path / "a" / "model.safetensors"
    stored: Any = mx.load(str(path))
    tensors = {name: array + 0 for name, array in stored.items()}
    mx.eval(tensors)
    (words,) = (
        array for name, array in tensors.items() if name.endswith(("word_embeddings.weight", "tok_embeddings.weight"))
    )
    tensors[f"{stem}.weight"] = mx.random.normal(words.shape) if own != "bias" else words + 0
    if bias is not None:
        (here,) = (name for name in tensors if name == bias)
        tensors[f"{stem}.bias"] = tensors[here] + (mx.random.normal(tensors[here].shape) if own != "matrix" else 0)
    mx.save_safetensors(str(path), tensors, {"format": "pt"})
    change_config(tmp_path / "a", **({} if states is None else {"tie_word_embeddings": states}))
    theirs = type(made).from_pretrained(tmp_path / "a", attn_implementation="eager").eval()
    ids = [[2, 7, 9, 11, 3]]
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(ids)).logits.numpy()
    model = mlxbert.load(tmp_path / "a", task="fill-mask", dtype="float32")
    mlxbert.save(model, tmp_path / "b")
    mlxbert.convert(tmp_path / "a", tmp_path / "c")
    for name in "abc":
        again = mlxbert.load(tmp_path / name, task="fill-mask", dtype="float32")
        found: Any = np.array(again.network.logits("masked_lm", Batch(mx.array(ids), None, None)))
        assert np.abs(found - expected).max() <= 1e-4, name
    assert "masked_lm" not in mlxbert.load(tmp_path / "a", task="embed").network.heads
