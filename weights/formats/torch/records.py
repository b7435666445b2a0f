"""Plain records of the objects that the pickle of a torch checkpoint may name: storages, tensors, ordered dicts.

`_rebuild_tensor_v2` and similar functions show what torch writes:
https://github.com/pytorch/pytorch/blob/main/torch/_utils.py.
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
_PARAMETER, _DICT = "torch._utils._rebuild_parameter", "collections.OrderedDict"
_MAX_KEY = 2**60  # larger integers can be chosen to share one hash, and a dict of such keys takes hours
_NAMES = {*_STORAGES, *_TENSORS, _PARAMETER, _DICT}


class UnsupportedError(Exception):
    """Raised if a pickle does something that a dict of tensors does not need; the message completes "the pickle …"."""


@dataclass(frozen=True)
class Name:
    """The qualified name of a class or function in a pickle: one of `_NAMES`."""

    qualified: str


@dataclass(frozen=True)
class Storage:
    """A one-dimensional buffer with the data of tensors: `count` elements whose dtype is one of `headers.BYTES`."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class TorchTensor:
    """The unchecked metadata of a tensor: a view of a storage, with `offset` and `strides` counted in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def resolve_name(text: str) -> Name:
    """Returns the record that a qualified name refers to."""
    if text not in _NAMES:
        raise UnsupportedError(f"names {text[:200]!r}")
    return Name(text)


def ordered_dict(items: Iterable[Any]) -> OrderedDict[str | int, Any]:
    """Creates an ordered dict from key-value pairs; raises `UnsupportedError` for keys that no checkpoint needs."""
    ordered: OrderedDict[str | int, Any] = OrderedDict()
    for item in items:
        if type(item) not in (list, tuple) or len(item) != 2:
            raise UnsupportedError("makes a dict of items that are not pairs")
        key, value = item
        if type(key) not in (str, int):  # a tuple can be nested arbitrarily deep, and hashing recurses
            raise UnsupportedError(f"has a key of type {type(key).__name__}")
        if type(key) is int and abs(key) >= _MAX_KEY:
            raise UnsupportedError("has a key of more than 60 bits")
        ordered[key] = value
    return ordered


def apply_call(function: Name, arguments: tuple[Any, ...]) -> OrderedDict[str | int, Any] | TorchTensor:
    """Returns the record of the object that torch would create by calling `function`."""
    match function.qualified, arguments:
        case "collections.OrderedDict", ():
            return OrderedDict()
        case "collections.OrderedDict", (list(items),):  # as Python 2 writes it
            return ordered_dict(items)
        case "torch._utils._rebuild_parameter", (TorchTensor() as tensor, _, _):
            return tensor
        case name, (Storage() as storage, offset, tuple(shape), tuple(strides), *rest) if name in _TENSORS:
            # The rest is for training; metadata that is not empty means that the stored numbers are not the values.
            plain = len(rest) in (0, 2) or (len(rest) == 3 and (rest[2] is None or rest[2] == {}))
            if plain and all(type(number) is int for number in (offset, *shape, *strides)):
                return TorchTensor(storage, offset, shape, strides)
    raise UnsupportedError(f"calls {function.qualified} with arguments that it does not take")


def resolve_storage(reference: object) -> Storage:
    """Returns the storage that a persistent id refers to."""
    match reference:
        case ("storage", Name(kind), str(key), _, count) | ("storage", Name(kind), str(key), _, count, None):
            pass
        case _:
            raise UnsupportedError("has a reference to something other than a whole storage of numbers")
    if not (key.isascii() and key.isdigit() and len(key) <= 40):
        raise UnsupportedError(f"has a storage with the key {key[:80]!r} instead of a number")
    if kind not in _STORAGES or type(count) is not int or not 0 <= count < 2**63:
        raise UnsupportedError(f"has a storage {key} of unknown type or invalid size")
    return Storage(key, _STORAGES[kind], count)
