"""The `repr` of results, which fits on a screen however long their texts, lists and vectors are."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from mlxbert.other_libraries import instead_of, names_of

_WIDTH, _HEIGHT = 88, 24  # the size of a screen, in characters and lines
_TEXT = 60  # characters of a text
_ENTRIES = (8, 4, 2, 1)  # maximum entries of a list: the largest number that fits on a screen is used
_INDENT = "    "


class Brief:
    """A dataclass whose `repr` shortens long values and leaves out fields that have their defaults.

    The `repr` is one line if that fits, otherwise one line per field.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            setattr(cls, "__repr__", Brief.__repr__)  # noqa: B010 - else the dataclass generates its own

    def __repr__(self) -> str:
        return brief(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            instead = instead_of(name, names_of(type(self)), self)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{instead}")

        def __getitem__(self, name: object) -> Any:
            instead = instead_of(name, names_of(type(self)), self) if isinstance(name, str) else ""
            raise TypeError(f"{type(self).__name__!r} object is not subscriptable{instead}")


def brief(value: object) -> str:
    """Returns the `repr` of a value, shortened to fit on a screen."""
    lines: list[str] = []
    for limit in _ENTRIES:
        lines = list(_lines(value, "", "", limit))
        if len(lines) <= _HEIGHT:
            return "\n".join(lines)
    return "\n".join([*lines[: _HEIGHT - 1], "…"])


def _lines(value: object, before: str, after: str, limit: int) -> Iterator[str]:
    """Yields `before`, the value and `after`: one line if they fit, otherwise a line for each entry of the value."""
    flat = f"{before}{_flat(value, limit)}{after}"
    parts = _parts(value, limit)
    if parts is None or len(flat) <= _WIDTH:
        yield flat
        return
    start, entries, end = parts
    indent = before[: len(before) - len(before.lstrip())]
    yield before + start
    for name, entry in entries:
        yield from _lines(entry, f"{indent}{_INDENT}{name}", ",", limit)
    yield f"{indent}{end}{after}"


def _flat(value: object, limit: int) -> str:
    parts = _parts(value, limit)
    if parts is None:
        return _atom(value)
    start, entries, end = parts
    inside = ", ".join(f"{name}{_flat(entry, limit)}" for name, entry in entries)
    return f"{start}{inside}{',' if start == '(' and len(entries) == 1 else ''}{end}"


class _More:
    """Stands for the entries that are left out of a list; prints how many entries the list has in all."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __repr__(self) -> str:
        return f"… {self._count:,} in all"


def _parts(value: object, limit: int) -> tuple[str, list[tuple[str, object]], str] | None:
    """Returns the opening text of a value, its named entries, and its closing text; `None` if it has no entries."""
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}(", list(_fields(value)), ")"
    if isinstance(value, Mapping):
        start, entries, end = "{", [(f"{_atom(key)}: ", entry) for key, entry in value.items()], "}"
    elif isinstance(value, list | tuple):
        start, end = "[]" if isinstance(value, list) else "()"
        entries = [("", entry) for entry in value]
    else:
        return None
    more = [("", _More(len(entries)))] if len(entries) > limit else []
    return start, entries[:limit] + more, end


def _fields(value: Any) -> Iterator[tuple[str, object]]:
    for field in fields(value):
        entry = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.repr and not (type(entry) is type(default) and entry == default):
            yield f"{field.name}=", entry


def _atom(value: object) -> str:
    if isinstance(value, str):  # before arrays, because a string of NumPy has a shape
        return repr(f"{value[: _TEXT - 1]}…" if len(value) > _TEXT else str(value))
    if hasattr(value, "shape") and hasattr(value, "dtype"):  # an array of any library
        return f"<{value.dtype} {' x '.join(map(str, value.shape)) or 'number'}>"
    if isinstance(value, float):
        return repr(float(f"{value:.4g}"))
    text = repr(value)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"
