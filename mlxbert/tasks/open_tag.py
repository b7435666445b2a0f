"""Finds entities of any given types, with a model of GLiNER's kind.

Shapes: B batch, W words of a window, S span widths, C labels of a group.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from mlxbert.errors import ArgumentError, TooLongError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads.open_entities import OpenEntityFacts
from mlxbert.results.text_results import Entity, Tagged
from mlxbert.tasks.options import TagOptions
from mlxbert.tasks.task import PreparedItem, Task, check_finite
from mlxbert.tasks.token_task import Item, coordinates_of, joined
from mlxbert.text.labelled_words import LabelledWordEncoder, WordWindow, words_of
from mlxbert.text.usage import Usage
from mlxbert.text.words import Span

Scores: TypeAlias = "NDArray[np.floating[Any]]"

HEAD = "open_entities"
THRESHOLD = 0.5
ENTITY_BYTES = 280  # the memory of an `Entity`
Found = tuple[float, int, int, str]  # the score, the first and the last word, and the label


@dataclass(frozen=True)
class OpenTagJob(PreparedItem[Item]):
    """A text with the words and the labels of each of its inputs."""

    text: str  # the text; words are joined by spaces
    words: Sequence[Span]  # the offsets of the words
    windows: Sequence[WordWindow]  # for each input, its words
    labels: Sequence[Sequence[str]]  # for each input, its labels


class OpenTagTask(Task[Item, OpenTagJob, list[Found], Tagged]):
    """Finds the spans of a text that fit one of the labels."""

    name = "tag"
    part_bytes = ENTITY_BYTES
    options: TagOptions

    def __init__(self, model: Model, options: TagOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        if options.aggregation is not None:
            raise ArgumentError(
                f"`aggregation` is {options.aggregation!r}, but {model.source} scores spans of words",
                hint="omit `aggregation=`",
            )
        # The probability above which a span is an entity.
        self.threshold = THRESHOLD if options.threshold is None else options.threshold
        self._facts = cast(OpenEntityFacts, model.config.heads[HEAD])
        self._encoder = LabelledWordEncoder(model.tokenizer, self._facts)
        self.labels = () if options.labels is None else options.labels
        self._encoder.check_labels(self.labels)
        self._groups = self._encoder.groups(self.labels)
        self.inputs = max(len(self._groups), 1)

    @property
    def output_bytes(self) -> int:
        labels = max(map(len, self._groups), default=1)
        return 4 * labels * min(self._facts.max_words, self.tokenizer.max_length) * max(self._facts.max_width, 3)

    def units(self, job: OpenTagJob) -> int:
        return len(job.words)

    def is_item(self, value: object) -> bool:
        """Whether `value` is one text: a string, or a tuple of its words. A list holds several."""
        words = isinstance(value, tuple) and all(isinstance(word, str) for word in value)
        return isinstance(value, str) or words

    def texts(self, item: Item) -> list[str]:
        """Returns nothing, because words are tokenized one by one."""
        return []

    def prepare(self, item: Item) -> OpenTagJob:
        """Tokenizes the words of a text, and makes an input for each window and each group of labels."""
        if not self._groups:
            raise ArgumentError(
                f"{self.model.source} finds entities of any types, but no labels are given",
                hint="say what to find: `labels=['person', 'research institute']`",
            )
        text = joined(item)
        words = [*words_of(text)] if isinstance(item, str) else [*coordinates_of(item)]
        tokens = self._encoder.words(text, words)
        windows, labels, encodings = [], [], []
        for group in self._groups if words else ():
            of_text = self._encoder.windows(tokens, group)
            if len(of_text) > 1 and self.options.overflow == "error":
                raise TooLongError(
                    f"the text has {len(words)} words, but with these labels an input has room for {of_text[0].end}"
                )
            for window in of_text if self.windowed else of_text[:1]:
                part, continues = tokens[window.first : window.end], window.end < len(words)
                encodings.append(self._encoder.encode(part, group, truncated=continues))
                windows.append(window)
                labels.append(group)
        truncated = not self.windowed and any(window.end < len(words) for window in windows)
        return OpenTagJob(item, encodings, truncated, text=text, words=words, windows=windows, labels=labels)

    def forward(self, batch: Batch, parts: Sequence[tuple[OpenTagJob, int]]) -> mx.array:
        """Returns the probabilities, (B, W, S, C), or (B, W, 3, C) if words are scored."""
        return mx.sigmoid(self.model.network.logits(HEAD, batch).astype(mx.float32))

    def read(self, arrays: mx.array, parts: Sequence[tuple[OpenTagJob, int]]) -> list[list[Found]]:
        """Returns the spans of each row whose score is above the threshold."""
        rows = []
        for scores, (job, number) in zip(np.array(arrays), parts, strict=True):
            window, labels = job.windows[number], job.labels[number]
            scores = scores[: window.end - window.first, :, : len(labels)]
            if not math.isfinite(total := float(scores.sum())):
                rows.append([(total, 0, 0, "")])  # for `result`
                continue
            found = found_in(scores, self._facts, self.threshold)
            first, (low, high) = window.first, window.judged
            if not job.truncated:
                found = [each for each in found if low <= first + each[1] < high]
            rows.append([(score, first + start, first + end, labels[label]) for score, start, end, label in found])
        return rows

    def result(self, job: OpenTagJob, outputs: Sequence[list[Found]]) -> Tagged:
        """Makes the result: the best spans that do not overlap, in the order of the text."""
        found = [each for output in outputs for each in output]
        check_finite([score for score, *_ in found])
        chosen = choose(found, nested=self.options.nested)
        entities = []
        for score, first, last, label in chosen:
            start, end = job.words[first][0], job.words[last][1]
            entities.append(Entity(label, start, end, job.text[start:end], score))
        return Tagged(job.text, tuple(entities), job.truncated)


def found_in(scores: "Scores", facts: OpenEntityFacts, threshold: float) -> list[tuple[float, int, int, int]]:
    """Finds the spans of a window above a threshold.

    Args:
        scores: The scores of spans (W, S, C), or of words as first, last and inner words (W, 3, C).

    Returns:
        For each span, its score, its first and last word, and the index of its label.
    """
    if facts.span_mode == "token_level":
        return _spans_of_words(scores, threshold)
    starts, widths, labels = np.nonzero(scores > threshold)
    inside = starts + widths < len(scores)
    chosen = (array[inside] for array in (scores[starts, widths, labels], starts, starts + widths, labels))
    return [*zip(*(array.tolist() for array in chosen), strict=True)]


def _spans_of_words(scores: "Scores", threshold: float) -> list[tuple[float, int, int, int]]:
    """The score of a span is the lowest score of its words (see `found_in`)."""
    found = []
    above = scores > threshold
    for start, label in zip(*(array.tolist() for array in np.nonzero(above[:, 0])), strict=True):
        lowest = float(scores[start, 0, label])
        for end in range(start, len(scores)):
            inner = float(scores[end, 2, label])
            if inner < threshold:
                break
            lowest = min(lowest, inner)
            if above[end, 1, label]:
                found.append((min(lowest, float(scores[end, 1, label])), start, end, label))
    return found


def choose(found: Sequence[Found], *, nested: bool) -> list[Found]:
    """Chooses spans by their scores, the best first, and returns them in the order of the text.

    Args:
        nested: Whether a span may lie inside another. If not, no word belongs to two spans. In both cases, a
            place in the text has one label.
    """
    chosen: list[Found] = []
    ends: dict[int, list[int]] = {}  # the last words of the chosen spans, by their first words
    longest = 0
    for each in sorted(found, key=lambda each: -each[0]):
        _, first, last, _ = each
        others = (
            (start, end) for start in range(first - longest, last + 1) for end in ends.get(start, ()) if end >= first
        )
        inside = lambda a, b: a[0] <= b[0] and b[1] <= a[1]  # noqa: E731
        span = (first, last)
        if any(not nested or other == span or not (inside(other, span) or inside(span, other)) for other in others):
            continue
        chosen.append(each)
        ends.setdefault(first, []).append(last)
        longest = max(longest, last - first)
    return sorted(chosen, key=lambda each: each[1])
