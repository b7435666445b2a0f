"""The places and rates of dropout, without torch; `test_dropout_live.py` compares them with transformers."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mlxbert.goldens.golden_outputs import GOLDENS
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.heads import HEADS, Network
from mlxbert.weights.families.registry import read_architecture
from mlxbert.weights.formats.config_json import ConfigJson

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
