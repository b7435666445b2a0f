"""JSON lines (.jsonl), and JSON files: an array of records, or the questions of SQuAD 1.1 and 2.0."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mlxbert.durable_files import from_json
from mlxbert.errors import InputError
from mlxbert.readers.parsing import Item, ReadOptions, json_type, placed
from mlxbert.readers.text_lines import Lines

_ONE_PER_LINE = "write one JSON object per line, or use `format='json'` for a list of objects"


def read_jsonl(lines: Lines, wanted: ReadOptions) -> Iterator[Item]:
    """Yields the object of each line that is not blank, with all fields."""
    for number, line in enumerate(lines, 1):
        if (problem := lines.problem()) is not None or line.strip():
            yield f"line {number}", problem or _object(line)


def _object(line: str) -> Mapping[str, Any] | InputError:
    try:
        record = from_json(line)
    except json.JSONDecodeError as problem:  # str(problem) would always say "line 1"
        return InputError(f"the line is not valid JSON ({problem.msg}, column {problem.colno})", hint=_ONE_PER_LINE)
    except ValueError as problem:  # a number with too many digits, or nested too deeply
        return InputError(f"the line is not valid JSON ({problem})", hint=_ONE_PER_LINE)
    if not isinstance(record, dict):
        return InputError(f"the line is {json_type(record)}, expected a JSON object", hint=_ONE_PER_LINE)
    return record


_MAX_SIZE = 2**29  # characters
_LINES = "for larger files, write one object per line (jq -c '.[]') and use `format='jsonl'`"
_LAYOUT = (
    'a SQuAD file has the form {"data": [{"paragraphs": [{"context": …, "qas": [{"question": …, "answers": […]}]}]}]}'
)


def read_json(lines: Lines, wanted: ReadOptions) -> Iterator[Item]:
    """Yields the objects of an array or, if all values are wanted, the questions in a SQuAD object.

    Yields:
        The place of the record, `record 3` or `data[0].paragraphs[2].qas[1]`, and its values; a question has
        `question`, `context`, `answers`, and `id`, `title` and `is_impossible` if the file has them.
    """
    try:
        content = from_json("\n".join(_limited(lines)))
    except ValueError as problem:
        raise InputError(
            f"{lines.name}: the input is not valid JSON ({problem})",
            hint="use `format='jsonl'` if each line is an object",
        ) from None
    if isinstance(content, list):
        for number, value in enumerate(content, 1):
            other = InputError(f"the record is {json_type(value)}, expected a JSON object")
            yield f"record {number}", value if isinstance(value, dict) else other
        return
    if wanted.texts:
        raise InputError(f"{lines.name}: the content is {json_type(content)}, expected a JSON array of objects")
    for number, article in enumerate(_list(content, "data", lines.name)):
        article_place = f"data[{number}]"
        for place, paragraph in enumerate(_list(article, "paragraphs", f"{lines.name}, {article_place}")):
            paragraph_place = f"{article_place}.paragraphs[{place}]"
            error_place = f"{lines.name}, {paragraph_place}"
            for index, qa in enumerate(_list(paragraph, "qas", error_place)):
                if not isinstance(qa, dict):
                    raise InputError(f"{error_place}.qas[{index}] is {json_type(qa)}, expected an object", hint=_LAYOUT)
                yield f"{paragraph_place}.qas[{index}]", _values(article, paragraph, qa)


def _limited(lines: Lines) -> Iterator[str]:
    size = 0
    for number, line in enumerate(lines, 1):
        if (problem := lines.problem()) is not None:
            raise placed(problem, f"line {number}", lines.name)
        if (size := size + len(line)) > _MAX_SIZE:
            message = f"the input has more than {_MAX_SIZE:,} characters, the maximum for a .json"
            raise InputError(f"{lines.name}: {message}", hint=_LINES)
        yield line


def _values(article: dict[str, Any], paragraph: dict[str, Any], qa: dict[str, Any]) -> dict[str, Any]:
    optional = {"id": qa.get("id"), "title": article.get("title")}
    values = {name: value for name, value in optional.items() if value is not None}
    values |= {"question": qa["question"]} if "question" in qa else {}
    values |= {"context": paragraph["context"]} if "context" in paragraph else {}
    values |= {name: qa[name] for name in ("answers", "is_impossible") if name in qa}
    return values


def _list(value: Any, key: str, place: str) -> list[Any]:
    if not isinstance(value, dict):
        raise InputError(f"{place} is {json_type(value)}, expected an object with {key!r}", hint=_LAYOUT)
    if not isinstance(value.get(key), list):
        problem = f"{key!r} is {json_type(value[key])}" if key in value else f"{key!r} is missing"
        raise InputError(f"{place}: {problem}, expected a list", hint=_LAYOUT)
    items: list[Any] = value[key]
    return items
