"""The model families by the `model_type` of a `config.json`, and the architecture that a configuration describes."""

from collections.abc import Collection
from dataclasses import dataclass

from mlxbert.config import EncoderConfig
from mlxbert.weights.families.albert import ALBERT
from mlxbert.weights.families.bert import BERT
from mlxbert.weights.families.deberta import DEBERTA
from mlxbert.weights.families.distilbert import DISTILBERT
from mlxbert.weights.families.electra import ELECTRA
from mlxbert.weights.families.eurobert import EUROBERT
from mlxbert.weights.families.family import Family, no_family, unknown_family
from mlxbert.weights.families.gemma3 import GEMMA3
from mlxbert.weights.families.gliner import as_gliner
from mlxbert.weights.families.gte import GTE
from mlxbert.weights.families.jina_v2 import JINA, JINA_NORMED
from mlxbert.weights.families.jina_v3 import JINA_V3
from mlxbert.weights.families.jina_v5 import JINA_V5_NANO, JINA_V5_SMALL
from mlxbert.weights.families.modernbert import MODERNBERT
from mlxbert.weights.families.mpnet import MPNET
from mlxbert.weights.families.neobert import NEOBERT
from mlxbert.weights.families.nomic import NOMIC
from mlxbert.weights.families.qwen import QWEN2, QWEN3
from mlxbert.weights.families.roberta import ROBERTA
from mlxbert.weights.families.static import STATIC
from mlxbert.weights.formats.config_json import ConfigJson

_BY_TYPE = (
    *(BERT, ROBERTA, DISTILBERT, ALBERT, ELECTRA, MPNET, MODERNBERT, NOMIC, GTE, DEBERTA, EUROBERT),
    *(QWEN2, QWEN3, GEMMA3, NEOBERT, JINA_V3, JINA_V5_NANO, STATIC),
)
# Families that are asked whether a model is theirs, by the `model_type` that does not say it; the most specific first.
_ASKED = {"bert": (JINA_NORMED, JINA), "jina_embeddings_v5": (JINA_V5_SMALL,), "xlm-roberta": (JINA_V3,)}
_ASKED_OF_OTHERS = (JINA_V3,)  # without a `model_type`, or with one that no family has
ALL = *_BY_TYPE, JINA_NORMED, JINA, JINA_V5_SMALL
FAMILIES: dict[str, Family] = {model_type: family for family in _BY_TYPE for model_type in family.class_prefixes}


def family_of(config: ConfigJson, tensors: Collection[str] = ()) -> tuple[str, Family]:
    """Finds the family by `model_type`; where that does not say it, other keys or the names of the tensors decide."""
    name = config.get("model_type")
    known = isinstance(name, str) and name in FAMILIES
    for family in _ASKED.get(name, ()) if known else _ASKED_OF_OTHERS:
        if family.recognizes(config, tensors):
            return next(iter(family.class_prefixes)), as_gliner(config, family)
    if not isinstance(name, str):
        raise no_family(config, tuple(FAMILIES))
    if not known:
        raise unknown_family(config, name, tuple(FAMILIES))
    return name, as_gliner(config, FAMILIES[name])


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model without its weights.

    `parts` holds the pooler and the heads of the checkpoint, or is `None` if there is no checkpoint.
    """

    family_name: str
    family: Family
    config_json: ConfigJson
    config: EncoderConfig
    parts: tuple[str, ...] | None = None


def read_architecture(config_json: ConfigJson) -> Architecture:
    """Reads the architecture that a configuration describes."""
    name, family = family_of(config_json)
    config = family.read_config(config_json)
    return Architecture(family_name=name, family=family, config_json=config_json, config=config)
