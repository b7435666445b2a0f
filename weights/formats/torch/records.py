"""What the pickle of a torch checkpoint may name, as plain records: storages, tensors made of them, ordered tables.

What torch writes: https://github.com/pytorch/pytorch/blob/main/torch/_utils.py, `_rebuild_tensor_v2` and its kin.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_STORAGES = {
    "torch.FloatStorage": "F32", "torch.HalfStorage": "F16", "torch.BFloat16Storage": "BF16",
    "torch.DoubleStorage": "F64", "torch.LongStorage": "I64", "torch.IntStorage": "I32", "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8", "torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL",
}  # fmt: skip
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
_PARAMETER, _TABLE = "torch._utils._rebuild_parameter", "collections.OrderedDict"
_MAX_KEY = 2**60  # numbers beyond can be made to have one hash, and a table of these takes hours
_NAMES = {*_STORAGES, *_TENSORS, _PARAMETER, _TABLE}


class Unknown(Exception):
    """A pickle does what no table of tensors needs; the text continues "the pickle"."""


@dataclass(frozen=True)
class Name:
    """A class or function that a pickle names: one of `_NAMES`, and no more than its name."""

    text: str


@dataclass(frozen=True)
class Storage:
    """Numbers in one row, which tensors are made of.

    Attributes:
        key: What the file calls it.
        dtype: One of `stored.BYTES`.
        count: How many numbers.
    """

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class Tensor:
    """What a pickle says of a tensor, unchecked: numbers of a storage from `offset` on, `strides` apart."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def named(text: str) -> Name:
    """What goes by this name, module and all.

    Raises:
        Unknown: No table of tensors needs it.
    """
    if text not in _NAMES:
        raise Unknown(f"names {text[:200]!r}")
    return Name(text)


def table(items: Iterable[Any]) -> OrderedDict[str | int, Any]:
    """An ordered table of pairs.

    Raises:
        Unknown: One is no pair, or its key neither text nor number.
    """
    found: OrderedDict[str | int, Any] = OrderedDict()
    for item in items:
        if type(item) not in (list, tuple) or len(item) != 2:
            raise Unknown("makes a table of something else than pairs")
        key, value = item
        if type(key) not in (str, int):  # a tuple may be as deep as the file likes, and hashing it recurs
            raise Unknown(f"has a key of type {type(key).__name__}")
        if type(key) is int and abs(key) >= _MAX_KEY:
            raise Unknown("has a key of more than 60 bits")
        found[key] = value
    return found


def called(function: Name, arguments: tuple[Any, ...]) -> OrderedDict[str | int, Any] | Tensor:
    """What torch would make of a call.

    Raises:
        Unknown: The function is not called like this.
    """
    match function.text, arguments:
        case "collections.OrderedDict", ():
            return OrderedDict()
        case "collections.OrderedDict", (list(items),):  # as Python 2 writes it
            return table(items)
        case "torch._utils._rebuild_parameter", (Tensor() as tensor, _, _):
            return tensor
        case name, (Storage() as storage, offset, tuple(shape), tuple(strides), *rest) if name in _TENSORS:
            # What follows is for training, or, if not empty, a mark of numbers that are not as they are stored.
            plain = len(rest) in (0, 2) or (len(rest) == 3 and (rest[2] is None or rest[2] == {}))
            if plain and all(type(number) is int for number in (offset, *shape, *strides)):
                return Tensor(storage, offset, shape, strides)
    raise Unknown(f"calls {function.text} with arguments that it does not take")


def referred(reference: object) -> Storage:
    """The storage that a reference names.

    Raises:
        Unknown: It names something else.
    """
    match reference:
        case ("storage", Name(kind), str(key), _, count) | ("storage", Name(kind), str(key), _, count, None):
            pass
        case _:
            raise Unknown("has a reference to something else than a whole storage")
    if not (key.isascii() and key.isdigit() and len(key) <= 40):
        raise Unknown(f"has a storage called {key[:80]!r}, expected a number")
    if kind not in _STORAGES or type(count) is not int or not 0 <= count < 2**63:
        raise Unknown(f"has a storage {key} of no known kind or size")
    return Storage(key, _STORAGES[kind], count)
