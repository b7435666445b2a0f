"""Rerankers that are language models: they answer yes or no to whether a document is what a query asks for.

Their score is the log-odds of the two answers, which is a product with the difference of two rows of the decoder. So
they are read as text classifiers with one output, whose weights are that difference.
"""

from dataclasses import replace
from pathlib import Path

from mlxbert.config import EncoderConfig
from mlxbert.errors import ConfigError
from mlxbert.labels.labels import Labels
from mlxbert.weights.chat_template import carries_pairs
from mlxbert.weights.families.config_reader import generates
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import TensorName, difference
from mlxbert.weights.families.registry import Architecture
from mlxbert.weights.formats.config_json import ConfigJson, read_json
from mlxbert.weights.hub.needed_files import CONFIG
from mlxbert.weights.model_folder import ModelFolder, read_settings

HEAD, DECODER = "sequence_classifier", "lm_head"


def has_made(architecture: Architecture) -> bool:
    """Whether a model has a classifier that is made of its decoder."""
    return HEAD in (architecture.parts or ()) and generates(architecture.config_json)


def as_classifier(folder: ModelFolder, family: Family, config: EncoderConfig) -> tuple[Family, EncoderConfig]:
    """The family and the facts of a model; those of a reranker have a classifier made of its decoder.

    A model is one if sentence-transformers has made it one, or its chat template has places for a query and a document.
    """
    if HEAD not in family.parts or not generates(folder.config_json):
        return family, config
    if folder.logit_score is None and (folder.has_modules or not carries_pairs(folder)):
        return family, config
    tied = folder.config_json.flag("tie_word_embeddings", default=False)
    decoder = family.encoder[0].theirs if tied else (DECODER,)
    entry = TensorName((f"heads.{HEAD}.out",), decoder, difference(*_answers(folder, config.vocab_size)))
    return replace(family, parts={**family.parts, HEAD: (entry,)}), replace(config, labels=Labels(("LABEL_0",)))


def _answers(folder: ModelFolder, rows: int) -> tuple[int, int]:
    """The ids of yes and of no."""
    if folder.logit_score is None:
        settings = _vocabulary(folder.transformer)
    else:
        path = folder.logit_score / CONFIG
        settings = ConfigJson(path, read_json(path, ConfigError), {"yes": "true_token_id", "no": "false_token_id"})
        settings.only("module_input_name", "causal_logits", "mlxbert scores the logits of the language model")
    yes, no = (settings.integer(word, least=0, most=rows - 1) for word in ("yes", "no"))
    if yes == no:
        raise settings.refuse("no", "the id of another token than that of yes")
    return yes, no


def _vocabulary(folder: Path) -> ConfigJson:
    """The ids of tokens; the files of a tokenizer are only read for them."""
    path = folder / "vocab.json"
    if path.is_file():
        return read_settings(path)
    return read_settings(folder / "tokenizer.json").nested("model").nested("vocab")
