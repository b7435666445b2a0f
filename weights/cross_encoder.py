"""What the files of a cross-encoder say of its scores, in the places where sentence-transformers looks."""

from mlxbert.errors import CheckpointError
from mlxbert.weights.folder import ModelFolder

_OLD = "sbert_ce_default_activation_function"  # of config.json, before version 4
_KNOWN = {"Sigmoid": True, "Identity": False}


def gives_probabilities(folder: ModelFolder) -> bool:
    """Whether the score of a pair is the sigmoid of the model's output, which it is where no file says otherwise.

    Raises:
        CheckpointError: A file names another function.
        ConfigError: A file is damaged.
    """
    config = folder.config_json.values
    nested = config.get("sentence_transformers")
    named = (
        folder.settings.values.get("activation_fn"),
        nested.get("activation_fn") if isinstance(nested, dict) else None,
        config.get(_OLD),
    )
    path = next((name for name in named if name is not None), "Sigmoid")
    name = path.rpartition(".")[2] if isinstance(path, str) else None
    if name not in _KNOWN:
        raise CheckpointError(f"{folder.path}: activation_fn is {path!r:.80}, expected Sigmoid or Identity of torch.nn")
    return _KNOWN[name]
