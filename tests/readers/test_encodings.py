"""Text files that are not UTF-8: named encodings, and what an error says of one that was not named."""

import gzip
import io
from pathlib import Path

import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.formats import read_records
from mlxbert.readers.text_lines import read_text
from tests.helpers.cases import together
from tests.readers.test_records import contents, whole_records, write

TEXTS = ["café", "naïve", "the"]
FILES = {
    "in.txt": "\n".join(TEXTS),
    "in.txt.gz": "\n".join(TEXTS),
    "in.csv": "text\r\n" + "\r\n".join(f'"{text}"' for text in TEXTS),
    "in.tsv": "text\n" + "\n".join(TEXTS),
    "in.jsonl": "\n".join(f'{{"text": "{text}"}}' for text in TEXTS),
    "in.json": "[" + ",\n".join(f'{{"text": "{text}"}}' for text in TEXTS) + "]",
}


@together("encoding", ["latin-1", "cp1252", "mac-roman", "UTF8", "utf-8-sig"])
@together("name", FILES)
def test_every_text_format_has_an_encoding(tmp_path: Path, name: str, encoding: str) -> None:
    raw = FILES[name].encode(encoding)
    path = write(tmp_path / name, raw)
    assert contents(read_records(path, encoding=encoding)) == TEXTS
    assert [row.values["text"] for row in whole_records(path, encoding=encoding)] == TEXTS


@together("encoding", ["shift_jis", "gb18030", "euc-jp", "iso2022_jp"])
def test_letters_of_several_bytes_are_no_ends_of_lines(encoding: str) -> None:
    texts = ["表示能力", "申請\\十", "日本"]
    raw = "\n".join(texts).encode(encoding)
    assert contents(read_records(io.BytesIO(raw), name="in.txt", encoding=encoding)) == texts


def test_whole_texts_have_one_too() -> None:
    assert read_text("c.txt", io.BytesIO(b"caf\xe9\r\n"), "latin-1") == "café\r\n"
    with pytest.raises(InputError, match=r"c\.txt, line 2: byte 0xe9 at offset 5 is not UTF-8"):
        read_text("c.txt", io.BytesIO(b"a\ncaf\xe9"))


@together("byte,likely", [(b"\x93", "cp1252"), (b"\x80", "cp1252"), (b"\xe9", "latin-1"), (b"\xfc", "latin-1")])
def test_an_error_names_an_encoding_in_which_the_byte_is_a_letter(byte: bytes, likely: str) -> None:
    (problem,) = contents(read_records(io.BytesIO(byte + b"a\n"), name="in.txt"))
    assert isinstance(problem, InputError) and problem.message.startswith(f"line 1: byte 0x{byte.hex()} at offset 0")
    assert problem.hint and f"encoding='{likely}'" in problem.hint
    assert byte.decode(likely).isprintable()


def test_a_line_that_is_not_in_its_encoding_is_a_bad_record() -> None:
    records = read_records(io.BytesIO(b"the\nc\x81t\ncaf\xe9\n"), name="in.txt", encoding="cp1252")
    first, bad, last = contents(records)
    assert (first, last) == ("the", "café")
    assert isinstance(bad, InputError) and "line 2: byte 0x81 at offset 5 is not CP1252" in bad.message


@together("name", ["nope", "rot13", "hex", "idna", "undefined", "a\0b", "", "\ud800", 3])
def test_unknown_encodings_are_refused_with_examples(name: str) -> None:
    with pytest.raises(ArgumentError, match="`encoding` is") as caught:
        list(read_records(io.BytesIO(b"the\n"), format="txt", encoding=name))
    assert caught.value.hint and "encoding='latin-1'" in caught.value.hint


@together("name", ["utf-16", "utf-16-le", "utf-32", "cp037"])
def test_encodings_without_ascii_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="ASCII") as caught:
        read_records(io.BytesIO("the\n".encode(name)), format="txt", encoding=name)
    assert caught.value.hint and "iconv" in caught.value.hint


def test_a_file_of_latin_1_with_zero_bytes_is_refused_all_the_same() -> None:
    (problem,) = contents(read_records(io.BytesIO(gzip.compress(b"a\0")), name="in.txt.gz", encoding="latin-1"))
    assert isinstance(problem, InputError) and "the byte at offset 1 is zero" in problem.message
