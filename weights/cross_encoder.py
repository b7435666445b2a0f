"""The activation of a cross-encoder's scores, stored where sentence-transformers looks for it."""

from typing import Any

from mlxbert.errors import CheckpointError
from mlxbert.weights.model_folder import ModelFolder

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
