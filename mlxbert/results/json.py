"""The JSON of what the library returns: the same on the command line and from a server."""

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from mlxbert.invisible import INVISIBLE
from mlxbert.results.brief import Brief

T = TypeVar("T")
Each = Callable[[Sequence[T], Callable[[T], Any]], Any]  # parts, and the JSON of a part → a list of it
Omitted = Callable[[Any], bool]  # whether JSON leaves out a field with a value
_OMITTED = "omitted"  # the key of an `Omitted` in the metadata of a field


def to_json(value: object) -> str:
    """One line of JSON; characters that a terminal would act on or hide are escaped."""
    return escape_invisible(json.dumps(value, ensure_ascii=False, allow_nan=False))


def escape_invisible(text: str) -> str:
    """Escapes the characters of a text that a terminal would act on or hide, as JSON does."""
    return INVISIBLE.sub(lambda found: json.dumps(found[0])[1:-1], text)  # ASCII: one or two of `\\u202e`


def omit_if(omitted: Omitted) -> Mapping[str, Omitted]:
    """The metadata of a field that JSON leaves out where a function of its value is true."""
    return {_OMITTED: omitted}


NOT_IN_JSON = omit_if(lambda value: True)
UNLESS_SET = omit_if(lambda value: not value and not isinstance(value, float))  # without what is None, empty, 0, False


def listed(parts: Sequence[T], show: Callable[[T], Any]) -> list[Any]:
    """The JSON of parts, all in memory."""
    return [show(part) for part in parts]


def plain(value: Any, each: Each[Any] = listed) -> Any:
    """A value as plain JSON types, the same wherever the library makes JSON.

    A dataclass is an object of its fields but for those that their metadata omit; one that is no result has its name as
    `type`, since others may stand in its place. A number that JSON does not have, such as NaN, is `None`. A float32 is
    the shortest decimal number that stands for it.

    Args:
        value: A dataclass, mapping, list, tuple, array of NumPy, path or number, or what these consist of.
        each: Makes the lists of dataclasses; a server makes their JSON one part after the other.
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
    """The fields of a dataclass as plain JSON types, see `plain`."""
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
    """The shortest decimal numbers that stand for the values of an array of float32; other values as they are."""
    numbers: list[Any] = array.tolist()
    return [float(text) for text in array.astype("U16")] if array.dtype == "float32" else numbers
