"""SentencePiece models to a `tokenizers` object that has no special tokens yet."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mlxbert.errors import TokenizerError
from mlxbert.weights.tokenizers.checks import check_charsmap
from mlxbert.weights.tokenizers.sentencepiece import CONTROL, USER_DEFINED, SentencePieceModel, read_sentencepiece
from mlxbert.weights.tokenizers.settings import switch

Special = Mapping[str, str]
Entries = list[tuple[str, float]]
Settings = Mapping[str, Any]
Layout = Callable[[SentencePieceModel, Special, Path], Entries]
_SPACE = "\u2581"  # how SentencePiece writes a space


def plain_layout(model: SentencePieceModel, special: Special, path: Path) -> Entries:
    """The ids are those of the SentencePiece model."""
    # A user-defined symbol has this score in sentencepiece 0.2, whatever its file says.
    return [
        (text, (len(text.encode()) - 1) / 10 if kind == USER_DEFINED else score) for text, score, kind in model.pieces
    ]


def _fairseq_layout(head: tuple[str, ...], skipped: int) -> Layout:
    """The ids of models that fairseq trained: its own special tokens first, the mask last.

    Args:
        head: What stands before the pieces: roles, or spellings.
        skipped: So many pieces at the beginning of the SentencePiece model have no place.
    """
    expected = ("<unk>", "<s>", "</s>")

    def layout(model: SentencePieceModel, special: Special, path: Path) -> Entries:
        found = tuple(piece.text for piece in model.pieces[:3])
        if found != expected:
            raise TokenizerError(f"{path}: starts with {' '.join(found)}, expected {' '.join(expected)}")
        first = [(special.get(name, name), -100.0 if name == "<unk>NOTUSED" else 0.0) for name in head]
        return [*first, *plain_layout(model, special, path)[skipped:], (special["mask"], 0.0)]

    return layout


xlm_roberta_layout = _fairseq_layout(("cls", "pad", "sep", "unk"), 3)
camembert_layout = _fairseq_layout(("<s>NOTUSED", "pad", "</s>NOTUSED", "unk", "<unk>NOTUSED"), 1)


def albert_layout(model: SentencePieceModel, special: Special, path: Path) -> Entries:
    """The model's own ids; pieces like `2019,` are as good as never used, as ALBERT takes them apart."""
    return [
        (text, score - 100 if re.search(r"\d,$", text) else score) for text, score in plain_layout(model, special, path)
    ]


def _merges_of(entries: Entries) -> list[tuple[str, str]]:
    """The merges behind a vocabulary of pairs: every way to put a piece together, the best scores first."""
    numbers = {text: number for number, (text, _) in enumerate(entries)}
    found = []
    for text, score in entries:
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in numbers and right in numbers:
                found.append((-score, numbers[left], numbers[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _model(model: SentencePieceModel, entries: Entries, unknown: str) -> models.Model:
    """The pieces under a layout; texts that no piece has become `unknown`."""
    place = next((place for place, (text, _) in enumerate(entries) if text in (unknown, model.unknown)), 0)
    if model.kind == "unigram":
        return models.Unigram(entries, unk_id=place, byte_fallback=model.byte_fallback)
    return models.BPE(
        vocab={text: number for number, (text, _) in enumerate(entries)},
        merges=_merges_of(entries),
        unk_token=entries[place][0],
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


@dataclass(frozen=True)
class PieceRules:
    """How a class reads a SentencePiece model.

    Attributes:
        file: The model's name.
        layout: Which ids the pieces have.
        lower_case: Whether the class lower-cases unless told not to; `None` if it has no such switch.
        accents_and_quotes: Whether it drops accents unless told not to, and writes '' and `` as ".
        words: Whether it cuts at spaces first, so that offsets never include one.
        punctuation: Whether it has a switch to cut at punctuation.
    """

    file: str
    layout: Layout
    lower_case: bool | None = None
    accents_and_quotes: bool = False
    words: bool = True
    punctuation: bool = False

    def _normalizer(
        self, model: SentencePieceModel, folder: Path, settings: Settings, *, words: bool
    ) -> normalizers.Sequence:
        steps: list[normalizers.Normalizer] = []
        if self.accents_and_quotes:
            steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
            if not switch(folder, settings, "keep_accents", default=False):
                steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if self.lower_case is not None and switch(folder, settings, "do_lower_case", default=self.lower_case):
            steps.append(normalizers.Lowercase())
        if model.charsmap:
            steps.append(normalizers.Precompiled(model.charsmap))
        if model.collapse_spaces and not words:
            # Last, as the table of replacements leaves nothing or a space where control characters stood.
            steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
        return normalizers.Sequence(steps)

    def __call__(self, folder: Path, settings: Settings, special: Special) -> Tokenizer:
        """The tokenizer of a folder."""
        path = folder / self.file
        model = read_sentencepiece(path)
        check_charsmap(path, model.charsmap[:4], len(model.charsmap))
        spaced = switch(folder, settings, "add_prefix_space", default=model.dummy_prefix)
        words = self.words and model.collapse_spaces and spaced  # else a word's space would be lost
        try:
            tokenizer = Tokenizer(_model(model, self.layout(model, special, path), special["unk"]))
            tokenizer.normalizer = self._normalizer(model, folder, settings, words=words)
        except Exception as problem:
            if isinstance(problem, TokenizerError):
                raise
            raise TokenizerError(f"{path}: damaged: {problem}") from None
        cuts: list[pre_tokenizers.PreTokenizer] = []
        if words:
            cuts.append(pre_tokenizers.WhitespaceSplit())
        if self.punctuation and switch(folder, settings, "split_by_punct", default=False):
            cuts.append(pre_tokenizers.Punctuation(behavior="isolated"))
        scheme = "always" if spaced else "never"  # where texts keep a space of their own, this adds no second one
        if spaced and not model.collapse_spaces:
            tokenizer.normalizer = normalizers.Sequence([tokenizer.normalizer, normalizers.Prepend(_SPACE)])
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [*cuts, pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)]
        )
        tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
        control = [piece.text for piece in model.pieces if piece.type == CONTROL]
        known = [text for text in control if tokenizer.token_to_id(text) is not None]
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in known])
        return tokenizer
