"""The readers of vocabularies to fuzz, in addition to those in `fuzz_readers`."""

import json
import struct
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz_mutate import change_json, change_message, flips
from fuzz_readers import Files, FuzzedReader, on
from tokenizers import Regex, Tokenizer as Library, decoders, models, normalizers, pre_tokenizers, processors

from mlxbert.errors import InputError
from mlxbert.text.tokenizer import Tokenizer, load_tokenizer
from mlxbert.weights.tokenizers.sentencepiece_tokenizer import CONTROL, UNKNOWN, USER_DEFINED
from tests.helpers import published, tiny, vocabularies as words

_ROWS = 450  # word embeddings of the model of the tokenizer, a few more than any vocabulary here has
_TEXTS = (
    "the cat sat on the mat, a is of [MASK]!",
    "<|im_start|>x<s>\U0001f642<|mask|>",
    "caf\u00e9 \u6771\u4eac  \u00bd\tA\u0301\ufb01 <mask>\0",
    "",
    " ",
)


def use_tokenizer(folder: Path) -> None:
    """Loads a tokenizer and encodes texts."""
    tokenizer = load_tokenizer(folder, tiny.tiny_config(vocab_size=_ROWS))
    for text in _TEXTS:
        for pair in (None, _TEXTS[0][:9]):
            _encode(tokenizer, text, pair)
    for number in tokenizer.pieces(_TEXTS[0]):
        tokenizer.shown(number)
        tokenizer.filled("a", number, "b")
    tokenizer.word_id("cat")
    tokenizer.adapted(lower_case=True).pieces(_TEXTS[1])


def _encode(tokenizer: Tokenizer, text: str, pair: str | None) -> None:
    """Encodes a text twice; every id must be in the embeddings of the model, and both results must be equal."""
    try:
        results = [tokenizer.encode(text, pair, overflow="truncate").ids for _ in range(2)]
    except InputError:  # a bad record
        return
    assert results[0] and max(results[0]) < _ROWS, f"{text!r:.20} has the ids {results[0]!r:.60}"
    assert results[0] == results[1], f"{text!r:.20} has different ids the second time"


def _charsmap() -> bytes:
    """A table that maps "A" to "a": a double array in the format of https://github.com/s-yata/darts-clone."""
    units = [0] * 256
    units[0], units[1 ^ 0x41], units[1 ^ 0x41 ^ 3] = 1 << 10, 3 << 10 | 1 << 8 | 0x41, 1 << 31
    return struct.pack("<257I", 4 * len(units), *units) + b"a\0"


