"""Qwen2 as an embedder, as in gte-Qwen2: like Qwen3, but queries and keys have biases instead of norms."""

from mlxbert.config import Biases, EncoderConfig
from mlxbert.weights.families import llama
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.qwen3 import PARTS, read_qwen
from mlxbert.weights.formats.config_json import ConfigJson


def _read(config: ConfigJson) -> EncoderConfig:
    return read_qwen(config, biases=Biases(True, False, False, False))


QWEN2 = Family(
    title="Qwen2",
    published=("Alibaba-NLP/gte-Qwen2-1.5B-instruct",),
    class_prefixes={"qwen2": "Qwen2"},
    facts=_read,
    prefixes=("model.",),
    encoder=llama.encoder(llama.LAYER, llama.NORM_BEFORE_FEED_FORWARD),
    parts=PARTS,
    ignored=llama.DECODER,
    wide_range=True,
)
