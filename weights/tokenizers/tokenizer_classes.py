"""The tokenizer classes, by their names in model folders. An entry holds all properties in which classes differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
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
from mlxbert.weights.tokenizers.special_tokens import Ends
from mlxbert.weights.tokenizers.vocabulary_tokenizer import bert_steps, byte_pairs, byte_steps, word_piece

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


# The special tokens around texts, by class, as in transformers 5.24: `tests/weights/tokenizers/test_ends_live.py`.
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
