"""Writes folders for each tokenizer class.

Their `tokenizer.json` may have a post-processor of any kind, with the ids of this or of another vocabulary.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import processors

from mlxbert.weights.tokenizers.sentencepiece_tokenizer import CONTROL, UNKNOWN
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers.vocabularies import BYTE_TOKENS, HEAD, byte_files, pieces_file, plain, put

SHIFT = 7  # what ids were larger by before the vocabulary was pruned
_WORDS = ["the", "cat", "##s", "t", "##he"]
_PIECES = plain("\u2581the", "\u2581cat", "\u2581", *"thecas")
_BERT_NAMES = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
_CONTROLS = [(name, 0.0, CONTROL) for name in ("[CLS]", "[SEP]", "[MASK]")]


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of a folder with a certain tokenizer class.

    Attributes:
        model_type: The `model_type` of a model with this tokenizer class.
        files: The vocabulary files, by name.
        first: The token before a text.
        last: The token after a text.
        mask: The mask token.
    """

    model_type: str
    files: Mapping[str, str | bytes]
    first: str = "[CLS]"
    last: str = "[SEP]"
    mask: str = "[MASK]"


_FAIRSEQ: dict[str, Any] = {"first": "<s>", "last": "</s>", "mask": "<mask>"}
_FAIRSEQ_FILES = {"sentencepiece.bpe.model": pieces_file([*HEAD, *_PIECES])}
VOCABULARIES = {
    "BertTokenizer": Vocabulary(
        "bert", {"vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS])}
    ),
    "DistilBertTokenizer": Vocabulary(
        "distilbert", {"vocab.txt": "\n".join(["[PAD]", *_WORDS, "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    ),
    "MPNetTokenizer": Vocabulary(
        "mpnet", {"vocab.txt": "\n".join(["<s>", "<pad>", "</s>", "<unk>", "[UNK]", *_WORDS, "<mask>"])}, **_FAIRSEQ
    ),
    "RobertaTokenizer": Vocabulary("roberta", byte_files(), **_FAIRSEQ),
    "DebertaTokenizer": Vocabulary("deberta", byte_files([_BERT_NAMES.get(token, token) for token in BYTE_TOKENS])),
    "XLMRobertaTokenizer": Vocabulary("xlm-roberta", _FAIRSEQ_FILES, **_FAIRSEQ),
    "CamembertTokenizer": Vocabulary("camembert", _FAIRSEQ_FILES, **_FAIRSEQ),
    "AlbertTokenizer": Vocabulary(
        "albert",
        {"spiece.model": pieces_file([("<pad>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), *_CONTROLS, *_PIECES])},
    ),
    "DebertaV2Tokenizer": Vocabulary(
        "deberta-v2",
        {"spm.model": pieces_file([("[PAD]", 0.0, CONTROL), *_CONTROLS[:2], ("[UNK]", 0.0, UNKNOWN), *_PIECES])},
    ),
}  # fmt: skip


def _template(single: str, pair: str, ids: Mapping[str, int]) -> Any:
    used = [(token, number) for token, number in ids.items() if token in f"{single} {pair}"]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)


def templates(first: str, last: str, mask: str, ids: Mapping[str, int]) -> dict[str, Any]:
    """Returns post-processors of all kinds, by name."""
    begin, end = (first, ids[first]), (last, ids[last])
    both = f"{first} $A {last}"
    return {
        "null": None,
        "first alone": _template(f"{first} $A", f"{first} $A $B:1", ids),
        "ByteLevel": processors.ByteLevel(trim_offsets=False),
        "one segment": _template(both, f"{both} $B {last}", ids),
        "two segments": _template(both, f"{both} $B:1 {last}:1", ids),
        "doubled": _template(both, f"{both} {last} $B {last}", ids),
        "other tokens": _template(f"{mask} $A {first}", f"{mask} $A {last} $B:1 {first}:1", ids),
        "BertProcessing": processors.BertProcessing(end, begin),
        "RobertaProcessing": processors.RobertaProcessing(end, begin, trim_offsets=False, add_prefix_space=True),
        "Sequence": processors.Sequence([processors.ByteLevel(), _template(f"$A {last}", f"$A {last} $B:1", ids)]),
        "nothing": _template("$A", "$A $B:1", ids),
    }


TEMPLATES = tuple(templates("a", "b", "c", {"a": 0, "b": 1, "c": 2}))


def save_ends(folder: Path, name: str, template: str, *, pruned: bool, declared: str | None, **settings: Any) -> Path:
    """Writes a model folder whose `tokenizer.json` has this post-processor; returns the folder.

    Args:
        folder: Where to write the folder.
        name: The name of the tokenizer class.
        template: The name of the post-processor, one of `TEMPLATES`.
        pruned: Whether the ids of the post-processor and of added tokens are still the ids before the vocabulary was
            pruned.
        declared: The `tokenizer_class` in the settings, if any.
        settings: Further settings.
    """
    vocabulary = VOCABULARIES[name]
    (folder / "made").mkdir(parents=True)
    source = put(folder / "made", {**vocabulary.files, "tokenizer_config.json": {"tokenizer_class": name}})
    tokenizer = read_tokenizer(source)
    saved = json.loads(tokenizer.tokenizer.to_str())
    shift = SHIFT if pruned else 0
    ids = {token["content"]: token["id"] + shift for token in saved["added_tokens"]}
    for token in saved["added_tokens"]:
        token["id"] += shift
    step = templates(vocabulary.first, vocabulary.last, vocabulary.mask, ids)[template]
    saved["post_processor"] = None if step is None else json.loads(step.__getstate__())
    named = {f"{role}_token": token for role, token in tokenizer.special.items()}
    if name.startswith(("Roberta", "XLM", "Camembert", "MPNet")):
        named |= {"bos_token": "<s>", "eos_token": "</s>"}
    if declared is not None:
        named["tokenizer_class"] = declared
    return put(
        folder / "model",
        {
            "tokenizer.json": saved,
            "tokenizer_config.json": named | settings,
            "config.json": {"model_type": vocabulary.model_type},
        },
    )
