"""Makes GLiNER models from encoders: adds the configuration of the head, and the tokens that mark labels."""

from dataclasses import replace

from mlxbert.errors import ArgumentError
from mlxbert.weights.families.registry import family_of
from mlxbert.weights.formats.config_json import GLINER, GLINER_TOKENS, ConfigJson
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.tokenizers.library_guards import largest_id
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer


def is_gliner(folder: ModelFolder) -> bool:
    """Whether a folder holds a GLiNER model."""
    return GLINER in folder.config_json.values


def as_new_gliner(folder: ModelFolder, name: str) -> ModelFolder:
    """Returns the folder of an encoder, described as a GLiNER model without the weights of its head.

    Its vocabulary gets the tokens that mark labels, and its embedding table gets rows for them where rows are missing.
    A folder that holds a GLiNER model is returned unchanged.

    Args:
        folder: The folder.
        name: The name of the encoder.
    """
    if is_gliner(folder):
        return folder
    config_json = folder.config_json
    config = family_of(config_json)[1].read_config(config_json)
    if config.hidden_size % 2:
        raise ArgumentError(f"{folder.path}: the hidden size is {config.hidden_size}, expected an even number")
    own = {
        "model_type": "gliner_uni_encoder_span", "model_name": name, "span_mode": "markerV0", "max_width": 12,
        "max_len": 384, "hidden_size": config.hidden_size, "num_rnn_layers": 1, "dropout": 0.4,
        "subtoken_pooling": "first", "words_splitter_type": "whitespace", "embed_ent_token": True, **GLINER_TOKENS,
    }  # fmt: skip
    described = replace(folder, described_by=ConfigJson(config_json.path, {**config_json.values, GLINER: own}))
    tokenizer = read_tokenizer(described).tokenizer  # with the new tokens
    rows = max(config.vocab_size, largest_id(tokenizer, set()) + 1)
    own |= {"class_token_index": tokenizer.token_to_id(GLINER_TOKENS["ent_token"]), "vocab_size": rows}
    values = {**config_json.values, "vocab_size": rows, GLINER: own}
    return replace(folder, described_by=ConfigJson(config_json.path, values))
