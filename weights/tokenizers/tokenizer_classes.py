"""The tokenizer classes, by their names in model folders, and the special tokens that they put around texts.

An entry holds all properties in which classes differ. A `tokenizer.json` may override the special tokens.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, processors
from tokenizers.models import BPE, Model, Unigram, WordPiece

from mlxbert.weights.tokenizers.sentencepiece_tokenizer import (
    GEMMA_FILE,
    PieceRules,
    albert_layout,
    camembert_layout,
    gemma_pieces,
    plain_layout,
    xlm_roberta_layout,
)
from mlxbert.weights.tokenizers.text_growth import steps_of
from mlxbert.weights.tokenizers.vocabulary_tokenizer import bert_steps, byte_pairs, byte_steps, word_piece


@dataclass(frozen=True)
class Ends:
    """The special tokens that a tokenizer class puts around texts."""

    first: str  # the role of the token before a text
    last: str  # the role of the token after a text
    # The layout of two texts: `segments` is `[CLS] A [SEP] B [SEP]` with B in segment 1; `doubled` is `<s> A </s></s> B
    # </s>` in one segment; `trimmed` is like `doubled`, but offsets exclude the spaces at the ends of a token; `each`
    # is `<bos> A <eos> <bos> B <eos>` with the second half in segment 1.
    pair: Literal["segments", "doubled", "trimmed", "each"]
    # When these tokens are used with a `tokenizer.json`: `always`, `never`, or `missing`, that is, only if the file has
    # no post-processor.
    used: Literal["always", "missing", "never"] = "always"

    def applies(self, tokenizer: Tokenizer, tokens: Mapping[str, AddedToken]) -> bool:
        """Whether these tokens apply to a `tokenizer.json` and are in its vocabulary."""
        enabled = self.used == "always" or (self.used == "missing" and tokenizer.post_processor is None)
        names = [tokens[role].content for role in (self.first, self.last) if role in tokens]
        return enabled and len(names) == 2 and None not in map(tokenizer.token_to_id, names)

    def build(self, tokenizer: Tokenizer, tokens: Mapping[str, AddedToken], settings: Mapping[str, Any]) -> Any:
        """Builds the post-processor with the ids in the vocabulary; `tokens` holds the special tokens by role."""
        first, last = ((name := tokens[role].content, _id(tokenizer, name)) for role in (self.first, self.last))
        if self.pair == "each":
            return _around_each(first, last, settings)
        if self.pair == "trimmed":
            trims, spaced = settings.get("trim_offsets") is not False, settings.get("add_prefix_space") is True
            return processors.RobertaProcessing(last, first, trim_offsets=trims, add_prefix_space=spaced)
        single = [f"{first[0]}:0", "$A:0", f"{last[0]}:0"]
        second = ["$B:1", f"{last[0]}:1"] if self.pair == "segments" else [f"{last[0]}:0", "$B:0", f"{last[0]}:0"]
        return processors.TemplateProcessing(single=single, pair=single + second, special_tokens=[first, last])


NO_ENDS = processors.TemplateProcessing(single=["$A:0"], pair=["$A:0", "$B:1"], special_tokens=[])


def _id(tokenizer: Tokenizer, token: str) -> int:
    return tokenizer.token_to_id(token) or 0


def _around_each(bos: tuple[str, int], eos: tuple[str, int], settings: Mapping[str, Any]) -> Any:
    """Builds the layout `<bos> A <eos> <bos> B <eos>`.

    If `add_bos_token` or `add_eos_token` is false, this token is omitted. If both settings are missing, both tokens are
    added, as in the training of EmbeddingGemma, although transformers would add neither.
    """
    before, after = (
        [end] if settings.get(f"add_{role}_token") is not False else [] for role, end in (("bos", bos), ("eos", eos))
    )
    first, second = (
        [*(f"{token}:{number}" for token, _ in before), text, *(f"{token}:{number}" for token, _ in after)]
        for number, text in enumerate(("$A:0", "$B:1"))
    )
    return processors.TemplateProcessing(single=first, pair=first + second, special_tokens=[*before, *after])


def effect(tokenizer: Tokenizer) -> tuple[list[tuple[int, int]], ...]:
    """Returns the ids and segments of a sample text and a sample pair, to compare the effect of two post-processors."""
    encodings = (tokenizer.encode("a"), tokenizer.encode("a", "a"))
    return tuple(list(zip(encoding.ids, encoding.type_ids, strict=True)) for encoding in encodings)


def other_ids(tokenizer: Tokenizer) -> dict[str, tuple[int, int | None]]:
    """Returns special tokens whose id in the post-processor differs from their id in the vocabulary, with both ids."""
    before, numbers = tokenizer.post_processor, dict[str, tuple[int, int | None]]()
    for step in [] if before is None else steps_of(json.loads(before.__getstate__())):
        pairs = [tuple(step[role]) for role in ("cls", "sep") if role in step]
        for special in step.get("special_tokens", {}).values():
            pairs += zip(special["tokens"], special["ids"], strict=False)
        numbers |= {token: (number, tokenizer.token_to_id(token)) for token, number in pairs}
    return {token: ids for token, ids in numbers.items() if ids[0] != ids[1]}


BERT_TOKENS = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ENDS = {"bos": "[CLS]", "eos": "[SEP]"}
FAIRSEQ_TOKENS = {
    **{"bos": "<s>", "eos": "</s>"},
    **{"unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"},
}
GEMMA_TOKENS = {role: f"<{role}>" for role in ("unk", "bos", "eos", "pad", "mask")}


@dataclass(frozen=True)
class TokenizerClass:
    """How a class builds a tokenizer from its vocabulary files."""

    files: tuple[str, ...]  # the files that are required if there is no `tokenizer.json`
    # Builds a tokenizer from the folder, its settings and the special tokens by role.
    build: Callable[[Path, Mapping[str, Any], Mapping[str, str]], Tokenizer]
    special: Mapping[str, str]  # the default special tokens by role, including bos and eos; settings override them
    # The type of the vocabulary. A `tokenizer.json` with another type does not belong to this class.
    model: type[Model]
    ends: Ends  # the special tokens around texts
    mask_lstrip: bool  # whether the mask token includes the spaces before it
    appends_missing: bool = False  # whether special tokens that the files lack are appended to the vocabulary
    # Whether transformers passes segments (`token_type_ids`) to the model; `None` if version 4 does, but version 5 does
    # not.
    segments: bool | None = False
    # Builds the steps that replace the steps of a `tokenizer.json`, by name (`normalizer`, `pre_tokenizer`). Steps that
    # are not in the result stay as the `tokenizer.json` defines them.
    steps: Callable[[Path, Mapping[str, Any]], dict[str, Any]] = lambda *_: {}
    keeps_steps: bool = False  # whether the steps of the class are used only where a `tokenizer.json` has none


def _pieces(rules: PieceRules, special: Mapping[str, str], ends: Ends, **facts: Any) -> TokenizerClass:
    """Defines a class with a SentencePiece model, whose character replacements are only stated in its file."""
    return TokenizerClass((rules.file,), rules, special, Unigram, ends, steps=rules.steps, keeps_steps=True, **facts)


# The special tokens around texts, by class, as in transformers 5.24: `tests/weights/tokenizers/test_ends.py`.
_BERT = Ends("cls", "sep", "segments")
_ROBERTA = Ends("cls", "sep", "trimmed")
_DEBERTA = Ends("cls", "sep", "doubled")
_FAIRSEQ = Ends("bos", "eos", "doubled")
_ALBERT = Ends("cls", "sep", "segments", used="missing")
_GEMMA = Ends("bos", "eos", "each", used="never")

_FAIRSEQ_FILE = "sentencepiece.bpe.model"
CLASSES = {
    "BertTokenizer": TokenizerClass(
        ("vocab.txt",), word_piece, BERT_TOKENS, WordPiece, _BERT, mask_lstrip=False, segments=True,
        steps=bert_steps,
    ),
    "MPNetTokenizer": TokenizerClass(
        ("vocab.txt",), word_piece, FAIRSEQ_TOKENS | {"unk": "[UNK]"}, WordPiece, _ROBERTA, mask_lstrip=True,
        steps=bert_steps,
    ),
    "RobertaTokenizer": TokenizerClass(
        ("vocab.json", "merges.txt"), byte_pairs, FAIRSEQ_TOKENS, BPE, _ROBERTA, mask_lstrip=True,
        steps=byte_steps,
    ),
    "DebertaTokenizer": TokenizerClass(
        ("vocab.json", "merges.txt"), byte_pairs, BERT_TOKENS | _ENDS, BPE, _DEBERTA, mask_lstrip=True, segments=True,
        steps=byte_steps,
    ),
    "XLMRobertaTokenizer": _pieces(
        PieceRules(_FAIRSEQ_FILE, xlm_roberta_layout), FAIRSEQ_TOKENS, _FAIRSEQ, mask_lstrip=True
    ),
    "CamembertTokenizer": _pieces(
        PieceRules(_FAIRSEQ_FILE, camembert_layout), FAIRSEQ_TOKENS, _FAIRSEQ, mask_lstrip=True
    ),
    "AlbertTokenizer": _pieces(
        PieceRules("spiece.model", albert_layout, lower_case=True, accents_and_quotes=True),
        BERT_TOKENS | _ENDS | {"unk": "<unk>", "pad": "<pad>"}, _ALBERT, mask_lstrip=True, segments=None,
    ),
    "DebertaV2Tokenizer": _pieces(
        PieceRules("spm.model", plain_layout, lower_case=False, words=False, punctuation=True),
        BERT_TOKENS | _ENDS, _BERT, mask_lstrip=False, appends_missing=True, segments=True,
    ),
    "GemmaTokenizer": TokenizerClass((GEMMA_FILE,), gemma_pieces, GEMMA_TOKENS, BPE, _GEMMA, mask_lstrip=False),
}  # fmt: skip

_SAME = {
    "BertTokenizer": (
        *("ElectraTokenizer", "MobileBertTokenizer", "LayoutLMTokenizer", "SqueezeBertTokenizer", "LxmertTokenizer"),
        *("DPRContextEncoderTokenizer", "DPRQuestionEncoderTokenizer"),
    ),
    "RobertaTokenizer": ("BartTokenizer", "LongformerTokenizer", "LEDTokenizer"),  # in some RoBERTa checkpoints
}
CLASSES |= {name: CLASSES[like] for like, names in _SAME.items() for name in names}
CLASSES["DistilBertTokenizer"] = replace(CLASSES["BertTokenizer"], segments=False)

# The class, by model_type, of models whose files name no class. For other types a tokenizer.json is used unchanged.
MODEL_TYPES = {
    **dict.fromkeys(("bert", "distilbert", "electra", "nomic_bert"), "BertTokenizer"),
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "albert": "AlbertTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "mpnet": "MPNetTokenizer",
    **dict.fromkeys(("jina_embeddings_v3", "gte"), "XLMRobertaTokenizer"),
    "gemma3_text": "GemmaTokenizer",
}

# The types of models whose tokenizer.json transformers uses unchanged, whatever class their files name.
UNCHANGED_TYPES = ("modernbert", "qwen2")

_OWN_SPLIT = "this tokenizer splits texts with its own rules before it uses the vocabulary"
# These classes would give wrong ids if they were read as a similar class, or from a tokenizer.json with another origin.
REFUSED = {
    "BertJapaneseTokenizer": "this tokenizer splits texts into words with MeCab, Sudachi or Juman++",
    "BertweetTokenizer": "this tokenizer normalizes tweets before it uses the vocabulary",
    "PhobertTokenizer": "this tokenizer expects texts that another program has segmented into words",
    "FlaubertTokenizer": _OWN_SPLIT,
    "XLMTokenizer": _OWN_SPLIT,
    "CanineTokenizer": "this tokenizer has no vocabulary",
    "RoCBertTokenizer": "the model also takes the shapes and pronunciations of characters",
    "TapasTokenizer": "this tokenizer reads tables",
}
