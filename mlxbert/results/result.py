"""The base classes of results, which a notebook shows as tables, and `Failure`, the result of an unusable input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxbert.errors import MlxbertError
from mlxbert.results.json import Each, fields_of, listed
from mlxbert.results.short_repr import Brief

_MAX_CELLS, _MAX_NUMBERS = 64, 8  # rows or columns of a table; numbers of a vector


class Shown(Brief):
    """A dataclass that a notebook shows as a table of its JSON."""

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the fields as plain dicts and lists, as the command line prints them (see `mlxbert.results.json`)."""
        return fields_of(self, each)

    def _repr_html_(self: Any) -> str:
        return to_html(self.to_dict())


class Listed(list[Any]):
    """A list of results that a notebook shows as one table."""

    def _repr_html_(self) -> str:
        return to_html([result.to_dict() for result in self])


def to_html(value: object) -> str:
    """Converts a JSON value to HTML.

    Objects and lists of objects become tables without empty columns. Long lists are truncated.
    """
    if isinstance(value, Mapping):
        rows = (f"<tr><th>{to_html(name)}</th>{_cell(entry)}</tr>" for name, entry in value.items())
        return f"<table>{''.join(rows)}</table>"
    if not isinstance(value, list | tuple):
        from html import escape

        return escape(f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value))
    if value and all(isinstance(row, Mapping) for row in value):
        heads = list(dict.fromkeys(name for row in value for name in row if row[name] is not None))
        return grid(heads, [[row.get(head) for head in heads] for row in value])
    limit = _MAX_NUMBERS if value and isinstance(value[0], float) else _MAX_CELLS
    return ", ".join(map(to_html, value[:limit])) + _more(value, limit)


def grid(heads: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Returns an HTML table with a header; the closer a fraction is to 1, the darker its cell."""
    lines = ["".join(f"<th>{to_html(head)}</th>" for head in heads[:_MAX_CELLS])]
    lines += ["".join(map(_cell, row[:_MAX_CELLS])) for row in rows[:_MAX_CELLS]]
    return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>{_more(rows, _MAX_CELLS)}"


def _cell(value: object) -> str:
    share = value if isinstance(value, float) and 0 <= value <= 1 else 0.0
    return f'<td style="background: rgba(66, 133, 244, {share:.2f}); text-align: left">{to_html(value)}</td>'


def _more(values: Sequence[object], limit: int) -> str:
    return f" … {len(values):,} in all" if len(values) > limit else ""


@dataclass(frozen=True, eq=False)
class Result(Shown):
    """Base class of all results."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Result":
        """Makes a result from the output of `to_dict`; fields that `to_dict` omits may also be present."""
        import msgspec

        return msgspec.convert(values, cls)


@dataclass(frozen=True)
class Failure(Shown):
    """Takes the place of the result of an unusable input.

    Attributes:
        index: The index of the input in the stream, from 0.
        error: The error that says why the input is unusable.
    """

    index: int
    error: MlxbertError

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns `{"index": …, "error": …}`."""
        return {"index": self.index, "error": self.error.message}
