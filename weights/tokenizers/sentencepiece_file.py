"""Reads SentencePiece models: parses and checks the protobuf message in the file.

The sentencepiece library is not used: its ids for decomposed texts differ from the ids in transformers, and some
versions abort the process if a piece is too long.
"""

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

from mlxbert.errors import TokenizerError
from mlxbert.weights.formats import protobuf
from mlxbert.weights.formats.protobuf import FIXED32, VARINT, MalformedError, fields, varint

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
MAX_PIECE = 512  # characters, the maximum of SentencePiece; the tokenizers library recurses over them
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_READ = ("unigram", "bpe")
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # field numbers in a model
_TEXT, _SCORE, _TYPE = 1, 2, 3  # field numbers in a piece
_PIECE_KEY, _TEXT_KEY = _PIECES << 3 | protobuf.BYTES, _TEXT << 3 | protobuf.BYTES
_SCORE_KEY, _SCORE_SIZE = _SCORE << 3 | FIXED32, 5
_NORMAL_TYPE = (b"", bytes([_TYPE << 3 | VARINT, NORMAL]))
_FLOAT, _TAGGED = struct.Struct("<f"), struct.Struct("<xf")
_START = struct.Struct("4B")  # of a short piece: its key and size, then the key and size of its text
_KIND, _SUFFIX, _BYTE_FALLBACK = 3, 24, 35  # field numbers in the trainer's settings
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPE = 2, 3, 4, 5  # in the normalizer's


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a SentencePiece model."""

    kind: str  # the type of the model, `unigram` or `bpe`
    texts: list[str]  # the texts of the pieces, in the order of their ids
    scores: list[float]  # the scores of the pieces, in the same order
    types: dict[int, int]  # the type of each piece that is not normal, by id
    charsmap: bytes  # the compiled table of character replacements; empty if texts are not normalized
    dummy_prefix: bool  # whether a space is added before every text
    collapse_spaces: bool  # whether spaces at the ends are removed and runs of spaces become one space
    byte_fallback: bool  # whether characters that no piece covers are encoded as bytes

    @property
    def unknown(self) -> str:
        """The piece for text that no other piece covers."""
        return self.of_type(UNKNOWN)[0]

    def of_type(self, kind: int) -> list[str]:
        """Returns the texts of all pieces of a type; the type must not be `NORMAL`."""
        return [self.texts[number] for number, type_ in self.types.items() if type_ == kind]


@dataclass
class _PieceTable:
    """The pieces that have been read so far (see `SentencePieceModel`)."""

    texts: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: dict[int, int] = field(default_factory=dict)
    # Whether all calls of `add_short` have succeeded. After a failure, `add` reads all pieces.
    plain: bool = True

    def add_short(self, data: bytes, at: int) -> int:
        """Reads the consecutive pieces that start at offset `at`, as long as they are normal and short, as most are.

        This is fast. Returns the offset after these pieces. If one of them is damaged or contains a line feed, none is
        added, and `at` is returned.
        """
        if not self.plain:
            return at
        texts, scores, start = [], [], at
        try:
            while True:
                key, size, text_key, length = _START.unpack_from(data, at)
                after, following = at + 4 + length, at + 2 + size
                score = after + _SCORE_SIZE
                if key != _PIECE_KEY or text_key != _TEXT_KEY or not length or score > following or size > 127:
                    break
                if data[score:following] not in _NORMAL_TYPE:
                    break
                texts.append(data[at + 4 : after])
                scores.append(data[after:score])
                at = following
        except struct.error:  # the end
            pass
        columns = _decode(texts), _unpack(scores)
        if columns[0] is None or columns[1] is None or at > len(data):
            self.plain = False
            return start
        self.texts += columns[0]
        self.scores += columns[1]
        return at

    def add(self, data: bytes, at: int, end: int) -> None:
        text, score, kind = b"", 0.0, NORMAL
        for number, wire, start, stop in fields(data, at, end):
            if (number, wire) == (_TEXT, protobuf.BYTES):
                text = data[start:stop]
            elif (number, wire) == (_SCORE, FIXED32):
                (score,) = _FLOAT.unpack_from(data, start)
            elif (number, wire) == (_TYPE, VARINT):
                kind = varint(data, start, stop)[0]
        if not text or not math.isfinite(score) or not NORMAL <= kind <= BYTE:
            raise MalformedError(
                f"the piece at byte {at} has text {text!r:.40}, score {score} and type {kind}, expected a text, a "
                f"finite score and a type from {NORMAL} to {BYTE}"
            )
        try:
            self.texts.append(text.decode("utf-8"))
        except UnicodeDecodeError:
            raise MalformedError(f"the piece at byte {at} is not UTF-8") from None
        self.scores.append(score)
        if kind != NORMAL:
            self.types[len(self.texts) - 1] = kind


def _decode(texts: list[bytes]) -> list[str] | None:
    """Decodes all texts at once; returns `None` if a text is not UTF-8 or contains a line feed."""
    try:
        lines = b"\n".join(texts).decode("utf-8").split("\n") if texts else []
    except UnicodeDecodeError:
        return None
    return lines if len(lines) == len(texts) else None


def _unpack(scores: list[bytes]) -> list[float] | None:
    """Unpacks the bytes of score fields; returns `None` if a field is damaged."""
    content = b"".join(scores)
    if len(content) != _SCORE_SIZE * len(scores) or content[::_SCORE_SIZE].strip(bytes([_SCORE_KEY])):
        return None
    values = [score for (score,) in _TAGGED.iter_unpack(content)]
    return values if math.isfinite(sum(values)) else None


def _parse(data: bytes, *, symbols: bool) -> SentencePieceModel:
    pieces = _PieceTable()
    trainer: dict[int, int] = {}
    normalizer: dict[int, int] = {}
    charsmap = b""
    at = 0
    while (at := pieces.add_short(data, at)) < len(data):
        number, wire, start, end = next(fields(data, at, len(data)))
        at = end
        if wire != protobuf.BYTES:
            continue
        if number == _PIECES:
            pieces.add(data, start, end)
        elif number == _TRAINER:
            trainer = protobuf.numbers(data, start, end)
        elif number == _NORMALIZER:
            normalizer = protobuf.numbers(data, start, end)
            for field_, kind, first, last in fields(data, start, end):
                if (field_, kind) == (_CHARSMAP, protobuf.BYTES):
                    charsmap = data[first:last]
    types = {*pieces.types.values()}
    method = _KINDS.get(trainer.get(_KIND, 1), str(trainer.get(_KIND)))
    unsupported = {
        f"the model_type is {method}, expected {' or '.join(_READ)}": method not in _READ,
        "the vocabulary marks the ends of words instead of their starts (treat_whitespace_as_suffix)": trainer.get(
            _SUFFIX, 0
        ),
        "escape_whitespaces is false, expected true": not normalizer.get(_ESCAPE, 1),
        "the vocabulary has unused pieces, which mlxbert does not read": UNUSED in types,
        "the bpe model has user-defined symbols, which mlxbert does not read": method == "bpe"
        and USER_DEFINED in types
        and not symbols,
    }
    for what, applies in unsupported.items():
        if applies:
            raise TokenizerError(what)
    return SentencePieceModel(
        method, pieces.texts, pieces.scores, pieces.types, charsmap,
        dummy_prefix=bool(normalizer.get(_DUMMY_PREFIX, 1)),
        collapse_spaces=bool(normalizer.get(_EXTRA_SPACES, 1)),
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
    )  # fmt: skip


def read_sentencepiece(path: Path, *, symbols: bool = False) -> SentencePieceModel:
    """Reads a SentencePiece model.

    Args:
        path: The file.
        symbols: Whether the caller supports user-defined symbols in a bpe model.
    """
    try:
        model = _parse(path.read_bytes(), symbols=symbols)
    except OSError as problem:
        raise TokenizerError(f"{path}: cannot be read ({problem.strerror})") from None
    except TokenizerError as problem:
        raise TokenizerError(
            f"{path}: {problem.message}", hint="add the model's tokenizer.json to the folder"
        ) from None
    except MalformedError as problem:
        raise TokenizerError(
            f"{path}: the SentencePiece model is damaged ({problem})", hint="download the file again"
        ) from None
    unknown = model.of_type(UNKNOWN)
    if len(unknown) != 1:
        raise TokenizerError(f"{path}: {len(unknown)} of {len(model.texts)} pieces have the type 'unknown', expected 1")
    longest = max(map(len, model.texts))
    if longest > MAX_PIECE:
        raise TokenizerError(f"{path}: a piece has {longest} characters, expected at most {MAX_PIECE}")
    if len({*model.texts}) != len(model.texts):
        raise TokenizerError(f"{path}: a piece appears twice in the vocabulary, expected once")
    return model
