"""The front matter of notes: settings in YAML or TOML before the text."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

_FRONT = re.compile(r"(---|\+\+\+)[ \t]*\n(?![ \t]*\n)((?:.*\n)*?)(?:\1|\.\.\.)[ \t]*(?:\n|\Z)")
_MAX_FRONT = 2**14  # characters: TOML with a long dotted key takes a time that grows with the square of its length
_PROSE = re.compile(r"^(?![ \t#\-\]}]|[^:\n]+:(?:[ \t]|$)).", re.MULTILINE)  # a line of YAML has a key, or is indented
_PAIR = re.compile(r"^([\w-]+):[ \t]+(.+)", re.MULTILINE)


def front_matter(text: str) -> tuple[int, Mapping[str, Any], bool]:
    """Returns the end and the values of the front matter, YAML or TOML, and whether it is damaged."""
    import yaml

    block, is_damaged = _FRONT.match(text[:_MAX_FRONT]), False
    if block is None or (block[1] == "---" and _PROSE.search(block[2])):
        return 0, {}, False
    mark, content = block.groups()
    try:
        # This loader makes only strings, lists and dicts, and does not merge keys.
        values = tomllib.loads(content) if mark == "+++" else yaml.load(content, yaml.BaseLoader)
    except (ValueError, RecursionError, yaml.YAMLError):
        values = dict(_PAIR.findall(content))  # most often, a title has a colon
        is_damaged = True
    return (block.end(), values, is_damaged) if values and isinstance(values, dict) else (0, {}, False)


def front_matter_end(text: str) -> int:
    """Returns the offset at which the front matter of a text ends; 0 if there is none."""
    return front_matter(text)[0] if text.startswith(("---", "+++")) else 0
