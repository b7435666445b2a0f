"""A linear-chain conditional random field: scores pairs of consecutive tags, in addition to the tags of each word.

Lafferty, McCallum, Pereira (2001), "Conditional random fields"; over the output of an encoder as in arXiv:1603.01360.

Shapes: B sentences, W words, C tags.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from mlxbert.labels.schemes import allowed, scheme_of
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx, nn
from mlxbert.nn.ops import backend

Array: TypeAlias = "NDArray[np.float64]"
Scores: TypeAlias = "tuple[Array, Array, Array]"

# AdamW changes every number by about the learning rate; the encoder's rate is a hundredth of what the scores need.
SCALE = 100.0
SECTION = 256  # words whose forward pass is in memory at a time
FORBIDDEN = -1e4  # far below all sums of other scores, and float32 still has digits for differences around it


class CRF(nn.Module):
    """Scores sequences of tags; sequences that the tagging scheme forbids are neither decoded nor trained.

    Attributes:
        start: (C,), the score of each tag at the beginning of a sentence, divided by `SCALE`.
        transitions: (C, C), the score of each tag (column) after each tag (row), divided by `SCALE`.
        end: (C,), the score of each tag at the end of a sentence, divided by `SCALE`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Creates a CRF in which all scores are 0.

        Args:
            names: The C tags. Tags with B- and I- are read as IOB2: names alone do not distinguish it from IOB1.
        """
        super().__init__()
        count = len(names)
        self.start, self.transitions, self.end = mx.zeros(count), mx.zeros((count, count)), mx.zeros(count)
        self._allowed = allowed(scheme_of(names), names)

    def scores(self) -> tuple[mx.array, mx.array, mx.array]:
        """The scores of the start (C,), of transitions (C, C) from row to column, and of the end (C,), in float32."""
        may_begin, may_follow, may_end = self._allowed

        def scores(stored: mx.array, allowed: list[Any]) -> mx.array:
            # The mask is made here, since threads must not share lazy arrays.
            return mx.where(mx.array(allowed), stored.astype(mx.float32) * SCALE, FORBIDDEN)

        return scores(self.start, may_begin), scores(self.transitions, may_follow), scores(self.end, may_end)

    def loss(self, emissions: mx.array, tags: mx.array, mask: mx.array) -> mx.array:
        """Returns the negative log-likelihood of each sentence's tags, summed over the sentences, float32.

        Args:
            emissions: (B, W, C), the score of each tag of each word.
            tags: Integers (B, W); any valid tag in place of padding.
            mask: (B, W), 1 for the words of a sentence, at the beginning of its row, and 0 for padding. The loss of a
                row without words is 0.
        """
        wide, words = emissions.astype(mx.float32), mask.astype(mx.bool_)
        start, transitions, end = self.scores()
        count = wide.shape[-1]
        score = mx.where(words, mx.take_along_axis(wide, tags[..., None], axis=-1)[..., 0], 0.0).sum(axis=1)
        steps = transitions.reshape(-1)[tags[:, :-1] * count + tags[:, 1:]]
        score = score + mx.where(words[:, 1:], steps, 0.0).sum(axis=1)
        last = mx.maximum(words.astype(mx.int32).sum(axis=1, keepdims=True) - 1, 0)
        score = score + start[tags[:, 0]] + end[mx.take_along_axis(tags, last, axis=1)[:, 0]]
        # Forward algorithm: after each word, the logarithm of the sum over all paths that end in each tag.
        with backend().step_by_step():
            paths, into = start + wide[:, 0], transitions.T
            for word in range(1, wide.shape[1]):
                longer = mx.logsumexp(paths[:, None, :] + into, axis=-1) + wide[:, word]
                paths = mx.where(words[:, word : word + 1], longer, paths)
        total = mx.logsumexp(paths + end, axis=-1)
        return mx.where(words[:, 0], total - score, 0.0).sum()

    def decode(self, emissions: "NDArray[np.floating]") -> list[int]:
        """Returns the most likely tags of a sentence (Viterbi).

        Args:
            emissions: (W, C); W may be 0.
        """
        if not len(emissions):
            return []
        start, transitions, end = self._as_numpy()
        best = start + emissions[0]
        back = np.empty(emissions.shape, np.min_scalar_type(len(start)))  # small integers, as there may be many words
        for word, row in enumerate(emissions[1:], 1):
            through = best[:, None] + transitions
            back[word] = through.argmax(axis=0)
            best = through.max(axis=0) + row
        tags = [int((best + end).argmax())]
        for pointers in back[:0:-1]:
            tags.append(int(pointers[tags[-1]]))
        return tags[::-1]

    def marginals(self, emissions: "NDArray[np.floating]") -> "Array":
        """Returns the probability of each tag for each word, over all sequences of tags (forward-backward).

        Args:
            emissions: (W, C); W may be 0.

        Returns:
            (W, C), rows that sum to 1.
        """
        rows = np.empty(emissions.shape)
        for word, row in self._backward(emissions):
            rows[word] = row
        return rows

    def shares(self, emissions: "NDArray[np.floating]", tags: Sequence[int]) -> "Array":
        """Returns the probability of a single tag for each word, over all sequences of tags, (W,).

        Args:
            emissions: (W, C); W may be 0.
        """
        probabilities = np.empty(len(emissions))
        for word, row in self._backward(emissions):
            probabilities[word] = row[tags[word]]
        return probabilities

    def _backward(self, emissions: "NDArray[np.floating]") -> "Iterator[tuple[int, Array]]":
        """Yields each word's index and marginals, from the last word to the first.

        To save memory, the forward scores are kept only at the beginning of each section, and computed again within it.
        """
        start, transitions, end = self._as_numpy()
        sections = [*range(0, len(emissions), SECTION)]
        before = [start]  # for the first word of each section, the sum over all paths before it
        for section in sections[1:]:
            *_, last = self._forward(before[-1], emissions[section - SECTION : section], transitions)
            before.append(_log_sum(last[:, None] + transitions))
        after = end
        for section in reversed(sections):
            rows = emissions[section : section + SECTION]
            forward = [*self._forward(before.pop(), rows, transitions)]
            for word in reversed(range(len(rows))):
                share = np.exp(forward[word] + after - (forward[word] + after).max())
                yield section + word, share / share.sum()
                after = _log_sum((transitions + rows[word] + after).T)

    @staticmethod
    def _forward(before: "Array", rows: "NDArray[np.floating]", transitions: "Array") -> "Iterator[Array]":
        """Yields an array of scores, one per tag, for each word.

        A tag's score is the log-sum-exp of the scores of all tag sequences that end with this tag at this word.
        """
        for row in rows:
            scores = row + before
            yield scores
            before = _log_sum(scores[:, None] + transitions)

    def _as_numpy(self) -> "Scores":
        start, transitions, end = (np.array(array, np.float64) for array in self.scores())
        return start, transitions, end


def _log_sum(scores: "Array") -> "Array":
    """Returns the logarithm of the sum of the exponentials in each column."""
    largest = scores.max(axis=0)
    log_sum: Array = largest + np.log(np.exp(scores - largest).sum(axis=0))
    return log_sum
