"""Builds a `tokenizers` object, without special tokens, from a SentencePiece model, whose protobuf message it checks.

The sentencepiece library is not used: its ids for decomposed texts differ from the ids in transformers, and some
versions abort the process if a piece is too long.
"""

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mlxbert.errors import TokenizerError
from mlxbert.weights.formats import protobuf
from mlxbert.weights.formats.protobuf import FIXED32, VARINT, MalformedError, fields, varint
from mlxbert.weights.tokenizers.library_guards import check_charsmap
from mlxbert.weights.tokenizers.tokenizer_settings import switch

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


SpecialTokens = Mapping[str, str]
Entries = list[tuple[str, float]]
Settings = Mapping[str, Any]
Layout = Callable[[SentencePieceModel, SpecialTokens, Path], Entries]
GEMMA_FILE = "tokenizer.model"
_SPACE = "\u2581"  # the character that SentencePiece uses for a space


def plain_layout(model: SentencePieceModel, special: SpecialTokens, path: Path) -> Entries:
    """Returns the pieces with the ids that they have in the SentencePiece model."""
    entries = list(zip(model.texts, model.scores, strict=True))
    for number, kind in model.types.items():
        if kind == USER_DEFINED:  # sentencepiece 0.2 gives it this score, whatever the file states
            text = model.texts[number]
            entries[number] = text, (len(text.encode()) - 1) / 10
    return entries


def _fairseq_layout(head: tuple[str, ...], skipped: int) -> Layout:
    """Returns a function that assigns ids to the pieces of a model that was trained with fairseq.

    The tokens in `head` (roles or strings) come first, then the pieces after the first `skipped` ones, then the mask.
    """
    expected = ("<unk>", "<s>", "</s>")

    def layout(model: SentencePieceModel, special: SpecialTokens, path: Path) -> Entries:
        start = tuple(model.texts[:3])
        if start != expected:
            raise TokenizerError(f"{path}: the vocabulary starts with {' '.join(start)}, expected {' '.join(expected)}")
        first = [(special.get(name, name), -100.0 if name == "<unk>NOTUSED" else 0.0) for name in head]
        return [*first, *plain_layout(model, special, path)[skipped:], (special["mask"], 0.0)]

    return layout


xlm_roberta_layout = _fairseq_layout(("cls", "pad", "sep", "unk"), 3)
camembert_layout = _fairseq_layout(("<s>NOTUSED", "pad", "</s>NOTUSED", "unk", "<unk>NOTUSED"), 1)


def albert_layout(model: SentencePieceModel, special: SpecialTokens, path: Path) -> Entries:
    """Returns the pieces with the ids that they have in the SentencePiece model.

    ALBERT splits pieces like `2019,`. Their scores are made so low that they are never used.
    """
    return [
        (text, score - 100 if re.search(r"\d,$", text) else score) for text, score in plain_layout(model, special, path)
    ]


