"""Long texts of which only the beginning is tokenized: the result is that of the whole text."""

import functools
import json
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.config import Absolute
from mlxbert.errors import InputError
from mlxbert.text import token_blocks, tokenizer as module
from mlxbert.text.encoding import Encoding, Pieces
from mlxbert.text.text_windows import text_windows
from mlxbert.text.token_blocks import SIZE, beginning, has_more_tokens
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.tokenizers.text_growth import MAX_TEXT
from mlxbert.weights.tokenizers.tokenizer_files import has_words_between_spaces, read_tokenizer
from tests.helpers.cases import fast
from tests.helpers.published import eurobert, gemma
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import byte_files, put, trained
from tests.text.test_tokenizer import tokenizer

PARTS = [
    *("the ", "cat", "dog ", "in Paris ", " ", "  ", "\n", "\t", "\u4e2d\u6587", "\uff0c", "e\u0301", "\u0301"),
    *("\ufdfa ", "\U0001f600", "12,345", "it's ", "[MASK]", " <mask> ", "x" * 120, "\u200b", "\u3000", "\u2026"),
    *("!!", "\uac00\ub098 "),
]


def made_up(length: int, seed: int) -> str:
    random.seed(seed)
    weights = [random.random() ** 3 for _ in PARTS]
    return "".join(random.choices(PARTS, weights, k=length))


@functools.cache
def of_kind(kind: str, folder: Path) -> Tokenizer:
    if kind == "words":
        return tokenizer(64)
    if kind == "one word":
        return Tokenizer(read_tokenizer(gemma(folder)), tiny_config(vocab_size=500, positions=Absolute(65)))
    files = byte_files() if kind == "bytes" else {"sentencepiece.bpe.model": trained()}
    return Tokenizer(read_tokenizer(put(folder, files)), tiny_config(vocab_size=200, positions=Absolute(65)))


def without_after(found: Encoding, texts: int) -> Encoding:
    """The input without the positions of what stands behind a truncated text."""
    kept = len(found) if not found.truncated else found.sequence_ids.index(0) + found.sequence_ids.count(0)
    return replace(found, positions=found.positions[:kept] if texts == 2 else found.positions[:-1])


