"""JSON lines: an object in each line."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mlxbert.errors import InputError
from mlxbert.files import from_json
from mlxbert.readers.parsing import Item, Wanted, json_type
from mlxbert.readers.text_lines import Lines

_HINT = "each line is one JSON object; format='json' reads a list of objects"


def read_jsonl(lines: Lines, wanted: Wanted) -> Iterator[Item]:
    """The object of each line that is not blank, with all its fields."""
    for number, line in enumerate(lines, 1):
        if (problem := lines.problem()) is not None or line.strip():
            yield f"line {number}", problem or _object(line)


def _object(line: str) -> Mapping[str, Any] | InputError:
    try:
        record = from_json(line)
    except json.JSONDecodeError as problem:  # its own words call every line the first one
        return InputError(f"not valid JSON ({problem.msg}, column {problem.colno})", hint=_HINT)
    except ValueError as problem:  # a number of many digits, lists in lists
        return InputError(f"not valid JSON ({problem})", hint=_HINT)
    if not isinstance(record, dict):
        return InputError(f"expected a JSON object, found {json_type(record)}", hint=_HINT)
    return record
