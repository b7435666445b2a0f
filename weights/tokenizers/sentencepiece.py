"""Reads SentencePiece models by parsing and checking the protobuf message in the file.

The sentencepiece library is not used, because it aborts the process on some damaged models.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mlxbert.errors import TokenizerError
from mlxbert.weights.formats import protobuf
from mlxbert.weights.formats.protobuf import FIXED32, VARINT, MalformedError, fields, varint

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
MAX_PIECE = 512  # characters, the maximum of SentencePiece; the tokenizers library recurses over them
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_READ = ("unigram", "bpe")
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the model …
_TEXT, _SCORE, _TYPE = 1, 2, 3  # … of a piece …
_PIECE_KEY, _TEXT_KEY = _PIECES << 3 | protobuf.BYTES, _TEXT << 3 | protobuf.BYTES
_SCORE_KEY, _TYPE_KEY = _SCORE << 3 | FIXED32, _TYPE << 3 | VARINT
_FLOAT = struct.Struct("<f")
_KIND, _SUFFIX, _BYTE_FALLBACK = 3, 24, 35  # … of the trainer's settings …
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPE = 2, 3, 4, 5  # … and of the normalizer's


class Piece(NamedTuple):
    """An entry of the vocabulary."""

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a SentencePiece model.

    Attributes:
        kind: `unigram` or `bpe`.
        pieces: The vocabulary, in order of the ids.
        charsmap: The compiled table of character replacements; empty if texts are not normalized.
        dummy_prefix: Whether a space is added before every text.
        collapse_spaces: Whether spaces at the ends are removed and runs of spaces become one.
        byte_fallback: Whether characters that no piece covers are encoded as bytes.
    """

    kind: str
    pieces: list[Piece]
    charsmap: bytes
    dummy_prefix: bool
    collapse_spaces: bool
    byte_fallback: bool

    @property
    def unknown(self) -> str:
        """The piece for text that no other piece covers."""
        return next(piece.text for piece in self.pieces if piece.type == UNKNOWN)


def _short_pieces(data: bytes, at: int, pieces: list[Piece]) -> int:
    """Reads pieces with a short text, a score and perhaps a type: nearly all, in a third of the time of `_piece`.

    Returns:
        The offset of the first field that is something else, or damaged.
    """
    try:
        while data[at] == _PIECE_KEY and data[at + 2] == _TEXT_KEY:
            size, start = data[at + 1], at + 4
            after = start + data[at + 3]
            rest = at + 2 + size - after
            typed = rest == 7 and data[after + 5] == _TYPE_KEY
            kind = data[after + 6] if typed else NORMAL
            (score,) = _FLOAT.unpack_from(data, after + 1)
            usual = size < 128 and (typed or rest == 5) and data[after] == _SCORE_KEY
            if not usual or after == start or score - score != 0 or not NORMAL <= kind <= BYTE:
                break
            pieces.append(Piece(data[start:after].decode("utf-8"), score, kind))
            at += 2 + size
    except (IndexError, struct.error, UnicodeDecodeError):
        pass
    return at


def _piece(data: bytes, at: int, end: int) -> Piece:
    text, score, kind = b"", 0.0, NORMAL
    for number, wire, start, stop in fields(data, at, end):
        if (number, wire) == (_TEXT, protobuf.BYTES):
            text = data[start:stop]
        elif (number, wire) == (_SCORE, FIXED32):
            (score,) = _FLOAT.unpack_from(data, start)
        elif (number, wire) == (_TYPE, VARINT):
            kind = varint(data, start, stop)[0]
    if not text or score - score != 0 or not NORMAL <= kind <= BYTE:  # inf and nan differ from themselves
        raise MalformedError(f"the piece at byte {at} is {text!r:.40} with score {score} and type {kind}")
    try:
        return Piece(text.decode("utf-8"), score, kind)
    except UnicodeDecodeError:
        raise MalformedError(f"the piece at byte {at} is not UTF-8") from None


def _parse(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, int] = {}
    normalizer: dict[int, int] = {}
    charsmap = b""
    at = 0
    while (at := _short_pieces(data, at, pieces)) < len(data):
        number, wire, start, end = next(fields(data, at, len(data)))
        at = end
        if wire != protobuf.BYTES:
            continue
        if number == _PIECES:
            pieces.append(_piece(data, start, end))
        elif number == _TRAINER:
            trainer = protobuf.numbers(data, start, end)
        elif number == _NORMALIZER:
            normalizer = protobuf.numbers(data, start, end)
            for field, kind, first, last in fields(data, start, end):
                if (field, kind) == (_CHARSMAP, protobuf.BYTES):
                    charsmap = data[first:last]
    types = {piece.type for piece in pieces}
    method = _KINDS.get(trainer.get(_KIND, 1), str(trainer.get(_KIND)))
    unsupported = {
        f"its model_type is {method}, expected {' or '.join(_READ)}": method not in _READ,
        "it marks the ends of words, not their starts (treat_whitespace_as_suffix)": trainer.get(_SUFFIX, 0),
        "it does not escape spaces (escape_whitespaces is false)": not normalizer.get(_ESCAPE, 1),
        "it has unused pieces": UNUSED in types,
        "it is a bpe model with user-defined symbols": method == "bpe" and USER_DEFINED in types,
    }
    for what, found in unsupported.items():
        if found:
            raise TokenizerError(what)
    return SentencePieceModel(
        method, pieces, charsmap,
        dummy_prefix=bool(normalizer.get(_DUMMY_PREFIX, 1)),
        collapse_spaces=bool(normalizer.get(_EXTRA_SPACES, 1)),
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
    )  # fmt: skip


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Reads a SentencePiece model.

    Raises:
        TokenizerError: The file is damaged, or of a kind that mlxbert does not read.
    """
    try:
        model = _parse(path.read_bytes())
    except OSError as problem:
        raise TokenizerError(f"{path}: cannot be read ({problem.strerror})") from None
    except TokenizerError as problem:
        raise TokenizerError(
            f"{path}: {problem.message}", hint="add the model's tokenizer.json to the folder"
        ) from None
    except MalformedError as problem:
        raise TokenizerError(
            f"{path}: damaged, expected a SentencePiece model: {problem}", hint="download it again"
        ) from None
    unknown = [piece.text for piece in model.pieces if piece.type == UNKNOWN]
    if len(unknown) != 1:
        raise TokenizerError(f"{path}: {len(unknown)} of {len(model.pieces)} pieces are of type unknown, expected 1")
    longest = max(len(piece.text) for piece in model.pieces)
    if longest > MAX_PIECE:
        raise TokenizerError(f"{path}: a piece of {longest} characters, expected at most {MAX_PIECE}")
    if len({piece.text for piece in model.pieces}) != len(model.pieces):
        raise TokenizerError(f"{path}: a piece appears twice in the vocabulary, expected once")
    return model
