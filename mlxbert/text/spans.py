"""Spans of a text that may answer a question, from the scores of each token as the first and the last of the answer.

The rule is that of transformers' former pipeline: within a window, a softmax over the tokens of the context and the
first token of the input, which stands for "no answer", once for the first and once for the last token of the answer; a
span scores their product. Of a span that several windows have, the best score counts; of "no answer" the lowest one.

Shapes: L tokens of a window, K tokens of it that a span may begin or end with.
"""

import bisect
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mlxbert.text.encoding import Encoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Words as `max_words` counts them. Ideographs and kana count one by one, since nothing separates words there.
_SINGLE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(f"[{_SINGLE}]|[^\\s{_SINGLE}]+")
_SPARE = 4  # times as many candidates as are kept: some differ in whitespace alone


class Candidate(NamedTuple):
    """A span of a text, `[start, end)` in code points, and its probability."""

    start: int
    end: int
    score: float


class Spans:
    """The best spans of a text so far, and how probable it is that there is none.

    Attributes:
        count: How many are kept.
        no_answer: The lowest probability of "no answer" in a window so far.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._scores: dict[tuple[int, int], float] = {}
        self.no_answer = 1.0

    def add(self, spans: Iterable[Candidate], no_answer: float) -> None:
        """Adds the spans of a window, and its probability of "no answer"."""
        self.no_answer = min(self.no_answer, no_answer)
        for start, end, score in spans:
            self._scores[start, end] = max(score, self._scores.get((start, end), 0.0))
        self._scores = {(start, end): score for start, end, score in self.best}

    @property
    def best(self) -> list[Candidate]:
        """The best spans, the best first; of equal ones the first in the text."""
        ranked = sorted(self._scores.items(), key=lambda item: (-item[1], item[0]))
        return [Candidate(*place, score) for place, score in ranked[: self.count]]

    @property
    def no_answer_share(self) -> float:
        """The share of "no answer" in what it and the best span have together, 0 to 1."""
        best = max(self._scores.values(), default=0.0)
        return self.no_answer / (self.no_answer + best) if self.no_answer + best > 0 else 0.5


def window_spans(
    logits: "NDArray[np.floating[Any]]",
    encoding: Encoding,
    text: str,
    *,
    count: int,
    max_words: int,
    before: int = 0,
) -> Spans:
    """The best spans of a window, and the probability that it has no answer.

    Args:
        logits: Scores of each token as the first and the last one, (L or more, 2); padding is left out.
        encoding: The window of a pair: the question, and L tokens in all.
        text: The text that the window is a part of.
        count: How many spans are wanted.
        max_words: The most words that a span may have.
        before: Code points of the text in front of what the offsets of the window count in.
    """
    import numpy as np

    inside = [number for number, text_number in enumerate(encoding.sequence_ids) if text_number == 1]
    wide = np.asarray(logits, np.float64)[[0, *inside]]
    shares = np.exp(wide - wide.max(axis=0))
    shares /= shares.sum(axis=0)
    spans = Spans(count)
    spans.add((), float(shares[0, 0] * shares[0, 1]))
    offsets = ((before + start, before + end) for start, end in map(encoding.offsets.__getitem__, inside))
    places = [_stripped(text, *place) for place in offsets]
    # A token of whitespace alone neither begins nor ends an answer.
    kept = [number for number, (start, end) in enumerate(places) if start < end]
    if not kept:
        return spans
    places = [places[number] for number in kept]
    first, last = (shares[1:][kept, side] for side in (0, 1))
    scores = _products(first, last, *_words(text, places), max_words)
    found = (divmod(int(number), scores.shape[1]) for number in _largest(scores.ravel(), count * _SPARE))
    spans.add(
        [
            Candidate(places[begin][0], places[begin + further][1], float(scores[begin, further]))
            for begin, further in found
        ],
        spans.no_answer,
    )
    return spans


def _words(text: str, places: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The numbers of the words in which tokens begin and end, (K,) each."""
    found = [word.start() for word in _WORD.finditer(text, places[0][0], max(end for _, end in places))]
    return (
        [bisect.bisect_right(found, start) for start, _ in places],
        [bisect.bisect_right(found, end - 1) for _, end in places],
    )


def _products(
    first: "NDArray[np.float64]", last: "NDArray[np.float64]", begins: list[int], ends: list[int], max_words: int
) -> "NDArray[np.float64]":
    """The score of every span, (K, D): of those that begin at each token, with 1 to D tokens; -1 for one too long.

    `first` and `last` are the probabilities of each token, `begins` and `ends` the numbers of its words, (K,) each.
    """
    import numpy as np

    # How many tokens a span that begins here may have; at least one, even if that is more than one word.
    reach = np.maximum(np.searchsorted(ends, np.array(begins) + max_words) - np.arange(len(begins)), 1)
    width = int(reach.max())
    padded = np.concatenate([last, np.zeros(width - 1)])
    scores = first[:, None] * np.lib.stride_tricks.sliding_window_view(padded, width)
    scores[np.arange(width) >= reach[:, None]] = -1
    return scores


def _largest(scores: "NDArray[np.float64]", count: int) -> "NDArray[np.int64]":
    """The numbers of the largest scores that are not negative, the largest first."""
    import numpy as np

    count = min(count, len(scores))
    some = np.argpartition(-scores, count - 1)[:count]
    ranked = some[np.lexsort((some, -scores[some]))]
    return ranked[scores[ranked] >= 0]


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Offsets without the whitespace around; some vocabularies take the space before a word into its first token."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
