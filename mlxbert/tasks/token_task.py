"""The base class of tasks that compute a result for every token of a text of any length.

Shapes: L tokens of a window, T of which are judged in this window, C numbers per token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import TypeVar

from mlxbert.errors import InputError
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import mx
from mlxbert.tasks.entities import Scores as Scores, TaggedToken, Word, words_with_tokens
from mlxbert.tasks.task import CHARACTERS, PreparedItem, Task, check_finite
from mlxbert.text.batch import default_batch_tokens
from mlxbert.text.encoding import Encoding
from mlxbert.text.text_windows import text_windows
from mlxbert.text.window_stitching import judged_places
from mlxbert.text.words import Span, split_words

Item = str | tuple[str, ...]  # a text, or its words; in an iterable of items the words may also be a list
Result = TypeVar("Result")


@dataclass(frozen=True)
class TokenJob(PreparedItem[Item]):
    """A text, or a text given as words."""

    text: str  # the text; words are joined by spaces
    # For each window, the indices of the tokens that are judged in it. Each token of the text is judged in one window.
    chosen: list[list[int]]
    # The remaining windows, in groups that fill a batch; each window comes with the indices of the tokens judged in it.
    rest: Iterator[list[tuple[Encoding, list[int]]]]

    @property
    def tokens(self) -> int:
        return max(super().tokens, len(self.text) // CHARACTERS)

    def following(self) -> "TokenJob | None":
        """Returns the job for the next windows; `None` after the last ones."""
        windows = next(self.rest, None)
        if windows is None:
            return None
        return replace(self, encodings=[window for window, _ in windows], chosen=[places for _, places in windows])


class TokenTask(Task[Item, TokenJob, "Scores", Result]):
    """A task that judges each token of a text in the window in which the token has the most context."""

    def is_item(self, value: object) -> bool:
        """Whether `value` is one text: a string, or a tuple of its words. A list holds several."""
        words = isinstance(value, tuple) and all(isinstance(word, str) for word in value)
        return isinstance(value, str) or words

    def prepare(self, item: Item) -> TokenJob:
        """Tokenizes a text or its words; windows overlap by a quarter."""
        text = joined(item)
        tokenizer = self.model.tokenizer
        if self.windowed:
            windows = text_windows(tokenizer, text, stride=tokenizer.max_length // 4)
        else:
            windows = iter([self.encode(text)])
        judged = judged_places(windows)
        together = max((self.batch_tokens or default_batch_tokens()) // tokenizer.max_length, 1)
        job = TokenJob(item, [], False, text, [], iter(lambda: [*islice(judged, together)], [])).following()
        assert job is not None  # even an empty text has a window
        return replace(job, truncated=not self.windowed and job.encodings[0].truncated)

    def texts(self, item: Item) -> list[str]:
        return [joined(item)]

    def read(self, arrays: mx.array, parts: Sequence[tuple[TokenJob, int]]) -> list["Scores"]:
        """Returns the scores (T, C) of each row, for the tokens that are judged in its window."""
        return [row[job.chosen[number]] for row, (job, number) in zip(np.array(arrays), parts, strict=True)]

    def tokens(self, job: TokenJob, outputs: Sequence["Scores"]) -> Iterator[TaggedToken]:
        """Yields the tokens of a text with their scores; only a few windows of a long text are in memory at a time."""
        more: TokenJob | None = job
        while more is not None:
            for window, places, scores in zip(more.encodings, more.chosen, outputs, strict=True):
                check_finite([float(scores.sum())])
                for place, row in zip(places, scores, strict=True):
                    yield TaggedToken(window.offsets[place], window.ids[place], row)
            more = more.following()
            outputs = () if more is None else next(self.outputs([more]))

    def count_words(self, job: TokenJob) -> int:
        return sum(1 for _ in split_words(job.text)) if isinstance(job.item, str) else len(job.item)

    def words(self, job: TokenJob, tokens: Iterator[TaggedToken]) -> Iterator[Word]:
        spans = split_words(job.text) if isinstance(job.item, str) else coordinates_of(job.item)
        return words_with_tokens(job.text, tokens, spans)


def joined(item: Item) -> str:
    """Returns a text unchanged, or words joined by spaces."""
    if isinstance(item, str):
        return item
    if not isinstance(item, list | tuple) or not all(isinstance(word, str) for word in item):
        raise InputError(f"expected a text or a list of words, found {item!r:.60}")
    return " ".join(item)


def coordinates_of(words: Sequence[str]) -> Iterator[Span]:
    """Yields the offsets that words have after they are joined by spaces."""
    ends = accumulate(len(word) + 1 for word in words)
    return ((end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True))
