"""The objective of tagging words: entities, parts of speech, chunks.

Shapes: B windows in a batch, L length, W words in a sentence, C tags, M labelled tokens.
"""

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.labels.labels import Labels
from mlxbert.labels.schemes import OUTSIDE, scheme_of, spelled, types_of
from mlxbert.machine.device import mx, on_gpu
from mlxbert.model import Model
from mlxbert.nn.heads import Network
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from mlxbert.text.window_stitching import best_windows
from mlxbert.text.words import Span, words_of_tokens
from mlxbert.train.data.columns import ColumnNames, find_usual_columns
from mlxbert.train.data.data_report import check_labels
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.train.data.tag_schemes import convert, inside, names_of
from mlxbert.train.data.tagged_sentences import (
    TaggedSentence,
    TagReader,
    check_tags,
    most_frequent,
    read_tagged,
    spelled_as,
    tokenless,
)
from mlxbert.train.nn import losses
from mlxbert.train.objectives.distillation_losses import Scores, TeacherTargets, divergence
from mlxbert.train.objectives.objective import Example, Predictions, Split, TrainBatch
from mlxbert.train.objectives.task_objective import Origin, TaskObjective
from mlxbert.train.options.training_tasks import TagLearning, WordData
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.scores.metrics import cross_entropies
from mlxbert.train.scores.tag_scores import Prediction, metrics_of, tag_metrics, tagging, tally


@dataclass(frozen=True)
class WordToken:
    """A token that belongs to a word."""

    place: int  # the index of the token in its window
    word: int  # the number of the word
    first: bool  # whether it is the word's first token
    best: bool  # whether the token has more context in this window than in any other


def find_pieces(text: str, windows: Sequence[Encoding], words: Sequence[Span]) -> list[list[WordToken]]:
    """Returns, for each window, the tokens that belong to words (see `words_of_tokens`).

    Not every word has a token: tokenizers drop some characters, and a token may span two words.
    """
    best = best_windows(windows)
    token_words = words_of_tokens(text, (windows[window].offsets[place] for window, place in best), words)
    owners = [None if word is None else word[0] for word in token_words]
    firsts, last = [], -1
    for owner in owners:
        firsts.append(owner is not None and owner != last)
        last = last if owner is None else owner
    chosen, shift = {*best}, best[0][1] if best else 0  # the number of special tokens before the text
    pieces: list[list[WordToken]] = []
    for number, window in enumerate(windows):
        places = [place for place, text in enumerate(window.sequence_ids) if text == 0]
        tokens = [(place, window.positions[place] - shift) for place in places]
        pieces.append(
            [
                WordToken(place, owner, firsts[token], (number, place) in chosen)
                for place, token in tokens
                if (owner := owners[token]) is not None
            ]
        )
    return pieces


HEAD, OPEN_HEAD = "token_classifier", "open_entities"
_PAD_MULTIPLE = 32  # the number of labelled tokens is padded to a multiple on a GPU, which compiles each shape
_NO_WEIGHT = 1e-9  # the weight of a batch without a labelled token: its loss is 0
_LOG = logging.getLogger("mlxbert")


@dataclass(frozen=True)
class TagExample(Example):
    """A window of a sentence. Its `target` pairs the positions of labelled tokens with the indices of their tags."""

    record: TaggedSentence
    number: int  # the index of this window among the sentence's windows
    # The words whose tags are predicted from this window, with the positions of their first tokens.
    best: tuple[tuple[int, int], ...]


