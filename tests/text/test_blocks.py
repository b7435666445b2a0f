"""The windows of a long text, made one after the other: those of the whole text, and few of them in memory."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from mlxbert.errors import InputError
from mlxbert.text.blocks import pair_blocks, text_windows
from mlxbert.text.encoding import Encoding, Pieces
from mlxbert.text.parts import SIZE
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.windows import best_windows, judged_places
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


@pytest.mark.parametrize("text", [*(made_up(400, seed) for seed in range(5)), *ODD])
@pytest.mark.parametrize("size", [20, 100, 10_000])
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


def test_a_window_is_made_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the memory of a text does not grow with its length."""
    made: list[int] = []

    def assemble(self: Tokenizer, *how: object, **options: object) -> Encoding:
        made.append(1)
        return original(self, *how, **options)  # type: ignore[arg-type]

    small, original = tokenizer(20), Tokenizer.assemble
    asked: list[int] = []

    def split(self: Tokenizer, text: str) -> object:
        asked.append(len(text))
        return whole(self, text)

    whole = Tokenizer.split
    monkeypatch.setattr(Tokenizer, "assemble", assemble)
    monkeypatch.setattr(Tokenizer, "split", split)
    judged: Iterator[object] = judged_places(text_windows(small, "the cat sat . " * 5000, stride=5, size=500))
    assert len([*islice(judged, 4)]) == 4 and len(made) == 5
    assert max(asked) == 500 and sum(asked) < 2000


def test_a_text_without_spaces_takes_time_in_proportion_to_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    small, copied, asked = tokenizer(20), [0], list[int]()
    slices, split = Pieces.slice, Tokenizer.split

    def counted(self: Pieces, start: int, stop: int) -> Pieces:
        copied[0] += stop - start
        return slices(self, start, stop)

    def measured(self: Tokenizer, text: str) -> Pieces:
        asked.append(len(text))
        return split(self, text)

    monkeypatch.setattr(Pieces, "slice", counted)
    monkeypatch.setattr(Tokenizer, "split", measured)
    text = "." * 3000 + " the cat" * 500
    windows = [*text_windows(small, text, stride=5, size=500)]
    assert sum(len(window) for window in windows) > 3500
    assert copied[0] < 8 * 3500 and max(asked[-3:]) <= 500  # blocks are short again


@pytest.mark.parametrize("where", [0, 40_000])
def test_what_is_no_text_is_refused_before_the_first_window(where: int) -> None:
    text = "the " * (where // 4) + "\ud800"
    assert where > 2 * SIZE or not where
    with pytest.raises(InputError, match="surrogate"):
        next(text_windows(tokenizer(20), text, stride=5))
    with pytest.raises(InputError, match="surrogate"):
        next(pair_blocks(tokenizer(20), "the", text, stride=5))
