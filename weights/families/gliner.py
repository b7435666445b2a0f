"""GLiNER: an encoder of any family with the open-entity head, described by `gliner_config.json`.

The reader of that file (`mlxbert.weights.formats.config_json`) returns the configuration of the encoder, with GLiNER's
own keys in the object `gliner`. Names of tensors are those of the package gliner, version 0.2.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from mlxbert.config import EncoderConfig
from mlxbert.errors import ConfigError
from mlxbert.frozen_dict import FrozenDict
from mlxbert.machine.device import mx
from mlxbert.nn.heads.open_entities import MAX_RNN_LAYERS, SPAN_MODES, OpenEntityFacts
from mlxbert.weights.families import config_reader
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import Table, same, within
from mlxbert.weights.formats.config_json import GLINER, GLINER_TOKENS, ConfigJson
from mlxbert.weights.formats.headers import TensorInfo

HEAD = "open_entities"
_ENCODER = "token_rep_layer.bert_layer.model."
_SPANS = "span_rep_layer.span_rep_layer."
_RUNS = ("gliner", "gliner_uni_encoder_span", "gliner_uni_encoder_token")  # values of GLiNER's model_type
# Keys whose layers mlxbert does not have, and what a model with them is.
_OTHERS = {
    "labels_encoder": "a bi-encoder, which encodes labels apart from the text",
    "labels_decoder": "a model that also writes labels",
    "relations_layer": "a model that also finds relations",
    "triples_layer": "a model that also finds relations",
    "post_fusion_schema": "a model with attention between labels and words",
    "fuse_layers": "a model that mixes the layers of its encoder",
    "span_encoder_config": "a model with a second encoder over the words",
    "represent_spans": "a model with a second score for spans",
    "precomputed_prompts_mode": "a model with stored labels",
}
_HINT = "mlxbert runs uni-encoders with span_mode markerV0, marker or token_level, such as urchade/gliner_medium-v2.1"
_LSTM = r"^rnn\.lstm\.(weight|bias)_(ih|hh)_(l\d+(?:_reverse)?)$"  # the plain names have the suffix at their ends
_LSTM_PLAIN = r"^rnn\.lstm\.(l\d+(?:_reverse)?)\.(ih|hh)\.(weight|bias)$"


def as_gliner(config: ConfigJson, family: Family) -> Family:
    """Returns a family whose only head is GLiNER's, if the configuration is GLiNER's; otherwise the family itself."""
    if GLINER not in config.values:
        return family
    mode = config.nested(GLINER).choice("span_mode", SPAN_MODES, "markerV0")

    def facts(config: ConfigJson) -> EncoderConfig:
        encoder = family.facts(config)
        return replace(encoder, heads=FrozenDict({HEAD: _read(config, encoder)}))

    def exported(config: ConfigJson, name: str) -> str:
        return re.sub(_LSTM_PLAIN, r"rnn.lstm.\3_\2_\1", family.exported(config, name))

    return replace(
        family,
        facts=facts,
        prefixes=(_ENCODER, *family.prefixes),
        parts={part: table for part, table in family.parts.items() if part == "pooler"} | {HEAD: _table(mode)},
        old_spellings={**family.old_spellings, _LSTM: r"rnn.lstm.\3.\2.\1"},
        # A new GLiNER model is made from a checkpoint that may have other heads.
        ignored=(*family.ignored, *_other_heads(family)),
        tied={},
        exported=exported,
    )


def _other_heads(family: Family) -> Iterator[str]:
    """Yields patterns of the names of the family's own heads."""
    yield from map(re.escape, family.tied)
    for part, table in family.parts.items():
        yield from (rf"{re.escape(stem)}\..*" for entry in table for stem in entry.theirs if part != "pooler")


