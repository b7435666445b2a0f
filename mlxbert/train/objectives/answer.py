"""The objective of question answering: the answer is a part of a text, or there is no answer.

Shapes: B windows in a batch, L length.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlxbert.errors import InputError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.heads import Network
from mlxbert.tasks.answer import HEAD, THRESHOLD, check_question, window_stride, window_tokenizer
from mlxbert.text.answer_spans import Spans, window_spans
from mlxbert.text.encoding import Encoding
from mlxbert.train.data.columns import ColumnNames, find_usual_columns
from mlxbert.train.data.data_report import SplitReport
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.train.data.questions import Question, read_questions
from mlxbert.train.nn.losses import cross_entropy
from mlxbert.train.objectives.distillation_losses import Scores, TeacherTargets, divergence
from mlxbert.train.objectives.objective import Example, Predictions, Split, TrainBatch
from mlxbert.train.objectives.task_objective import TaskObjective
from mlxbert.train.options.training_tasks import QuestionData
from mlxbert.train.scores import answer_scores
from mlxbert.train.scores.answer_scores import JudgedAnswers, Predicted
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.scores.metrics import cross_entropies

_PADDING = -1e9  # the logit of padding


@dataclass(frozen=True)
class Window(Example):
    """A window of a question's context. Its target is the first and the last token of the answer."""

    record: Question

    def __len__(self) -> int:
        return len(self.encoding)


