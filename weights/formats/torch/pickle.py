"""A safe reader for the pickles of torch checkpoints. It never imports or calls the objects that a pickle names.

A pickle is a program, and unpickling executes it. This reader supports only the opcodes that torch writes for a dict of
tensors. The objects that a pickle names (a storage, a tensor, an OrderedDict) become plain records.
Opcodes: https://docs.python.org/3/library/pickletools.html. What torch writes with them:
https://docs.pytorch.org/docs/stable/notes/serialization.html, and `_rebuild_tensor_v2` and similar functions in
https://github.com/pytorch/pytorch/blob/main/torch/_utils.py.
"""

import pickletools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from mlxbert.errors import CheckpointError

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


MAX_BYTES = 16 * 2**20  # per pickle; a model with thousands of tensors needs less than 1 MiB
MAX_INSTRUCTIONS = 300_000  # per pickle; a tensor takes about 40
_HINT = "ask the author of the file for safetensors; nothing in the file was executed"


class _Limited:
    """The next bytes of a file, at most `limit`, with the methods for reading that pickletools needs."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._remaining = limit

    def full(self) -> bool:
        return not self._remaining

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._remaining))
        self._remaining -= len(data)
        return data

    def readline(self) -> bytes:
        line = self._file.readline(self._remaining)
        self._remaining -= len(line)
        return line


class _PickleReader:
    """The state while a pickle is read: the current stack, the stacks below each mark, and the memo."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.outer_stacks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        self.argument_items = 0  # items of lists and tuples passed to calls

    def raise_damaged(self, why: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: the pickle is damaged ({why})", hint="download the model again")

    def raise_unsupported(self, what: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: the pickle {what}, expected a plain dict of tensors", hint=_HINT)

    def pop(self) -> Any:
        if not self.stack:
            self.raise_damaged("a value is missing")
        return self.stack.pop()

    def pop_marked(self) -> list[Any]:
        """Pops all values above the last mark."""
        if not self.outer_stacks:
            self.raise_damaged("a mark is missing")
        items, self.stack = self.stack, self.outer_stacks.pop()
        return items

    def mark(self) -> None:
        self.outer_stacks.append(self.stack)
        self.stack = []

    def tuple_of(self, size: int) -> None:
        self.stack.append(tuple(reversed([self.pop() for _ in range(size)])))

    def put(self, index: int | None) -> None:
        value = self.pop()
        self.stack.append(value)
        self.memo[len(self.memo) if index is None else index] = value

    def get(self, index: int) -> None:
        if index not in self.memo:
            self.raise_damaged(f"entry {index} of the memo is missing")
        self.stack.append(self.memo[index])

    def extend(self, items: list[Any]) -> None:
        target = self.pop()
        if type(target) is not list:
            self.raise_damaged(f"items are added to a {type(target).__name__}, expected a list")
        target.extend(items)
        self.stack.append(target)

    def update(self, items: list[Any]) -> None:
        target = self.pop()
        if not isinstance(target, dict):
            self.raise_damaged(f"entries are added to a {type(target).__name__}, expected a dict")
        if len(items) % 2:
            self.raise_damaged("a key has no value")
        target.update(self.push_result(ordered_dict, zip(items[::2], items[1::2], strict=True)))
        self.stack[-1] = target

    def name(self, text: str) -> None:
        self.push_result(resolve_name, text)

    def stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            self.raise_damaged("a name is not a string")
        self.name(f"{module}.{name}")

    def build(self) -> None:
        """Discards the attributes of a dict: torch stores the versions of modules there, which are not needed here."""
        self.pop()
        if not self.stack or not isinstance(self.stack[-1], OrderedDict):
            self.raise_unsupported("sets attributes of an object that is not a dict")

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Name) or type(arguments) is not tuple:
            self.raise_unsupported("calls an object that is not a function")
        # Everything else is linear in the size of the file, but one list in the memo can be passed many times.
        self.argument_items += sum(len(each) for each in arguments if type(each) in (list, tuple))
        if self.argument_items > MAX_INSTRUCTIONS:
            self.raise_unsupported(f"passes more than {MAX_INSTRUCTIONS} items to calls")
        self.push_result(apply_call, function, arguments)

    def reference(self) -> None:
        storage = self.push_result(resolve_storage, self.pop())
        if self.storages.setdefault(storage.key, storage) != storage:
            self.raise_unsupported(f"has two storages with the key {storage.key}")

    def push_result(self, make: Callable[..., Any], *values: object) -> Any:
        """Pushes the result of `make`: the record of an object that torch would create from these values."""
        try:
            self.stack.append(make(*values))
        except UnsupportedError as problem:
            self.raise_unsupported(str(problem))
        return self.stack[-1]


_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
_Handler = Callable[[_PickleReader, Any], None]


def _push(reader: _PickleReader, value: object) -> None:
    reader.stack.append(value)


def _ignore(reader: _PickleReader, value: object) -> None:
    pass


_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(("PROTO", "FRAME"), _ignore),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING"), _push),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _PickleReader.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _PickleReader.get),
    "NONE": lambda reader, _: reader.stack.append(None),
    "NEWTRUE": lambda reader, _: reader.stack.append(True),
    "NEWFALSE": lambda reader, _: reader.stack.append(False),
    "MARK": lambda reader, _: reader.mark(),
    "EMPTY_DICT": lambda reader, _: reader.stack.append({}),
    "EMPTY_LIST": lambda reader, _: reader.stack.append([]),
    "EMPTY_TUPLE": lambda reader, _: reader.stack.append(()),
    "TUPLE": lambda reader, _: _push(reader, tuple(reader.pop_marked())),
    "TUPLE1": lambda reader, _: reader.tuple_of(1),
    "TUPLE2": lambda reader, _: reader.tuple_of(2),
    "TUPLE3": lambda reader, _: reader.tuple_of(3),
    "APPEND": lambda reader, _: reader.extend([reader.pop()]),
    "APPENDS": lambda reader, _: reader.extend(reader.pop_marked()),
    "SETITEM": lambda reader, _: reader.update([reader.pop(), reader.pop()][::-1]),
    "SETITEMS": lambda reader, _: reader.update(reader.pop_marked()),
    "GLOBAL": lambda reader, text: reader.name(text.replace(" ", ".", 1)),
    "STACK_GLOBAL": lambda reader, _: reader.stack_name(),
    "REDUCE": lambda reader, _: reader.call(),
    "BINPERSID": lambda reader, _: reader.reference(),
    "BUILD": lambda reader, _: reader.build(),
}


