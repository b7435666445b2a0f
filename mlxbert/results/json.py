"""The JSON of what the library returns: the same on the command line and from a server."""

import json
import math
from collections.abc import Mapping
from typing import Any

from mlxbert.invisible import INVISIBLE


def to_json(value: object) -> str:
    """One line of JSON; characters that a terminal would act on or hide are escaped."""
    return escape_invisible(json.dumps(value, ensure_ascii=False, allow_nan=False))


def escape_invisible(text: str) -> str:
    """Escapes the characters of a text that a terminal would act on or hide, as JSON does."""
    return INVISIBLE.sub(lambda found: json.dumps(found[0])[1:-1], text)  # ASCII: one or two of `\\u202e`


def without_nan(value: Any) -> Any:
    """A value whose numbers that JSON does not have, such as NaN, are `None`; tuples are lists, keys strings."""
    if isinstance(value, Mapping):
        return {str(name): without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