class AnswerObjective(TaskObjective[Window]):
    """Question answering, trained with the cross-entropies of the answer's first and last token in a window.

    If a window does not contain the answer, the first token of the input is the target for both.
    """

    name, head = "answer", HEAD
    data: QuestionData
    columns: ColumnNames | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._judged: tuple[Predictions | None, list[Question], list[Predicted]] = (None, [], [])

    def read(self, rows: LabelledRows) -> list[Question]:
        """Reads questions. The first call finds the columns, and later calls read the same columns."""
        if self.columns is None:
            self.columns = find_usual_columns(rows, "answer", **self._columns)
        return read_questions(rows, self.columns)

    def check(self, records: Sequence[Question]) -> None:
        if not any(record.answers for record in records):
            place = f"{records[0].place} and below" if records else "the training data"
            raise InputError(f"{place}: no question has an answer")

    def warnings(self, train: SplitReport, records: Sequence[Question]) -> Iterator[str]:
        """See `TaskObjective.warnings`. Yields nothing unless some questions have an answer and others have none."""
        if len(train.labels) > 1:
            yield from super().warnings(train, records)

    def heads(self, records: Sequence[Question]) -> Mapping[str, Labels | None]:
        return {HEAD: None}

    def bind(self, model: Model) -> None:
        super().bind(model)
        self.tokenizer = window_tokenizer(model.tokenizer, self.max_length)
        self.labels = self.config.labels or Labels()

    def examples(self, record: Question) -> list[Window]:
        check_question(self.tokenizer, record.text)
        stride = window_stride(self.tokenizer, self.data.stride)
        windows = self.tokenizer.windows(record.text, record.pair, stride=stride)
        return [Window(window, target(window, record.start, record.end), record) for window in windows]

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        """Returns the sum of the losses of the windows, and the number of windows.

        The loss of a window is the mean of two cross-entropies: for the first and for the last token of the answer.
        """
        logits = network.logits(HEAD, batch.inputs).astype(mx.float32)
        if batch.inputs.attention_mask is not None:
            logits = mx.where(batch.inputs.attention_mask[..., None], logits, _PADDING)
        ends = logits.transpose(0, 2, 1).reshape(-1, logits.shape[1])
        return cross_entropy(ends, batch.targets.reshape(-1)) / 2, float(batch.targets.shape[0])

    def teacher_targets(
        self, batch: TrainBatch, examples: Sequence[Window], scores: Sequence[Scores]
    ) -> TeacherTargets:
        """See `TaskObjective.teacher_targets`. Since every token has scores, the scores are padded like the windows."""
        length = batch.inputs.input_ids.shape[1]
        padded = [np.pad(array, ((0, length - len(array)), (0, 0)), constant_values=_PADDING) for array in scores]
        return TeacherTargets(batch.targets, mx.array(np.stack(padded)))

    def teacher_distance(self, scores: mx.array, targets: TeacherTargets, temperature: float) -> mx.array:
        """Returns the divergence from the teacher's distributions, averaged over the answer's first and last token."""
        theirs = targets.scores
        ours = mx.where(theirs > _PADDING, scores, _PADDING)
        return divergence(ours.transpose(0, 2, 1), theirs.transpose(0, 2, 1), temperature) / 2

    def metrics(self, examples: Sequence[Window], predictions: Predictions) -> dict[str, float]:
        """See `mlxbert.train.scores.answer_scores`. The threshold is tuned on the same predictions.

        `loss` is the training loss without dropout.
        """
        judged = self._judge(examples, predictions)
        pairs = zip(examples, predictions, strict=True)
        losses = [cross_entropies(logits[: len(window)].T, window.target) for window, logits in pairs]
        return answer_scores.answer_metrics(judged, answer_scores.tune_threshold(judged)) | {
            "loss": float(np.mean(losses))
        }

    def tuned(self, part: Split, predictions: Predictions) -> Labels:
        threshold = answer_scores.tune_threshold(self._judge(part.examples, predictions))
        return replace(self.labels, no_answer_threshold=threshold)

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        """See `TaskObjective.evaluation`. If every question has an answer, a model without threshold always answers."""
        records, predicted = self._best(part.examples, predictions)
        default = THRESHOLD if any(not record.answers for record in records) else answer_scores.ALWAYS
        tuned = self.labels.no_answer_threshold
        threshold = default if tuned is None else tuned
        return answer_scores.answering(records, predicted, threshold=threshold, metric=self.metric, **facts)

    def constant(self, train: Sequence[Question], valid: Sequence[Question]) -> dict[str, float]:
        """Returns the score of a model that never gives an answer; empty if every question has an answer."""
        silent = sum(not record.answers for record in valid) / max(len(valid), 1)
        return {"no answer": silent} if silent else {}

    def _judge(self, examples: Sequence[Window], predictions: Predictions) -> JudgedAnswers:
        return answer_scores.judge(*self._best(examples, predictions))

    def _best(self, examples: Sequence[Window], predictions: Predictions) -> tuple[list[Question], list[Predicted]]:
        """Returns the questions and the best span for each. The result is cached, because several methods need it."""
        if self._judged[0] is not predictions:
            records: list[Question] = []
            predicted: list[Predicted] = []
            pairs = zip(examples, predictions, strict=True)
            for _, group in itertools.groupby(pairs, key=lambda pair: id(pair[0].record)):
                windows = list(group)
                records.append(windows[0][0].record)
                predicted.append(self._span(windows))
            self._judged = predictions, records, predicted
        return self._judged[1], self._judged[2]

    def _span(self, windows: Sequence[tuple[Window, Any]]) -> Predicted:
        """Returns the best answer to a question, given the windows of its context, each with its logits, (L, 2)."""
        context = windows[0][0].record.pair
        spans = Spans(1)
        for window, logits in windows:
            spans.merge(window_spans(logits, window.encoding, context, count=1, max_words=self.data.max_words))
        if not spans.best:
            return Predicted("", 0, 0.0, 1.0)
        start, end, score = spans.best[0]
        return Predicted(context[start:end], start, score, spans.no_answer_share)


def target(window: Encoding, start: int | None, end: int | None) -> tuple[int, int]:
    """Returns the first and the last token of an answer in a window; (0, 0) unless the window has the whole answer."""
    inside = [number for number, text in enumerate(window.sequence_ids) if text == 1]
    offsets = window.offsets
    if start is None or end is None or not inside or offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return 0, 0
    touched = [number for number in inside if offsets[number][1] > start and offsets[number][0] < end]
    return (touched[0], touched[-1]) if touched else (0, 0)
