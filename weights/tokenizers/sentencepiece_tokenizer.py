"""Builds a `tokenizers` object, without special tokens, from a SentencePiece model."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mlxbert.errors import TokenizerError
from mlxbert.weights.tokenizers.library_guards import check_charsmap
from mlxbert.weights.tokenizers.sentencepiece_file import CONTROL, USER_DEFINED, SentencePieceModel, read_sentencepiece
from mlxbert.weights.tokenizers.tokenizer_settings import switch

Special = Mapping[str, str]
Entries = list[tuple[str, float]]
Settings = Mapping[str, Any]
Layout = Callable[[SentencePieceModel, Special, Path], Entries]
GEMMA_FILE = "tokenizer.model"
_SPACE = "\u2581"  # the character that SentencePiece uses for a space


def plain_layout(model: SentencePieceModel, special: Special, path: Path) -> Entries:
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

    def layout(model: SentencePieceModel, special: Special, path: Path) -> Entries:
        start = tuple(model.texts[:3])
        if start != expected:
            raise TokenizerError(f"{path}: the vocabulary starts with {' '.join(start)}, expected {' '.join(expected)}")
        first = [(special.get(name, name), -100.0 if name == "<unk>NOTUSED" else 0.0) for name in head]
        return [*first, *plain_layout(model, special, path)[skipped:], (special["mask"], 0.0)]

    return layout


xlm_roberta_layout = _fairseq_layout(("cls", "pad", "sep", "unk"), 3)
camembert_layout = _fairseq_layout(("<s>NOTUSED", "pad", "</s>NOTUSED", "unk", "<unk>NOTUSED"), 1)


def albert_layout(model: SentencePieceModel, special: Special, path: Path) -> Entries:
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

    def __call__(self, folder: Path, settings: Settings, special: Special) -> Tokenizer:
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


def gemma_pieces(folder: Path, settings: Settings, special: Special) -> Tokenizer:
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
