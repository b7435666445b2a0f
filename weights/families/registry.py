"""The model families by the `model_type` of a config.json."""

from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.families.albert import ALBERT
from mlxbert.weights.families.bert import BERT
from mlxbert.weights.families.deberta import DEBERTA
from mlxbert.weights.families.distilbert import DISTILBERT
from mlxbert.weights.families.electra import ELECTRA
from mlxbert.weights.families.family import Family, no_family, unknown_family
from mlxbert.weights.families.gte import GTE
from mlxbert.weights.families.modernbert import MODERNBERT
from mlxbert.weights.families.mpnet import MPNET
from mlxbert.weights.families.nomic import NOMIC
from mlxbert.weights.families.roberta import ROBERTA

FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "distilbert": DISTILBERT,
    "albert": ALBERT,
    "electra": ELECTRA,
    "mpnet": MPNET,
    "modernbert": MODERNBERT,
    "nomic_bert": NOMIC,
    "gte": GTE,
    "new": GTE,
    "deberta-v2": DEBERTA,  # version 3 goes by this name, too
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
