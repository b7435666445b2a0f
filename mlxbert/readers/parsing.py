"""What formats share: what is wanted of a file, what they give for each record, and errors with places.

A format is read by a function that takes an open file (`Lines`, or a `Binary`) and a `Wanted`, and gives an `Item` for
each record; see `mlxbert.readers.formats`.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from mlxbert.errors import InputError, MlxbertError
from mlxbert.readers.pipes import LONGEST, Opened
from mlxbert.readers.text_lines import UTF8

# Where a record begins (`line 17`, `row 3`, `page 2`), and its values, or why it cannot be used.
Item = tuple[str, Mapping[str, Any] | InputError]


@dataclass(frozen=True)
class Wanted:
    """The values that are read of each record.

    Attributes:
        texts: Fields or columns that must be strings. Without any, a line that is damaged ends the file with an error;
            otherwise its record has the problem.
        keep: Other fields or columns, of any type; `None` for all.
        with_id: Whether `id` is kept as well, where there is one.
        header: Whether the first row of a table names its columns; otherwise they are called `1`, `2`, …
        choose: The argument or option that chooses `texts`, for hints.
        most: Bytes of a line.
        encoding: The encoding of a file of text.
    """

    texts: tuple[str, ...] = ()
    keep: Sequence[str] | None = None
    with_id: bool = False
    header: bool = True
    choose: str = "text="
    most: int = LONGEST
    encoding: str = UTF8

    def kept(self, names: Sequence[str]) -> Sequence[str]:
        """What is kept of a record or table that has these names."""
        if self.keep is None:
            return names
        return [*self.keep, "id"] if self.with_id and "id" in names else self.keep

    def columns(self, source: str, names: Sequence[str]) -> list[str]:
        """The wanted columns of a table.

        Args:
            source: What errors call the file.
            names: All columns.
        """
        columns, counts = [*self.texts, *self.kept(names)], Counter(names)
        for number, name in enumerate(columns):
            if counts[name] != 1:
                raise InputError(
                    f"{source}: {'two columns' if counts[name] else 'no column'} {name!r}, the file has: "
                    f"{', '.join(names)}",
                    hint=separator_hint(names) or (self.hint("column") if number < len(self.texts) else None),
                )
        return columns

    def hint(self, what: str) -> str:
        """How a field or a column is chosen."""
        return f"choose the {what} with {self.choose}"


class Binary(Opened):
    """A file that is not read by lines.

    Args:
        name: What errors call it.
        file: To be read; not a pipe.

    Attributes:
        done: Bytes read so far.
    """

    done = 0

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name, self.file = name, file


def size_of(file: BinaryIO) -> int | None:
    """Bytes of an open file; `None` if that is not known."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:
        return None


def placed(problem: MlxbertError, place: str, source: str | None = None) -> InputError:
    """The error with the place of its record, unless it names its line itself, and with the name of the file."""
    said = problem.message if problem.message.startswith("line ") else f"{place}: {problem.message}"
    return InputError(said if source is None else f"{source}, {said}", hint=problem.hint)


def json_type(value: object) -> str:
    """What JSON calls a value."""
    types = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return types.get(type(value), "an object")


def separator_hint(header: Sequence[str]) -> str | None:
    """What to do about a header that is separated by something else than its format says."""
    if len(header) == 1 and ";" in header[0]:
        return "columns are separated by semicolons: save it with commas, or as .tsv"
    return None


def counted_columns(columns: int) -> str:
    """A number of columns in words."""
    return "1 column" if columns == 1 else f"{columns} columns"
