"""Tokenizers of newer embedding models: ends, padding, special tokens and bytes, as their files say.

A slow test compares them with transformers: ids, offsets and segments, whole and truncated.
"""

import functools
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mlxbert import loading
from mlxbert.config import Absolute
from mlxbert.errors import InputError, TokenizerError
from mlxbert.text.batch import make_batch
from mlxbert.text.tokenizer import Tokenizer, load_tokenizer
from tests.helpers.cases import together
from tests.helpers.cells import quick
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
from tests.helpers.vocabularies import HEAD, pieces_file, plain, put

ENDS: dict[str, tuple[Callable[..., Path], list[str], list[str]]] = {
    "EuroBERT": (eurobert, ["<|begin_of_text|>"], ["<|end_of_text|>"]),
    "EuroBERT without an end": (functools.partial(eurobert, after=[]), ["<|begin_of_text|>"], []),
    "Qwen3-Embedding": (qwen3, [], ["<|endoftext|>"]),
    "Qwen3-Reranker": (functools.partial(qwen3, after=[]), [], []),
    "EmbeddingGemma": (gemma, ["<bos>"], ["<eos>"]),
    "EmbeddingGemma, tokenizer.model": (gemma_model, ["<bos>"], ["<eos>"]),
}


def opened(folder: Path, longest: int = 32) -> Tokenizer:
    return load_tokenizer(folder, tiny_config(vocab_size=1000, positions=Absolute(longest)))


@functools.cache
def made(make: Callable[..., Path]) -> Tokenizer:
    with TemporaryDirectory() as place:
        return opened(make(Path(place)), 2048)


def tokens(found: Tokenizer, text: str, pair: str | None = None) -> list[str]:
    return [found.token(number) for number in found.encode(text, pair, overflow="truncate").ids]


@pytest.mark.sampled
@pytest.mark.parametrize("name", ENDS)
def test_the_ends_are_there_however_long_a_text_is(name: str, tmp_path: Path) -> None:
    make, before, after = ENDS[name]
    found = opened(make(tmp_path))
    for text in ("the cat", "the cat sat on the mat " * 50, "x" * 6_000):
        got = tokens(found, text)
        assert got[: len(before)] == before and got[len(got) - len(after) :] == after
        assert len(got) == (32 if len(text) > 99 else 2 + len(before + after) + (got[len(before)] == "t"))
        for pair in (tokens(found, text, "Paris"), tokens(found, "Paris", text)):
            assert [token for token in pair if token in before + after] == (before + after) * 2
    for window in found.windows("the cat sat on the mat " * 50, stride=4):
        assert [found.token(number) for number in window.ids][len(window) - len(after) :] == after
    if before + after:
        assert tokens(found, "") == before + after
    else:
        with pytest.raises(InputError, match="no token"):
            found.encode("")


@pytest.mark.parametrize("wanted", [True, False])
def test_ends_in_the_settings_count_only_without_a_tokenizer_json(wanted: bool, tmp_path: Path) -> None:
    settings = {"add_bos_token": wanted, "add_eos_token": wanted}
    for number, (make, before, after) in enumerate(ENDS.values()):
        found = opened(make(tmp_path / str(number), **settings))
        if make is gemma_model:
            before, after = (before, after) if wanted else ([], [])
        assert tokens(found, "\u00e9")[: len(before)] == before and tokens(found, "the")[-1:] == (after or ["the"])
    one = {"add_bos_token": wanted, "add_eos_token": not wanted}
    alone = tokens(opened(gemma_model(tmp_path / "one", **GEMMA_SETTINGS | one)), "the", "cat")
    assert [token for token in alone if token in ("<bos>", "<eos>")] == ["<bos>" if wanted else "<eos>"] * 2


