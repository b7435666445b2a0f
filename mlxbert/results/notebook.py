"""Results in a notebook: tables of what `to_dict` gives, texts escaped."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mlxbert.results.brief import Brief
from mlxbert.results.json import Each, fields_of, listed

_MOST, _SOME = 64, 8  # rows or columns of a table; numbers of a vector


class Shown(Brief):
    """A dataclass with a JSON object, which a notebook shows as a table."""

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """The fields as plain dicts and lists, as the command line prints them; see `mlxbert.results.json.plain`."""
        return fields_of(self, each)

    def _repr_html_(self: Any) -> str:
        return to_html(self.to_dict())


class Listed(list[Any]):
    """A list of results that a notebook shows as one table."""

    def _repr_html_(self) -> str:
        return to_html([one.to_dict() for one in self])


def to_html(value: object) -> str:
    """A value of JSON: objects and lists of objects as tables without empty columns; the beginning of long lists."""
    if isinstance(value, Mapping):
        rows = (f"<tr><th>{to_html(name)}</th>{_cell(one)}</tr>" for name, one in value.items())
        return f"<table>{''.join(rows)}</table>"
    if not isinstance(value, list | tuple):
        return escape(f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value))
    if value and all(isinstance(one, Mapping) for one in value):
        heads = list(dict.fromkeys(name for one in value for name in one if one[name] is not None))
        return grid(heads, [[one.get(head) for head in heads] for one in value])
    most = _SOME if value and isinstance(value[0], float) else _MOST
    return ", ".join(map(to_html, value[:most])) + _more(value, most)


def grid(heads: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A table with a line of names; the nearer a fraction is to 1, the darker is its cell."""
    lines = ["".join(f"<th>{to_html(head)}</th>" for head in heads[:_MOST])]
    lines += ["".join(map(_cell, row[:_MOST])) for row in rows[:_MOST]]
    return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>{_more(rows, _MOST)}"


def _cell(value: object) -> str:
    share = value if isinstance(value, float) and 0 <= value <= 1 else 0.0
    return f'<td style="background: rgba(66, 133, 244, {share:.2f}); text-align: left">{to_html(value)}</td>'


def _more(values: Sequence[object], most: int) -> str:
    return f" … {len(values):,} in all" if len(values) > most else ""
