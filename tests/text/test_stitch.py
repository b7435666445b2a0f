"""Windows stitched: every token once, in order, and from the window that shows most of what is around it."""

from itertools import pairwise

from hypothesis import given, strategies as st

from mlxbert.errors import InputError
from mlxbert.text.encoding import Encoding
from mlxbert.text.window_stitching import best_windows
from tests.text.test_tokenizer import QUICK, SENTENCES, tokenizer


def contexts(windows: list[Encoding], sequence: int) -> dict[int, list[int]]:
    """For each token, by its position in the whole text, what it has of the text on its poorer side in each window."""
    found: dict[int, list[int]] = {}
    for window in windows:
        run = [at for at, text in zip(window.positions, window.sequence_ids, strict=True) if text == sequence]
        for position in run:
            found.setdefault(position, []).append(min(position - run[0], run[-1] - position))
    return found


@QUICK
@given(SENTENCES, st.none() | SENTENCES, st.integers(6, 40), st.integers(0, 12))
def test_every_token_once_in_order_and_where_it_has_most_context(
    words: list[str], first: list[str] | None, max_length: int, stride: int
) -> None:
    texts = [" ".join(words)] if first is None else [" ".join(first), " ".join(words)]
    sequence = len(texts) - 1
    try:
        windows = tokenizer(max_length).windows(*texts, stride=stride)
    except InputError:
        return
    whole = tokenizer().encode(*texts)
    chosen = best_windows(windows, sequence)
    tokens = [place for place, text in enumerate(whole.sequence_ids) if text == sequence]
    assert [windows[number].positions[place] for number, place in chosen] == tokens
    assert [windows[number].offsets[place] for number, place in chosen] == [whole.offsets[token] for token in tokens]
    assert [windows[number].ids[place] for number, place in chosen] == [whole.ids[token] for token in tokens]
    around = contexts(windows, sequence)
    for number, place in chosen:
        run = [at for at, text in enumerate(windows[number].sequence_ids) if text == sequence]
        assert min(place - run[0], run[-1] - place) == max(around[windows[number].positions[place]])
    assert all(one[0] <= other[0] for one, other in pairwise(chosen))


def test_where_windows_overlap_each_serves_its_half() -> None:
    windows = tokenizer(12).windows(" ".join("cat" for _ in range(16)), stride=4)  # tokens 0 to 9, and 6 to 15
    assert best_windows(windows) == [(0, 1 + token) for token in range(8)] + [(1, 3 + token) for token in range(8)]