_ENTRIES = [*words.HEAD, *words.plain("\u2581", "\u2581the", "\u2581cat", "s", *"arithecPno.#", "\u2581P", "aris")]
_BERT = [("<pad>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), *((f"[{name}]", 0.0, CONTROL) for name in ("CLS", "SEP"))]


def _pieces(folder: Path) -> list[Path]:
    albert = [*_BERT, ("[MASK]", 0.0, CONTROL), ("<sym>", 0.0, USER_DEFINED), *_ENTRIES[3:]]
    tables = {2: _charsmap()}
    vocabularies = {
        "xlm": ("sentencepiece.bpe.model", "XLMRobertaTokenizer", words.pieces_file(_ENTRIES, normalizer=tables)),
        "camembert": ("sentencepiece.bpe.model", "CamembertTokenizer", words.pieces_file(_ENTRIES, trainer={3: 2})),
        "albert": ("spiece.model", "AlbertTokenizer", words.pieces_file(albert, normalizer=tables | {4: 0})),
    }
    return [
        words.put(folder / name, {file: content, "tokenizer_config.json": {"tokenizer_class": class_name}})
        for name, (file, class_name, content) in vocabularies.items()
    ]


def _word_pieces() -> Library:
    tokenizer = Library(models.WordPiece({word: number for number, word in enumerate(tiny.VOCAB)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(tiny.VOCAB[:5])
    return tokenizer


def _unigram() -> Library:
    entries = [(text, score) for text, score, _ in _ENTRIES]
    tokenizer = Library(models.Unigram([*entries, ("<mask>", 0.0), ("<pad>", 0.0)], unk_id=0, byte_fallback=False))
    steps = [normalizers.Precompiled(_charsmap()), normalizers.Replace(Regex(" {2,}"), " "), normalizers.NFKC()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>", "<mask>", "<pad>"])
    return tokenizer


def _byte_pairs() -> Library:
    vocab = {token: number for number, token in enumerate(words.BYTE_TOKENS)}
    merges = [(merge.split()[0], merge.split()[1]) for merge in words.BYTE_MERGES]
    tokenizer = Library(models.BPE(vocab=vocab, merges=merges, dropout=None))
    split = pre_tokenizers.Split(Regex(r"'s| ?\p{L}+|\s+(?!\S)|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>", "<mask>", "<pad>"])
    return tokenizer


def _bare() -> Library:
    """A tokenizer without special tokens: a text may have no tokens at all."""
    tokenizer = _byte_pairs()
    tokenizer.post_processor = processors.ByteLevel()
    return tokenizer


def _whole(folder: Path) -> list[Path]:
    tokenizers = {"bert": _word_pieces(), "xlm": _unigram(), "roberta": _byte_pairs(), "bare": _bare()}
    classes = {"bert": "BertTokenizer", "xlm": "XLMRobertaTokenizer"}
    folders = []
    for name, tokenizer in tokenizers.items():
        settings = json.dumps({"tokenizer_class": classes.get(name, "RobertaTokenizer")})
        folders.append(
            words.put(folder / name, {"tokenizer.json": tokenizer.to_str(), "tokenizer_config.json": settings})
        )
    return folders


_IDS = (60, _ROWS - 1, _ROWS, 5000, 2**24, 2**32 - 1)
_REMOVERS = (".", "\\S", "[a-z]", "\\s|a")


def _change_meaning(rng: Random, data: bytes) -> bytes:
    """Makes a valid change to a tokenizer.json: an id, the removal of text, dropout, or the special tokens to add."""
    saved = json.loads(data)
    vocab = saved["model"]["vocab"]
    match rng.randrange(6):
        case 0 if isinstance(vocab, dict):
            vocab[rng.choice([*vocab])] = rng.choice(_IDS)
        case 1:
            rng.choice(saved["added_tokens"])["id"] = rng.choice(_IDS)
        case 2:
            saved["normalizer"] = {"type": "Replace", "pattern": {"Regex": rng.choice(_REMOVERS)}, "content": ""}
        case 3 if saved["model"]["type"] == "BPE":
            saved["model"]["dropout"] = rng.choice((0.1, 0.5, 1.0))
        case 4:
            saved["pre_tokenizer"] = {
                "type": "Split",
                "pattern": {"Regex": "."},
                "behavior": "Removed",
                "invert": False,
            }
        case _:
            saved["post_processor"] = None
    return json.dumps(saved).encode()


def _change_tokenizer(rng: Random, data: bytes) -> bytes:
    return _change_meaning(rng, data) if rng.random() < 0.3 else change_json(rng, data)


def _words(folder: Path) -> list[Path]:
    """Vocabularies in text files, with all files that can accompany them."""
    added = {"[NEW]": len(tiny.VOCAB), "[ENT]": len(tiny.VOCAB) + 1}
    entry = {"content": "[ENT]", "lstrip": False, "normalized": False, "rstrip": True, "special": True}
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "strip_accents": None,
        "model_max_length": 512,
        "mask_token": entry | {"content": "[MASK]"},
        "added_tokens_decoder": {str(added["[ENT]"]): entry},
        "additional_special_tokens": ["[ENT]"],
    }
    special = {"unk_token": "[UNK]", "cls_token": {"content": "[CLS]"}}
    bert = {"vocab.txt": "\n".join(tiny.VOCAB) + "\n", "added_tokens.json": json.dumps(added)}
    bert |= {"tokenizer_config.json": json.dumps(settings), "special_tokens_map.json": json.dumps(special)}
    return [
        words.put(folder / "bert", bert),
        words.put(folder / "bytes", {**words.byte_files(), "tokenizer_config.json": {"add_prefix_space": False}}),
    ]


def _published(folder: Path) -> list[Path]:
    """Newer embedding models: two with byte pairs; one with pieces and bytes, and again as a SentencePiece model."""
    kinds = (published.eurobert, published.qwen3, published.gemma, published.gemma_model)
    return [make(folder / make.__name__) for make in kinds]


def _change_published(rng: Random, files: Files) -> Files:
    name_of_file, suffix = next((name, name[-5:]) for name in ("tokenizer.json", "tokenizer.model") if name in files)
    if rng.random() < 0.3:
        return on("_config.json" if "tokenizer_config.json" in files else "config.json", _change_text)(rng, files)
    return {name_of_file: (_change_tokenizer if suffix == ".json" else change_message)(rng, files[name_of_file])}


def _change_text(rng: Random, data: bytes) -> bytes:
    """Changes a file that may be JSON."""
    try:
        json.loads(data)
    except ValueError:
        return flips(rng, data)
    return change_json(rng, data)


TOKENIZERS = {
    "SentencePiece": FuzzedReader(_pieces, on(".model", change_message), use_tokenizer),
    "tokenizer.json": FuzzedReader(_whole, on("tokenizer.json", _change_tokenizer), use_tokenizer),
    "newer tokenizers": FuzzedReader(_published, _change_published, use_tokenizer),
    "vocab.txt": FuzzedReader(_words, on("", _change_text), use_tokenizer),
}
