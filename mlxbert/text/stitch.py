"""Overlapping windows of a text put together again: every token is judged once, where it has most context."""

from collections.abc import Sequence

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
