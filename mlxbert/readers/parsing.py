"""What the readers of all formats share: the values to read, the items to yield, and errors with their place in a file.

The reader of a format is a function that takes an open file (`Lines` or `Binary`) and a `ReadOptions`, and yields an
`Item` for each record; see `mlxbert.readers.formats`.
"""

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from mlxbert.errors import InputError, MlxbertError
from mlxbert.readers.pipes import LONGEST, Opened
from mlxbert.readers.text_lines import UTF8

# The place where a record begins (`line 17`, `row 3`, `page 2`), and its values, or an error if it is unusable.
Item = tuple[str, Mapping[str, Any] | InputError]


@dataclass(frozen=True)
class ReadOptions:
    """The values to read from each record."""

    # Fields or columns that must be strings. If there are none, a damaged line ends the reading with an error;
    # otherwise only its record has the error.
    texts: tuple[str, ...] = ()
    keep: Sequence[str] | None = None  # other fields or columns to keep, of any type; `None` keeps all
    with_id: bool = False  # whether to keep `id` as well, if there is one
    header: bool = True  # whether the first row of a table names its columns; otherwise they are called `1`, `2`, …
    choose: str = "`text=`"  # the name, in hints, of the argument or option that chooses `texts`
    most: int = LONGEST  # maximum size of a line in bytes
    encoding: str = UTF8  # the encoding of a text file
    lenient: bool = False  # whether only the record has the error of a damaged line, even if there are no `texts`
    # The encoding of bytes that are not valid in `encoding`; by default, they make a record unusable.
    other: str | None = None
    separator: str = ","  # the separator of the columns of a .csv

    def kept(self, names: Sequence[str]) -> Sequence[str]:
        """Returns the fields or columns to keep from a record or table that has these names."""
        if self.keep is None:
            return names
        return [*self.keep, "id"] if self.with_id and "id" in names else self.keep

    def columns(self, source: str, names: Sequence[str]) -> list[str]:
        """Returns the wanted columns of a table; errors name its `source`."""
        kept, known = self.kept(names), {*names}
        columns = [*self.texts, *(name for name in kept if self.keep is not None or name not in self.texts)]
        for number, name in enumerate(columns):
            if name not in known:
                hint = self.missing("column", name, names) if number < len(self.texts) else None
                raise InputError(f"{source}: the file has no column {name!r} (columns: {', '.join(names)})", hint=hint)
        return columns if self.keep is not None else [*names]

    def missing(self, what: str, name: str, names: Iterable[str]) -> str:
        """Returns the hint for a field or column `name` that does not exist; `names` are those that do."""
        near = difflib.get_close_matches(name, [*names], n=1)
        return f"did you mean {near[0]!r}?" if near else f"choose one of these {what}s with {self.choose}"


class Binary(Opened):
    """A file that is not read line by line, and is not a pipe."""

    done = 0  # the number of bytes read so far

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name, self.file = name, file


def size_of(file: BinaryIO) -> int | None:
    """Returns the size of an open file in bytes; `None` if it is unknown."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:
        return None


def placed(problem: MlxbertError, place: str, source: str | None = None) -> InputError:
    """Adds the name of the file to an error, and the place of the record if the error does not name a line."""
    message = problem.message if problem.message.startswith("line ") else f"{place}: {problem.message}"
    return InputError(message if source is None else f"{source}, {message}", hint=problem.hint)


def json_type(value: object) -> str:
    """Names the JSON type of a value for errors: `null`, `a number`, `an object`."""
    types = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return types.get(type(value), "an object")


def column_names(header: Sequence[str]) -> list[str]:
    """Returns the names of a table's columns, each without the space around it, and a different name for each column.

    If a name occurs again, a number is added: `id_2`. Columns without a name keep the empty name, and are not read.
    """
    stripped = [name.strip() for name in header]
    names, taken, numbers = list[str](), {*stripped}, Counter[str]()
    for name in stripped:
        numbers[name] += 1
        free = name
        while free in taken and name and numbers[name] > 1:
            free = f"{name}_{numbers[name]}"
            numbers[name] += free in taken
        taken.add(free)
        names.append(free)
    return names


def counted_columns(columns: int) -> str:
    """Spells out a number of columns for a message: `1 column`, `3 columns`."""
    return "1 column" if columns == 1 else f"{columns} columns"
