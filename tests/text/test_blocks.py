"""The windows of a long text, made one after the other: those of the whole text, and few of them in memory."""

import time
from dataclasses import replace
from itertools import islice, pairwise

import pytest
from hypothesis import given, strategies as st

from mlxbert.errors import InputError
from mlxbert.text.encoding import Encoding
from mlxbert.text.text_windows import pair_blocks, text_windows
from mlxbert.text.token_blocks import SIZE
from mlxbert.text.window_stitching import best_windows, judged_places
from mlxbert.weights.tokenizers.text_growth import MAX_TEXT
from tests.helpers.cases import together
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


def test_where_windows_overlap_each_serves_its_half() -> None:
    windows = tokenizer(12).windows(" ".join("cat" for _ in range(16)), stride=4)  # tokens 0 to 9, and 6 to 15
    assert best_windows(windows) == [(0, 1 + token) for token in range(8)] + [(1, 3 + token) for token in range(8)]
