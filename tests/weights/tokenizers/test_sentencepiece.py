"""SentencePiece files: what they say is read, what is no such file is refused, nothing ends the process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from mlxbert.errors import TokenizerError
from mlxbert.weights.tokenizers.sentencepiece_tokenizer import (
    BYTE,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
    read_sentencepiece,
)
from tests.helpers.vocabularies import HEAD, field, pieces_file, plain, trained

ROOT = Path(__file__).parents[3]
WHOLE = pieces_file([*HEAD, *plain("\u2581the", "a")])


def read(folder: Path, content: bytes) -> SentencePieceModel:
    (folder / "some.model").write_bytes(content)
    return read_sentencepiece(folder / "some.model")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_all_is_read_as_sentencepiece_reads_it(tmp_path: Path, kind: str) -> None:
    symbols = "(,\u20ac" if kind == "unigram" else ""
    content = trained(kind, 100, symbols, "[X]")
    found = read(tmp_path, content)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert found.kind == kind and found.unknown == "<unk>" and len(found.charsmap) > 100_000
    assert found.dummy_prefix and found.collapse_spaces and not found.byte_fallback
    assert found.texts == theirs.id_to_piece(list(range(len(theirs))))
    for number, score in enumerate(found.scores):
        assert score == theirs.get_score(number)
        assert (found.types.get(number) == UNKNOWN) == theirs.is_unknown(number)
    assert {*found.of_type(USER_DEFINED)} == set(symbols) - {","}


def test_switches_are_read(tmp_path: Path) -> None:
    content = pieces_file([*HEAD, ("<0x00>", 0.0, BYTE)], trainer={3: 2, 35: 1}, normalizer={2: b"map", 3: 0, 4: 0})
    found = read(tmp_path, content)
    assert (found.kind, found.byte_fallback, found.charsmap) == ("bpe", True, b"map")
    assert not found.dummy_prefix and not found.collapse_spaces


def test_fields_of_no_interest_are_passed_over(tmp_path: Path) -> None:
    more = field(4, b"self test") + field(9, 5) + field(10, 1.5) + bytes([11 << 3 | 1]) + b"12345678"
    long = plain("x" * 200)
    assert read(tmp_path, more + pieces_file([*HEAD, *long]) + more).texts[3] == "x" * 200


@pytest.mark.parametrize("size", [1, 50, *range(115, 132), 200])
def test_pieces_are_read_whatever_their_length(tmp_path: Path, size: int) -> None:
    pieces = [*HEAD, *plain("x" * size, "b"), ("<0x00>", -0.5, BYTE), ("c", -1.0, NORMAL)]
    untyped = field(1, field(1, b"c") + field(2, -1.0))
    found = read(tmp_path, pieces_file(pieces[:-1]) + untyped)
    types = [found.types.get(number, NORMAL) for number in range(len(pieces))]
    assert list(zip(found.texts, found.scores, types, strict=True)) == pieces


def test_a_line_feed_in_a_piece_is_read_in_linear_time(tmp_path: Path) -> None:
    pieces = [*HEAD, *plain(*(f"x{number}" for number in range(20_000)), "a\nb")]
    assert read(tmp_path, pieces_file(pieces)).texts == [text for text, *_ in pieces]


@pytest.mark.parametrize(
    ("trainer", "normalizer", "message"),
    [
        ({3: 3}, {}, "model_type is word, expected unigram or bpe"),
        ({3: 4}, {}, "model_type is char, expected unigram or bpe"),
        ({3: 99}, {}, "model_type is 99"),
        ({24: 1}, {}, "treat_whitespace_as_suffix"),
        ({}, {5: 0}, "escape_whitespaces is false"),
    ],
)
def test_models_of_another_kind_are_refused_by_name(
    tmp_path: Path, trainer: Mapping[int, int], normalizer: Mapping[int, Any], message: str
) -> None:
    with pytest.raises(TokenizerError, match=rf"some\.model: .*{message}") as caught:
        read(tmp_path, pieces_file(HEAD, trainer=trainer, normalizer=normalizer))
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 of 0 pieces have the type 'unknown', expected 1"),
        (pieces_file(plain("a")), "0 of 1 pieces"),
        (pieces_file([*HEAD, ("b", 0.0, UNKNOWN)]), "2 of 4 pieces"),
        (pieces_file([*HEAD, *plain("a", "a")]), "appears twice"),
        (pieces_file([*HEAD, ("a", 0.0, UNUSED)]), "unused pieces"),
        (pieces_file([*HEAD, ("a", 0.0, USER_DEFINED)], trainer={3: 2}), "user-defined symbols"),
        (pieces_file([*HEAD, ("a", 0.0, 7)]), "damaged.* score 0.0 and type 7"),
        (pieces_file([*HEAD, ("a", float("nan"), NORMAL)]), "damaged.* score nan"),
        (pieces_file([*HEAD, ("a", float("inf"), NORMAL)]), "damaged.* score inf"),
        (pieces_file([*HEAD, ("", 0.0, NORMAL)]), "damaged.* has text b''"),
        (field(1, field(1, b"\xff") + field(2, 0.0)), "not UTF-8"),
        (b"not a model", "the SentencePiece model is damaged"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "the varint at byte"),
        (WHOLE + b"\x0b", "the field at byte"),
        (b"\x00\x00" + WHOLE, "field at byte 0"),
    ],
)
def test_files_that_are_no_models_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        read(tmp_path, content)


def test_a_file_cut_anywhere_is_refused_or_lacks_pieces(tmp_path: Path) -> None:
    for size in range(len(WHOLE)):
        try:
            assert len(read(tmp_path, WHOLE[:size]).texts) < 5 or size > len(WHOLE) - 5
        except TokenizerError as problem:
            assert "some.model" in problem.message