def test_padding_is_what_the_mask_says_not_an_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The config.json of EuroBERT pads with the token that ends a text, its tokenizer with another."""
    found = opened(eurobert(tmp_path))
    end, pad = found.token_id("<|end_of_text|>"), found.token_id("<|pad|>")
    assert end is not None and found.special["pad"] == "<|pad|>"
    config = tiny_config(vocab_size=found.vocab_size, pad_token_id=end, type_vocab_size=0)
    batch: Any = make_batch([found.encode("the cat sat on the mat"), found.encode("the<|end_of_text|>")], config)
    ids, mask = batch.input_ids.tolist(), batch.attention_mask.tolist()
    assert ids[1][-1] == ids[1][2] == end and mask[1] == [number < 4 for number in range(len(ids[1]))]
    for number, warned in ((end, False), (7, True)):
        loading._warn_about_tokenizer("here", found, replace(config, pad_token_id=number))
        assert bool(caplog.records) == warned
    assert f"pads with token {pad}, but pad_token_id in config.json is 7" in caplog.text


def test_special_tokens_in_a_text_are_those_of_the_files(tmp_path: Path) -> None:
    text = "<|im_start|>the<|im_end|><think> <|im_sep|><mask><s>"
    qwen, euro, pieces = (opened(make(tmp_path / make.__name__)) for make in (qwen3, eurobert, gemma))
    found = {one: [one.token(number) for number in one.pieces(text)] for one in (qwen, euro, pieces)}
    added = [token for token in found[qwen] if token.startswith("<") and len(token) > 2]
    assert added == ["<|im_start|>", "<|im_end|>", "<think>"]
    assert not [token for token in found[euro] if token.startswith("<") and len(token) > 2]
    assert found[pieces][-2:] == ["<mask>", "<s>"] and "<|im_start|>" not in found[pieces]
    assert len(qwen.encode_many(["<|im_start|>"])[0].ids) > 1  # where special tokens are text, as in corpora


def test_a_placeholder_of_gemma_without_an_embedding_is_refused_in_a_text_alone(tmp_path: Path) -> None:
    """The tokenizer of EmbeddingGemma has one token more than the model."""
    saved = json.loads((gemma(tmp_path) / "tokenizer.json").read_text(encoding="utf-8"))
    rows, name = len(saved["model"]["vocab"]), "<image_soft_token>"
    for added in ("<other>", name):
        token = dict(saved["added_tokens"][0], id=rows, content=added)
        put(tmp_path, {"tokenizer.json": saved | {"added_tokens": [*saved["added_tokens"], token]}})
        if added != name:
            with pytest.raises(TokenizerError, match="word embeddings"):
                load_tokenizer(tmp_path, tiny_config(vocab_size=rows))
    found = load_tokenizer(tmp_path, tiny_config(vocab_size=rows))
    assert found.vocab_size == rows and found.token_id(name) is None and found.known_ids() is None
    assert max(found.encode("the <image_soft_token ").ids) < rows
    assert max(found.encode_many([name])[0].ids) < rows and found.adapted(lower_case=True).pieces("THE")
    with pytest.raises(InputError, match="the text has <image_soft_token>, for which"):
        found.encode("the <image_soft_token>")
    assert load_tokenizer(tmp_path, tiny_config(vocab_size=rows + 64)).token_id(name) == rows


def test_roles_are_those_of_the_settings_whatever_the_vocabulary_has(tmp_path: Path) -> None:
    """`<s>` and `</s>` are tokens of Gemma, for HTML."""
    for number, make in enumerate((gemma, gemma_model)):
        found = opened(make(tmp_path / str(number)))
        assert found.token_id("<s>") is not None
        assert found.special == {role: f"<{role}>" for role in ("bos", "eos", "unk", "pad", "mask")}
        assert found.decode(found.encode("a <s>b</s> c").ids, skip_special_tokens=True) == "a <s>b</s> c"
    assert opened(qwen3(tmp_path / "qwen")).special == {"eos": "<|im_end|>", "pad": "<|endoftext|>"}


@pytest.mark.parametrize("make", [gemma, gemma_model])
def test_a_character_that_no_piece_covers_is_bytes_with_its_place(make: Callable[..., Path]) -> None:
    found, behind = made(make), "\U0001f468\u200d\U0001f469\u200d\U0001f467\u4e2d"
    split = found.split(f"a\U0001f642b {behind}")
    shown = [found.token(number) for number in split.ids]
    assert shown[1:5] == ["<0xF0>", "<0x9F>", "<0x99>", "<0x82>"] and "<unk>" not in shown
    assert split.offsets[:6] == [(0, 1), *[(1, 2)] * 4, (2, 3)]
    places = [(place, place + 1) for place, letter in enumerate(behind, start=4) for _ in letter.encode()]
    assert split.offsets[-len(places) :] == places


@quick(60)
@given(st.text(st.sampled_from("the cat\u00e9e\u0301 \n\u4e2d\U0001f642\u200d\u2581<s>\u00df\u0130\t"), max_size=40))
@pytest.mark.parametrize("make", [eurobert, gemma, gemma_model])
def test_tokens_cover_a_text_without_gaps_and_read_as_it(make: Callable[..., Path], text: str) -> None:
    found = made(make)
    split, covered = found.split(text), 0
    for (start, end), before in zip(split.offsets, [(0, 0), *split.offsets], strict=False):
        assert start < end and start in (covered, before[0])  # bytes of one character share its place
        covered = end
    assert covered == len(text)
    assert found.decode(split.ids) == (text if make is eurobert else text.replace("\u2581", " "))


@quick(60)
@given(st.text(st.sampled_from("e\u0301\u1100\u1161\u212b \U0001f642ab"), max_size=30))
def test_offsets_of_composed_characters_lie_in_the_text_as_written(text: str) -> None:
    split = made(qwen3).split(text)
    assert all(0 <= start < end <= len(text) for start, end in split.offsets)
    assert split.offsets == sorted(split.offsets)


@together(
    ("settings", "said"),
    [
        *(
            ({"normalizer": changes, "trainer": {3: 2}}, "Gemma")
            for changes in ({}, {3: 1}, {3: 0, 4: 1}, {3: 0, 4: 0, 2: b"\0" * 8})
        ),
        ({"normalizer": {3: 0, 4: 0}}, "a unigram model"),
        ({"normalizer": {3: 0, 4: 0}, "trainer": {3: 2}}, "the bos token '<bos>' is not in the vocabulary"),
    ],
)
def test_a_model_that_is_not_like_gemmas_is_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    content = pieces_file([*HEAD, *plain("\u2581", "a")], **settings)
    with pytest.raises(TokenizerError, match=said):
        opened(put(tmp_path, {"tokenizer.model": content}))


MODELS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "EuroBERT": (eurobert, {}),
    "EuroBERT, other settings": (eurobert, {"after": [], "add_eos_token": True}),
    "EuroBERT as Llama": (eurobert, {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}),
    "NeoBERT": (neobert, {}),
    "Qwen3-Embedding": (qwen3, {"add_eos_token": False}),
    "Qwen3-Embedding, first files": (qwen3, {"after": [], "add_eos_token": True}),
    "EmbeddingGemma": (gemma, {"add_eos_token": False}),
    "EmbeddingGemma as a generic class": (gemma, {"tokenizer_class": "PreTrainedTokenizerFast"}),
    "EmbeddingGemma, tokenizer.model": (gemma_model, GEMMA_SETTINGS),
    "EmbeddingGemma, tokenizer.model without <eos>": (gemma_model, GEMMA_SETTINGS | {"add_eos_token": False}),
    "jina-embeddings-v3": (xlm_roberta, {"model_type": None}),
    "jina-embeddings-v3-hf": (xlm_roberta, {"model_type": "jina_embeddings_v3"}),
    "nomic-embed-text-v2-moe": (xlm_roberta, {"model_type": "nomic_bert"}),
    "jina-embeddings-v2-base-code": (jina_code, {}),
    "LaBSE": (bert, {"lower": False}),
    "ModernBERT": (modernbert, {}),
    "mmBERT": (gemma, {"tokenizer_class": "GemmaTokenizerFast"}),
}
_TEXTS = (
    *("the cat sat on the mat in Paris", "", " ", "the " * 60, "x" * 300, "a  b   c\n\n\nd\t e", "\r\n \r\n"),
    *("caf\u00e9 cafe\u0301 \U0001f642 \u4e2d\u6587 x", "\U0001f468\u200d\U0001f469\u200d\U0001f467 hi 12345"),
    *("\u2581\u2581 y", "it's 'S I'Ll don\u2019t", "\0\1 \ufffd \u00ad", "<mask> <unused0> [multimodal] [MASK]\u2581x"),
    "Hello <|im_start|>user\n<|im_end|> <think> <|endoftext|>",
    "a <s>gone</s> <mask> <bos><eos> <table> <|mask|>x <|begin_of_text|>",
)
PAIRS = (None, "the dog \U0001f642 caf\u00e9", "store " * 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_inputs_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0")
    make, settings = MODELS[name]
    folder = make(tmp_path / "model", **settings)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = theirs.init_kwargs.get("model_input_names")
    segments = "token_type_ids" in inputs if inputs else type(theirs).__name__ != "GemmaTokenizer"
    for longest in (32, 2048):
        ours = opened(folder, longest)
        for text, pair in itertools.product(_TEXTS, PAIRS):
            expected = theirs(text, pair, truncation=True, max_length=longest)._encodings[0]
            if not expected.ids:
                assert not ours.pieces(text)
                continue
            found = ours.encode(text, pair, overflow="truncate")
            assert (found.ids, found.offsets) == (expected.ids, expected.offsets), (text, pair)
            assert found.token_type_ids == (expected.type_ids if segments else [0] * len(found))
