"""Extractive question answering: finds the part of a text that answers a question, if there is one.

Shapes: B batch, L length.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mlxbert.errors import ArgumentError, InputError
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.readers.stream import characters_of
from mlxbert.results.result import Failure
from mlxbert.results.text_results import Answer, Span
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import AnswerOptions
from mlxbert.tasks.task import (
    CHARACTERS,
    RESULT_BYTES,
    PreparedItem,
    Task,
    check_finite,
    checked_pair,
    is_pair,
    one_or_many,
)
from mlxbert.text.answer_spans import Candidate, Spans, window_spans
from mlxbert.text.encoding import Encoding
from mlxbert.text.text_windows import pair_blocks
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.usage import Usage

HEAD = "question_answering"
MAX_LENGTH = 384  # tokens of a window, as in training
STRIDE = 128
_PAUSE_EVERY = 8192  # spans between two pauses
_SPAN_BYTES = 280  # the memory of a `Span` without its text
THRESHOLD = 0.5  # default for models without their own

Item = str | tuple[str, str]


@dataclass(frozen=True)
class AnswerJob(PreparedItem[tuple[str, str]]):
    """A question and its context."""

    # The offset of the current block in the context, in code points. The offsets in the encodings are relative to it.
    before: int
    # The remaining blocks of the context, each as its offset and its encodings.
    rest: Iterator[tuple[int, list[Encoding]]]

    @property
    def tokens(self) -> int:
        return max(super().tokens, len(self.item[1]) // CHARACTERS)

    def following(self) -> "AnswerJob | None":
        """Returns the job for the next block of the context; `None` after the last one."""
        block = next(self.rest, None)
        return None if block is None else replace(self, before=block[0], encodings=block[1])


class AnswerTask(Task[Item, AnswerJob, Spans, Answer]):
    """Finds the best spans of a context, and decides whether the best one is the answer.

    Attributes:
        context: The context of questions that come without one.
        threshold: The share of "no answer" in the combined score (see `answer`) above which there is no answer.
        tokenizer: The model's tokenizer, with the maximum length of a window.
    """

    name = "answer"
    smaller = "use a smaller `top_k=`"
    options: AnswerOptions

    def __init__(
        self, model: Model, options: AnswerOptions, *, usage: Usage | None = None, context: str | None = None
    ) -> None:
        super().__init__(model, options, usage=usage)
        self.context, threshold = context, options.no_answer_threshold
        self.threshold = threshold_of(model) if threshold is None else float(threshold)
        self.tokenizer = window_tokenizer(model.tokenizer, options.max_length)
        self.stride = window_stride(self.tokenizer, options.stride)

    @property
    def output_bytes(self) -> int:
        return 24 * min(self.options.top_k, self.tokenizer.max_length**2)

    def size(self, item: Item, units: int) -> int:
        return (
            RESULT_BYTES + (_SPAN_BYTES + CHARACTERS * min(self.options.max_words, self.tokenizer.max_length)) * units
        )

    def units(self, job: AnswerJob) -> int:
        return self.most_units(job.item)

    def most_units(self, item: Item) -> int:
        """Returns the maximum number of spans in the result: `top_k`, or the number of possible spans if smaller."""
        context = self.context if isinstance(item, str) else item[-1]
        return min(self.options.top_k, (characters_of(context) + 1) * self.tokenizer.max_length)

    def is_item(self, value: object) -> bool:
        return isinstance(value, str) or is_pair(value)

    def prepare(self, item: Item) -> AnswerJob:
        question, context = self._split(item)
        check_question(self.tokenizer, question)
        if not context.strip():
            raise InputError("the context is empty, expected a text")
        if self.windowed:
            blocks = pair_blocks(self.tokenizer, question, context, stride=self.stride)
            before, encodings = next(blocks)
            return AnswerJob((question, context), encodings, False, before, blocks)
        encoding = self.encode(question, context)
        return AnswerJob((question, context), [encoding], encoding.truncated, 0, iter(()))

    def texts(self, item: Item) -> tuple[str, str]:
        return self._split(item)

    def _split(self, item: Item) -> tuple[str, str]:
        if isinstance(item, str):
            if self.context is None:
                raise InputError("the question has no context", hint="give `context=`, or a pair (question, context)")
            return item, self.context
        hint = "give the question and its context as a tuple (question, context)"
        return checked_pair(item, "a question and its context", hint)

    def outputs(self, jobs: Sequence[AnswerJob]) -> Iterator[Sequence[Spans]]:
        """Yields the best spans of each job, whose context is computed block by block."""
        return self._all_blocks(jobs, super().outputs(jobs))

    def _all_blocks(self, jobs: Sequence[AnswerJob], outputs: Iterator[Sequence[Spans]]) -> Iterator[Sequence[Spans]]:
        best_spans = [Spans(self.options.top_k) for _ in jobs]
        waiting = [*zip(jobs, best_spans, strict=True)]
        while waiting:
            for (_, spans), windows in zip(waiting, outputs, strict=True):
                for window in windows:
                    spans.merge(window)
            waiting = [(more, spans) for job, spans in waiting if (more := job.following()) is not None]
            outputs = super().outputs([job for job, _ in waiting])
        yield from ([spans] for spans in best_spans)

    def forward(self, batch: Batch, parts: Sequence[tuple[AnswerJob, int]]) -> mx.array:
        """Returns the logits (B, L, 2)."""
        return self.model.network.logits(HEAD, batch).astype(mx.float32)

    def read(self, arrays: mx.array, parts: Sequence[tuple[AnswerJob, int]]) -> list[Spans]:
        logits = np.array(arrays)
        limits = {"count": self.options.top_k, "max_words": self.options.max_words}
        return [
            window_spans(row, job.encodings[number], job.item[1], before=job.before, **limits)
            for (job, number), row in zip(parts, logits, strict=True)
        ]

    def result(self, job: AnswerJob, outputs: Sequence[Spans]) -> Answer:
        """Makes the result from the best spans: the best one is the answer, unless the text has no answer."""
        question, context = job.item
        (best_spans,) = outputs
        check_finite([best_spans.no_answer])
        spans = tuple(self._with_texts(context, best_spans.best))
        answered = bool(spans) and best_spans.no_answer_share <= self.threshold
        answer, start, end = (spans[0].answer, spans[0].start, spans[0].end) if answered else (None, None, None)
        score = spans[0].score if spans else 0.0
        return Answer(question, answer, start, end, score, best_spans.no_answer, spans, context, job.truncated)

    def _with_texts(self, context: str, candidates: Sequence[Candidate]) -> Iterator[Span]:
        for number, (start, end, score) in enumerate(candidates):
            if number % _PAUSE_EVERY == 0:
                self.pause(False)
            yield Span(context[start:end], start, end, score)


@takes_keywords
def answer(
    model: Model,
    questions: Item | Iterable[Item | InputError],
    *,
    context: str | None = None,
    options: AnswerOptions,
    call: CallOptions,
) -> Answer | Iterator[Answer | Failure]:
    """Answers questions with a part of a text, or says that the text has no answer.

    Example:
        >>> model = mlxbert.load("deepset/roberta-base-squad2", task="answer")
        >>> mlxbert.answer(model, "Where was she born?", context="Angela Merkel was born in Hamburg.").answer

    A text of any length is split into overlapping windows, in constant memory. An answer consists of whole tokens,
    without the whitespace around them. Its length is counted in words separated by whitespace; each ideograph or kana
    counts as a word. Spans may overlap. The result has no answer if the share of "no answer" in the combined score of
    "no answer" and the best span exceeds the threshold: a threshold of 1 always gives an answer.

    Args:
        model: A model with a question-answering head.
        questions: One question, or one tuple `(question, context)`; or any number of them.
        context: The context of questions that come without one.
        options: See `AnswerOptions`.
        call: See `CallOptions`.

    Returns:
        One result for one question; for several an iterator in their order, in constant memory.

    Raises:
        InputError: A question or context is empty, or the question is longer than half a window.
        ArgumentError: An argument has an invalid value.
    """
    return one_or_many(AnswerTask, model, questions, options, call, name="questions", context=context)


def window_tokenizer(tokenizer: Tokenizer, max_length: int | None) -> Tokenizer:
    """Returns the tokenizer with windows of `max_length` tokens; `None` means 384, or the model's limit if smaller."""
    if max_length is None:
        return tokenizer.adapted(max_length=min(MAX_LENGTH, tokenizer.max_length))
    if max_length > tokenizer.max_length:
        raise ArgumentError(f"`max_length` is {max_length}, but the model takes at most {tokenizer.max_length} tokens")
    return tokenizer.adapted(max_length=max_length)


def window_stride(tokenizer: Tokenizer, stride: int | None) -> int:
    """Returns the overlap of windows in tokens; `None` means 128, or a third of a window if smaller."""
    if stride is None:
        return min(STRIDE, tokenizer.max_length // 3)
    return stride


def check_question(tokenizer: Tokenizer, question: str) -> None:
    """Raises InputError if a question is empty, or longer than half a window."""
    if not question.strip():
        raise InputError("the question is empty, expected a text")
    tokens, limit = len(tokenizer.pieces(question)), tokenizer.max_length // 2
    if tokens > limit:
        raise InputError(f"the question has {tokens} tokens, expected at most {limit}, half of a window")


def threshold_of(model: Model) -> float:
    """Returns the model's own threshold for "no answer", or the default."""
    labels = model.config.labels
    return THRESHOLD if labels is None or labels.no_answer_threshold is None else labels.no_answer_threshold
