"""The model families by the `model_type` of a config.json."""

from mlxbert.weights import deberta, post_norm, rotary
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.family import Family, no_family, unknown_family

FAMILIES: dict[str, Family] = {
    "bert": post_norm.BERT,
    "roberta": post_norm.ROBERTA,
    "xlm-roberta": post_norm.ROBERTA,
    "camembert": post_norm.ROBERTA,
    "distilbert": post_norm.DISTILBERT,
    "albert": post_norm.ALBERT,
    "electra": post_norm.ELECTRA,
    "mpnet": post_norm.MPNET,
    "modernbert": rotary.MODERNBERT,
    "nomic_bert": rotary.NOMIC,
    "gte": rotary.GTE,
    "new": rotary.GTE,
    "deberta-v2": deberta.DEBERTA,  # version 3 goes by this name, too
}


def family_of(config: ConfigJson) -> tuple[str, Family]:
    """The family that `model_type` names.

    Raises:
        ConfigError: There is no `model_type`, or mlxbert does not run it.
    """
    name = config.get("model_type")
    if not isinstance(name, str):
        raise no_family(config, tuple(FAMILIES))
    if name not in FAMILIES:
        raise unknown_family(config, name, tuple(FAMILIES))
    return name, FAMILIES[name]
