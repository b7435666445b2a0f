"""JSON files: an array of records, or the questions of SQuAD, 1.1 and 2.0. The whole file is in memory."""

from collections.abc import Iterator
from typing import Any

from mlxbert.errors import InputError
from mlxbert.files import from_json
from mlxbert.readers.parsing import Item, Wanted, json_type, placed
from mlxbert.readers.text_lines import Lines

_MOST = 2**29  # characters
_LINES = "files of any size: an object in each line, as jq -c '.[]' writes, and format='jsonl'"
_LAYOUT = 'a file of SQuAD is {"data": [{"paragraphs": [{"context": …, "qas": [{"question": …, "answers": […]}]}]}]}'


def read_json(lines: Lines, wanted: Wanted) -> Iterator[Item]:
    """The objects of an array; of an object, where all values are read, the questions of SQuAD, each with its context.

    Yields:
        Where the record stands, `record 3` or `data[0].paragraphs[2].qas[1]`, and its values; those of a question are
        `question`, `context`, `answers`, and `id`, `title` and `is_impossible` where the file has them.
    """
    try:
        whole = from_json("\n".join(_limited(lines)))
    except ValueError as problem:
        raise InputError(
            f"{lines.name}: not valid JSON ({problem})",
            hint="if each line is an object, name the format: format='jsonl'",
        ) from None
    if isinstance(whole, list):
        for number, one in enumerate(whole, 1):
            found = one if isinstance(one, dict) else InputError(f"expected a JSON object, found {json_type(one)}")
            yield f"record {number}", found
        return
    if wanted.texts:
        raise InputError(f"{lines.name}: found {json_type(whole)}, expected a JSON array of objects")
    for number, article in enumerate(_list(whole, "data", lines.name)):
        of_article = f"data[{number}]"
        for place, paragraph in enumerate(_list(article, "paragraphs", f"{lines.name}, {of_article}")):
            of_paragraph = f"{of_article}.paragraphs[{place}]"
            where = f"{lines.name}, {of_paragraph}"
            for index, asked in enumerate(_list(paragraph, "qas", where)):
                if not isinstance(asked, dict):
                    raise InputError(f"{where}.qas[{index}] is {json_type(asked)}, expected an object", hint=_LAYOUT)
                yield f"{of_paragraph}.qas[{index}]", _values(article, paragraph, asked)


def _limited(lines: Lines) -> Iterator[str]:
    size = 0
    for number, line in enumerate(lines, 1):
        if (problem := lines.problem()) is not None:
            raise placed(problem, f"line {number}", lines.name)
        if (size := size + len(line)) > _MOST:
            raise InputError(f"{lines.name}: more than {_MOST:,} characters, the maximum of a .json", hint=_LINES)
        yield line


def _values(article: dict[str, Any], paragraph: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """The values of a question; one that is missing stays so."""
    found = {"id": asked.get("id"), "title": article.get("title")}
    values = {name: value for name, value in found.items() if value is not None}
    values |= {"question": asked["question"]} if "question" in asked else {}
    values |= {"context": paragraph["context"]} if "context" in paragraph else {}
    values |= {name: asked[name] for name in ("answers", "is_impossible") if name in asked}
    return values


def _list(value: Any, key: str, place: str) -> list[Any]:
    if not isinstance(value, dict):
        raise InputError(f"{place} is {json_type(value)}, expected an object with {key!r}", hint=_LAYOUT)
    if not isinstance(value.get(key), list):
        found = f"{key!r} is {json_type(value[key])}" if key in value else f"{key!r} is missing"
        raise InputError(f"{place}: {found}, expected a list", hint=_LAYOUT)
    items: list[Any] = value[key]
    return items
