"""Tokenizer classes, by their names in model folders; an entry holds everything in which a class differs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from mlxbert.weights.tokenizers.pieces import (
    GEMMA_FILE,
    PieceRules,
    albert_layout,
    camembert_layout,
    gemma_pieces,
    plain_layout,
    xlm_roberta_layout,
)
from mlxbert.weights.tokenizers.vocab import bert_steps, byte_pairs, word_piece

BERT_TOKENS = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ENDS = {"bos": "[CLS]", "eos": "[SEP]"}
FAIRSEQ_TOKENS = {
    **{"bos": "<s>", "eos": "</s>"},
    **{"unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"},
}
GEMMA_TOKENS = {role: f"<{role}>" for role in ("unk", "bos", "eos", "pad", "mask")}


@dataclass(frozen=True)
class TokenizerClass:
    """How a class builds a tokenizer from its vocabulary files.

    Attributes:
        files: The files that it needs if there is no `tokenizer.json`.
        build: Builds a tokenizer from the folder, its settings and the special tokens by role.
        steps: Builds the normalizer and the pre-tokenizer that the class uses whatever a `tokenizer.json` has; `None`
            where it has none, or the file's is used.
        special: The default special tokens by role, bos and eos included; settings override them.
        segments: Whether a second text is in segment 1, `[CLS] A [SEP] B [SEP]`; otherwise `<s> A </s></s> B </s>`.
            Without `cls` and `sep` it is in segment 1, and each text has its own ends: `<bos> A <eos> <bos> B <eos>`.
        mask_lstrip: Whether the mask token includes the spaces before it.
        appends_missing: Whether special tokens that the files lack are appended to the vocabulary.
        trims_offsets: Whether offsets exclude spaces at the ends of a token.
    """

    files: tuple[str, ...]
    build: Callable[[Path, Mapping[str, Any], Mapping[str, str]], Tokenizer]
    special: Mapping[str, str]
    segments: bool
    mask_lstrip: bool
    appends_missing: bool = False
    trims_offsets: bool = False
    steps: Callable[[Path, Mapping[str, Any]], tuple[Normalizer | None, PreTokenizer | None]] | None = None


def _pieces(rules: PieceRules, special: Mapping[str, str], **facts: bool) -> TokenizerClass:
    return TokenizerClass((rules.file,), rules, special, steps=rules.steps, **facts)


_FAIRSEQ_FILE = "sentencepiece.bpe.model"
CLASSES = {
    "BertTokenizer": TokenizerClass(
        ("vocab.txt",), word_piece, BERT_TOKENS, segments=True, mask_lstrip=False, steps=bert_steps
    ),
    "MPNetTokenizer": TokenizerClass(
        ("vocab.txt",), word_piece, FAIRSEQ_TOKENS | {"unk": "[UNK]"},
        segments=False, mask_lstrip=True, trims_offsets=True, steps=bert_steps,
    ),
    "RobertaTokenizer": TokenizerClass(
        ("vocab.json", "merges.txt"), byte_pairs, FAIRSEQ_TOKENS, segments=False, mask_lstrip=True, trims_offsets=True
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
        BERT_TOKENS | _ENDS, segments=True, mask_lstrip=False, appends_missing=True,
    ),
    "GemmaTokenizer": TokenizerClass((GEMMA_FILE,), gemma_pieces, GEMMA_TOKENS, segments=True, mask_lstrip=False),
}  # fmt: skip

_SAME = {
    "BertTokenizer": ("DistilBertTokenizer", "ElectraTokenizer"),
    "RobertaTokenizer": ("BartTokenizer",),  # the class in some RoBERTa checkpoints
}
CLASSES |= {name: CLASSES[like] for like, names in _SAME.items() for name in names}

# The class of a model whose files do not name one, by model_type.
MODEL_TYPES = {
    **dict.fromkeys(("bert", "distilbert", "electra", "nomic_bert", "neobert"), "BertTokenizer"),
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "albert": "AlbertTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "mpnet": "MPNetTokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    "gemma3_text": "GemmaTokenizer",
}

_OWN_SPLIT = "it splits texts with its own rules before it uses the vocabulary"
# Read as a similar class, or from a tokenizer.json that someone added, these would give wrong ids.
REFUSED = {
    "BertJapaneseTokenizer": "it splits texts into words with MeCab, Sudachi or Juman++",
    "BertweetTokenizer": "it normalizes tweets before it uses the vocabulary",
    "PhobertTokenizer": "it expects texts that another program has segmented into words",
    "FlaubertTokenizer": _OWN_SPLIT,
    "XLMTokenizer": _OWN_SPLIT,
    "CanineTokenizer": "it has no vocabulary",
    "RoCBertTokenizer": "its model also takes the shapes and pronunciations of characters",
    "TapasTokenizer": "it reads tables",
}


def template(
    kind: TokenizerClass, tokenizer: Tokenizer, special: Mapping[str, str], settings: Mapping[str, Any]
) -> Any:
    """The post-processor that adds the class's special tokens to one text or two; `tokenizer` supplies their ids."""
    if "cls" not in special:
        return _between_ends(tokenizer, special, settings)
    cls, sep = ((special[role], tokenizer.token_to_id(special[role]) or 0) for role in ("cls", "sep"))
    if kind.trims_offsets:
        trims, spaced = settings.get("trim_offsets") is not False, settings.get("add_prefix_space") is True
        return processors.RobertaProcessing(sep, cls, trim_offsets=trims, add_prefix_space=spaced)
    first = [f"{cls[0]}:0", "$A:0", f"{sep[0]}:0"]
    second = ["$B:1", f"{sep[0]}:1"] if kind.segments else [f"{sep[0]}:0", "$B:0", f"{sep[0]}:0"]
    return processors.TemplateProcessing(single=first, pair=first + second, special_tokens=[cls, sep])


def _between_ends(tokenizer: Tokenizer, special: Mapping[str, str], settings: Mapping[str, Any]) -> Any:
    """`<bos> A <eos> <bos> B <eos>`, each end unless `add_bos_token` or `add_eos_token` is false.

    These settings count only here: a `tokenizer.json` is taken with the post-processor that it has, as in transformers
    5. Where they are missing, both tokens are added, as EmbeddingGemma was trained; transformers would add neither.
    """
    before, after = (
        [special[role]] if settings.get(f"add_{role}_token") is not False else [] for role in ("bos", "eos")
    )
    first, second = (
        [f"{token}:{number}" for token in (*before, text, *after)] for number, text in enumerate(("$A", "$B"))
    )
    used = [(token, tokenizer.token_to_id(token) or 0) for token in (*before, *after)]
    return processors.TemplateProcessing(single=first, pair=first + second, special_tokens=used)
