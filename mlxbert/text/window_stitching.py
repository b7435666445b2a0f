"""Merges overlapping windows of a text: each token's result comes from the window in which it has the most context."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from mlxbert.text.encoding import Encoding


def best_windows(windows: Sequence[Encoding]) -> list[tuple[int, int]]:
    """Chooses, for each token of a text, the window in which it is furthest from the nearest edge.

    Args:
        windows: The windows of one text, in order; see `Tokenizer.windows`.

    Returns:
        For each token of the whole text, without special tokens, the number of the window and the token's index in that
        window. In a tie, the first window is chosen.
    """
    best: dict[int, tuple[int, int, int]] = {}
    for number, window in enumerate(windows):
        places = [place for place, text in enumerate(window.sequence_ids) if text == 0]
        for place in places:
            context = min(place - places[0], places[-1] - place)
            position = window.positions[place]
            if position not in best or context > best[position][0]:
                best[position] = context, number, place
    return [best[position][1:] for position in sorted(best)]


def judged_places(windows: Iterable[Encoding]) -> Iterator[tuple[Encoding, list[int]]]:
    """Yields each window of a text, and the indices of the tokens whose results it gives (see `best_windows`).

    Keeps only three windows in memory: only neighbours may overlap.
    """
    following = iter(windows)
    before: list[Encoding] = []
    current = [*islice(following, 1)]
    while current:
        after = [*islice(following, 1)]
        best = best_windows([*before, *current, *after])
        yield current[0], [place for window, place in best if window == len(before)]
        before, current = current, after
