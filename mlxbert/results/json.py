"""The JSON of results: the same on the command line and from a server.

Invisible characters are escaped: they can reorder the text around them, and make different texts look alike.
"""

import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from mlxbert.results.short_repr import Brief

T = TypeVar("T")
Each = Callable[[Sequence[T], Callable[[T], Any]], Any]  # takes parts and a converter to JSON; returns a JSON list
Omitted = Callable[[Any], bool]  # takes the value of a field; whether JSON omits the field
_SHORT = ("float32", "float16")
_OMITTED = "omitted"  # the key of an `Omitted` in the metadata of a field


def to_json(value: object) -> str:
    """Converts a value to one line of JSON; escapes characters that a terminal would interpret or hide."""
    return escape_invisible(json.dumps(value, ensure_ascii=False, allow_nan=False))


def escape_invisible(text: str) -> str:
    """Escapes, as in JSON, the characters of a text that a terminal would interpret or hide."""
    return INVISIBLE.sub(lambda match: json.dumps(match[0])[1:-1], text)  # one or two escapes such as `\\u202e`


def omit_if(omitted: Omitted) -> Mapping[str, Omitted]:
    """Returns metadata for a dataclass field: the field is omitted from JSON if `omitted` is true for its value."""
    return {_OMITTED: omitted}


NOT_IN_JSON = omit_if(lambda value: True)
OMIT_IF_NONE = omit_if(lambda value: value is None)
OMIT_IF_ZERO = omit_if(lambda value: not value)


def listed(parts: Sequence[T], show: Callable[[T], Any]) -> list[Any]:
    """Returns `[show(part) for part in parts]`, the default way to convert a list of dataclasses."""
    return [show(part) for part in parts]


def plain(value: Any, each: Each[Any] = listed) -> Any:
    """Converts a value to plain JSON types; used wherever the library makes JSON.

    A dataclass becomes an object with its fields, except those whose metadata says to omit them (see `omit_if`). If it
    is not a result, the object also has the class name as `type`, to tell alternatives apart. A number that JSON
    cannot represent, such as NaN, becomes `None`. A float32 becomes the shortest decimal number that identifies it.

    Args:
        value: A dataclass, mapping, list, tuple, NumPy array, path, string, number, boolean or `None`, also nested.
        each: Converts lists of dataclasses; a server passes a function that makes their JSON part by part.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "to_dict"):
        return value.to_dict(each)
    if is_dataclass(value):
        return fields_of(value, each)
    if isinstance(value, Mapping):
        return {str(name): plain(entry, each) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        parted = value and is_dataclass(value[0])
        return each(value, lambda part: plain(part, each)) if parted else [plain(entry, each) for entry in value]
    return str(value) if isinstance(value, Path) else _numbers(value)


def fields_of(value: Any, each: Each[Any] = listed) -> dict[str, Any]:
    """Converts the fields of a dataclass to plain JSON types (see `plain`)."""
    named = {} if isinstance(value, Brief) else {"type": type(value).__name__}
    for name, omitted in _fields(cast(Any, type(value))):
        entry = getattr(value, name)
        if omitted is None or not omitted(entry):
            named[name] = plain(entry, each)
    return named


@functools.cache
def _fields(kind: Any) -> list[tuple[str, Omitted | None]]:
    return [(field.name, field.metadata.get(_OMITTED)) for field in fields(kind)]


def _numbers(array: Any) -> list[Any]:
    """Converts an array to Python numbers; a float of up to 32 bits becomes the shortest decimal that identifies it."""
    if array.ndim > 1:
        return [_numbers(part) for part in array]
    numbers: list[Any] = [float(text) for text in array.astype("U16")] if array.dtype in _SHORT else array.tolist()
    return numbers if array.dtype.kind != "f" or all(map(math.isfinite, numbers)) else plain(numbers)


# Control, format and separator characters, lone surrogates, and characters that Unicode calls "default ignorable", such
# as tags and fillers. Without variation selectors, and without visible characters of the category "format" (U+06DD, …).
_ALWAYS = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
# Characters that joiners change: Hebrew, Arabic, Mongolian, the scripts of India and its neighbours, and emoji.
_SHAPED = (
    "\u0590-\u109f\u1780-\u1cff\u2190-\u2bff\ua800-\uabff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00012fff"
    "\U0001e800-\U0001e95f\U0001f000-\U0001faff"
)
INVISIBLE = re.compile(f"[{_ALWAYS}]|(?<![{_SHAPED}])[\u200c\u200d](?![{_SHAPED}])")
"""Matches an invisible character; the joiners U+200C and U+200D match only away from characters that they change."""

_SELECTORS = re.compile("[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")


def without_invisible(text: str) -> str:
    """Returns the text without invisible characters and variation selectors."""
    return _SELECTORS.sub("", INVISIBLE.sub("", text))
