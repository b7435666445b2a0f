"""Plain text: one text per line."""

from collections.abc import Iterator

from mlxbert.readers.parsing import Item, Wanted
from mlxbert.readers.text_lines import Lines


def read_txt(lines: Lines, wanted: Wanted) -> Iterator[Item]:
    """Yields each line, even if it is blank; the field is named like the wanted text, by default `text`."""
    name = wanted.texts[0] if wanted.texts else "text"
    for number, line in enumerate(lines, 1):
        yield f"line {number}", lines.problem() or {name: line}
