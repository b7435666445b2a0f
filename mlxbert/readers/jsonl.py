"""JSON lines: one object per line."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mlxbert.durable_files import from_json
from mlxbert.errors import InputError
from mlxbert.readers.parsing import Item, Wanted, json_type
from mlxbert.readers.text_lines import Lines

_HINT = "write one JSON object per line, or use format='json' for a list of objects"


def read_jsonl(lines: Lines, wanted: Wanted) -> Iterator[Item]:
    """Yields the object of each line that is not blank, with all fields."""
    for number, line in enumerate(lines, 1):
        if (problem := lines.problem()) is not None or line.strip():
            yield f"line {number}", problem or _object(line)


def _object(line: str) -> Mapping[str, Any] | InputError:
    try:
        record = from_json(line)
    except json.JSONDecodeError as problem:  # str(problem) would always say "line 1"
        return InputError(f"the line is not valid JSON ({problem.msg}, column {problem.colno})", hint=_HINT)
    except ValueError as problem:  # a number with too many digits, or nested too deeply
        return InputError(f"the line is not valid JSON ({problem})", hint=_HINT)
    if not isinstance(record, dict):
        return InputError(f"the line is {json_type(record)}, expected a JSON object", hint=_HINT)
    return record
