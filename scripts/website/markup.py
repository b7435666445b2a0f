"""Plain text with code in backticks, as helps and docstrings have it, as reStructuredText."""

import re
from collections.abc import Collection

_CODE = re.compile(r"`([^`]+)`")
_SPECIAL = re.compile(r"([\\*_|<>\[\]])")


def to_rst(text: str, names: Collection[str] = ()) -> str:
    """The same text as reStructuredText.

    Code that is one of the `names` of the package becomes a link: a class, or a name after `mlxbert.`. The name of a
    function alone may also be an option or a field.
    """
    parts = _CODE.split(text)
    return "".join(_code(part, names) if place % 2 else _SPECIAL.sub(r"\\\1", part) for place, part in enumerate(parts))


def _code(text: str, names: Collection[str]) -> str:
    """A piece of code; the escaped spaces around it are not shown, and let a letter follow it."""
    name = text.removeprefix("mlxbert.")
    linked = name in names and (name != text or name[0].isupper())
    written = f":py:obj:`{text} <mlxbert.{name}>`" if linked else f"``{' '.join(text.split())}``"
    return rf"\ {written}\ "


def heading(text: str, line: str) -> list[str]:
    """The lines of a heading, underlined with the character of its level."""
    return [text, line * (2 * len(text)), ""]


def indented(text: str, width: int = 3) -> str:
    """The same text with each line that is not empty indented."""
    return "\n".join(" " * width + line if line.strip() else "" for line in text.splitlines())
