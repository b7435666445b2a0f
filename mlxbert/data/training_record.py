"""Reads what the folder of a trained model records about its training data."""

import json
from collections.abc import Mapping
from pathlib import Path


def trained_columns(folder: Path) -> Mapping[str, str]:
    """The columns of the training data by role: `{"text": "sentence", "label": "label"}`.

    Args:
        folder: The folder of a model.

    Returns:
        Empty for a model that mlxbert did not train, or whose `training.json` is unreadable: the record is optional.
    """
    return _trained(folder, "report", "columns")


def trained_names(folder: Path) -> Mapping[str, str]:
    """The names that the model has for labels of the training data, if they were renamed: `{"0": "no"}`.

    Args:
        folder: The folder of a model.
    """
    return _trained(folder, "options", "label_names")


def trained_hashes(folder: Path) -> frozenset[str]:
    """The SHA-256 of all training and validation data.

    Args:
        folder: The folder of a model.
    """
    return frozenset(_trained(folder, "sha256").values())


def _trained(folder: Path, *keys: str) -> Mapping[str, str]:
    try:
        values = json.loads((folder / "training.json").read_bytes())
        for key in keys:
            values = values[key]
        return {name: value for name, value in values.items() if isinstance(value, str)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def missing_pair(name: str) -> str:
    """The warning about single texts for a model that was trained on pairs.

    Args:
        name: The name of the model.
    """
    return f"{name} was trained on pairs of texts, but these are single texts: give each text its pair"
