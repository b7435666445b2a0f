"""Finds the names of classes that Hugging Face data sets (`datasets` objects, .parquet files) store as numbers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

_KEY = b"huggingface"  # in the metadata of a schema


def class_names(data: object) -> dict[str, list[str]]:
    """Returns the class names, by column, of a data set's columns that store class numbers or lists of them."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping):
        return {}
    inner: dict[str, Any] = {column: getattr(feature, "feature", feature) for column, feature in features.items()}
    return {column: list(feature.names) for column, feature in inner.items() if hasattr(feature, "names")}


def stored_class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Returns the class names, by column, that `datasets` stored in the metadata of a schema; possibly none."""
    with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):
        features = json.loads((metadata or {})[_KEY])["info"]["features"]
        return dict(_named(features.items()))
    return {}


def _named(features: Any) -> Iterator[tuple[str, list[str]]]:
    for column, feature in features:
        while isinstance(feature, list) or (isinstance(feature, dict) and "feature" in feature):
            feature = next(iter(feature), None) if isinstance(feature, list) else feature["feature"]
        names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            yield column, names


def name_classes(value: Any, names: Sequence[str]) -> Any:
    """Converts a class number, or a list of class numbers, to names; -1 (an unknown label) becomes `None`."""
    if isinstance(value, list):
        return [name_classes(item, names) for item in value]
    if isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None
    return value