def _table(mode: str) -> Table:
    """Returns the names of the head's tensors."""
    both = [("inner", "0"), ("outer", "3")]
    two = lambda ours, theirs: tuple(same(f"{ours}.{a}", f"{theirs}.{b}") for a, b in both)  # noqa: E731
    lstm = [
        same(f"rnn.{layer}.{ours}.{gates}", f"rnn.lstm.l{layer}{theirs}.{short}")
        for layer in range(MAX_RNN_LAYERS)
        for ours, theirs in (("ahead", ""), ("back", "_reverse"))
        for gates, short in (("of_input", "ih"), ("of_state", "hh"))
    ]
    scorer: Table
    if mode == "token_level":
        scorer = (
            same("scorer.word", "scorer.proj_token"),
            same("scorer.label", "scorer.proj_label"),
            *two("scorer.out", "scorer.out_mlp"),
        )
    else:
        out = two("scorer.out", f"{_SPANS}out_project")
        scorer = (
            *two("scorer.start", f"{_SPANS}project_start"),
            *two("scorer.end", f"{_SPANS}project_end"),
            *(out if mode == "markerV0" else (same("scorer.out", f"{_SPANS}out_project"),)),
            *two("scorer.label", "prompt_rep_layer"),
        )
    return within(f"heads.{HEAD}.", "", (same("projection", "token_rep_layer.projection"), *lstm, *scorer))


def _read(config: ConfigJson, encoder: EncoderConfig) -> OpenEntityFacts:
    """Reads the facts of the head; refuses models with layers that mlxbert does not have."""
    own = config.nested(GLINER)
    for key, kind in _OTHERS.items():
        if own.get(key):
            message = f"{config.path}: {key} is {own.get(key)!r:.60}, as in {kind}, which mlxbert does not run"
            raise ConfigError(message, hint=_HINT)
    if own.get("model_type", _RUNS[0]) not in _RUNS:
        kind = own.get("model_type")
        raise ConfigError(f"{config.path}: model_type is {kind!r:.60}, which mlxbert does not run", hint=_HINT)
    own.only("subtoken_pooling", "first", "mlxbert takes the first token of a word")
    own.only("words_splitter_type", "whitespace", "mlxbert splits texts into words as 'whitespace' does")
    mode = own.choice("span_mode", SPAN_MODES, "markerV0")
    width = own.integer("hidden_size", most=2**16, default=512)
    layers = own.integer("num_rnn_layers", least=0, most=MAX_RNN_LAYERS, default=1)
    if layers and width % 2:
        raise own.refuse("hidden_size", "an even number, half for each direction of the LSTM")
    index = own.integer("class_token_index", least=-1, most=encoder.vocab_size - 1, default=-1)
    return OpenEntityFacts(
        dropout=config_reader.rate(own, "dropout", 0.4),
        width=width,
        span_mode=cast(Any, mode),
        max_width=own.integer("max_width", most=1000, default=12),
        max_words=own.integer("max_len", most=10**6, default=384),
        rnn_layers=layers,
        label_token=own.string("ent_token", default=GLINER_TOKENS["ent_token"]),
        label_token_id=None if index < 0 else index,
        end_token=own.string("sep_token", default=GLINER_TOKENS["sep_token"]),
        after_label_token=not own.flag("embed_ent_token", default=True),
    )


def with_stored_vocabulary(config: ConfigJson, family: Family, tensors: Mapping[str, TensorInfo]) -> ConfigJson:
    """Returns the configuration with the size of the vocabulary in the weights, if GLiNER's keys do not state it.

    gliner adds tokens to the vocabulary of an encoder, and many of its older files do not say how many there are.
    """
    own = config.values.get(GLINER)
    if not isinstance(own, dict) or own.get("vocab_size") not in (None, -1):
        return config
    words = tensors.get(f"{_ENCODER}{family.encoder[0].theirs[0]}.weight")
    if words is None or not words.shape:
        return config
    return replace(config, values={**config.values, "vocab_size": words.shape[0]})


def with_new_rows(table: mx.array, rows: int) -> mx.array:
    """Appends rows to an embedding table: the mean of its rows, with noise as large as their standard deviation."""
    wide = table.astype(mx.float32)
    noise = mx.random.normal((rows - len(table), table.shape[1]), key=mx.random.key(0))
    fresh = wide.mean(axis=0) + noise * wide.std(axis=0)
    return mx.concatenate([table, fresh.astype(table.dtype)])
