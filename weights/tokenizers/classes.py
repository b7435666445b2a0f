"""Tokenizer classes by the names that model folders give them: an entry says all in which they differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from mlxbert.weights.tokenizers.pieces import (
    PieceRules,
    albert_layout,
    camembert_layout,
    plain_layout,
    xlm_roberta_layout,
)
from mlxbert.weights.tokenizers.vocab import byte_pairs, word_piece

BERT_TOKENS = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ENDS = {"bos": "[CLS]", "eos": "[SEP]"}
FAIRSEQ_TOKENS = {
    **{"bos": "<s>", "eos": "</s>"},
    **{"unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"},
}


@dataclass(frozen=True)
class TokenizerClass:
    """How a class makes a tokenizer of its vocabulary files.

    Attributes:
        files: The files it needs where there is no `tokenizer.json`.
        build: Makes a tokenizer of them: from the folder, the settings beside the files, the special tokens by role.
        special: The special tokens by role, bos and eos included, unless settings name others.
        segments: Whether a second text is in segment 1, `[CLS] A [SEP] B [SEP]`; `<s> A </s></s> B </s>` otherwise.
        mask_lstrip: Whether the mask token takes the spaces before it with it.
        appends: Whether special tokens that the files do not have are put behind the vocabulary.
        trims: Whether offsets leave out the spaces at the ends of a token.
    """

    files: tuple[str, ...]
    build: Callable[[Path, Mapping[str, Any], Mapping[str, str]], Tokenizer]
    special: Mapping[str, str]
    segments: bool
    mask_lstrip: bool
    appends: bool = False
    trims: bool = False


def _pieces(rules: PieceRules, special: Mapping[str, str], **facts: bool) -> TokenizerClass:
    return TokenizerClass((rules.file,), rules, special, **facts)


_FAIRSEQ_FILE = "sentencepiece.bpe.model"
CLASSES = {
    "BertTokenizer": TokenizerClass(("vocab.txt",), word_piece, BERT_TOKENS, segments=True, mask_lstrip=False),
    "MPNetTokenizer": TokenizerClass(
        ("vocab.txt",), word_piece, FAIRSEQ_TOKENS | {"unk": "[UNK]"}, segments=False, mask_lstrip=True, trims=True
    ),
    "RobertaTokenizer": TokenizerClass(
        ("vocab.json", "merges.txt"), byte_pairs, FAIRSEQ_TOKENS, segments=False, mask_lstrip=True, trims=True
    ),
    "XLMRobertaTokenizer": _pieces(
        PieceRules(_FAIRSEQ_FILE, xlm_roberta_layout), FAIRSEQ_TOKENS, segments=False, mask_lstrip=True
    ),
    "CamembertTokenizer": _pieces(
        PieceRules(_FAIRSEQ_FILE, camembert_layout), FAIRSEQ_TOKENS, segments=False, mask_lstrip=True
    ),
    "AlbertTokenizer": _pieces(
        PieceRules("spiece.model", albert_layout, lower_case=True, accents_and_quotes=True),
        BERT_TOKENS | _ENDS | {"unk": "<unk>", "pad": "<pad>"}, segments=True, mask_lstrip=True,
    ),
    "DebertaV2Tokenizer": _pieces(
        PieceRules("spm.model", plain_layout, lower_case=False, words=False, punctuation=True),
        BERT_TOKENS | _ENDS, segments=True, mask_lstrip=False, appends=True,
    ),
}  # fmt: skip

_SAME = {
    "BertTokenizer": ("DistilBertTokenizer", "ElectraTokenizer"),
    "RobertaTokenizer": ("BartTokenizer",),  # some RoBERTa checkpoints name it
}
CLASSES |= {name: CLASSES[like] for like, names in _SAME.items() for name in names}

# The class of a model whose files name none.
MODEL_TYPES = {
    **dict.fromkeys(("bert", "distilbert", "electra", "nomic_bert"), "BertTokenizer"),
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "albert": "AlbertTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "mpnet": "MPNetTokenizer",
}

_BY_HAND = "it cuts texts in a way of its own before its vocabulary is looked at"
# Read as the classes they look like, or from a tokenizer.json somebody put beside them, their ids would be wrong.
REFUSED = {
    "BertJapaneseTokenizer": "it cuts texts into words with MeCab, Sudachi or Juman++",
    "BertweetTokenizer": "it rewrites tweets before its vocabulary is looked at",
    "PhobertTokenizer": "it expects texts whose words were joined by another program",
    "FlaubertTokenizer": _BY_HAND,
    "XLMTokenizer": _BY_HAND,
    "CanineTokenizer": "it has no vocabulary",
    "RoCBertTokenizer": "its model takes shapes and sounds of characters, too",
    "TapasTokenizer": "it reads tables",
}


def template(
    kind: TokenizerClass, tokenizer: Tokenizer, special: Mapping[str, str], settings: Mapping[str, Any]
) -> Any:
    """What puts the class's special tokens around one text and around two; `tokenizer` knows their ids."""
    cls, sep = ((special[role], tokenizer.token_to_id(special[role]) or 0) for role in ("cls", "sep"))
    if kind.trims:
        trims, spaced = settings.get("trim_offsets") is not False, settings.get("add_prefix_space") is True
        return processors.RobertaProcessing(sep, cls, trim_offsets=trims, add_prefix_space=spaced)
    first = [f"{cls[0]}:0", "$A:0", f"{sep[0]}:0"]
    second = ["$B:1", f"{sep[0]}:1"] if kind.segments else [f"{sep[0]}:0", "$B:0", f"{sep[0]}:0"]
    return processors.TemplateProcessing(single=first, pair=first + second, special_tokens=[cls, sep])
