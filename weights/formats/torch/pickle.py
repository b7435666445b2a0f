"""The pickles of torch checkpoints, read as the tables they are; nothing that they name is imported or called.

A pickle is a program: who unpickles it runs what it says. Read here are the instructions that torch writes for a table
of tensors, and no other; what they name (a storage, a tensor, an ordered table) becomes a plain record of it.
Instructions: https://docs.python.org/3/library/pickletools.html. What torch writes with them:
https://docs.pytorch.org/docs/stable/notes/serialization.html.
"""

import pickletools
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from mlxbert.errors import CheckpointError
from mlxbert.weights.formats.torch.records import Name, Storage, Unknown, called, named, referred, table

MAX_BYTES = 16 * 2**20  # of one pickle; that of a model of thousands of tensors has less than one MiB
MAX_INSTRUCTIONS = 300_000  # of one pickle; a tensor takes about 40
_HINT = "nothing of it was run; ask its author for safetensors"


class _Limited:
    """The bytes of a file from where it stands, so many at most; in the way that pickletools reads."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._left = limit

    def full(self) -> bool:
        return not self._left

    def read(self, size: int) -> bytes:
        found = self._file.read(min(size, self._left))
        self._left -= len(found)
        return found

    def readline(self) -> bytes:
        found = self._file.readline(self._left)
        self._left -= len(found)
        return found


class _Reader:
    """The state of reading one pickle: a stack, the stacks below the marks, and what is to be had again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        self.given = 0  # items of lists and tuples that were given to calls

    def damaged(self, why: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: damaged pickle: {why}", hint="download the model again")

    def refused(self, what: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: the pickle {what}: no plain table of tensors", hint=_HINT)

    def pop(self) -> Any:
        if not self.stack:
            self.damaged("a value is missing")
        return self.stack.pop()

    def pop_marked(self) -> list[Any]:
        """What was put on the stack since the last mark."""
        if not self.below:
            self.damaged("a mark is missing")
        found, self.stack = self.stack, self.below.pop()
        return found

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def tuple_of(self, size: int) -> None:
        self.stack.append(tuple(reversed([self.pop() for _ in range(size)])))

    def put(self, index: int | None) -> None:
        value = self.pop()
        self.stack.append(value)
        self.memo[len(self.memo) if index is None else index] = value

    def get(self, index: int) -> None:
        if index not in self.memo:
            self.damaged(f"entry {index} of the memo is missing")
        self.stack.append(self.memo[index])

    def extend(self, items: list[Any]) -> None:
        found = self.pop()
        if type(found) is not list:
            self.damaged(f"items for a {type(found).__name__}, expected a list")
        found.extend(items)
        self.stack.append(found)

    def update(self, items: list[Any]) -> None:
        found = self.pop()
        if not isinstance(found, dict):
            self.damaged(f"entries for a {type(found).__name__}, expected a table")
        if len(items) % 2:
            self.damaged("a key without a value")
        found.update(self.understand(table, zip(items[::2], items[1::2], strict=True)))
        self.stack[-1] = found

    def name(self, text: str) -> None:
        self.understand(named, text)

    def stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            self.damaged("a name that is no text")
        self.name(f"{module}.{name}")

    def build(self) -> None:
        """Sets attributes; torch notes the versions of modules in one of its table, which nothing here needs."""
        self.pop()
        if not self.stack or not isinstance(self.stack[-1], OrderedDict):
            self.refused("sets attributes of something else than a table")

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Name) or type(arguments) is not tuple:
            self.refused("calls something else than a function")
        # All else takes as long as the file is; a list of the memo can be given again and again.
        self.given += sum(len(each) for each in arguments if type(each) in (list, tuple))
        if self.given > MAX_INSTRUCTIONS:
            self.refused(f"gives more than {MAX_INSTRUCTIONS} items to calls")
        self.understand(called, function, arguments)

    def reference(self) -> None:
        storage = self.understand(referred, self.pop())
        if self.storages.setdefault(storage.key, storage) != storage:
            self.refused(f"has two storages of the name {storage.key}")

    def understand(self, make: Callable[..., Any], *values: object) -> Any:
        """Puts on the stack what torch would have made of these."""
        try:
            self.stack.append(make(*values))
        except Unknown as problem:
            self.refused(str(problem))
        return self.stack[-1]


_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
_Step = Callable[[_Reader, Any], None]


def _push(reader: _Reader, value: object) -> None:
    reader.stack.append(value)


def _nothing(reader: _Reader, value: object) -> None:
    pass


_STEPS: dict[str, _Step] = {
    **dict.fromkeys(("PROTO", "FRAME"), _nothing),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING"), _push),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _Reader.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Reader.get),
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
    """Reads one pickle, from where the file stands to its end.

    Args:
        path: What the file is called, for messages.
        file: Left standing behind the pickle.
        limit: How many bytes it may have.

    Returns:
        The value, made of tables, lists, tuples, texts, numbers, `Name` and `Tensor`; and all storages by their keys.

    Raises:
        CheckpointError: It is damaged, too large, or does anything that a table of tensors does not need.
    """
    reader = _Reader(path)
    limited: Any = _Limited(file, limit)
    for _ in range(MAX_INSTRUCTIONS):
        code = limited.read(1)
        if not code:
            reader.damaged(f"no end within {limit} bytes" if limited.full() else "it is truncated")
        opcode = _OPCODES.get(code.decode("latin-1"))
        if opcode is None:
            reader.damaged(f"no instruction {code!r}")
        if opcode.name == "STOP":
            break
        if opcode.name not in _STEPS:
            reader.refused(f"has the instruction {opcode.name}")
        try:
            argument = opcode.arg.reader(limited) if opcode.arg else None
        except ValueError as problem:
            reader.damaged(f"{opcode.name}: {problem!s:.200}")
        _STEPS[opcode.name](reader, argument)
    else:
        reader.refused(f"has more than {MAX_INSTRUCTIONS} instructions")
    if len(reader.stack) != 1 or reader.below:
        reader.damaged("more or less than one value at the end")
    return reader.stack[0], reader.storages
