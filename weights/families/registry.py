"""The model families by the `model_type` of a config.json."""

from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.families import bert, deberta, modernbert
from mlxbert.weights.families.family import Family, no_family, unknown_family

FAMILIES: dict[str, Family] = {
    "bert": bert.BERT,
    "roberta": bert.ROBERTA,
    "xlm-roberta": bert.ROBERTA,
    "camembert": bert.ROBERTA,
    "distilbert": bert.DISTILBERT,
    "albert": bert.ALBERT,
    "electra": bert.ELECTRA,
    "mpnet": bert.MPNET,
    "modernbert": modernbert.MODERNBERT,
    "nomic_bert": modernbert.NOMIC,
    "gte": modernbert.GTE,
    "new": modernbert.GTE,
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
