"""Tiny random GLiNER models, made by the package gliner. Imports torch, transformers and gliner, which are optional."""

import json
from pathlib import Path
from typing import Any

from tests.helpers.vocabularies import SENTENCES

TOKENS = "[FLERT]", "<<ENT>>", "<<SEP>>"
LABELS = "person", "research institute", "gene"
TEXTS = (
    "Ada Lovelace met Charles Babbage in London.",
    "the cat sat on the mat in Paris, and the dog went to the store",
    "He bought 2,500 bottles - of milk (cold) at well-known stores; in_side 2019, she said!",
    "caf\u00e9",
)
THRESHOLDS = 0.35, 0.5
FROZEN = "bert", "bert-marker", "deberta-v3-tokens", "modernbert"  # the kinds in tests/tasks/gliner_goldens
_ENCODER: dict[str, Any] = {
    "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 20,
    "max_position_embeddings": 160, "layer_norm_eps": 0.01, "initializer_range": 0.3,
}  # fmt: skip
# By name: the encoder, and GLiNER's own keys.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"span_mode": "markerV0", "hidden_size": 16, "max_width": 4, "num_rnn_layers": 1}),
    "bert-wide": ("bert", {"span_mode": "markerV0", "hidden_size": 24, "max_width": 12, "num_rnn_layers": 0}),
    "bert-marker": ("bert", {"span_mode": "marker", "hidden_size": 16, "max_width": 3, "num_rnn_layers": 2}),
    "bert-tokens": ("bert", {"span_mode": "token_level", "hidden_size": 16, "num_rnn_layers": 1}),
    "bert-next": ("bert", {"hidden_size": 16, "max_width": 4, "embed_ent_token": False}),
    "deberta-v3": ("deberta-v2", {"span_mode": "markerV0", "hidden_size": 20, "max_width": 5, "num_rnn_layers": 1}),
    "deberta-v3-tokens": ("deberta-v2", {"span_mode": "token_level", "hidden_size": 24, "num_rnn_layers": 1}),
    "modernbert": ("modernbert", {"span_mode": "markerV0", "hidden_size": 16, "max_width": 6, "num_rnn_layers": 1}),
    "modernbert-marker": ("modernbert", {"span_mode": "marker", "hidden_size": 24, "max_width": 4}),
    "electra": ("electra", {"span_mode": "markerV0", "hidden_size": 16, "max_width": 4, "num_rnn_layers": 1}),
    "distilbert": ("distilbert", {"span_mode": "markerV0", "hidden_size": 16, "max_width": 4, "num_rnn_layers": 1}),
}


def make(folder: Path, kind: str, *, safe: bool = True, scale: float = 2.0, seed: int = 0) -> Any:
    """Saves a random model of gliner; weights of its head are larger, so that scores are not all near a half."""
    import torch
    from gliner import GLiNER
    from gliner.config import GLiNERConfig
    from transformers import AutoTokenizer

    encoder, own = KINDS[kind]
    tokenizer_files(folder / "encoder", encoder)
    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    config = {**_ENCODER, **_facts(encoder), "model_type": encoder, "vocab_size": len(tokenizer)}
    (folder / "encoder" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    settings = GLiNERConfig(model_name=str(folder / "encoder"), encoder_config=config, max_len=40, **own)
    torch.manual_seed(seed)
    model = GLiNER.from_config(settings, backbone_from_pretrained=False)
    with torch.no_grad():
        for name, tensor in model.model.named_parameters():
            if ".bert_layer." not in name:
                tensor.mul_(scale)
            elif "norm" in name.lower():
                tensor.add_(torch.randn_like(tensor) * 0.1)
    model.save_pretrained(folder / "model", safe_serialization=safe)
    return GLiNER.from_pretrained(folder / "model")


def predicted(model: Any, texts: tuple[str, ...], labels: tuple[str, ...], **options: Any) -> list[list[Any]]:
    """Returns the entities of each text: [label, start, end, score]."""
    options = {"flat_ner": True, "threshold": 0.5} | options
    found = model.inference(list(texts), list(labels), **options)
    return [[[each["label"], each["start"], each["end"], each["score"]] for each in row] for row in found]


def tokenizer_files(folder: Path, encoder: str) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    texts = [*SENTENCES, *TEXTS, *LABELS, "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 -_.,;!()<>"]
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    if encoder == "deberta-v2":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer: Any = trainers.UnigramTrainer(vocab_size=110, special_tokens=special, unk_token="[UNK]")
    elif encoder == "modernbert":
        tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=190, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {f"{token[1:-1].lower()}_token": token for token in special}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 160, **roles}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _facts(encoder: str) -> dict[str, Any]:
    """Returns the keys in which the configuration of an encoder differs."""
    special = {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
    if encoder == "deberta-v2":
        return {
            "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
            "pos_att_type": "p2c|c2p", "max_relative_positions": -1, "position_biased_input": False,
            "type_vocab_size": 0, "pad_token_id": 0,
        }  # fmt: skip
    if encoder == "modernbert":
        return special | {"local_attention": 16, "global_attn_every_n_layers": 2, "norm_eps": 0.01}
    if encoder == "distilbert":
        return {"dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 20, "pad_token_id": 0}
    return {"type_vocab_size": 2, "pad_token_id": 0, "embedding_size": 12}