class Tag(TaskObjective[TagExample]):
    """Tagging, trained with the cross-entropy of each word's tag or, with a CRF, the likelihood of all tags."""

    name = "tag"
    data: WordData
    learning: TagLearning
    columns: ColumnNames | None = None
    head = HEAD

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        learning = self.learning
        if learning.crf and (learning.label_all_pieces or learning.scheme == "iob1"):
            other = "`label_all_pieces`" if learning.label_all_pieces else "`scheme` iob1, which allows nearly all tags"
            raise ArgumentError(f"`crf` cannot be combined with {other}")
        self._reader = TagReader(learning.scheme, crf=learning.crf)
        self._tokenless: dict[str, int] = {}  # number of tagged words without a token, by the sentence's location

    @property
    def scheme(self) -> str:
        """The tagging scheme; `plain` before the first `read`."""
        return self._reader.scheme or "plain"

    def start(self, source: Origin) -> None:
        self._reader.source_labels = source.labels(self.head)

    def read(self, rows: LabelledRows) -> list[TaggedSentence]:
        """Reads sentences, and converts their tags to one scheme. The first call chooses the scheme."""
        columns = self.columns
        if columns is None or not {columns.text, columns.label} <= {*rows.columns}:  # files of another format
            columns = find_usual_columns(rows, "tag", **self._columns)
        self.columns = self.columns or columns
        records = self._reader.read(read_tagged(rows, columns))
        self._choose_metric()
        return records

    def _choose_metric(self) -> None:
        metrics = metrics_of(self.scheme)
        if self._metric is not None and self._metric not in metrics:
            raise ArgumentError(f"`metric` is {self._metric!r}, expected one of {', '.join(metrics)} for plain tags")
        self.metric = self._metric or metrics[0]

    def facts(self) -> dict[str, str]:
        return {"tags": self._reader.description}

    def notes(self) -> tuple[str, ...]:
        return (*self._reader.notes, *tokenless(self._tokenless))

    def check(self, records: Sequence[TaggedSentence]) -> None:
        check_tags(records, self.columns.label or "" if self.columns else "")

    def check_valid(self, train: Sequence[TaggedSentence], valid: Sequence[TaggedSentence]) -> None:
        check_labels({name for record in train for name in record.names}, valid)

    def heads(self, records: Sequence[TaggedSentence]) -> Mapping[str, Labels | None]:
        """Returns a token classifier with the labels of the source model, if they fit the records.

        Otherwise, the labels are all tags of the entity types in the records, or the plain tags.
        """
        labels, crf = self._reader.source_labels, self.learning.crf
        if labels is not None and self._reader.fits_source(records):
            return {HEAD: Labels(labels.names, labels.problem_type, crf=crf or labels.crf)}
        return {HEAD: Labels(names_of({tag for record in records for tag in record.tags}, self.scheme), crf=crf)}

    def bind(self, model: Model) -> None:
        super().bind(model)
        limit = self.tokenizer.max_length
        self.stride = limit // 4 if self.data.stride is None else self.data.stride
        if self.stride > limit // 2:
            raise ArgumentError(f"`stride` is {self.stride}, expected at most {limit // 2}, half of the maximum length")
        self._numbers = {name: number for number, name in enumerate(self.labels.names)}
        self._crf = getattr(model.network.heads[HEAD], "crf", None)
        # On Metal, a CRF is computed on the CPU, where compilation needs a C++ compiler.
        self.pure = self._crf is None or not on_gpu()

    def examples(self, record: TaggedSentence) -> list[TagExample]:
        windows = self.tokenizer.windows(record.text, stride=self.stride)
        examples: list[TagExample] = []
        for encoding, pieces in zip(windows, find_pieces(record.text, windows, record.offsets), strict=True):
            labelled = [piece for piece in pieces if piece.first or self.learning.label_all_pieces]
            tags = [
                record.tags[piece.word] if piece.first else inside(record.tags[piece.word], self.scheme)
                for piece in labelled
            ]
            if self._crf is not None:  # a window may begin within an entity, which is impossible for a CRF
                tags = convert(tags, self.scheme, self.scheme)
            target = [
                (piece.place, self._numbers[tag])
                for piece, tag in zip(labelled, tags, strict=True)
                if tag in self._numbers
            ]
            best = tuple((piece.word, piece.place) for piece in pieces if piece.first and piece.best)
            examples.append(TagExample(encoding, target, record, len(examples), best))
        judged = {word for example in examples for word, _ in example.best}
        if missed := sum(tag != OUTSIDE and word not in judged for word, tag in enumerate(record.tags)):
            self._tokenless[record.place] = missed
        return examples

    def collate(self, examples: Sequence[TagExample], rng: random.Random) -> TrainBatch:
        """Pads windows. The targets are the positions of labelled tokens and their tags; the tag -1 stands for padding.

        Targets are (2, M), with positions in the flattened batch. With a CRF, targets are (2, B, W), with positions in
        each window.
        """
        inputs = make_batch([example.encoding for example in examples], self.config)
        if self._crf is None:
            length = inputs.input_ids.shape[1]
            pairs = [
                (row * length + place, tag) for row, example in enumerate(examples) for place, tag in example.target
            ]
            pairs += [(0, -1)] * (-len(pairs) % _PAD_MULTIPLE if on_gpu() else 0)
            return TrainBatch(inputs, mx.array(pairs, mx.int32).reshape(-1, 2).T)
        longest = max(1, *(len(example.target) for example in examples))
        padded = [[*example.target, *[(0, -1)] * (longest - len(example.target))] for example in examples]
        return TrainBatch(inputs, mx.array(padded, mx.int32).transpose(2, 0, 1))

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float | mx.array]:
        """Returns the sum of the losses of the labelled tokens, and the number of labelled tokens."""
        logits = network.logits(HEAD, batch.inputs)
        places, tags = batch.targets
        if not tags.size:
            return 0 * logits.astype(mx.float32).sum(), _NO_WEIGHT
        mask, targets = tags >= 0, mx.maximum(tags, 0)
        weight = mx.maximum(mask.sum().astype(mx.float32), _NO_WEIGHT)
        flat = logits.reshape(-1, logits.shape[-1])
        crf = getattr(network.heads[HEAD], "crf", None)
        if crf is not None:
            rows = mx.arange(len(places))[:, None] * logits.shape[1] + places
            return crf.loss(flat[rows], targets, mask), weight
        return (losses.cross_entropies(flat[places], targets) * mask).sum(), weight

    def teacher_targets(
        self, batch: TrainBatch, examples: Sequence[TagExample], scores: Sequence[Scores]
    ) -> TeacherTargets:
        """See `TaskObjective.teacher_targets`. Only tokens that have a tag have scores."""
        length = batch.inputs.input_ids.shape[1]
        places = [[place for place, _ in example.target] for example in examples]
        rows = [row * length + place for row, labelled in enumerate(places) for place in labelled]
        chosen = np.concatenate([array[labelled] for array, labelled in zip(scores, places, strict=True)])
        return TeacherTargets(batch.targets, mx.array(chosen), mx.array(rows, mx.int32))

    def teacher_distance(self, scores: mx.array, targets: TeacherTargets, temperature: float) -> mx.array:
        """Returns the divergence from the teacher's distribution over the tags, summed over the tokens."""
        if not targets.scores.size:
            return 0 * scores.sum()
        return divergence(scores.reshape(-1, scores.shape[-1])[targets.rows], targets.scores, temperature)

    def metrics(self, examples: Sequence[TagExample], predictions: Predictions) -> dict[str, float]:
        """See `mlxbert.train.scores.tag_scores`; `loss` is the training loss without dropout."""
        decoded = [*self._predicted(examples, predictions)]
        expected = [example.record.tags for example in examples if not example.number]
        scores = tag_metrics(tally(expected, [prediction.tags for prediction in decoded], self.scheme), self.scheme)
        return scores | {"loss": self._mean_loss(examples, predictions)}

    def _mean_loss(self, examples: Sequence[TagExample], predictions: Predictions) -> float:
        """Returns the mean loss of the labelled tokens; 0 if there are none."""
        total, count = 0.0, 0
        for example, logits in zip(examples, predictions, strict=True):
            if not example.target:
                continue
            places, tags = zip(*example.target, strict=True)
            rows = logits[[*places]]
            if self._crf is None:
                total += float(cross_entropies(rows, tags).sum())
            else:
                total += float(self._crf.loss(mx.array(rows[None]), mx.array([tags]), mx.ones((1, len(tags)))))
            count += len(tags)
        return total / max(count, 1)

    def _predicted(self, examples: Sequence[TagExample], predictions: Predictions) -> Iterator[Prediction]:
        """Yields the predicted tags of each sentence. A word's tag comes from the window whose `best` has the word."""
        scores: dict[int, NDArray[np.floating[Any]]] = {}
        for number, (example, logits) in enumerate(zip(examples, predictions, strict=True)):
            scores |= {word: logits[place] for word, place in example.best}
            if number + 1 == len(examples) or not examples[number + 1].number:
                yield self._decoded(scores, len(example.record.words))
                scores = {}

    def _decoded(self, scores: Mapping[int, NDArray[np.floating[Any]]], words: int) -> Prediction:
        names = [spelled(name, self.scheme) for name in self.labels.names]
        tags, confidences = [OUTSIDE if OUTSIDE in names else names[0]] * words, [0.0] * words
        if scores:
            places = sorted(scores)
            emissions = np.array([scores[word] for word in places], np.float64)
            powers = np.exp(emissions - emissions.max(axis=1, keepdims=True))
            shares = powers / powers.sum(axis=1, keepdims=True)
            chosen = emissions.argmax(axis=1).tolist()
            if self._crf is not None:
                chosen, shares = self._crf.decode(emissions), self._crf.marginals(emissions)
            for word, tag, share in zip(places, chosen, shares, strict=True):
                tags[word], confidences[word] = names[tag], float(share[tag])
        return Prediction(tags, confidences)

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        decoded = [*self._predicted(part.examples, predictions)]
        names = types_of(self.labels.names)
        return tagging(part.records, decoded, scheme=self.scheme, names=names, metric=self.metric, **facts)

    def baselines(
        self, model: Model, train: Sequence[TaggedSentence], valid: Sequence[TaggedSentence]
    ) -> dict[str, float]:
        """Returns the score of giving each word the tag that it most often has in the training data."""
        expected, predicted = [record.tags for record in valid], most_frequent(train, valid)
        return {"most frequent tag": tag_metrics(tally(expected, predicted, self.scheme), self.scheme)[self.metric]}

    def check_model(self, model: Model) -> None:
        if model.labels is None:
            raise CheckpointError(
                f"{model.source}: the labels cannot be used", hint="correct id2label in the model's config.json"
            )

    def needed_variant(self, model: Model) -> str | None:
        return "open" if OPEN_HEAD in model.network.heads else None

    def matched(
        self, records: Sequence[TaggedSentence], model: Model
    ) -> tuple[Sequence[TaggedSentence], Mapping[str, int]]:
        """See `TaskObjective.matched`. Tags that the model does not have count as missed."""
        names, before = (model.labels or Labels()).names, self.scheme
        records, unknown = spelled_as(records, names, before)
        self._reader.scheme = scheme_of(names)
        self._choose_metric()
        if self.scheme != before:
            _LOG.info("the scheme of the data is %s, the scheme of %s is %s", before, model.source, self.scheme)
        for note in self._reader.notes:
            _LOG.warning("%s", note)
        if unknown is not None:
            _LOG.warning("%s does not have %s, so the scores count unknown labels as missed", model.source, unknown)
        return records, unknown.labels if unknown is not None else {}
