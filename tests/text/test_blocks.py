"""The windows of a long text, made one after the other: those of the whole text, and few of them in memory."""

import time
from dataclasses import replace
from itertools import islice

import pytest

from mlxbert.errors import InputError
from mlxbert.text.encoding import Encoding
from mlxbert.text.text_windows import pair_blocks, text_windows
from mlxbert.text.token_blocks import SIZE
from mlxbert.text.window_stitching import best_windows, judged_places
from mlxbert.weights.tokenizers.text_growth import MAX_TEXT
from tests.helpers.cases import together
from tests.text.test_spans import made_up
from tests.text.test_tokenizer import tokenizer

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
