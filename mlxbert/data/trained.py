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
    try:
        columns = json.loads((folder / "training.json").read_bytes())["report"]["columns"]
        return {role: column for role, column in columns.items() if isinstance(column, str)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def missing_pair(name: str) -> str:
    """What to say of single texts for a model that was trained on pairs.

    Args:
        name: The model.
    """
    return f"{name} was trained on pairs of texts, and these are single ones: give each its pair, the second text"
