"""SentencePiece models: what is in the file, read as the protobuf message it is and checked on the way.

Read here and not by the sentencepiece library, which ends the process on some damaged models.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mlxbert.errors import TokenizerError
from mlxbert.weights.formats import protobuf
from mlxbert.weights.formats.protobuf import FIXED32, VARINT, Broken, fields, varint

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # what a piece can be
MAX_PIECE = 512  # characters, the most that SentencePiece makes; the tokenizers library recurses over them
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_READ = ("unigram", "bpe")
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the model …
_TEXT, _SCORE, _TYPE = 1, 2, 3  # … of a piece …
_TEXT_KEY, _SCORE_KEY, _TYPE_KEY = _TEXT << 3 | protobuf.BYTES, _SCORE << 3 | FIXED32, _TYPE << 3 | VARINT
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
    """What a SentencePiece model says.

    Attributes:
        kind: `unigram` or `bpe`.
        pieces: The vocabulary, in the order of the ids.
        charsmap: The compiled table of character replacements; empty if texts stay as they are.
        dummy_prefix: Whether a text is read as if a space stood before it.
        collapse_spaces: Whether spaces at the ends are dropped and runs of them become one.
        byte_fallback: Whether characters that no piece has are spelled in bytes.
    """

    kind: str
    pieces: list[Piece]
    charsmap: bytes
    dummy_prefix: bool
    collapse_spaces: bool
    byte_fallback: bool

    @property
    def unknown(self) -> str:
        """The piece that stands for what no other has."""
        return next(piece.text for piece in self.pieces if piece.type == UNKNOWN)


def _piece(data: bytes, at: int, end: int) -> Piece:
    text, score, kind = b"", 0.0, NORMAL
    behind = at + 2 + data[at + 1] if end - at > 7 else end
    typed = end - behind == 7 and data[end - 2] == _TYPE_KEY
    if (typed or end - behind == 5) and data[at] == _TEXT_KEY and data[behind] == _SCORE_KEY and data[at + 1] < 128:
        # A short text, a score, perhaps a type, as nearly all are: 250,000 of them are read in half the time.
        text, (score,) = data[at + 2 : behind], _FLOAT.unpack_from(data, behind + 1)
        kind = data[end - 1] if typed else NORMAL
    else:
        for number, wire, start, stop in fields(data, at, end):
            if (number, wire) == (_TEXT, protobuf.BYTES):
                text = data[start:stop]
            elif (number, wire) == (_SCORE, FIXED32):
                (score,) = _FLOAT.unpack_from(data, start)
            elif (number, wire) == (_TYPE, VARINT):
                kind = varint(data, start, stop)[0]
    if not text or score - score != 0 or not NORMAL <= kind <= BYTE:  # inf and nan differ from themselves
        raise Broken(f"the piece at byte {at} is {text!r:.40} with score {score} and type {kind}")
    try:
        return Piece(text.decode("utf-8"), score, kind)
    except UnicodeDecodeError:
        raise Broken(f"the piece at byte {at} is not UTF-8") from None


def _parse(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, int] = {}
    normalizer: dict[int, int] = {}
    charsmap = b""
    for number, wire, start, end in fields(data, 0, len(data)):
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
        "it marks the ends of words and not their beginnings (treat_whitespace_as_suffix)": trainer.get(_SUFFIX, 0),
        "it leaves spaces as they are (escape_whitespaces is false)": not normalizer.get(_ESCAPE, 1),
        "it has unused pieces": UNUSED in types,
        "it is of type bpe with user-defined symbols": method == "bpe" and USER_DEFINED in types,
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
    """A SentencePiece model.

    Raises:
        TokenizerError: The file is damaged, or a model of a kind that mlxbert does not read.
    """
    try:
        model = _parse(path.read_bytes())
    except OSError as problem:
        raise TokenizerError(f"{path}: cannot be read ({problem.strerror})") from None
    except TokenizerError as problem:
        raise TokenizerError(f"{path}: {problem.message}", hint="a tokenizer.json beside it would be read") from None
    except Broken as problem:
        raise TokenizerError(
            f"{path}: damaged, expected a SentencePiece model: {problem}", hint="download it again"
        ) from None
    unknown = [piece.text for piece in model.pieces if piece.type == UNKNOWN]
    if len(unknown) != 1:
        raise TokenizerError(f"{path}: {len(unknown)} of {len(model.pieces)} pieces are for the unknown, expected 1")
    longest = max(len(piece.text) for piece in model.pieces)
    if longest > MAX_PIECE:
        raise TokenizerError(f"{path}: a piece of {longest} characters, expected at most {MAX_PIECE}")
    if len({piece.text for piece in model.pieces}) != len(model.pieces):
        raise TokenizerError(f"{path}: a piece stands twice in the vocabulary, expected each once")
    return model
