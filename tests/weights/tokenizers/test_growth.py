"""Vocabularies whose steps multiply a text: refused before they run; and patterns that fail on some texts."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

import mlxbert
from mlxbert.errors import InputError
from mlxbert.text.tokenizer import load_tokenizer
from mlxbert.weights.tokenizers.library_guards import MAX_OUTPUT
from mlxbert.weights.tokenizers.text_growth import growth_of
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers import tiny
from tests.helpers.tiny import VOCAB, tiny_config
from tests.helpers.vocabularies import HEAD, pieces_file, plain, put
from tests.weights.tokenizers.test_checks import charsmap, precompiled, refusal, unigram, word_pieces


def replace(old: Any, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old} if isinstance(old, str) else old, "content": new}


def with_steps(folder: Path, part: str, *steps: dict[str, Any], **more: Any) -> Path:
    """A folder with a tokenizer.json that has these steps, in a sequence within a sequence."""
    names = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    word_pieces(folder)
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    inner = {"type": "Sequence", names[part]: list(steps)}
    saved[part] = {"type": "Sequence", names[part]: [inner]}
    return put(folder, {"tokenizer.json": saved | more})


TEN = replace("a", "a" * 10)
GROWING: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "ten of one, twelve times": ("normalizer", [TEN] * 12, "1,000,000,000,000 times"),
    "two of one": ("normalizer", [replace("a", "aa")] * 7, "128 times"),
    "a few between any two": ("normalizer", [replace({"Regex": "x*"}, "y" * 64)], "65 times"),
    "nothing replaced": ("normalizer", [replace("", "y" * 64)], "65 times"),
    "put in front": ("normalizer", [{"type": "Prepend", "prepend": "a" * 2000}, TEN], "20,010 times"),
    "compatibility forms": ("normalizer", [{"type": "NFKD"}, replace(" ", "\ufdfa")] * 3, "times as long"),
    "a table": ("normalizer", [precompiled(charsmap() + b"b" * 200)] * 2, "40,000 times"),
    "in the decoder": ("decoder", [TEN] * 12, "1,000,000,000,000 times"),
    "before the model": ("pre_tokenizer", [{"type": "Metaspace", "replacement": "_"}] * 2, "25 times"),
    "many steps": ("normalizer", [{"type": "Strip", "strip_left": True, "strip_right": True}] * 65, "has 65 steps"),
}


@pytest.mark.parametrize("case", GROWING)
def test_a_vocabulary_that_multiplies_a_text_is_refused_before_it_is_used(tmp_path: Path, case: str) -> None:
    part, steps, said = GROWING[case]
    start = time.perf_counter()
    message = refusal(with_steps(tmp_path, part, *steps))
    assert said in message and part in message
    assert time.perf_counter() - start < 2


def test_it_cannot_hide_in_escapes_or_old_spellings(tmp_path: Path) -> None:
    folder = with_steps(tmp_path, "normalizer", *[TEN] * 12)
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    for old, new in (
        ('"normalizer"', '"norm\\u0061lizer"'),
        ('{"type": "Sequence", "normalizers"', '{"normalizers"'),
        ('{"String": "a"}', '{"Str\\u0069ng": "\\u0061"}'),
    ):
        assert old in text
        put(folder, {"tokenizer.json": text.replace(old, new)})
        assert "1,000,000,000,000 times" in refusal(folder)


@pytest.mark.parametrize("many", ["texts", "tokens", "ids", "steps"])
def test_a_post_processor_that_makes_many_tokens_is_refused(tmp_path: Path, many: str) -> None:
    cls, text = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    single = {"texts": [text, text], "tokens": [cls] * 65 + [text]}.get(many, [cls, text])
    ids = [2] * (65 if many == "ids" else 1)
    template = {
        **{"type": "TemplateProcessing", "single": single, "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}]},
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": ids, "tokens": ["[CLS]"] * len(ids)}},
    }
    word_pieces(tmp_path)
    saved = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    saved["post_processor"] = {"type": "Sequence", "processors": [template] * (65 if many == "steps" else 1)}
    assert "post_processor" in refusal(put(tmp_path, {"tokenizer.json": saved}))


def test_added_tokens_may_not_be_long_when_they_are_normalized(tmp_path: Path) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    for normalized in (True, False):
        added = [
            {"id": len(VOCAB) + n, "content": f"{n}" + "a" * 2000, "normalized": normalized, **flags}
            for n in range(200)
        ]
        folder = with_steps(tmp_path / f"whole-{normalized}", "normalizer", replace("a", "a" * 60), added_tokens=added)
        if normalized:
            assert "the 400,490 bytes of the added tokens" in refusal(folder)
        else:
            assert read_tokenizer(folder).tokenizer.token_to_id("0" + "a" * 2000) == len(VOCAB)
    folder = with_steps(tmp_path / "settings", "normalizer", replace("a", "a" * 60))
    entries = {str(len(VOCAB)): {"content": "a" * 400_000, "normalized": True, **flags}}
    put(folder, {"tokenizer_config.json": {"added_tokens_decoder": entries}})
    assert "the 400,000 bytes of the added tokens" in refusal(folder)


def test_a_table_makes_few_bytes_of_a_character(tmp_path: Path) -> None:
    entries = [*HEAD, *plain("\u2581", "a")]
    for size in (MAX_OUTPUT, MAX_OUTPUT + 1):
        table = charsmap() + b"b" * size
        folder = put(tmp_path / str(size), {"sentencepiece.bpe.model": pieces_file(entries, normalizer={2: table})})
        if size == MAX_OUTPUT:
            assert read_tokenizer(folder).tokenizer.get_vocab_size() > 2
        else:
            assert "replaced by 257 bytes" in refusal(folder)
    assert "replaced by 257 bytes" in refusal(unigram(tmp_path / "whole", steps=precompiled(charsmap() + b"b" * 257)))


NORMALIZERS = {
    "NFC": normalizers.NFC(),
    "NFD": normalizers.NFD(),
    "NFKC": normalizers.NFKC(),
    "NFKD": normalizers.NFKD(),
    "Lowercase": normalizers.Lowercase(),
    "Bert": normalizers.BertNormalizer(),
    "Nmt": normalizers.Nmt(),
    "StripAccents": normalizers.StripAccents(),
    "ByteLevel": normalizers.ByteLevel(),
    "Replace": normalizers.Replace(" ", "\u2581"),
    "Regex": normalizers.Replace(Regex(" {2,}"), " "),
    "Prepend": normalizers.Prepend("\u2581"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMALIZERS)
def test_no_character_grows_more_than_is_said(tmp_path: Path, name: str) -> None:
    found = read_tokenizer(word_pieces(tmp_path)).tokenizer
    found.normalizer = NORMALIZERS[name]
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    total = growth_of(found).total
    for number in (number for number in range(1, 0x110000) if not 0xD800 <= number < 0xE000):
        grown = len(NORMALIZERS[name].normalize_str(chr(number)).encode()) / len(chr(number).encode())
        assert grown <= total, hex(number)
    assert growth_of(found).written <= 2


def test_usual_vocabularies_take_two_million_characters(tmp_path: Path) -> None:
    albert = [replace("``", '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
    albert += [precompiled(charsmap() + b"b" * 33), replace({"Regex": "^ | $"}, "")]
    found = load_tokenizer(with_steps(tmp_path, "normalizer", *albert), tiny_config())
    assert found.growth.total == pytest.approx(11 * 1.5 * 33)
    assert found.growth.max_text == 2**21
    found = mlxbert.load().tokenizer
    assert found.growth.max_text == 2**21


def test_a_pattern_that_fails_on_a_text_fails_only_this_text(tmp_path: Path) -> None:
    folder = with_steps(tmp_path, "normalizer", replace({"Regex": "(x|xx|xxx)+$"}, "y"))
    for file in tiny.save(tmp_path / "model").iterdir():
        put(folder, {file.name: file.read_bytes()})
    put(folder, {"tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}'})  # read as it is
    model = mlxbert.load(folder)
    bad = "x" * 60 + "b"  # more ways than the library tries
    first, failure, last = mlxbert.tokenize(model, ["the cat", bad, "dog"], on_error="return")
    assert isinstance(failure, mlxbert.Failure) and isinstance(failure.error, InputError)
    assert "the tokenizer fails" in failure.error.message and failure.error.hint is None
    assert isinstance(first, mlxbert.Tokens) and isinstance(last, mlxbert.Tokens)
    assert [token.token for token in last.tokens] == ["[CLS]", "dog", "[SEP]"] and len(first.tokens) == 4
    results = [*mlxbert.embed_stream(model, ["the cat", bad, "dog"], on_error="return")]
    assert [isinstance(result, mlxbert.Failure) for result in results] == [False, True, False]
