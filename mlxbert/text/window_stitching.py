"""Overlapping windows of a text put together again: every token is judged once, where it has most context."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from mlxbert.text.encoding import Encoding


def best_windows(windows: Sequence[Encoding], sequence: int = 0) -> list[tuple[int, int]]:
    """For each token of a text the window to judge it in: the one in which it is furthest from both edges.

    Args:
        windows: The windows of one text, in its order; see `Tokenizer.windows`.
        sequence: Which text of a pair: 0 for the first, 1 for the second.

    Returns:
        For each token of the whole text, without special tokens, the number of the window and its index in that
        window; of windows with as much context, the first.
    """
    found: dict[int, tuple[int, int, int]] = {}
    for number, window in enumerate(windows):
        places = [place for place, text in enumerate(window.sequence_ids) if text == sequence]
        for place in places:
            context = min(place - places[0], places[-1] - place)
            position = window.positions[place]
            if position not in found or context > found[position][0]:
                found[position] = context, number, place
    return [found[position][1:] for position in sorted(found)]


def judged_places(windows: Iterable[Encoding]) -> Iterator[tuple[Encoding, list[int]]]:
    """Each window of a text with the indices of the tokens to judge in it, as in `best_windows`; three are in memory.

    Args:
        windows: The windows of one text, in its order, of which only neighbours overlap.
    """
    following = iter(windows)
    before: list[Encoding] = []
    this = [*islice(following, 1)]
    while this:
        after = [*islice(following, 1)]
        best = best_windows([*before, *this, *after])
        yield this[0], [place for window, place in best if window == len(before)]
        before, this = this, after