def _merges_of(entries: Entries) -> list[tuple[str, str]]:
    """Returns the merges of a BPE vocabulary: every way to split a piece into two other pieces, best scores first."""
    numbers = {text: number for number, (text, _) in enumerate(entries)}
    merges = []
    for text, score in entries:
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in numbers and right in numbers:
                merges.append((-score, numbers[left], numbers[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _model(model: SentencePieceModel, entries: Entries, unknown: str) -> models.Model:
    """Builds the model with the ids in `entries`. Text that no piece covers becomes `unknown`."""
    index = next((index for index, (text, _) in enumerate(entries) if text in (unknown, model.unknown)), 0)
    if model.kind == "unigram":
        return models.Unigram(entries, unk_id=index, byte_fallback=model.byte_fallback)
    return models.BPE(
        vocab={text: number for number, (text, _) in enumerate(entries)},
        merges=_merges_of(entries),
        unk_token=entries[index][0],
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


@dataclass(frozen=True)
class PieceRules:
    """How a tokenizer class reads a SentencePiece model."""

    file: str  # the file name of the SentencePiece model
    layout: Layout  # assigns ids to the pieces
    # The default of the setting `do_lower_case`; `None` if the class has no such setting.
    lower_case: bool | None = None
    accents_and_quotes: bool = False  # whether the class removes accents by default, and replaces '' and `` by "
    words: bool = True  # whether the class splits texts at spaces first, so that offsets never include a space
    punctuation: bool = False  # whether the class has a setting that splits texts at punctuation

    def _cleaning(self, folder: Path, settings: Settings) -> list[normalizers.Normalizer]:
        """Returns the normalization steps that the settings request; they run before the replacements of the model."""
        steps: list[normalizers.Normalizer] = []
        if self.accents_and_quotes:
            steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
            if not switch(folder, settings, "keep_accents", default=False):
                steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if self.lower_case is not None and switch(folder, settings, "do_lower_case", default=self.lower_case):
            steps.append(normalizers.Lowercase())
        return steps

    def steps(self, folder: Path, settings: Settings) -> dict[str, Any]:
        """Returns the normalizer to use if a `tokenizer.json` has none.

        It is stored under the key `normalizer`; the dict is empty if no normalizer is needed.
        """
        steps = self._cleaning(folder, settings)
        if self.punctuation:  # DeBERTa
            spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
            steps += [spaces, normalizers.NFC(), normalizers.Strip(left=False, right=True)]
        return {"normalizer": normalizers.Sequence(steps)} if steps else {}

    def _normalizer(
        self, model: SentencePieceModel, folder: Path, settings: Settings, *, words: bool
    ) -> normalizers.Sequence:
        steps = self._cleaning(folder, settings)
        if model.charsmap:
            steps.append(normalizers.Precompiled(model.charsmap))
        if model.collapse_spaces and not words:
            # Last, because the replacement table maps control characters to nothing or to a space.
            steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
        return normalizers.Sequence(steps)

    def __call__(self, folder: Path, settings: Settings, special: SpecialTokens) -> Tokenizer:
        """Builds the tokenizer from the SentencePiece model in a folder."""
        path = folder / self.file
        model = read_sentencepiece(path)
        check_charsmap(path, model.charsmap)
        spaced = switch(folder, settings, "add_prefix_space", default=model.dummy_prefix)
        words = self.words and model.collapse_spaces and spaced  # otherwise the space before a word would be lost
        try:
            tokenizer = Tokenizer(_model(model, self.layout(model, special, path), special["unk"]))
            tokenizer.normalizer = self._normalizer(model, folder, settings, words=words)
        except Exception as problem:
            if isinstance(problem, TokenizerError):
                raise
            raise TokenizerError(f"{path}: the vocabulary is damaged ({problem})") from None
        splits: list[pre_tokenizers.PreTokenizer] = []
        if words:
            splits.append(pre_tokenizers.WhitespaceSplit())
        if self.punctuation and switch(folder, settings, "split_by_punct", default=False):
            splits.append(pre_tokenizers.Punctuation(behavior="isolated"))
        scheme = "always" if spaced else "never"  # adds no second space to a text that starts with one
        if spaced and not model.collapse_spaces:
            tokenizer.normalizer = normalizers.Sequence([tokenizer.normalizer, normalizers.Prepend(_SPACE)])
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)]
        )
        tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
        control_tokens = [text for text in model.of_type(CONTROL) if tokenizer.token_to_id(text) is not None]
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in control_tokens])
        return tokenizer


def gemma_pieces(folder: Path, settings: Settings, special: SpecialTokens) -> Tokenizer:
    """Builds the tokenizer of Gemma.

    Merges are in the order of the pieces. Text that no piece covers is encoded as bytes.
    """
    path = folder / GEMMA_FILE
    model = read_sentencepiece(path, symbols=True)
    if model.kind != "bpe" or model.dummy_prefix or model.collapse_spaces or model.charsmap:
        raise TokenizerError(
            f"{path}: is a {model.kind} model, expected a bpe model that keeps all spaces and characters, as in Gemma",
            hint="add the model's tokenizer.json to the folder",
        )
    numbers = {text: number for number, text in enumerate(model.texts)}
    halves = ((text[:at], text[at:]) for text in model.texts for at in range(1, len(text)))
    merges = [(left, right) for left, right in halves if left in numbers and right in numbers]
    try:
        tokenizer = Tokenizer(
            models.BPE(vocab=numbers, merges=merges, unk_token=special["unk"], fuse_unk=True, byte_fallback=True)
        )
    except Exception as problem:
        raise TokenizerError(f"{path}: the vocabulary is damaged ({problem})") from None
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    for kind, is_special in ((CONTROL, True), (USER_DEFINED, False)):
        symbols = [AddedToken(text, normalized=False, special=is_special) for text in model.of_type(kind)]
        tokenizer.add_tokens(symbols)
    return tokenizer