def read_pickle(path: Path, file: BinaryIO, limit: int = MAX_BYTES) -> tuple[Any, dict[str, Storage]]:
    """Reads one pickle of at most `limit` bytes from the file's position; moves the position to the end of the pickle.

    Returns:
        The value, which consists of dicts, lists, tuples, strings, numbers, `Name` and `TorchTensor`; and all storages
        by key.
    """
    reader = _PickleReader(path)
    limited: Any = _Limited(file, limit)
    for _ in range(MAX_INSTRUCTIONS):
        code = limited.read(1)
        if not code:
            reader.raise_damaged(f"it does not end within {limit} bytes" if limited.full() else "it is truncated")
        opcode = _OPCODES.get(code.decode("latin-1"))
        if opcode is None:
            reader.raise_damaged(f"instruction {code!r} is unknown")
        if opcode.name == "STOP":
            break
        if opcode.name not in _HANDLERS:
            reader.raise_unsupported(f"has the instruction {opcode.name}")
        try:
            argument = opcode.arg.reader(limited) if opcode.arg else None
        except ValueError as problem:
            reader.raise_damaged(f"{opcode.name}: {problem!s:.200}")
        _HANDLERS[opcode.name](reader, argument)
    else:
        reader.raise_unsupported(f"has more than {MAX_INSTRUCTIONS} instructions")
    if len(reader.stack) != 1 or reader.outer_stacks:
        reader.raise_damaged("it does not end with exactly one value")
    return reader.stack[0], reader.storages
