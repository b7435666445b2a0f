"""Reads the record of the training data in the folder of a trained model."""

import json
from collections.abc import Mapping
from pathlib import Path

RECORD = "training.json"


def trained_columns(folder: Path) -> Mapping[str, str]:
    """Returns the columns of the training data by role: `{"text": "sentence", "label": "label"}`.

    The record is optional: if mlxbert did not train the model, or `training.json` is unreadable, the result is empty.
    """
    return _trained(folder, "report", "columns")


def trained_names(folder: Path) -> Mapping[str, str]:
    """Maps the labels that were renamed for training to their new names: `{"0": "no"}`."""
    return _trained(folder, "options", "label_names")


def trained_hashes(folder: Path) -> frozenset[str]:
    """Returns the SHA-256 hashes of files with training or validation data, and of data from pipes and iterators."""
    return frozenset(_trained(folder, "sha256").values())


def _trained(folder: Path, *keys: str) -> Mapping[str, str]:
    try:
        values = json.loads((folder / RECORD).read_bytes())
        for key in keys:
            values = values[key]
        return {name: value for name, value in values.items() if isinstance(value, str)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def missing_pair(name: str) -> str:
    """Returns the warning that the inputs are single texts, although the model was trained on pairs."""
    return f"{name} was trained on pairs of texts, but the inputs are single texts, so each text needs a second text"
