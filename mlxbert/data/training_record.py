"""What the folder of a trained model says about the data it was trained on."""

import json
from collections.abc import Mapping
from pathlib import Path


def trained_columns(folder: Path) -> Mapping[str, str]:
    """Where the text, the pair and the label stood in the training data: `{"text": "sentence", "label": "label"}`.

    Args:
        folder: The folder of a model.

    Returns:
        Empty for a model that mlxbert did not train, or whose `training.json` cannot be read: it is only a note.
    """
    return _trained(folder, "report", "columns")


def trained_names(folder: Path) -> Mapping[str, str]:
    """What the labels of the training data are called in the model, where they were given names: `{"0": "no"}`.

    Args:
        folder: The folder of a model.
    """
    return _trained(folder, "options", "label_names")


def trained_hashes(folder: Path) -> frozenset[str]:
    """The SHA-256 of everything that was read as training or validation data.

    Args:
        folder: The folder of a model.
    """
    return frozenset(_trained(folder, "sha256").values())


def _trained(folder: Path, *keys: str) -> Mapping[str, str]:
    try:
        found = json.loads((folder / "training.json").read_bytes())
        for key in keys:
            found = found[key]
        return {name: value for name, value in found.items() if isinstance(value, str)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def missing_pair(name: str) -> str:
    """What to say of single texts for a model that was trained on pairs.

    Args:
        name: The model.
    """
    return f"{name} was trained on pairs of texts, and these are single ones: give each its pair, the second text"
