"""Spans of a text that may answer a question, from the scores of each token as the first and the last of the answer.

The rule is that of transformers' former pipeline: within a window, a softmax over the tokens of the context and the
first token of the input, which stands for "no answer", once for the first and once for the last token of the answer; a
span scores their product. Of a span that several windows have, the best score counts; of "no answer" the lowest one.

Shapes: L tokens of a window, K tokens of it that a span may begin or end with.
"""

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mlxbert.text.encoding import Encoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Words as `max_words` counts them. Ideographs and kana count one by one, since nothing separates words there.
_SINGLE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(f"[{_SINGLE}]|[^\\s{_SINGLE}]+")
_SPARE = 4  # times as many candidates as are kept: some differ in whitespace alone
_SOME = 4096  # spans that are added before those are forgotten that are not among the best
_AT_ONCE = 2**20  # spans whose scores are in memory together
_BITS = 32  # a place is one number, the start times 2**32 and the end: in the order of the text
_END = 2**_BITS - 1


class Candidate(NamedTuple):
    """A span of a text, `[start, end)` in code points, and its probability."""

    start: int
    end: int
    score: float


class Spans:
    """The best spans of a text so far, and how probable it is that there is none.

    What is kept is bounded: a span is added in constant time, however many are wanted.

    Attributes:
        count: How many are kept.
        no_answer: The lowest probability of "no answer" in a window so far.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.no_answer = 1.0
        self._found: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []  # places, see `_BITS`, and their scores
        self._size = 0

    def add(self, spans: Iterable[Candidate], no_answer: float) -> None:
        """Adds the spans of a window, and its probability of "no answer"."""
        import numpy as np

        self.no_answer = min(self.no_answer, no_answer)
        if listed := [*spans]:
            starts, ends, scores = zip(*listed, strict=True)
            self.add_all(np.array(starts, np.int64), np.array(ends, np.int64), np.array(scores, np.float64))

    def add_all(self, starts: "NDArray[np.int64]", ends: "NDArray[np.int64]", scores: "NDArray[np.float64]") -> None:
        """Adds spans, (N,) each."""
        self._take(starts << _BITS | ends, scores)

    def merge(self, other: "Spans") -> None:
        """Adds the spans of another part of the text, and its probability of "no answer"."""
        self.no_answer = min(self.no_answer, other.no_answer)
        self._take(*other._kept())

    def _take(self, places: "NDArray[np.int64]", scores: "NDArray[np.float64]") -> None:
        self._found.append((places, scores))
        self._size += len(scores)
        if self._size > 2 * self.count + _SOME:
            self._kept()

    @property
    def best(self) -> list[Candidate]:
        """The best spans, the best first; of equal ones the first in the text."""
        import numpy as np

        places, scores = self._kept()
        order = np.argsort(-scores, kind="stable")
        columns = (places[order] >> _BITS, places[order] & _END, scores[order])
        return [*map(Candidate, *(column.tolist() for column in columns))]

    @property
    def no_answer_share(self) -> float:
        """The share of "no answer" in what it and the best span have together, 0 to 1."""
        best = float(self._kept()[1].max(initial=0.0))
        return self.no_answer / (self.no_answer + best) if self.no_answer + best > 0 else 0.5

    def _kept(self) -> "tuple[NDArray[np.int64], NDArray[np.float64]]":
        """The places and scores of the best spans, in the order of the text; the others are forgotten."""
        import numpy as np

        if len(self._found) != 1 or self._size > self.count:
            places = np.concatenate([np.zeros(0, np.int64), *(places for places, _ in self._found)])
            scores = np.concatenate([np.zeros(0), *(scores for _, scores in self._found)])
            order = np.argsort(places, kind="stable")  # of parts in order, which takes linear time
            places, first = np.unique(places[order], return_index=True)
            scores = np.maximum.reduceat(scores[order], first) if len(first) else scores
            some = _highest(scores, self.count)
            self._found, self._size = [(places[some], scores[some])], len(some)
        return self._found[0]


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
    starts, ends = np.array(places, np.int64).T
    for begin, further, scores in _best_products(first, last, *_words(text, places), max_words, count * _SPARE):
        spans.add_all(starts[begin], ends[begin + further], scores)
    return spans


def _words(text: str, places: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The numbers of the words in which tokens begin and end, (K,) each."""
    found = [word.start() for word in _WORD.finditer(text, places[0][0], max(end for _, end in places))]
    return (
        [bisect.bisect_right(found, start) for start, _ in places],
        [bisect.bisect_right(found, end - 1) for _, end in places],
    )


def _best_products(
    first: "NDArray[np.float64]",
    last: "NDArray[np.float64]",
    begins: list[int],
    ends: list[int],
    max_words: int,
    count: int,
) -> "Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]":
    """The spans with the highest scores, a part of the tokens that they begin with at a time.

    Args:
        first: The probability of each token as the first one, (K,).
        last: The probability of each token as the last one, (K,).
        begins: The number of the word in which each token begins, (K,).
        ends: The number of the word in which each token ends, (K,).
        max_words: The most words that a span may have.
        count: How many spans are wanted of each part.

    Yields:
        Of each span the token that it begins with, how many tokens further it ends, and its score, (N,) each.
    """
    import numpy as np

    # How many tokens a span that begins here may have; at least one, even if that is more than one word.
    reach = np.maximum(np.searchsorted(ends, np.array(begins) + max_words) - np.arange(len(begins)), 1)
    width = int(reach.max())
    lasts = np.lib.stride_tricks.sliding_window_view(np.concatenate([last, np.zeros(width - 1)]), width)
    rows = max(_AT_ONCE // width, 1)
    for start in range(0, len(first), rows):
        part = slice(start, start + rows)
        scores = first[part, None] * lasts[part]
        scores[np.arange(width) >= reach[part, None]] = -1
        flat = scores.ravel()
        some = _highest(flat, count)
        some = some[flat[some] >= 0]
        yield start + some // width, some % width, flat[some]


def _highest(scores: "NDArray[np.float64]", count: int) -> "NDArray[np.int64]":
    """The numbers of the highest scores, in their order; of equal scores the first ones. Takes linear time."""
    import numpy as np

    if len(scores) <= count:
        return np.arange(len(scores))
    lowest = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = scores > lowest
    above[np.flatnonzero(scores == lowest)[: count - int(above.sum())]] = True
    return np.flatnonzero(above)


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Offsets without the whitespace around; some vocabularies take the space before a word into its first token."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
