"""The places and rates of dropout, also next to transformers in training mode, for every family and head.

There, dropout of both libraries is replaced by one function of the rate and of the place in the array: outputs are
equal only where both drop the same arrays at the same rates.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.goldens.golden_outputs import GOLDENS, load_network, outputs
from mlxbert.machine.device import mx
from mlxbert.nn import dropout
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.heads import HEADS, Network
from mlxbert.weights.families.registry import read_architecture
from mlxbert.weights.formats.config_json import ConfigJson
from tests.helpers.families import CELLS, FAMILIES, make_config, make_model
from tests.helpers.parity import assert_equal, reference_outputs

Rates = dict[str, float]
BERT = {"hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.13}
DISTILBERT = {"dropout": 0.19, "attention_dropout": 0.23, "seq_classif_dropout": 0.29, "qa_dropout": 0.31}
MODERNBERT = {"embedding_dropout": 0.41, "attention_dropout": 0.23, "mlp_dropout": 0.43, "classifier_dropout": 0.17}
# Of BERT's encoder: on the embeddings, the attention weights, the attention's output and that of the feed-forward.
ENCODER = {"embeddings": 0.11, "attention": 0.13, "attention_output": 0.11, "feed_forward": 0.11}
PLACES = {
    "encoder.embeddings.dropout": "embeddings",
    "encoder.layers.attention.dropout": "attention",
    "encoder.layers.attention_dropout": "attention_output",
    "encoder.layers.feed_forward.dropout": "activation",
    "encoder.layers.feed_forward_dropout": "feed_forward",
    "encoder.layers.attention.distance_dropout": "distances",
    "heads.sequence_classifier.pooled_dropout": "pooled",
    "heads.sequence_classifier.dropout": "classifier",
    "heads.token_classifier.dropout": "tokens",
    "heads.question_answering.dropout": "answers",
    "heads.sentence_order.dropout": "order",
}


@pytest.mark.parametrize(
    ("family", "given", "expected"),
    [
        ("bert", BERT, ENCODER | {"classifier": 0.11, "tokens": 0.11}),
        ("bert", BERT | {"classifier_dropout": 0.17}, ENCODER | {"classifier": 0.17, "tokens": 0.17}),
        (
            "roberta",
            BERT | {"classifier_dropout": 0.17},
            ENCODER | {"pooled": 0.17, "classifier": 0.17, "tokens": 0.17},
        ),
        (
            "distilbert",
            DISTILBERT,
            {"embeddings": 0.19, "attention": 0.23, "feed_forward": 0.19}
            | {"classifier": 0.29, "tokens": 0.19, "answers": 0.31},
        ),
        (
            "albert",
            BERT | {"classifier_dropout_prob": 0.37},
            {"embeddings": 0.11, "attention": 0.13, "attention_output": 0.11}
            | {"classifier": 0.37, "tokens": 0.37, "order": 0.37},
        ),
        (
            "modernbert",
            MODERNBERT,
            {"embeddings": 0.41, "attention": 0.23, "attention_output": 0.23, "activation": 0.43}
            | {"classifier": 0.17, "tokens": 0.17, "answers": 0.17},
        ),
        ("gte", BERT, ENCODER | {"activation": 0.11, "classifier": 0.11, "tokens": 0.11}),
        (
            "deberta-v3",
            BERT | {"pooler_dropout": 0.47},
            ENCODER | {"distances": 0.11, "pooled": 0.47, "classifier": 0.11, "tokens": 0.11},
        ),
    ],
)
def test_every_family_has_its_own_places_and_rates(family: str, given: Rates, expected: Rates) -> None:
    values = json.loads((GOLDENS / family / "Model.json").read_text(encoding="utf-8"))["config"]
    architecture = read_architecture(ConfigJson(Path("config.json"), values | given))
    heads = [part for part in architecture.family.parts if part in HEADS]
    network = Network(replace(architecture.config, pooler="pooler" in architecture.family.parts), heads)
    found: dict[str, set[float]] = {}
    for path, module in network.named_modules():
        if isinstance(module, KeyedDropout) and module.rate:
            place = re.sub(r"\.layers\.\d+", ".layers", path)
            found.setdefault(PLACES.get(place, place), set()).add(module.rate)
    assert found == {place: {rate} for place, rate in expected.items()}


# Every key of every family, each with a rate of its own; keys that a family does not have are left out.
_RATES = {
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
    torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")

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
    found = {key: rate for key, rate in _RATES.items() if key in known}
    return found | ({"cls_dropout": 0.53} if compared.classes == "DebertaV2" else {})


@pytest.mark.slow
@pytest.mark.sampled
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