@pytest.mark.parametrize("kind", ["words", "bytes", "pieces", "one word"])
@pytest.mark.parametrize("seed", fast(range(12), 0))
def test_a_truncated_text_is_the_beginning_of_the_whole_one(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    found = of_kind(kind, tmp_path_factory.getbasetemp() / kind)
    text, other = made_up(900, seed), made_up(1100 + seed, 100 + seed)
    inputs: list[list[Any]] = []
    for size in (10**6, 150, 600):
        monkeypatch.setattr(token_blocks, "SIZE", size)
        monkeypatch.setattr(module, "SIZE", size)
        monkeypatch.setattr(token_blocks, "_MARGIN", 130)
        monkeypatch.setattr(token_blocks, "_PER_TOKEN", 1)
        inputs.append(
            [
                without_after(found.encode(text, overflow="truncate"), 1),
                without_after(found.encode(text, other, overflow="truncate"), 2),
                without_after(found.encode(other, "the cat", overflow="truncate"), 2),
                *(without_after(one, 2) for one in found.encode_each(text, ["the", "cat in"], overflow="truncate")),
            ]
        )
        assert has_more_tokens(found.split, text, other) == (len(found.pieces(text)) > len(found.pieces(other)))
    if kind == "one word":  # to the library; only long texts have the words between spaces
        inputs = [[replace(one, word_ids=[]) for one in some] for some in inputs]
    assert inputs[0] == inputs[1] == inputs[2]
    assert all(one.truncated for one in inputs[0])


@pytest.mark.parametrize("seed", fast(range(5), 0, 3))
def test_no_token_is_of_where_the_text_was_cut(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random.seed(seed)
    words = ["unbelievably", "cafe\u0301", " ", " ", " ", "[MASK]", "embeddings" * 11, "3.14", "a"]  # one is unknown
    text = "".join(random.choices(words, k=60))
    split, lengths = tokenizer().split, set()
    monkeypatch.setattr(token_blocks, "_MARGIN", len("[MASK]"))
    for size in range(20, 400):
        monkeypatch.setattr(token_blocks, "SIZE", size)
        found, whole = beginning(split, text, 1), split(text)
        assert (found.ids, found.offsets, found.words) == tuple(
            one[: len(found)] for one in (whole.ids, whole.offsets, whole.words)
        )
        lengths.add(len(found))
    assert len(lengths) > 5 and min(lengths) > 1


def test_a_text_longer_than_may_be_tokenized_at_once_is_truncated() -> None:
    long, text = tokenizer(128), "the cat sat " * 400_000
    assert len(text) > 2 * MAX_TEXT
    assert len(long.encode(text, overflow="truncate")) == 128
    assert len(long.encode("who", text, overflow="truncate")) == 128
    assert len(long.encode_each(text, ["a", "b"], overflow="truncate")[1]) == 128
    with pytest.raises(InputError, match=r"at least [\d,]+ tokens"):
        long.encode(text)


def test_a_long_text_that_is_one_word_to_the_library_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = of_kind("one word", tmp_path)
    text = made_up(9000, 3)
    assert len(text) > 2 * SIZE
    whole, sizes = found.split(text), list[int]()
    split = found.split

    def counted(text: str) -> Pieces:
        sizes.append(len(text))
        return split(text)

    monkeypatch.setattr(found, "split", counted)
    blocks = [*token_blocks.token_blocks(found.split, text)]
    assert [number for block in blocks for number in block.ids] == whole.ids
    assert [place for block in blocks for place in block.offsets] == whole.offsets
    assert found.encode(text, overflow="truncate").ids[1:-1] == whole.ids[:63]
    assert len(blocks) > 2 and max(sizes) == SIZE


def test_a_vocabulary_whose_pieces_go_over_a_space_is_read_whole(tmp_path: Path) -> None:
    folder = gemma(tmp_path)
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    saved["model"]["vocab"]["s\u2581the"] = len(saved["model"]["vocab"])
    saved["model"]["merges"].append(["s", "\u2581the"])
    for change, expected in ((False, True), (True, False)):
        if change:
            put(folder, {"tokenizer.json": saved})
        assert has_words_between_spaces(read_tokenizer(folder).tokenizer) is expected
    assert not has_words_between_spaces(read_tokenizer(eurobert(tmp_path / "bytes")).tokenizer)


def test_what_is_no_character_is_found_behind_the_beginning() -> None:
    with pytest.raises(InputError, match="surrogate"):
        tokenizer(16).encode("the cat " * SIZE + "\ud800", overflow="truncate")


@pytest.mark.slow
def test_a_text_that_has_to_be_tokenized_at_once_is_not_longer_than_the_memory() -> None:
    small = tokenizer(16)
    words = "the " * (MAX_TEXT // 4 + 1)
    for refused in (
        lambda: small.encode("x" * (MAX_TEXT + 1), overflow="truncate"),  # no word ends
        lambda: small.windows(words, stride=0),
        lambda: small.around(words, 103),
        lambda: [*text_windows(small, "the " * SIZE + "x" * MAX_TEXT, stride=0)],
        lambda: next(text_windows(small, "the " * SIZE + "x" * MAX_TEXT, stride=0)),  # not in the midst of a text
    ):
        with pytest.raises(InputError, match=r"more than [\d,]+ characters"):
            refused()
    assert next(text_windows(small, words, stride=0)).truncated


def test_a_text_that_grows_when_it_is_normalized_is_measured_first(tmp_path: Path) -> None:
    found = of_kind("pieces", tmp_path)  # whose table of replacements is NFKC
    assert found.growth.total >= 18
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="more than 2,097,152 characters"):
            found.pieces("\ufdfa" * 200_000)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert len(found.pieces("\ufdfa" * 100)) > 100


@pytest.mark.slow
def test_a_task_truncates_a_long_text_and_says_so() -> None:
    model = mlxbert.load()
    text = "The man walks to the river. " * 30_000
    (long,) = mlxbert.embed_stream(model, [text])
    (short,) = mlxbert.embed_stream(model, [text[:12_000]])
    assert long.truncated and long.text == text
    assert (long.embedding == short.embedding).all() and long.tokens == short.tokens
