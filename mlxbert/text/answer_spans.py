"""Finds spans of a text that may answer a question, from the scores of tokens as the answer's first and last token.

The rule comes from the former pipeline in transformers. Each window has two softmaxes, one for the first and one for
the last token of the answer. They range over the tokens of the context and the first token of the input, which stands
for "no answer". The score of a span is the product of its two probabilities. If several windows contain a span, its
best score counts; for "no answer", the lowest score counts.

Shapes: L tokens in a window, K of them at which a span may begin or end.
"""

import bisect
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.text.encoding import Encoding
from mlxbert.text.words import trimmed, word_starts

# Words as `max_words` counts them. Each ideograph or kana counts as a word, since nothing separates words there.
_SINGLE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(f"[{_SINGLE}]|[^\\s{_SINGLE}]+")
_SURPLUS = 4  # candidates per kept span, because some differ only in whitespace or in the part of a word
_BUFFER = 4096  # spans that are added before all but the best are dropped
_BLOCK = 2**20  # spans whose scores are in memory together
_BITS = 32  # a place is one number, the start times 2**32 plus the end, so that places sort in the order of the text
_END = 2**_BITS - 1
_MANY_MARKS = 30  # after one letter: more than in any language, and each token would walk over a longer run


class Candidate(NamedTuple):
    """A span of a text, `[start, end)` in code points, and its probability."""

    start: int
    end: int
    score: float


class Spans:
    """The best spans of a text so far, and the probability that it has no answer.

    Memory is bounded, and the time to add a span does not depend on `count`.
    """

    def __init__(self, count: int) -> None:
        self.count = count  # the number of spans to keep
        self.no_answer = 1.0  # the lowest probability of "no answer" in a window so far; NaN if scores are not finite
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []  # places (see `_BITS`) and scores
        self._size, self._new = 0, False  # all spans, and whether some were added since the last count

    def add(self, spans: Iterable[Candidate], no_answer: float) -> None:
        """Adds the spans of a window and its probability of "no answer"."""
        self.no_answer = float(np.minimum(self.no_answer, no_answer))
        if spans_list := [*spans]:
            starts, ends, scores = zip(*spans_list, strict=True)
            self.add_all(np.array(starts, np.int64), np.array(ends, np.int64), np.array(scores, np.float64))

    def add_all(self, starts: "NDArray[np.int64]", ends: "NDArray[np.int64]", scores: "NDArray[np.float64]") -> None:
        """Adds spans; all arrays are (N,)."""
        self._take(starts << _BITS | ends, scores)

    def merge(self, other: "Spans") -> None:
        """Adds the spans of another part of the text and its probability of "no answer"."""
        self.add((), other.no_answer)
        self._take(*other._kept())

    def _take(self, places: "NDArray[np.int64]", scores: "NDArray[np.float64]") -> None:
        self._parts.append((places, scores))
        self._size, self._new = self._size + len(scores), True
        if self._size > 2 * self.count + _BUFFER:
            self._kept()

    @property
    def best(self) -> list[Candidate]:
        """The best spans, in descending order of score; equal scores are in the order of the text."""
        places, scores = self._kept()
        order = np.argsort(-scores, kind="stable")
        columns = (places[order] >> _BITS, places[order] & _END, scores[order])
        return [*map(Candidate, *(column.tolist() for column in columns))]

    @property
    def no_answer_share(self) -> float:
        """The probability of "no answer", divided by the sum of it and the probability of the best span."""
        best = float(self._kept()[1].max(initial=0.0))
        return self.no_answer / (self.no_answer + best) if self.no_answer + best > 0 else 0.5

    def _kept(self) -> "tuple[NDArray[np.int64], NDArray[np.float64]]":
        """Returns the places (see `_BITS`) and the scores of the best spans, in the order of the text.

        Drops all other spans.
        """
        if self._new or not self._parts:
            places = np.concatenate([np.zeros(0, np.int64), *(places for places, _ in self._parts)])
            scores = np.concatenate([np.zeros(0), *(scores for _, scores in self._parts)])
            order = np.argsort(places, kind="stable")  # linear time, because each part is sorted
            places, first = np.unique(places[order], return_index=True)
            scores = np.maximum.reduceat(scores[order], first) if len(first) else scores
            kept = _highest(scores, self.count)
            self._parts, self._size, self._new = [(places[kept], scores[kept])], len(kept), False
        return self._parts[0]


