"""What the files of rerankers state: the activation of a cross-encoder, and how a language model becomes a classifier.

A language model is asked whether a document fits a query, and answers yes or no. The score is the log-odds of the two
answers: the product of the hidden state and the difference of two rows of the decoder. Such a model is therefore read
as a text classifier with one output, whose weights are this difference.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.errors import CheckpointError, ConfigError
from mlxbert.labels.labels import Labels
from mlxbert.weights.chat_template import carries_pairs
from mlxbert.weights.families.config_reader import generates
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import TensorName, difference
from mlxbert.weights.families.registry import Architecture
from mlxbert.weights.formats.config_json import ConfigJson, read_json
from mlxbert.weights.hub.needed_files import CONFIG
from mlxbert.weights.model_folder import ModelFolder, read_settings

_OLD = "sbert_ce_default_activation_function"  # of config.json, before version 4
_KNOWN = {"Sigmoid": True, "Identity": False}
_SINCE = "4.0.0"  # the version of sentence-transformers that first looked for the key


def activation(*, probabilities: bool) -> dict[str, Any]:
    """Returns new values for the keys of `config.json` that state the activation; `None` means that a key is removed.

    Args:
        probabilities: Whether the score is the sigmoid of the model's output; otherwise the score is the output itself.
    """
    name = "activation.Sigmoid" if probabilities else "linear.Identity"
    return {"sentence_transformers": {"activation_fn": f"torch.nn.modules.{name}", "version": _SINCE}, _OLD: None}


def gives_probabilities(folder: ModelFolder) -> bool:
    """Whether the score of a pair is the sigmoid of the model's output. This is the default."""
    settings, config = folder.settings.values, folder.config_json.values
    nested = config.get("sentence_transformers")
    in_config = (
        nested if isinstance(nested, dict) and "activation_fn" in nested else {"activation_fn": config.get(_OLD)}
    )
    path = settings.get("activation_fn") or in_config["activation_fn"] or "torch.nn.Sigmoid"
    name = path.rpartition(".")[2] if isinstance(path, str) and path.startswith("torch.") else None
    if name not in _KNOWN:
        raise CheckpointError(f"{folder.path}: activation_fn is {path!r:.80}, expected Sigmoid or Identity of torch.nn")
    if settings.get("model_type") == "CrossEncoder" and (prompt := settings.get("default_prompt_name")) is not None:
        raise CheckpointError(
            f"{folder.path}: default_prompt_name is {prompt!r:.80}, but mlxbert reranks without prompts"
        )
    return _KNOWN[name]


HEAD, DECODER = "sequence_classifier", "lm_head"


def has_decoder_classifier(architecture: Architecture) -> bool:
    """Whether a model's classifier is computed from the decoder of a language model."""
    return HEAD in (architecture.parts or ()) and generates(architecture.config_json)


def as_classifier(folder: ModelFolder, family: Family, config: EncoderConfig) -> tuple[Family, EncoderConfig]:
    """Adds a classifier, computed from the decoder, to the family and the configuration of a reranker.

    The family and the configuration of any other model are returned unchanged. A model is a reranker if its modules in
    sentence-transformers say so, or if its chat template has slots for a query and a document.
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
    """Returns the token ids of the answers "yes" and "no"."""
    if folder.logit_score is None:
        settings = _vocabulary(folder.transformer)
    else:
        path = folder.logit_score / CONFIG
        settings = ConfigJson(path, read_json(path, ConfigError), {"yes": "true_token_id", "no": "false_token_id"})
        settings.only("module_input_name", "causal_logits", "mlxbert scores the logits of the language model")
    yes, no = (settings.integer(word, least=0, most=rows - 1) for word in ("yes", "no"))
    if yes == no:
        raise settings.refuse("no", "a token id that differs from the id of yes")
    return yes, no


def _vocabulary(folder: Path) -> ConfigJson:
    """Reads the ids of all tokens from the files of the tokenizer."""
    path = folder / "vocab.json"
    if path.is_file():
        return read_settings(path)
    return read_settings(folder / "tokenizer.json").nested("model").nested("vocab")
