"""The places, rates and masks of dropout; places and rates also next to transformers in training mode.

There, dropout of both libraries is replaced by one function of the rate and of the place in the array:
outputs are equal only where both drop the same arrays at the same rates.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.config import Dropout, HeadFacts
from mlxbert.errors import ArgumentError
from mlxbert.goldens.golden_outputs import GOLDENS, load_network, outputs
from mlxbert.machine.device import mx, nn
from mlxbert.nn import dropout
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import HEADS, Network, masked_lm
from mlxbert.weights.families.registry import read_architecture
from mlxbert.weights.formats.config_json import ConfigJson
from tests.helpers.cases import together
from tests.helpers.families import CELLS, FAMILIES, make_config, make_model
from tests.helpers.parity import assert_equal, reference_outputs
from tests.helpers.tiny import random_network, tiny_config

Rates = dict[str, float]
BERT = {"hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.13}
DISTILBERT = {"dropout": 0.19, "attention_dropout": 0.23, "seq_classif_dropout": 0.29, "qa_dropout": 0.31}
MODERNBERT = {"embedding_dropout": 0.41, "attention_dropout": 0.23, "mlp_dropout": 0.43, "classifier_dropout": 0.17}
# Of BERT's encoder: on the embeddings, the attention weights, the attention's output and that of the feed-forward.
ENCODER = {"embeddings": 0.11, "attention": 0.13, "attention_output": 0.11, "feed_forward": 0.11}
ALBERT = {place: rate for place, rate in ENCODER.items() if place != "feed_forward"}
DISTILBERT_HEADS = {"attention": 0.23, "classifier": 0.29, "answers": 0.31}
MODERN = {"embeddings": 0.41, "attention": 0.23, "attention_output": 0.23, "activation": 0.43}
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


@together(
    ("family", "given", "expected"),
    [
        ("bert", BERT, ENCODER | {"classifier": 0.11, "tokens": 0.11}),
        ("bert", BERT | {"classifier_dropout": 0.17}, ENCODER | dict.fromkeys(("classifier", "tokens"), 0.17)),
        (
            "roberta",
            BERT | {"classifier_dropout": 0.17},
            ENCODER | dict.fromkeys(("pooled", "classifier", "tokens"), 0.17),
        ),
        ("distilbert", DISTILBERT, dict.fromkeys(("embeddings", "feed_forward", "tokens"), 0.19) | DISTILBERT_HEADS),
        (
            "albert",
            BERT | {"classifier_dropout_prob": 0.37},
            ALBERT | dict.fromkeys(("classifier", "tokens", "order"), 0.37),
        ),
        ("modernbert", MODERNBERT, MODERN | dict.fromkeys(("classifier", "tokens", "answers"), 0.17)),
        ("gte", BERT, ENCODER | dict.fromkeys(("activation", "classifier", "tokens"), 0.11)),
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


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("rates", ["of their own", "defaults"])
@pytest.mark.parametrize(("family", "head"), WITH_DROPOUT, ids=" ".join)
def test_places_and_rates_are_those_of_transformers(family: str, head: str, rates: str, tmp_path: Path) -> None:
    compared, given = FAMILIES[family], {}
    if rates == "of their own":
        known = make_config(compared, head).to_dict()
        given = {key: rate for key, rate in _RATES.items() if key in known}
        given |= {"cls_dropout": 0.53} if compared.classes == "DebertaV2" else {}
    made = make_model(type(compared)(compared.classes, compared.changes | given, compared.heads), head)
    made.save_pretrained(tmp_path)
    network = load_network(tmp_path)
    case = compared.cases["pairs"]
    reference = reference_outputs(made.train(), case)
    network.train()
    assert_equal(outputs(network, case), {name: reference[name] for name in reference if "attention" not in name})


IDS = mx.array([[2, 9, 8, 7, 3], [2, 6, 5, 3, 0]])
EVERYWHERE = Dropout(embeddings=0.2, attention=0.3, attention_output=0.2, feed_forward=0.25)


def _dropping() -> Network:
    heads = {"masked_lm": masked_lm.MaskedLMFacts(), "next_sentence": HeadFacts(dropout=0.3)}
    network = random_network(tiny_config(dropout=EVERYWHERE, heads=heads))
    network.train()
    return network


def _logits(network: Network) -> mx.array:
    return network.logits("next_sentence", Batch(IDS, IDS != 0))


def _global_state() -> list[int]:
    state: list[mx.array] = mx.random.state  # type: ignore[assignment]
    return np.array(state[0]).tolist()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_the_rate_and_the_scale(rate: float, dtype: mx.Dtype) -> None:
    layer = KeyedDropout(rate)
    with dropout.seeded(mx.random.key(1)):
        found = layer(mx.ones((401, 503), dtype=dtype))
    assert found.dtype == dtype and found.shape == (401, 503)
    kept = np.array(found.astype(mx.float32))
    deviation = np.sqrt(rate * (1 - rate) / kept.size)
    assert abs((kept == 0).mean() - rate) < 5 * deviation + 1 / 65536
    assert np.allclose(kept[kept > 0], 1 / (1 - rate), rtol=1e-2 if dtype == mx.bfloat16 else 1e-3)
    for axis in (0, 1):  # no pattern along rows or columns
        shares = (kept == 0).mean(axis=axis)
        assert abs(shares.std() - np.sqrt(rate * (1 - rate) / kept.shape[axis])) < 0.15 * shares.std()


def test_neighbours_are_dropped_independently() -> None:
    with dropout.seeded(mx.random.key(2)):
        mask, factor = dropout.draw_mask((300_000,), 0.5)
    bits = np.array(mask) - 0.5
    assert factor == 2
    for distance in (1, 2, 3, 4, 8, 1024, 150_000):
        assert abs((bits[distance:] * bits[:-distance]).mean()) < 0.25 * 5 / np.sqrt(bits.size - distance)


def test_the_gradient_passes_where_values_do() -> None:
    layer, x = KeyedDropout(0.4), mx.random.normal((50, 7), key=mx.random.key(3))

    def loss(x: mx.array) -> mx.array:
        with dropout.seeded(mx.random.key(4)):
            return (layer(x) * 3).sum()

    with dropout.seeded(mx.random.key(4)):
        factor = layer(mx.ones_like(x))
    assert np.allclose(np.array(mx.grad(loss)(x)), 3 * np.array(factor))


def test_the_same_key_gives_the_same_step_and_another_key_another() -> None:
    network = _dropping()

    def outputs(seed: int) -> list[float]:
        with dropout.seeded(mx.random.key(seed)):
            found = [_logits(network), _logits(network)]
        return np.array(found).ravel().tolist()

    before = _global_state()
    first = outputs(1)
    assert first == outputs(1) and first != outputs(2)
    assert first[: len(first) // 2] != first[len(first) // 2 :]  # every forward pass has masks of its own
    assert _global_state() == before


def test_without_a_key_masks_come_from_the_global_random_state() -> None:
    network = _dropping()
    mx.random.seed(5)
    first, second = np.array(_logits(network)), np.array(_logits(network))
    assert not np.array_equal(first, second)
    mx.random.seed(5)
    assert np.array_equal(np.array(_logits(network)), first)


def test_an_error_inside_ends_the_keys() -> None:
    with pytest.raises(KeyError), dropout.seeded(mx.random.key(1)):
        raise KeyError
    before = _global_state()
    dropout.next_key()
    assert _global_state() != before


def test_nothing_is_drawn_without_need() -> None:
    network = _dropping()
    before = _global_state()
    for training in (False, True):
        network.train(training)
        if training:
            dropout.set_rate(network, 0)
        assert np.array_equal(np.array(_logits(network)), np.array(_logits(network)))
    assert _global_state() == before


def test_a_rate_is_set_where_the_family_has_dropout() -> None:
    network = _dropping()
    dropout.set_rate(network, 0.0)
    dropout.set_rate(network, 0.7)
    rates = {path: module.rate for path, module in network.named_modules() if isinstance(module, KeyedDropout)}
    assert rates["encoder.layers.0.attention.dropout"] == rates["heads.next_sentence.dropout"] == 0.7
    assert rates["encoder.layers.0.feed_forward.dropout"] is None
    assert {*rates.values()} == {0.7, None}


@together("rate", [1, -0.1, True, "0.1", float("nan")])
def test_a_wrong_rate_is_refused(rate: float) -> None:
    with pytest.raises(ArgumentError, match="`dropout` is"):
        dropout.set_rate(nn.Sequential(), rate)
