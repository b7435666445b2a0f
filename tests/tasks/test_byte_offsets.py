"""Byte-level vocabularies whose steps put spaces before words, in any order: every task gives whole words."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers as steps,
    processors,
    trainers,
)

import mlxbert
from mlxbert.labels.labels import Labels
from tests.helpers.rooms import needs
from tests.tasks.test_reranker import language_model, load as load_reranker

TEXT = "De haven van Rotterdam's dom (112 m) ligt in Utrecht, 'Hé' .  Ça va 😀 in Rotterdam?"
WORDS = (
    *(["De", "haven", "van", "Rotterdam", "'s", "dom", "(", "112", "m", ")", "ligt", "in", "Utrecht", ","]),
    *(["'", "Hé", "'", ".", "Ça", "va", "😀", "in", "Rotterdam", "?"]),
)  # fmt: skip
PREFIX = steps.ByteLevel(add_prefix_space=True)
ORDERS = {
    "RoBERTa": steps.ByteLevel(add_prefix_space=False),
    "prefix": PREFIX,
    "RobBERT": steps.Sequence([steps.Whitespace(), PREFIX, steps.Punctuation()]),
    "bytes last": steps.Sequence([steps.Whitespace(), steps.Punctuation(), PREFIX]),
    "bytes first": steps.Sequence([PREFIX, steps.Punctuation(), steps.Digits(individual_digits=True)]),
    "digits": steps.Sequence([steps.WhitespaceSplit(), steps.Digits(individual_digits=True), PREFIX]),
}
ENDS = ("</s>", 2), ("<s>", 0)
TRIMS = {
    "never": processors.RobertaProcessing(*ENDS, trim_offsets=False),
    "once": processors.RobertaProcessing(*ENDS, add_prefix_space=False),
    "but the first": processors.RobertaProcessing(*ENDS, add_prefix_space=True),
    "twice": processors.Sequence([processors.ByteLevel(), processors.RobertaProcessing(*ENDS)]),
}


def save(folder: Path, order: Any, trim: Any, *, prepends: bool = False) -> mlxbert.Model:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = order
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = sorted(steps.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, special_tokens=special)
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.normalizer = normalizers.Prepend(" ") if prepends else None
    tokenizer.post_processor, tokenizer.decoder = trim, decoders.ByteLevel()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = sizes | {"model_type": "roberta", "vocab_size": 300, "max_position_embeddings": 200, "pad_token_id": 1}
    heads = {"question_answering": None, "token_classifier": Labels(("NOUN", "VERB"))}
    mlxbert.new_model(config, folder, heads=heads, dtype="float32").save(folder.with_name("saved"))
    return mlxbert.load(folder.with_name("saved"), dtype="float32")


# Each order with one way to trim, and each way to trim with one order.
PAIRS = {*zip([*ORDERS, "a space in front"], [*TRIMS] * 2, strict=False), *(("RobBERT", trim) for trim in TRIMS)}


@pytest.mark.parametrize(("order", "trim"), sorted(PAIRS))
def test_spans_never_begin_inside_a_word(order: str, trim: str, tmp_path: Path) -> None:
    front = order not in ORDERS
    model = save(tmp_path / "model", ORDERS["RoBERTa" if front else order], TRIMS[trim], prepends=front)
    tokens = [token for token in mlxbert.tokenize(model, TEXT).tokens if token.token.strip("Ġ")][1:-1]
    for token in tokens:
        shown = model.tokenizer.decode(token.id).strip()
        assert "\ufffd" in shown or TEXT[token.start : token.end].strip() == shown, token
    assert tuple(word.text for word in mlxbert.tag(model, TEXT).entities) == WORDS
    assert tuple(word.word for word in mlxbert.embed_words(model, TEXT).words) == WORDS
    for text, count in ((TEXT, 300), (" ".join([TEXT] * 9), 99)):
        result = mlxbert.answer(model, ("wat?", text), top_k=count, no_answer_threshold=1)
        assert result.spans
        for span in result.spans:
            before = result.context[max(span.start - 1, 0) : span.start + 1]
            assert span.start == 0 or not before.isalnum(), span


@needs("explore")
def test_explained_words_are_whole_too(tmp_path: Path) -> None:
    tagger = save(tmp_path / "tagger", ORDERS["bytes first"], TRIMS["twice"])
    explained = mlxbert.explain(tagger, TEXT, task="tag", at="Utrecht", steps=2)
    assert tuple(word.token for word in explained.words) == WORDS
    model = load_reranker(language_model(tmp_path / "model"))
    texts = "Who sat on it?", "The cat sat."
    found = mlxbert.explain(model, *texts, task="rerank", steps=2)
    assert [word.token for word in found.words] == ["Who", "sat", "on", "it", "?", "The", "cat", "sat", "."]
    assert all(texts[word.text][word.start : word.end] == word.token for word in found.words)
