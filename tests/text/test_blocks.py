"""The windows of a long text, made one after the other: those of the whole text, and few of them in memory."""

import functools
import json
import random
import time
import tracemalloc
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mlxbert.config import Absolute
from mlxbert.errors import InputError
from mlxbert.text import token_blocks, tokenizer as module
from mlxbert.text.encoding import Encoding, Pieces
from mlxbert.text.text_windows import pair_blocks, text_windows
from mlxbert.text.token_blocks import SIZE, beginning, has_more_tokens
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.window_stitching import best_windows, judged_places
from mlxbert.weights.tokenizers.text_growth import MAX_TEXT
from mlxbert.weights.tokenizers.tokenizer_files import has_words_between_spaces, read_tokenizer
from tests.helpers.cases import fast, together
from tests.helpers.published import eurobert, gemma
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import byte_files, put, trained
from tests.text.test_spans import made_up
from tests.text.test_tokenizer import QUICK, SENTENCES, tokenizer

ODD = [
    "",
    "cat",
    "the cat " * 40,
    " " * 300,
    "x" * 300,
    "\n\ncat" + " " * 200 + "dog",
    "a\x1ccat.\x85dog \u3000the " * 30,
]


def without_end(window: Encoding) -> Encoding:
    """The window, without the position of the special token behind it."""
    return replace(window, positions=window.positions[:-1])


@together("text", [*(made_up(400, seed) for seed in range(5)), *ODD])
@together("size", [20, 100, 10_000])
def test_they_are_those_of_the_whole_text(text: str, size: int) -> None:
    small = tokenizer(20)
    for stride in (0, 5):
        found = [*text_windows(small, text, stride=stride, size=size)]
        assert [*map(without_end, found)] == [*map(without_end, small.windows(text, stride=stride))]


def test_each_judges_the_tokens_that_have_most_context_in_it() -> None:
    windows = tokenizer(20).windows(made_up(400, 1), stride=5)
    judged = [*judged_places(iter(windows))]
    assert [window for window, _ in judged] == windows
    assert [(number, place) for number, (_, places) in enumerate(judged) for place in places] == best_windows(windows)


def test_windows_are_made_when_they_are_asked_for() -> None:
    """A text that is too long to be tokenized at once; the memory for it does not grow with its length."""
    text = "the cat sat . " * (MAX_TEXT // 7)
    assert len([*islice(judged_places(text_windows(tokenizer(20), text, stride=5)), 4)]) == 4


def test_a_text_without_spaces_takes_time_in_proportion_to_its_length() -> None:
    small, took = tokenizer(20), list[float]()
    for length in (4000, 32_000):
        start = time.process_time()
        assert sum(1 for _ in text_windows(small, "." * length, stride=5, size=500)) > length // 20
        took.append(time.process_time() - start)
    assert took[1] < 32 * took[0]  # 8, and 64 if a block began anew with everything before it


@pytest.mark.parametrize("where", [0, 40_000])
def test_what_is_no_text_is_refused_before_the_first_window(where: int) -> None:
    text = "the " * (where // 4) + "\ud800"
    assert where > 2 * SIZE or not where
    with pytest.raises(InputError, match="surrogate"):
        next(text_windows(tokenizer(20), text, stride=5))
    with pytest.raises(InputError, match="surrogate"):
        next(pair_blocks(tokenizer(20), "the", text, stride=5))
    with pytest.raises(InputError, match="surrogate"):
        tokenizer(16).encode(text, overflow="truncate")


def contexts(windows: list[Encoding]) -> dict[int, list[int]]:
    """For each token, by its position in the whole text, what it has of the text on its poorer side in each window."""
    found: dict[int, list[int]] = {}
    for window in windows:
        run = [at for at, text in zip(window.positions, window.sequence_ids, strict=True) if text == 0]
        for position in run:
            found.setdefault(position, []).append(min(position - run[0], run[-1] - position))
    return found


@QUICK
@given(SENTENCES, st.integers(6, 40), st.integers(0, 12))
def test_every_token_once_in_order_and_where_it_has_most_context(
    words: list[str], max_length: int, stride: int
) -> None:
    text = " ".join(words)
    try:
        windows = tokenizer(max_length).windows(text, stride=stride)
    except InputError:
        return
    whole, chosen = tokenizer().encode(text), best_windows(windows)
    tokens = range(1, len(whole) - 1)
    assert [windows[number].positions[place] for number, place in chosen] == [*tokens]
    assert [windows[number].offsets[place] for number, place in chosen] == [whole.offsets[token] for token in tokens]
    assert [windows[number].ids[place] for number, place in chosen] == [whole.ids[token] for token in tokens]
    around = contexts(windows)
    for number, place in chosen:
        run = [at for at, owner in enumerate(windows[number].sequence_ids) if owner == 0]
        assert min(place - run[0], run[-1] - place) == max(around[windows[number].positions[place]])
    assert all(one[0] <= other[0] for one, other in pairwise(chosen))


PARTS = [
    *("the ", "cat", "dog ", "in Paris ", " ", "  ", "\n", "\t", "\u4e2d\u6587", "\uff0c", "e\u0301", "\u0301"),
    *("\ufdfa ", "\U0001f600", "12,345", "it's ", "[MASK]", " <mask> ", "x" * 120, "\u200b", "\u3000", "\u2026"),
    *("!!", "\uac00\ub098 "),
]


def mixed_text(length: int, seed: int) -> str:
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
    text, other = mixed_text(900, seed), mixed_text(1100 + seed, 100 + seed)
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
    text = mixed_text(9000, 3)
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
