"""A linear-chain conditional random field: a score for every tag after every other, on top of those of the words.

Lafferty, McCallum, Pereira (2001), "Conditional random fields"; over the output of an encoder as in arXiv:1603.01360.

Shapes: B sentences, W words, C tags.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mlxbert.labels.schemes import allowed, scheme_of
from mlxbert.machine.device import mx, nn
from mlxbert.nn import ops

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Scores = tuple[Array, Array, Array]

# AdamW moves every number by about the learning rate, which suits the encoder: a hundredth of what scores need.
SCALE = 100.0
SECTION = 256  # words whose forward pass is kept at a time
FORBIDDEN = -1e4  # no sum of other scores comes near it, and float32 still tells its neighbours apart


class CRF(nn.Module):
    """Scores of sequences of tags; what the scheme of the tags forbids is never decoded and not trained.

    Attributes:
        start: (C,), the score of each tag at the beginning, divided by `SCALE`.
        transitions: (C, C), the score of each tag (column) after each other one (row), divided by `SCALE`.
        end: (C,), the score of each tag at the end, divided by `SCALE`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Makes one whose scores are 0.

        Args:
            names: The C tags. Those with B- and I- are read as IOB2, as names alone do not tell it from IOB1.
        """
        super().__init__()
        count = len(names)
        self.start, self.transitions, self.end = mx.zeros(count), mx.zeros((count, count)), mx.zeros(count)
        self._allowed = allowed(scheme_of(names), names)

    def scores(self) -> tuple[mx.array, mx.array, mx.array]:
        """Scores of the start (C,), of transitions (C, C) from row to column, and of the end (C,), in float32."""
        may_begin, may_follow, may_end = self._allowed

        def scores(stored: mx.array, may: list[Any]) -> mx.array:
            # The mask is made here: threads do not share lazy arrays.
            return mx.where(mx.array(may), stored.astype(mx.float32) * SCALE, FORBIDDEN)

        return scores(self.start, may_begin), scores(self.transitions, may_follow), scores(self.end, may_end)

    def loss(self, emissions: mx.array, tags: mx.array, mask: mx.array) -> mx.array:
        """The sum over sentences of the negative log-likelihood of their tags, float32.

        Args:
            emissions: (B, W, C), the score of each tag of each word.
            tags: Integers (B, W); any valid one where there is no word.
            mask: (B, W), 1 for the words of a sentence, which are the first of its row; 0 for padding. A row without
                words counts as 0.
        """
        wide, words = emissions.astype(mx.float32), mask.astype(mx.bool_)
        start, transitions, end = self.scores()
        count = wide.shape[-1]
        found = mx.where(words, mx.take_along_axis(wide, tags[..., None], axis=-1)[..., 0], 0.0).sum(axis=1)
        steps = transitions.reshape(-1)[tags[:, :-1] * count + tags[:, 1:]]
        found = found + mx.where(words[:, 1:], steps, 0.0).sum(axis=1)
        last = mx.maximum(words.astype(mx.int32).sum(axis=1, keepdims=True) - 1, 0)
        found = found + start[tags[:, 0]] + end[mx.take_along_axis(tags, last, axis=1)[:, 0]]
        # Forward algorithm: after each word the logarithm of the sum over all paths that end in each tag.
        with ops.step_by_step():
            paths, into = start + wide[:, 0], transitions.T
            for word in range(1, wide.shape[1]):
                longer = mx.logsumexp(paths[:, None, :] + into, axis=-1) + wide[:, word]
                paths = mx.where(words[:, word : word + 1], longer, paths)
        total = mx.logsumexp(paths + end, axis=-1)
        return mx.where(words[:, 0], total - found, 0.0).sum()

    def decode(self, emissions: "NDArray[np.floating]") -> list[int]:
        """The most likely tags of a sentence (Viterbi).

        Args:
            emissions: (W, C); W may be 0.
        """
        import numpy as np

        if not len(emissions):
            return []
        start, transitions, end = self._as_numpy()
        best = start + emissions[0]
        back = np.empty(emissions.shape, np.min_scalar_type(len(start)))  # small integers: there may be many words
        for word, row in enumerate(emissions[1:], 1):
            through = best[:, None] + transitions
            back[word] = through.argmax(axis=0)
            best = through.max(axis=0) + row
        tags = [int((best + end).argmax())]
        for places in back[:0:-1]:
            tags.append(int(places[tags[-1]]))
        return tags[::-1]

    def marginals(self, emissions: "NDArray[np.floating]") -> "Array":
        """The probability of each tag of each word, over all sequences of tags (forward-backward).

        Args:
            emissions: (W, C); W may be 0.

        Returns:
            (W, C), rows that sum to 1.
        """
        import numpy as np

        found = np.empty(emissions.shape)
        for word, row in self._backward(emissions):
            found[word] = row
        return found

    def shares(self, emissions: "NDArray[np.floating]", tags: Sequence[int]) -> "Array":
        """The probability of one tag of each word, over all sequences of tags, (W,).

        Args:
            emissions: (W, C); W may be 0.
            tags: The tag of each word.
        """
        import numpy as np

        found = np.empty(len(emissions))
        for word, row in self._backward(emissions):
            found[word] = row[tags[word]]
        return found

    def _backward(self, emissions: "NDArray[np.floating]") -> "Iterator[tuple[int, Array]]":
        """The marginals of each word, from the last one to the first.

        What the forward pass finds is kept for the words before each section only, and found again within a section.
        """
        import numpy as np

        start, transitions, end = self._as_numpy()
        sections = [*range(0, len(emissions), SECTION)]
        before = [start]  # for the first word of each section the sum over all paths before it
        for section in sections[1:]:
            *_, last = self._forward(before[-1], emissions[section - SECTION : section], transitions)
            before.append(_log_sum(last[:, None] + transitions))
        after = end
        for section in reversed(sections):
            rows = emissions[section : section + SECTION]
            found = [*self._forward(before.pop(), rows, transitions)]
            for word in reversed(range(len(rows))):
                share = np.exp(found[word] + after - (found[word] + after).max())
                yield section + word, share / share.sum()
                after = _log_sum((transitions + rows[word] + after).T)

    @staticmethod
    def _forward(before: "Array", rows: "NDArray[np.floating]", transitions: "Array") -> "Iterator[Array]":
        """After each word the logarithm of the sum over all paths that end in each tag."""
        for row in rows:
            found = row + before
            yield found
            before = _log_sum(found[:, None] + transitions)

    def _as_numpy(self) -> "Scores":
        import numpy as np

        start, transitions, end = (np.array(array, np.float64) for array in self.scores())
        return start, transitions, end


def _log_sum(scores: "Array") -> "Array":
    """The logarithm of the sum of the exponentials of each column."""
    import numpy as np

    most = scores.max(axis=0)
    found: Array = most + np.log(np.exp(scores - most).sum(axis=0))
    return found
