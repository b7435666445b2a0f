"""Dropout next to transformers in training mode: every place and every rate, of every family and head.

Both libraries' dropout is replaced by one function of the rate and of the place in the array: outputs are equal only
where both drop the same arrays at the same rates.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.goldens.golden_outputs import load_network, outputs
from mlxbert.machine.device import mx
from mlxbert.nn import dropout
from tests.helpers.families import CELLS, FAMILIES, make_config, make_model
from tests.helpers.parity import assert_equal, reference_outputs

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

# Every key of every family, each with a rate of its own; keys that a family does not have are left out.
RATES = {
    "hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.13, "classifier_dropout": 0.17, "dropout": 0.19,
    "attention_dropout": 0.23, "seq_classif_dropout": 0.29, "qa_dropout": 0.31, "classifier_dropout_prob": 0.37,
    "embedding_dropout": 0.41, "mlp_dropout": 0.43, "pooler_dropout": 0.47,
}  # fmt: skip
# The models of `tests.helpers.authors` have none.
WITH_DROPOUT = [(family, head) for family, head in CELLS if FAMILIES[family].classes not in ("NomicMoe", "JinaFlash")]


def _pattern(size: int, rate: float) -> Any:
    return (1 + rate * np.cos(np.arange(size))).astype(np.float32)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout that scales instead of dropping, in torch and in MLX."""

    def theirs(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return x * torch.from_numpy(_pattern(x.numel(), p)).reshape(x.shape) if training and p else x

    def ours(shape: tuple[int, ...], rate: float) -> tuple[mx.array, float]:
        return mx.array(_pattern(math.prod(shape), rate)).reshape(shape), 1.0

    monkeypatch.setattr(torch.nn.functional, "dropout", theirs)

    def dropped(layer: dropout.KeyedDropout, x: mx.array) -> mx.array:
        return x * ours(x.shape, layer.rate or 0.0)[0] if layer.drops else x

    monkeypatch.setattr(dropout, "draw_mask", ours)  # drawn by attention
    monkeypatch.setattr(dropout.KeyedDropout, "__call__", dropped)


def _rates(family: str, head: str) -> dict[str, float]:
    compared = FAMILIES[family]
    known = make_config(compared, head).to_dict()
    found = {key: rate for key, rate in RATES.items() if key in known}
    return found | ({"cls_dropout": 0.53} if compared.classes == "DebertaV2" else {})


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("rates", ["of their own", "defaults"])
@pytest.mark.parametrize(("family", "head"), WITH_DROPOUT, ids=" ".join)
def test_places_and_rates_are_those_of_transformers(family: str, head: str, rates: str, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    given = _rates(family, head) if rates == "of their own" else {}
    made = make_model(type(compared)(compared.classes, compared.changes | given, compared.heads), head)
    made.save_pretrained(tmp_path)
    network = load_network(tmp_path)
    case = compared.cases["pairs"]
    reference = reference_outputs(made.train(), case)
    network.train()
    found = outputs(network, case)
    assert_equal(found, {name: array for name, array in reference.items() if not name.startswith("attention")})
