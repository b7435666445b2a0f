"""The formats of files: what their names end with, and what reads them."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert.counterparts import not_one_of
from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.conll import looks_like_conll, looks_like_conllu, read_conll, read_conllu
from mlxbert.readers.inputs import check_there, open_source
from mlxbert.readers.json_file import read_json
from mlxbert.readers.jsonl import read_jsonl
from mlxbert.readers.lines import Lines, is_compressed, uncompressed_name
from mlxbert.readers.parquet import read_parquet
from mlxbert.readers.reading import Binary, Item, Wanted
from mlxbert.readers.table import read_csv, read_tsv
from mlxbert.readers.txt import read_txt


class Format(StrEnum):
    """How a file stores records."""

    txt = "txt"
    jsonl = "jsonl"
    json = "json"
    csv = "csv"
    tsv = "tsv"
    parquet = "parquet"
    conll = "conll"
    conllu = "conllu"
    squad = "squad"


@dataclass(frozen=True)
class Reader:
    """A format.

    Attributes:
        read: Its records, from a `Lines` or a `Binary`.
        endings: What names of files end with.
        value: What a value of a record is called: `field` or `column`; nothing where a record is a text alone.
        refused: What records are that are not texts, and a hint.
        binary: Whether it is not read by lines; then it cannot be compressed as a whole, either.
        most: Bytes of a line, where that is more than elsewhere.
        looks: Whether the first lines of a file look like it; asked of sentences of words, whatever the file's name.
    """

    read: Callable[[Any, Wanted], Iterator[Item]]
    endings: tuple[str, ...]
    value: str = ""
    refused: tuple[str, str] | None = None
    binary: bool = False
    most: int = 0
    looks: Callable[[Sequence[str]], bool] | None = None


_LOOK = 1000  # lines that are looked at
_WHOLE = 2**32  # bytes: the whole file may be a line
_SENTENCES = ("sentences of words", "use .txt, .jsonl or a table")
_QUESTIONS = ("questions, for training and evaluation", "an array of records is format='json'")
FORMATS = {
    Format.txt: Reader(read_txt, (".txt",)),
    Format.jsonl: Reader(read_jsonl, (".jsonl", ".ndjson"), "field"),
    Format.json: Reader(read_json, (".json",), "field", most=_WHOLE),
    Format.csv: Reader(read_csv, (".csv",), "column"),
    Format.tsv: Reader(read_tsv, (".tsv",), "column"),
    Format.parquet: Reader(read_parquet, (".parquet",), "column", binary=True),
    Format.conllu: Reader(read_conllu, (".conllu",), refused=_SENTENCES, looks=looks_like_conllu),
    Format.conll: Reader(read_conll, (".conll", ".iob", ".bio"), refused=_SENTENCES, looks=looks_like_conll),
    Format.squad: Reader(read_json, (), refused=_QUESTIONS, most=_WHOLE),
}
# What to do about other files.
_SAVED_AS = {ending: "save it as plain text, .txt" for ending in (".doc", ".docx", ".odt", ".rtf", ".pdf", ".html")}
_SAVED_AS |= {ending: "save the sheet as .csv" for ending in (".xls", ".xlsx", ".ods")}
_SAVED_AS |= {ending: "each line is a text with format='txt'" for ending in (".md", ".rst", ".text", ".log")}
_SAVED_AS |= {".npy": "these are vectors, not texts", ".safetensors": "these are tensors, not texts"}


def find_format(name: str, *, texts: bool = False) -> Format:
    """The format that the ending of a file names; a `.gz` or `.xz` after it does not count.

    Args:
        name: The name of the file.
        texts: Whether errors name only formats of texts, not those of training data.
    """
    ending = Path(uncompressed_name(name)).suffix
    found = next((format for format, reader in FORMATS.items() if ending in reader.endings), None)
    if found is not None and not (FORMATS[found].binary and is_compressed(name)):
        return found
    if os.path.isdir(name):  # a text may be too long for a path
        raise ArgumentError(
            f"{name}: is a folder, expected a file",
            hint="name a file in it; mlxbert.open_index(paths=FOLDER) searches whole folders",
        )
    known = [one for reader in FORMATS.values() if not (texts and reader.refused) for one in reader.endings]
    raise ArgumentError(
        f"{name}: extension {Path(name).suffix!r}, expected one of {', '.join(known)}, or a text format with .gz or "
        ".xz",
        hint=_SAVED_AS.get(ending, "otherwise name the format, for example format='jsonl'"),
    )


def format_of(source: object, name: str, *, texts: bool = False) -> Format:
    """The format of a source by its name, see `find_format`; the ending of a file that is missing does not matter."""
    try:
        return find_format(name, texts=texts)
    except ArgumentError:
        check_there(source)
        raise


def find_words(path: str | Path, encoding: str) -> Format | None:
    """The format of sentences of words that a file looks like, unless its name names one; `None` if there is none."""
    ending = Path(uncompressed_name(str(path))).suffix
    named = next((format for format, reader in FORMATS.items() if ending in reader.endings), Format.txt)
    if named not in (Format.txt, Format.csv, Format.tsv):
        return None
    with suppress(InputError), open_source(path) as file:  # said again where it is read
        lines = [*islice(Lines(str(path), file, lenient=True, encoding=encoding), _LOOK)]
        return next((format for format, reader in FORMATS.items() if reader.looks and reader.looks(lines)), None)
    return None


def check_format(format: Format | str) -> Format:
    """The format of this name."""
    try:
        return Format(format)
    except ValueError:
        raise not_one_of("format", format, Format) from None


def read_items(name: str, file: BinaryIO, format: Format, wanted: Wanted) -> tuple[Iterator[Item], Lines | Binary]:
    """The records of an open file, and what is read, which says how far.

    Args:
        name: What errors call the file.
        file: From `open_source`.
        format: How it stores records.
        wanted: What is read of each.
    """
    reader = FORMATS[format]
    if not wanted.header and format not in (Format.csv, Format.tsv):
        raise ArgumentError(f"{name}: a table without a header is .csv or .tsv, the input is {format}")
    most, lenient = max(reader.most, wanted.most), bool(wanted.texts)
    source: Lines | Binary = Binary(name, file)
    if not reader.binary:
        source = Lines(name, file, lenient=lenient, most=most, encoding=wanted.encoding)
    return reader.read(source, wanted), source
