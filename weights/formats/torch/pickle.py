"""A safe reader for the pickles of torch checkpoints. It never imports or calls the objects that a pickle names.

A pickle is a program, and unpickling executes it. This reader supports only the opcodes that torch writes for a dict of
tensors. The objects that a pickle names (a storage, a tensor, an OrderedDict) become plain records.
Opcodes: https://docs.python.org/3/library/pickletools.html. What torch writes with them:
https://docs.pytorch.org/docs/stable/notes/serialization.html.
"""

import pickletools
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from mlxbert.errors import CheckpointError
from mlxbert.weights.formats.torch.records import (
    Name,
    Storage,
    UnsupportedError,
    apply_call,
    ordered_dict,
    resolve_name,
    resolve_storage,
)

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
