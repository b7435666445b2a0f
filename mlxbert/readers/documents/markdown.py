"""Markdown: the headings that CommonMark defines, and the title and the fields of the front matter."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, time
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mlxbert.readers.documents.document import Document, Heading, ReadProblem
from mlxbert.readers.documents.plain import decode_lines

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

# Linear time even for hostile files: no repetition is followed by a pattern that could match the same characters.
_FRONT = re.compile(r"(---|\+\+\+)[ \t]*\n(?![ \t]*\n)((?:.*\n)*?)(?:\1|\.\.\.)[ \t]*(?:\n|\Z)")
_PROSE = re.compile(r"^(?![ \t#\-\]}]|[^:\n]+:(?:[ \t]|$)).", re.MULTILINE)  # a line of YAML has a key, or is indented
_PAIR = re.compile(r"^([\w-]+):[ \t]+(.+)", re.MULTILINE)
_MAX_FRONT = 2**14  # characters: TOML with a long dotted key takes a time that grows with the square of its length
_MAX_TEXT = 2**22  # characters in which headings are looked for: the parser needs 6 seconds for a hostile million
_MAX_VALUE = 1000  # characters of a field: an alias repeats a value of any length


def read_markdown(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the file as one document."""
    text, problems = decode_lines(data, chosen=encoding)
    begin, values, guessed = _front_matter(text)
    fields = {key: shown for key, value in values.items() if (shown := _shown(value))}
    title = next((fields.pop(key) for key in [*fields] if key.lower() == "title"), "")
    headings = tuple(markdown_headings(text, begin))
    if len(text) - begin > _MAX_TEXT:
        guessed += (ReadProblem("left out", f"headings after the first {_MAX_TEXT:,} characters"),)
    yield Document(text, title, fields, headings=headings, first_line=1, problems=(*problems, *guessed))


def _front_matter(text: str) -> tuple[int, Mapping[str, Any], tuple[ReadProblem, ...]]:
    """Returns the end and the values of the front matter, YAML or TOML."""
    import yaml

    block, problems = _FRONT.match(text[:_MAX_FRONT]), tuple[ReadProblem, ...]()
    if block is None or (block[1] == "---" and _PROSE.search(block[2])):
        return 0, {}, ()
    mark, content = block.groups()
    try:
        # This loader makes only strings, lists and dicts, and does not merge keys.
        values = tomllib.loads(content) if mark == "+++" else yaml.load(content, yaml.BaseLoader)
    except (ValueError, RecursionError, yaml.YAMLError):
        values = dict(_PAIR.findall(content))  # most often, a title has a colon
        problems = (ReadProblem("guessed", "the front matter is damaged, so each line is read as it stands"),)
    return (block.end(), values, problems) if values and isinstance(values, dict) else (0, {}, ())


def _shown(value: Any) -> str:
    """Converts a value for filtering, a list to its values with commas; returns "" for what is nested deeper."""
    if isinstance(value, list):
        return ", ".join(filter(None, (_shown(one) for one in value if not isinstance(one, list))))[:_MAX_VALUE]
    shown = value.isoformat() if isinstance(value, date | time) else "" if isinstance(value, dict) else str(value)
    return " ".join((shown.lower() if isinstance(value, bool) else shown)[:_MAX_VALUE].split())


@cache
def _blocks() -> "MarkdownIt":
    """Returns a parser that reads blocks only, in linear time."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")  # a line of dashes below makes no heading of it
    parser.core.ruler.enableOnly(["block"])
    return parser


def markdown_headings(text: str, begin: int = 0) -> Iterator[Heading]:
    """Returns the headings of a text, of a very long one those of its beginning.

    Args:
        text: The text.
        begin: The offset at which to begin.
    """
    from markdown_it.common.utils import unescapeAll

    source = text[begin : begin + _MAX_TEXT].replace("\r", "\n")
    starts = [begin, *(begin + line.end() for line in re.finditer("\n", source))]
    for opening, inside in pairwise(_blocks().parse(source)):
        if opening.type == "heading_open" and opening.map and inside.content.strip():
            yield Heading.of(starts[opening.map[0]], int(opening.tag[1:]), unescapeAll(inside.content))
