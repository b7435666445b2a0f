"""Added tokens, however the files of a folder name them: ids next to those of transformers; malformed ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import TokenizerError
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers import tiny
from tests.helpers.vocabularies import byte_files, put

WORDS = [*dict.fromkeys(tiny.VOCAB), "[unused1]", *"fobarx", "##o", "##b", "##a", "##r"]
VOCAB = list(dict.fromkeys(WORDS))
NEXT = len(VOCAB)
BERT: dict[str, Any] = {"vocab.txt": "\n".join(VOCAB) + "\n"}
TEXT = "the cat<e1> [unused1] <E1> FooBar x foobar <bos> <e2>[MASK] <s></s> the"


def entry(content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content, "special": True, **plain, **flags}


WAYS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "additional": ({"additional_special_tokens": ["[unused1]", "<e1>"]}, {}),
    "extra, a list": ({"extra_special_tokens": ["<e2>", "<e1>"]}, {}),
    "extra, a table": ({"extra_special_tokens": {"first_token": "<e1>", "second_token": "<e2>"}}, {}),
    "both lists": ({"extra_special_tokens": ["<e2>"], "additional_special_tokens": ["<e1>"]}, {}),
    "bos and an extra": ({"bos_token": "<bos>", "extra_special_tokens": ["<e1>"]}, {}),
    "added_tokens.json": ({}, {"FooBar": NEXT, "<e1>": NEXT + 1}),
    "added_tokens.json, special": ({"additional_special_tokens": ["<e1>"]}, {"FooBar": NEXT, "<e1>": NEXT + 1}),
    "decoder": ({"added_tokens_decoder": {str(NEXT): entry("<e1>"), str(NEXT + 1): entry("<e2>")}}, {}),
}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_added_tokens_of_bert_have_the_ids_of_transformers(way: str, whole: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings, added = WAYS[way]
    folder = put(tmp_path, {**BERT, "config.json": {"model_type": "bert"}})
    if whole:
        read_tokenizer(folder).tokenizer.save(str(folder / "tokenizer.json"))
    put(folder, {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer", **settings}})
    if added:
        put(folder, {"added_tokens.json": added})
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ours = read_tokenizer(folder).tokenizer
    assert ours.encode(TEXT).ids == theirs(TEXT)["input_ids"] and ours.get_vocab_size() == len(theirs)


@pytest.mark.parametrize("settings", [{"additional_special_tokens": ["<e1>"]}, {"bos_token": "<bos>"}])
@pytest.mark.slow
def test_added_tokens_of_roberta_have_the_ids_of_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = put(tmp_path, {**byte_files(), "config.json": {"model_type": "roberta"}})
    put(folder, {"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer", **settings}})
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text = "the<e1> in <bos>Paris</s>"
    assert read_tokenizer(folder).tokenizer.encode(text).ids == theirs(text)["input_ids"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("mask_token", 5), ("bos_token", ["a"]), ("extra_special_tokens", "<e1>"), ("additional_special_tokens", [3]),
     ("model_max_length", "512"), ("model_max_length", True)],
)  # fmt: skip
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_malformed_settings_are_refused_by_file_and_key(tmp_path: Path, key: str, value: object, file: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        read_tokenizer(put(tmp_path, {**BERT, file: json.dumps({key: value})}))
    assert all(part in caught.value.message for part in (file, key, repr(value), "expected"))


def test_a_class_is_named_as_the_file_says_it(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="'HerbertTokenizerFast'"):
        read_tokenizer(put(tmp_path, {**BERT, "tokenizer_config.json": {"tokenizer_class": "HerbertTokenizerFast"}}))
