"""Reads the sentences of CoNLL and CoNLL-U files, which have one word per line and a blank line after each sentence."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from mlxbert.errors import InputError
from mlxbert.readers.parsing import Item, ReadOptions, counted_columns
from mlxbert.readers.text_lines import Lines

# https://universaldependencies.org/format.html
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_DOCUMENT = "-DOCSTART-"
_SPACES = re.compile(r"[ \t]+")
_WORD = re.compile(r"\d+")
_TEXT = "# text = "


def read_conll(lines: Lines, wanted: ReadOptions) -> Iterator[Item]:
    """Yields the columns of each sentence; the names of the columns are their numbers, starting at 1.

    If a line has a tab, its columns are separated by tabs, otherwise by spaces. A -DOCSTART- line ends a sentence.
    """
    start, first = "", 0
    top: list[str] = []  # the values of the first line
    words: list[list[str]] = []
    for number, line in enumerate(lines, 1):
        values = _values(line)
        if values and values[0] != _DOCUMENT:
            top, first = top or values, first or number
            _check(values, top, first, f"{lines.name}, line {number}", spaced="\t" not in line)
            start = start if words else f"line {number}"
            words.append(values)
        elif words:
            yield start, _columns(words)
            words = []
    if words:
        yield start, _columns(words)


def _values(line: str) -> list[str]:
    if not line.strip():
        return []
    if "\t" in line.strip(" "):
        return [value.strip(" ") for value in line.split("\t")]
    return _SPACES.split(line.strip(" "))


def _check(values: Sequence[str], top: Sequence[str], first: int, place: str, *, spaced: bool) -> None:
    columns = len(top)
    if len(values) != columns:
        hint = "separate the columns by tabs if words contain spaces" if spaced and len(values) > columns else None
        if "#" in (values[0], top[0]):  # a hashtag is a word
            hint = "remove the lines that begin with #, because only CoNLL-U has comments"
        counted = counted_columns(len(values))
        raise InputError(f"{place}: the line has {counted}, but line {first} has {columns}", hint=hint)
    if "" in values:
        raise InputError(
            f"{place}: column {values.index('') + 1} of {columns} is empty, expected a value in each column"
        )


def read_conllu(lines: Lines, wanted: ReadOptions) -> Iterator[Item]:
    """Yields the columns of each sentence, with the names that they have in CoNLL-U.

    A comment `# text = …` becomes the value `text`. Ranges of words (1-2) and empty nodes (1.1) are left out.
    """
    start, text = "", ""
    words: list[list[str]] = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            text = line.removeprefix(_TEXT).strip() if line.startswith(_TEXT) else text
        elif line.strip():
            values = line.split("\t")
            if len(values) != len(CONLLU):
                raise InputError(
                    f"{lines.name}, line {number}: the line has {counted_columns(len(values))}, expected {len(CONLLU)} "
                    "columns separated by tabs",
                    hint="`format='conll'` reads files with other columns",
                )
            if _WORD.fullmatch(values[0]):
                start = start if words else f"line {number}"
                words.append(values)
            elif not re.fullmatch(r"\d+[-.]\d+", values[0]):
                raise InputError(f"{lines.name}, line {number}: the id is {values[0]!r:.60}, expected a number")
        else:
            if words:
                yield start, _columns(words, CONLLU, text)
            words, text = [], ""
    if words:
        yield start, _columns(words, CONLLU, text)


def looks_like_conll(lines: Sequence[str]) -> bool:
    """Whether lines look like tagged words: equally many columns, no spaces in values, and a blank line."""
    rows = [_values(line) for line in lines]
    words = [values for values in rows if values and values[0] != _DOCUMENT]
    # JSON lists may have no spaces, either.
    single = not any(" " in value or not value or value.startswith(('["', "[{")) for row in words for value in row)
    return single and [] in rows and len({*map(len, words)}) == 1 and len(words[0]) > 1


def looks_like_conllu(lines: Sequence[str]) -> bool:
    """Whether all lines, except comments and blank lines, have the columns of CoNLL-U and begin with a number."""
    words = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    return bool(words) and all(len(values) == len(CONLLU) and values[0][:1].isdecimal() for values in words)


def _columns(words: Sequence[Sequence[str]], names: Sequence[str] = (), text: str = "") -> dict[str, Any]:
    names = names or [str(column) for column in range(1, len(words[0]) + 1)]
    return dict(zip(names, map(list, zip(*words, strict=True)), strict=True)) | ({"text": text} if text else {})
