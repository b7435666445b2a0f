"""Tokenizers like the ones of newer embedding models, trained on a few sentences.

The vocabularies are smaller than the published ones. Normalizers, pre-tokenizers, post-processors, decoders and flags
are the same.
"""

import functools
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers.vocabularies import SENTENCES, put, trained

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_SPLIT, QWEN_SPLIT = (f"{_ENGLISH}{digits}{_REST}" for digits in (r"\p{N}{1,3}", r"\p{N}"))
LLAMA_TOKENS = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|parallel_sep|>", "<|pad|>"]
QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_PLAIN = ["<tool_call>", "<think>", "</think>"]  # matched in texts, but not special
GEMMA_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>"]
GEMMA_PLAIN = ["<mask>", "[multimodal]", "<unused0>", "\n", "\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "<table>"]
GEMMA_PLAIN += ["<s>", "</s>"]  # of HTML
GEMMA_TURNS = ["<start_of_turn>", "<end_of_turn>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _entries(tokens: Iterable[str], first: int, *, special: bool) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return [{"id": first + number, "content": token} | flags for number, token in enumerate(tokens)]


@functools.cache
def _trained_pairs(split: str, size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    steps = [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


def ends(before: Sequence[str], after: Sequence[str], ids: Mapping[str, int]) -> Any:
    """Returns a post-processor that adds tokens before and after each text."""

    def around(text: str, number: int) -> list[str]:
        return [f"{token}:{number}" for token in (*before, f"${text}", *after)]

    used = [(token, ids[token]) for token in dict.fromkeys([*before, *after])]
    pair = [*around("A", 0), *around("B", 1)]
    return processors.TemplateProcessing(single=around("A", 0), pair=pair, special_tokens=used)


def _byte_pairs(
    split: str, special: Sequence[str], plain: Sequence[str], before: Sequence[str], after: Sequence[str]
) -> dict[str, Any]:
    """Returns a byte-level BPE `tokenizer.json`, in which added tokens follow the vocabulary."""
    saved: dict[str, Any] = json.loads(_trained_pairs(split, 330))
    first = len(saved["model"]["vocab"])
    saved["added_tokens"] = [
        *_entries(special, first, special=True), *_entries(plain, first + len(special), special=False)
    ]  # fmt: skip
    numbers = {token["content"]: token["id"] for token in saved["added_tokens"]}
    steps = [processors.ByteLevel(trim_offsets=False), ends(before, after, numbers)]
    saved["post_processor"] = json.loads(processors.Sequence(steps).__getstate__())
    return saved


RERANKER_TEMPLATE = (
    '{%- set instruction = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default('
    '"Given a web search query, retrieve relevant passages that answer the query") -%}\n'
    '{%- set query_text = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}\n'
    '{%- set document_text = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}\n'
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {{ instruction }}\n"
    "<Query>: {{ query_text }}\n<Document>: {{ document_text }}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>"
    "\n\n\n"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>{% endfor %}"
)


def qwen3_reranker(folder: Path, template: str | None = RERANKER_TEMPLATE) -> Path:
    """Writes the tokenizer of a Qwen3 reranker, whose vocabulary has the answers yes and no; returns the folder."""
    qwen3(folder, after=(), **({} if template is None else {"chat_template": template}))
    path = folder / "tokenizer.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    vocabulary, first = saved["model"]["vocab"], len(saved["model"]["vocab"])
    vocabulary |= {word: first + number for number, word in enumerate(("ye", "yes", "no")) if word not in vocabulary}
    saved["model"]["merges"] += [["y", "e"], ["ye", "s"], ["n", "o"]]
    for number, token in enumerate(saved["added_tokens"]):
        token["id"] = len(vocabulary) + number
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["added_tokens_decoder"] = _settings(saved)["added_tokens_decoder"]
    return put(folder, {"tokenizer.json": saved, "tokenizer_config.json": settings})


def _settings(saved: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    decoder = {str(token["id"]): {key: token[key] for key in token if key != "id"} for token in saved["added_tokens"]}
    return {"added_tokens_decoder": decoder, "clean_up_tokenization_spaces": False, **settings}


def _write(folder: Path, saved: dict[str, Any], settings: Mapping[str, Any], **config: Any) -> Path:
    files = {"tokenizer.json": saved, "tokenizer_config.json": _settings(saved, **settings), "config.json": config}
    return put(folder, files)


_FAST: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192,
    "model_input_names": ["input_ids", "attention_mask"],
}  # fmt: skip


def eurobert(folder: Path, after: Sequence[str] = LLAMA_TOKENS[1:2], **settings: Any) -> Path:
    saved = _byte_pairs(LLAMA_SPLIT, LLAMA_TOKENS, [], LLAMA_TOKENS[:1], after)
    saved["model"]["ignore_merges"] = True
    roles = dict(zip(("bos_token", "eos_token", "mask_token", "", "pad_token"), LLAMA_TOKENS, strict=True))
    del roles[""]
    put(folder, {"special_tokens_map.json": roles})
    return _write(
        folder, saved, _FAST | roles | settings, model_type="eurobert", pad_token_id=saved["added_tokens"][1]["id"]
    )


def qwen3(folder: Path, after: Sequence[str] = QWEN_TOKENS[:1], **settings: Any) -> Path:
    """Writes the tokenizer of Qwen3. Its embedding models append a token to each text, its rerankers do not."""
    saved = _byte_pairs(QWEN_SPLIT, QWEN_TOKENS, QWEN_PLAIN, [], after)
    saved["normalizer"] = {"type": "NFC"}
    named = {
        "tokenizer_class": "Qwen2Tokenizer", "model_max_length": 131072, "add_prefix_space": False, "bos_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "split_special_tokens": False,
        "additional_special_tokens": QWEN_TOKENS[1:], "errors": "replace", "add_bos_token": False,
    }  # fmt: skip
    return _write(folder, saved, named | settings, model_type="qwen3")


@functools.cache
def _gemma() -> str:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")  # to train with
    plain = [*GEMMA_TOKENS, *GEMMA_PLAIN, *GEMMA_TURNS, *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=plain, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    saved = json.loads(tokenizer.to_str())
    saved["model"]["merges"] += [["\u2581", "\u2581"], ["\u2581", "\u2581\u2581"]]
    saved["model"] |= {"fuse_unk": True, "byte_fallback": True}
    flagged = ((GEMMA_TOKENS, True), (GEMMA_PLAIN, False), (GEMMA_TURNS, True))
    saved["added_tokens"] = []
    for tokens, special in flagged:
        saved["added_tokens"] += _entries(tokens, len(saved["added_tokens"]), special=special)
    numbers = saved["model"]["vocab"]
    saved["post_processor"] = json.loads(ends(["<bos>"], ["<eos>"], numbers).__getstate__())
    return json.dumps(saved)


GEMMA_SETTINGS: dict[str, Any] = {
    "tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": True, "model_max_length": 2048,
    "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>",
    "spaces_between_special_tokens": False, "sp_model_kwargs": None, "use_default_system_prompt": False,
}  # fmt: skip


def gemma(folder: Path, **settings: Any) -> Path:
    return _write(folder, json.loads(_gemma()), GEMMA_SETTINGS | settings, model_type="gemma3_text")


@functools.cache
def _gemma_model() -> bytes:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3), model_writer=written, model_type="bpe", vocab_size=420,
        hard_vocab_limit=False, byte_fallback=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>",
        eos_piece="<eos>", bos_piece="<bos>", user_defined_symbols=[*GEMMA_PLAIN, *GEMMA_TURNS], split_digits=True,
        add_dummy_prefix=False, remove_extra_whitespaces=False, normalization_rule_name="identity", minloglevel=3,
    )  # fmt: skip
    return written.getvalue()


def gemma_model(folder: Path, **settings: Any) -> Path:
    files: dict[str, Any] = {"tokenizer.model": _gemma_model(), "config.json": {"model_type": "gemma3_text"}}
    return put(folder, files | ({"tokenizer_config.json": settings} if settings else {}))


def bert(folder: Path, model_type: str = "bert", *, lower: bool = True, **settings: Any) -> Path:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    named = {f"{token.strip('[]').lower()}_token": token for token in special}
    declared = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower, **named, **settings}
    return _write(folder, json.loads(tokenizer.to_str()), declared, model_type=model_type)


def neobert(folder: Path, **settings: Any) -> Path:
    return bert(folder, "neobert", **settings)


def modernbert(folder: Path, **settings: Any) -> Path:
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    saved = _byte_pairs(QWEN_SPLIT, special, [], ["[CLS]"], ["[SEP]"])
    saved["normalizer"] = {"type": "NFC"}
    saved["pre_tokenizer"] = json.loads(pre_tokenizers.ByteLevel(add_prefix_space=False).__getstate__())
    saved["added_tokens"][-1]["lstrip"] = True
    named = _FAST | {f"{token.strip('[]').lower()}_token": token for token in special}
    return _write(folder, saved, named | settings, model_type="modernbert")


def xlm_roberta(folder: Path, model_type: str | None, **settings: Any) -> Path:
    (folder / "made").mkdir(parents=True)
    source = put(folder / "made", {"sentencepiece.bpe.model": trained(), "config.json": {"model_type": "xlm-roberta"}})
    saved = json.loads(read_tokenizer(source).tokenizer.to_str())
    roles = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    named = {f"{role}_token": token for role, token in roles.items()} | {"tokenizer_class": "XLMRobertaTokenizer"}
    return _write(folder, saved, named | settings, **{"model_type": model_type} if model_type else {})


def jina_code(folder: Path, **settings: Any) -> Path:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    saved = _byte_pairs(QWEN_SPLIT, special, [], [], [])
    saved["pre_tokenizer"] = json.loads(pre_tokenizers.ByteLevel(add_prefix_space=False).__getstate__())
    saved["added_tokens"][-1]["lstrip"] = True
    numbers = {token["content"]: token["id"] for token in saved["added_tokens"]}
    step = processors.RobertaProcessing(("</s>", numbers["</s>"]), ("<s>", numbers["<s>"]), add_prefix_space=False)
    saved["post_processor"] = json.loads(step.__getstate__())
    roles = ("bos", "pad", "eos", "unk", "mask")
    named: dict[str, Any] = {f"{role}_token": token for role, token in zip(roles, special, strict=True)}
    named |= {"cls_token": "<s>", "sep_token": "</s>", "add_prefix_space": False}
    named["mask_token"] = {"__type": "AddedToken"} | {
        key: value for key, value in saved["added_tokens"][-1].items() if key != "id"
    }
    named["tokenizer_class"] = "RobertaTokenizer"
    return _write(folder, saved, named | settings, model_type="bert")
