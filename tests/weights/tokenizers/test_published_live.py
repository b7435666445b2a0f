"""Tokenizers of newer embedding models next to transformers: ids, offsets and segments, whole and truncated."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxbert.config import Absolute
from mlxbert.text.tokenizer import load_tokenizer
from tests.helpers.published import (
    GEMMA_SETTINGS,
    bert,
    eurobert,
    gemma,
    gemma_model,
    jina_code,
    modernbert,
    neobert,
    qwen3,
    xlm_roberta,
)
from tests.helpers.tiny import tiny_config

transformers = pytest.importorskip("transformers", minversion="5.0", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow]

MODELS: dict[str, Callable[[Path], Path]] = {
    "EuroBERT": eurobert,
    "EuroBERT, other settings": functools.partial(eurobert, after=[], add_eos_token=True),
    "EuroBERT as Llama": functools.partial(eurobert, tokenizer_class="LlamaTokenizer", add_bos_token=False),
    "NeoBERT": neobert,
    "Qwen3-Embedding": functools.partial(qwen3, add_eos_token=False),
    "Qwen3-Embedding, first files": functools.partial(qwen3, after=[], add_eos_token=True),
    "EmbeddingGemma": functools.partial(gemma, add_eos_token=False),
    "EmbeddingGemma as a generic class": functools.partial(gemma, tokenizer_class="PreTrainedTokenizerFast"),
    "EmbeddingGemma, tokenizer.model": functools.partial(gemma_model, **GEMMA_SETTINGS),
    "EmbeddingGemma, tokenizer.model without <eos>": functools.partial(
        gemma_model, **GEMMA_SETTINGS | {"add_eos_token": False}
    ),
    "jina-embeddings-v3": functools.partial(xlm_roberta, model_type=None),
    "jina-embeddings-v3-hf": functools.partial(xlm_roberta, model_type="jina_embeddings_v3"),
    "nomic-embed-text-v2-moe": functools.partial(xlm_roberta, model_type="nomic_bert"),
    "jina-embeddings-v2-base-code": jina_code,
    "LaBSE": functools.partial(bert, lower=False),
    "ModernBERT": modernbert,
    "mmBERT": functools.partial(gemma, tokenizer_class="GemmaTokenizerFast"),
}
TEXTS = (
    *("the cat sat on the mat in Paris", "", " ", "the " * 60, "x" * 300, "a  b   c\n\n\nd\t e", "\r\n \r\n"),
    *("caf\u00e9 cafe\u0301 \U0001f642 \u4e2d\u6587 x", "\U0001f468\u200d\U0001f469\u200d\U0001f467 hi 12345"),
    *("\u2581\u2581 y", "it's 'S I'Ll don\u2019t", "\0\1 \ufffd \u00ad", "<mask> <unused0> [multimodal] [MASK]\u2581x"),
    "Hello <|im_start|>user\n<|im_end|> <think> <|endoftext|>",
    "a <s>gone</s> <mask> <bos><eos> <table> <|mask|>x <|begin_of_text|>",
)
PAIRS = (None, "the dog \U0001f642 caf\u00e9", "store " * 40)


@pytest.mark.parametrize("name", MODELS)
def test_inputs_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = MODELS[name](tmp_path / "model")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = theirs.init_kwargs.get("model_input_names")
    segments = "token_type_ids" in inputs if inputs else type(theirs).__name__ != "GemmaTokenizer"
    for longest in (32, 2048):
        ours = load_tokenizer(folder, tiny_config(vocab_size=1000, positions=Absolute(longest)))
        for text in TEXTS:
            for pair in PAIRS:
                expected = theirs(text, pair, truncation=True, max_length=longest)._encodings[0]
                if expected.ids:
                    found = ours.encode(text, pair, overflow="truncate")
                    assert (found.ids, found.offsets) == (expected.ids, expected.offsets), (text, pair)
                    assert found.token_type_ids == (expected.type_ids if segments else [0] * len(found))
                else:
                    assert not ours.pieces(text)
