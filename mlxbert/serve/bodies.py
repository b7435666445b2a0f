"""What is wrong with the body of a request: names of fields, and values that a field does not take."""

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from mlxbert.serve.protocol import Problem

_CHOICE = re.compile(r"Invalid enum value (.*) - at `\$(.*)`", re.DOTALL)
_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def check_fields(kind: Any, body: bytes) -> None:
    """Refuses a field whose name is a slip of the pen away from one that a type has; clients send others.

    Args:
        kind: The type.
        body: The body, in JSON.

    Raises:
        Problem: There is such a field.
        ValidationError: It is not an object.
        DecodeError: It is not JSON.
    """
    known = getattr(kind, "__struct_fields__", ())
    for name in _read_fields(body):
        if name not in known and (meant := next((one for one in known if _one_edit(name, one)), None)):
            raise Problem("invalid", f"there is no field {name!r}", hint=f"did you mean {meant!r}?", param=name)


def _one_edit(word: str, other: str) -> bool:
    """Whether words differ by a letter more, less or other, or by two that are swapped."""
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(word, other, strict=False)))
    mine, its = word[start:], other[start:]
    return mine[1:] in (its, its[1:]) or mine == its[1:] or (mine[1::-1] == its[:2] and mine[2:] == its[2:])


def explain(error: msgspec.ValidationError, kind: Any) -> Problem:
    """Why a body is not what a type takes, with the values of a field that takes only some."""
    found = _CHOICE.fullmatch(str(error))
    names = re.findall(r"\.(\w+)", found[2]) if found else []
    if found and (choices := _choices(kind, names)):
        listed = {one.lower(): one for one in reversed(choices)}  # some are there in capital letters, too
        expected = ", ".join(reversed(listed.values()))
        return Problem("invalid", f"{names[-1]} is {found[1]:.60}, expected one of {expected}", param=names[-1])
    return Problem("invalid", f"the body is not what is expected: {error}")


def _choices(kind: Any, names: Sequence[str]) -> list[str]:
    """The values that a type with a `Literal` takes, or that of a field of a field of a type."""
    if names and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _choices(get_type_hints(kind).get(names[0]), names[1:])
    if get_origin(kind) is Literal:
        return [one for one in get_args(kind) if isinstance(one, str)] if not names else []
    return [value for one in get_args(kind) for value in _choices(one, names)]