def window_spans(
    logits: "NDArray[np.floating[Any]]",
    encoding: Encoding,
    text: str,
    *,
    count: int,
    max_words: int,
    before: int = 0,
) -> Spans:
    """Returns the best spans of a window, and the probability that it has no answer.

    Args:
        logits: Scores of each token as the first and the last token, (L or more, 2); rows of padding are ignored.
        encoding: The window of a pair whose first text is the question, L tokens in all.
        text: The text that the window is a part of.
        before: The position in the text, in code points, from which the window's offsets count.
    """
    inside = [number for number, text_number in enumerate(encoding.sequence_ids) if text_number == 1]
    wide = np.asarray(logits, np.float64)[[0, *inside]]
    spans = Spans(count)
    if not np.isfinite(wide).all():
        spans.add((), np.nan)
        return spans
    shares = np.exp(wide - wide.max(axis=0))
    shares /= shares.sum(axis=0)
    spans.add((), float(shares[0, 0] * shares[0, 1]))
    offsets = ((before + start, before + end) for start, end in map(encoding.offsets.__getitem__, inside))
    places = [_stripped(text, place) for place in offsets]
    # A blank token neither begins nor ends an answer; a token within a word begins one with the whole word.
    kept = [number for number, (start, end) in enumerate(places) if start < end]
    if not kept:
        return spans
    token_starts, token_ends = zip(*(places[number] for number in kept), strict=True)
    places = [*zip(word_starts(text, token_starts), token_ends, strict=True)]
    first, last = (shares[1:][kept, side] for side in (0, 1))
    starts, ends = np.array(places, np.int64).T
    for begin, further, scores in _best_products(first, last, *_words(text, places), max_words, count * _SURPLUS):
        spans.add_all(starts[begin], ends[begin + further], scores)
    return spans


def _words(text: str, places: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Returns two lists (K,): the number of the word in which each token begins, and of the word in which it ends."""
    starts = [word.start() for word in _WORD.finditer(text, places[0][0], max(end for _, end in places))]
    return (
        [bisect.bisect_right(starts, start) for start, _ in places],
        [bisect.bisect_right(starts, end - 1) for _, end in places],
    )


def _best_products(
    first: "NDArray[np.float64]",
    last: "NDArray[np.float64]",
    begins: list[int],
    ends: list[int],
    max_words: int,
    count: int,
) -> "Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]":
    """Finds the spans with the highest scores; processes a block of possible first tokens at a time.

    Args:
        first: The probability of each token as the first token, (K,).
        last: The probability of each token as the last token, (K,).
        begins: The number of the word in which each token begins, (K,).
        ends: The number of the word in which each token ends, (K,).
        count: The number of spans per block.

    Yields:
        For each block, three arrays (N,): the first token of each span, the distance from its first to its last token,
        and its score.
    """
    # The maximum number of tokens in a span that begins here; at least 1, even if the token is longer than `max_words`.
    reach = np.maximum(np.searchsorted(ends, np.array(begins) + max_words) - np.arange(len(begins)), 1)
    width = int(reach.max())
    lasts = np.lib.stride_tricks.sliding_window_view(np.concatenate([last, np.zeros(width - 1)]), width)
    rows = max(_BLOCK // width, 1)
    for start in range(0, len(first), rows):
        part = slice(start, start + rows)
        scores = first[part, None] * lasts[part]
        scores[np.arange(width) >= reach[part, None]] = -1
        flat = scores.ravel()
        best = _highest(flat, count)
        best = best[flat[best] >= 0]
        yield start + best // width, best % width, flat[best]


def _highest(scores: "NDArray[np.float64]", count: int) -> "NDArray[np.int64]":
    """Returns the indices of the highest scores, in ascending order; prefers the first of equal scores. Linear time."""
    if len(scores) <= count:
        return np.arange(len(scores))
    lowest = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = scores > lowest
    above[np.flatnonzero(scores == lowest)[: count - int(above.sum())]] = True
    return np.flatnonzero(above)


def _stripped(text: str, place: tuple[int, int]) -> tuple[int, int]:
    """Strips whitespace, which some vocabularies include, and adds marks that belong to the last letter.

    An accent that is a code point of its own has no token, or another one than its letter.
    """
    start, end = trimmed(text, place)
    most = min(end + _MANY_MARKS, len(text))
    while start < end < most and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return start, end
