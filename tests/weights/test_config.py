"""`config.json`: what is read from it, and every value that is refused, by its name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxbert.config import Absolute, Dropout, EncoderConfig, HeadFacts
from mlxbert.errors import ConfigError
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.heads import masked_lm, sequence_classifier
from mlxbert.weights.families.registry import family_of
from mlxbert.weights.formats.config_json import read_config
from tests.helpers.cases import together
from tests.helpers.tiny import CONFIG, tiny_config


def parse(folder: Path) -> EncoderConfig:
    config_json = read_config(folder)
    _, family = family_of(config_json)
    return family.read_config(config_json)


def write(folder: Path, **changes: Any) -> Path:
    """The tiny model's configuration, some of it changed."""
    (folder / "config.json").write_text(json.dumps(CONFIG | changes), encoding="utf-8")
    return folder


def without(folder: Path, key: str) -> Path:
    values = {name: value for name, value in CONFIG.items() if name != key}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def test_every_fact_is_read(tmp_path: Path) -> None:
    dropout = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.5}
    rates = Dropout(embeddings=0.25, attention=0.5, attention_output=0.25, feed_forward=0.25)
    heads = {
        "masked_lm": masked_lm.MaskedLMFacts(),
        "next_sentence": HeadFacts(),
        "sequence_classifier": sequence_classifier.ClassifierFacts(dropout=0.25),
        "token_classifier": HeadFacts(dropout=0.25),
        "question_answering": HeadFacts(),
    }
    wanted = tiny_config(dropout=rates, heads=heads, type_vocab_size=3)
    found = parse(write(tmp_path, **dropout, type_vocab_size=3, pad_token_id=5))
    assert found == replace(wanted, pad_token_id=5)
    assert found.max_length == 32 and found.head_size == 8 and found.num_stored_layers == 2


def test_what_is_left_out_has_the_defaults_of_the_family(tmp_path: Path) -> None:
    found = parse(without(tmp_path, "layer_norm_eps"))
    assert found.layer_norm_eps == 1e-12 and found.positions == Absolute(32, 0)
    assert (found.dropout.feed_forward, found.dropout.attention) == (0.1, 0.1)
    assert parse(without(tmp_path, "type_vocab_size")).type_vocab_size == 2
    assert parse(without(tmp_path, "pad_token_id")).pad_token_id == 0


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_known_activation_is_taken(tmp_path: Path, name: str) -> None:
    assert parse(write(tmp_path, hidden_act=name)).hidden_act == name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("position_embedding_type", "absolute"), ("position_embedding_type", None), ("is_decoder", False)),
        *(("add_cross_attention", False), ("pruned_heads", {}), ("architectures", ["BertModel"])),
        *(("transformers_version", "5.23.0"), ("use_cache", True)),
    ],
)
def test_values_that_change_nothing_are_taken(tmp_path: Path, key: str, value: object) -> None:
    assert parse(write(tmp_path, **{key: value})) == parse(write(tmp_path))


NUMBERS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size"),
)


@together("value", ["24", 24.0, True, False, None, 0, -24, [24], {}])
@together("key", NUMBERS)
def test_sizes_must_be_whole_numbers_above_zero(tmp_path: Path, key: str, value: object) -> None:
    if value is None and key not in NUMBERS[:-1]:
        return  # null is the default where there is one
    with pytest.raises(ConfigError) as caught:
        parse(write(tmp_path, **{key: value}))
    assert f"{key} is {value!r}, expected a whole number" in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize("key", ["model_type", *NUMBERS[:-1]])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is missing, expected"):
        parse(without(tmp_path, key))


def test_an_unknown_family_or_activation_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model_type is 'llama', a family") as caught:
        parse(write(tmp_path, model_type="llama"))
    assert "bert, roberta, xlm-roberta" in str(caught.value.hint)
    with pytest.raises(ConfigError, match=r"gelu_new.*silu"):
        parse(write(tmp_path, hidden_act="mish"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((b"[]", "expected a JSON object, found list"), (b'"bert"', "expected a JSON object, found str")),
        *((b"null", "expected a JSON object, found NoneType"), (b"", "not valid JSON"), (b"{", "not valid JSON")),
        *((b'{"model_type": bert}', "not valid JSON"), (b"\xff\xfe{\x00}\x00", "not valid JSON")),
        *((b'{"a":' * 100_000, "not valid JSON"), (b'{"vocab_size": ' + b"1" * 5000 + b"}", "5,000 digits")),
        (b'{"vocab_size": ' + b"1" * 61 + b"}", "a number has 61 digits, expected at most 60"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_is_no_object_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json: ") as caught:
        read_config(tmp_path)
    assert said in str(caught.value)


def test_a_byte_order_mark_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8-sig")
    assert parse(tmp_path) == parse(write(tmp_path))


def test_a_folder_without_a_configuration_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match=r"the folder has no config\.json") as caught:
            read_config(folder)
        assert caught.value.hint is not None
