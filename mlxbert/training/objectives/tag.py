"""A tag for each word: entities, parts of speech, chunks.

Shapes: B windows of a batch, L length, W words of a sentence, C tags, M labelled tokens.
"""

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.data.columns import ColumnNames, find_usual_columns
from mlxbert.data.tagged_sentences import TaggedSentence, read_tagged
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.labels.labels import Labels
from mlxbert.labels.schemes import OUTSIDE, convert, inside, names_of, scheme_of, spelled, types_of
from mlxbert.machine.device import mx, on_gpu
from mlxbert.model import Model
from mlxbert.nn import losses
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.readers.labelled_rows import LabelledRows
from mlxbert.text.batch import make_batch
from mlxbert.text.word_tokens import find_pieces
from mlxbert.training.data.data_checks import check_labels
from mlxbert.training.data.tag_checks import TagReader, check_tags, most_frequent, spelled_as, tokenless
from mlxbert.training.objectives.distillation_losses import Scores, TeacherTargets, divergence
from mlxbert.training.objectives.objective import Example, Predictions, Split, TrainBatch
from mlxbert.training.objectives.task_objective import Origin, TaskObjective
from mlxbert.training.options.training_tasks import TagLearning, WordData
from mlxbert.training.scores.evaluation_summary import Evaluation
from mlxbert.training.scores.metrics import cross_entropies
from mlxbert.training.scores.tag_scores import Prediction, metrics_of, tag_metrics, tagging, tally

HEAD = "token_classifier"
_FILLED = 32  # the number of labelled tokens is filled up to a multiple on a GPU, which compiles by shape
_NOTHING = 1e-9  # the weight of a batch without a labelled token: its loss is 0
_LOG = logging.getLogger("mlxbert")


@dataclass(frozen=True)
class TagExample(Example):
    """A window of a sentence; `target` are places of labelled tokens and the numbers of their tags.

    Attributes:
        record: The sentence.
        number: Which of its windows this is.
        best: The words that are judged in this window, and the places of their first tokens.
    """

    record: TaggedSentence
    number: int
    best: tuple[tuple[int, int], ...]


class Tag(TaskObjective[TagExample]):
    """Cross-entropy of the tags of words, or the likelihood of whole sequences of tags with a CRF.

    Attributes:
        scheme: The scheme of the records, once something was read.
    """

    name = "tag"
    data: WordData
    learning: TagLearning
    columns: ColumnNames | None = None
    head = HEAD

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        how = self.learning
        if how.crf and (how.label_all_pieces or how.scheme == "iob1"):
            other = "tags of all pieces" if how.label_all_pieces else "the scheme iob1, in which nearly all is allowed"
            raise ArgumentError(f"crf cannot be combined with {other}")
        self._reader = TagReader(how.scheme, crf=how.crf)
        self._tokenless: dict[str, int] = {}  # places of sentences: words with a tag and without a token

    @property
    def scheme(self) -> str:
        """How tags are written."""
        return self._reader.scheme or "plain"

    def start(self, source: Origin) -> None:
        """See `TaskObjective.start`."""
        self._reader.own = source.labels(self.head)

    def read(self, rows: LabelledRows) -> list[TaggedSentence]:
        """Sentences with tags of one scheme, that of the first files."""
        columns = self.columns
        if columns is None or not {columns.text, columns.label} <= {*rows.columns}:  # files of another format
            columns = find_usual_columns(rows, "tag", **self._asked)
        self.columns = self.columns or columns
        records = self._reader.read(read_tagged(rows, columns))
        self._choose_metric()
        return records

    def _choose_metric(self) -> None:
        known = metrics_of(self.scheme)
        if self._metric is not None and self._metric not in known:
            raise ArgumentError(f"metric is {self._metric!r}, expected one of {', '.join(known)} for plain tags")
        self.metric = self._metric or known[0]

    def facts(self) -> dict[str, str]:
        """See `TaskObjective.facts`."""
        return {"tags": self._reader.said}

    def notes(self) -> tuple[str, ...]:
        """See `TaskObjective.notes`."""
        return (*self._reader.notes, *tokenless(self._tokenless))

    def check(self, records: Sequence[TaggedSentence]) -> None:
        """See `TaskObjective.check`."""
        check_tags(records, self.columns.label or "" if self.columns else "")

    def check_valid(self, train: Sequence[TaggedSentence], valid: Sequence[TaggedSentence]) -> None:
        """See `TaskObjective.check_valid`."""
        check_labels({name for record in train for name in record.names}, valid)

    def heads(self, records: Sequence[TaggedSentence]) -> Mapping[str, Labels | None]:
        """A classifier with all tags of the scheme for the types in the records; a model's own, where it has these."""
        own, crf = self._reader.own, self.learning.crf
        if own is not None and self._reader.is_own(records):
            return {HEAD: Labels(own.names, own.problem_type, crf=crf or own.crf)}
        return {HEAD: Labels(names_of({tag for record in records for tag in record.tags}, self.scheme), crf=crf)}

    def bind(self, model: Model) -> None:
        """Takes what is needed of a model with a token classifier."""
        super().bind(model)
        longest = self.tokenizer.max_length
        self.shared = longest // 4 if self.data.stride is None else self.data.stride
        if self.shared > longest // 2:
            raise ArgumentError(f"stride is {self.shared}, expected at most {longest // 2}, half of the longest input")
        self._numbers = {name: number for number, name in enumerate(self.labels.names)}
        self._layer = getattr(model.network.heads[HEAD], "crf", None)
        # On Metal a CRF computes on the CPU, which would compile with a C++ compiler.
        self.pure = self._layer is None or not on_gpu()

    def prepare(self, record: TaggedSentence) -> TagExample:
        """The first window of a sentence."""
        return self.examples(record)[0]

    def examples(self, record: TaggedSentence) -> list[TagExample]:
        """The windows of a sentence."""
        windows = self.tokenizer.windows(record.text, stride=self.shared)
        found: list[TagExample] = []
        for encoding, pieces in zip(windows, find_pieces(record.text, windows, record.offsets), strict=True):
            labelled = [piece for piece in pieces if piece.first or self.learning.label_all_pieces]
            tags = [
                record.tags[piece.word] if piece.first else inside(record.tags[piece.word], self.scheme)
                for piece in labelled
            ]
            if self._layer is not None:  # a window may begin within an entity, which a CRF would call impossible
                tags = convert(tags, self.scheme, self.scheme)
            target = [
                (piece.place, self._numbers[tag])
                for piece, tag in zip(labelled, tags, strict=True)
                if tag in self._numbers
            ]
            best = tuple((piece.word, piece.place) for piece in pieces if piece.first and piece.best)
            found.append(TagExample(encoding, target, record, len(found), best))
        judged = {word for example in found for word, _ in example.best}
        if missed := sum(tag != OUTSIDE and word not in judged for word, tag in enumerate(record.tags)):
            self._tokenless[record.place] = missed
        return found

    def collate(self, examples: Sequence[TagExample], rng: random.Random) -> TrainBatch:
        """Pads windows; the targets are rows of the flattened batch and tags, (2, M), with -1 for no tag.

        Of a CRF they are places and tags, (2, B, W).
        """
        inputs = make_batch([example.encoding for example in examples], self.config)
        if self._layer is None:
            length = inputs.input_ids.shape[1]
            pairs = [(row * length + place, tag) for row, one in enumerate(examples) for place, tag in one.target]
            pairs += [(0, -1)] * (-len(pairs) % _FILLED if on_gpu() else 0)
            return TrainBatch(inputs, mx.array(pairs, mx.int32).reshape(-1, 2).T)
        most = max(1, *(len(example.target) for example in examples))
        padded = [[*example.target, *[(0, -1)] * (most - len(example.target))] for example in examples]
        return TrainBatch(inputs, mx.array(padded, mx.int32).transpose(2, 0, 1))

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float | mx.array]:
        """The sum over labelled tokens, and their number."""
        logits = network.logits(HEAD, batch.inputs)
        places, tags = batch.targets
        if not tags.size:
            return 0 * logits.astype(mx.float32).sum(), _NOTHING
        there, known = tags >= 0, mx.maximum(tags, 0)
        weight = mx.maximum(there.sum().astype(mx.float32), _NOTHING)
        every = logits.reshape(-1, logits.shape[-1])
        crf = getattr(network.heads[HEAD], "crf", None)
        if crf is not None:
            rows = mx.arange(len(places))[:, None] * logits.shape[1] + places
            return crf.loss(every[rows], known, there), weight
        return (losses.cross_entropies(every[places], known) * there).sum(), weight

    def teacher_targets(
        self, batch: TrainBatch, examples: Sequence[TagExample], scores: Sequence[Scores]
    ) -> TeacherTargets:
        """The scores of the tokens that have a tag."""
        length = batch.inputs.input_ids.shape[1]
        places = [[place for place, _ in one.target] for one in examples]
        rows = [row * length + place for row, some in enumerate(places) for place in some]
        chosen = np.concatenate([found[some] for found, some in zip(scores, places, strict=True)])
        return TeacherTargets(batch.targets, mx.array(chosen), mx.array(rows, mx.int32))

    def teacher_distance(self, scores: mx.array, targets: TeacherTargets, temperature: float) -> mx.array:
        """The sum over the tokens of the divergence from the teacher's distribution over the tags."""
        if not targets.scores.size:
            return 0 * scores.sum()
        return divergence(scores.reshape(-1, scores.shape[-1])[targets.rows], targets.scores, temperature)

    def predict(self, network: Network, inputs: Batch) -> mx.array:
        """Logits, float32 (B, L, C)."""
        return network.logits(HEAD, inputs).astype(mx.float32)

    def metrics(self, examples: Sequence[TagExample], predictions: Predictions) -> dict[str, float]:
        """See `mlxbert.training.scores.tag_scores`; `loss` is that of training, without dropout."""
        found = [*self._predicted(examples, predictions)]
        expected = [example.record.tags for example in examples if not example.number]
        scores = tag_metrics(tally(expected, [one.tags for one in found], self.scheme), self.scheme)
        return scores | {"loss": self._mean_loss(examples, predictions)}

    def _mean_loss(self, examples: Sequence[TagExample], predictions: Predictions) -> float:
        """The mean over labelled tokens; 0 if there are none."""
        total, count = 0.0, 0
        for example, logits in zip(examples, predictions, strict=True):
            if not example.target:
                continue
            places, tags = zip(*example.target, strict=True)
            rows = logits[[*places]]
            if self._layer is None:
                total += float(cross_entropies(rows, tags).sum())
            else:
                total += float(self._layer.loss(mx.array(rows[None]), mx.array([tags]), mx.ones((1, len(tags)))))
            count += len(tags)
        return total / max(count, 1)

    def _predicted(self, examples: Sequence[TagExample], predictions: Predictions) -> Iterator[Prediction]:
        """The tags of each sentence, from its windows."""
        scores: dict[int, NDArray[np.floating[Any]]] = {}
        for number, (example, logits) in enumerate(zip(examples, predictions, strict=True)):
            scores |= {word: logits[place] for word, place in example.best}
            if number + 1 == len(examples) or not examples[number + 1].number:
                yield self._decoded(scores, len(example.record.words))
                scores = {}

    def _decoded(self, scores: Mapping[int, NDArray[np.floating[Any]]], words: int) -> Prediction:
        names = [spelled(name, self.scheme) for name in self.labels.names]
        tags, sure = [OUTSIDE if OUTSIDE in names else names[0]] * words, [0.0] * words
        if scores:
            places = sorted(scores)
            emissions = np.array([scores[word] for word in places], np.float64)
            powers = np.exp(emissions - emissions.max(axis=1, keepdims=True))
            shares = powers / powers.sum(axis=1, keepdims=True)
            chosen = emissions.argmax(axis=1).tolist()
            if self._layer is not None:
                chosen, shares = self._layer.decode(emissions), self._layer.marginals(emissions)
            for word, tag, share in zip(places, chosen, shares, strict=True):
                tags[word], sure[word] = names[tag], float(share[tag])
        return Prediction(tags, sure)

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        """See `TaskObjective.evaluation`."""
        found = [*self._predicted(part.examples, predictions)]
        names = types_of(self.labels.names)
        return tagging(part.records, found, scheme=self.scheme, names=names, metric=self.metric, **facts)

    def baselines(
        self, model: Model, train: Sequence[TaggedSentence], valid: Sequence[TaggedSentence]
    ) -> dict[str, float]:
        """For each word its most frequent tag in training."""
        expected, predicted = [record.tags for record in valid], most_frequent(train, valid)
        return {"most frequent tag": tag_metrics(tally(expected, predicted, self.scheme), self.scheme)[self.metric]}

    def check_model(self, model: Model) -> None:
        """See `TaskObjective.check_model`."""
        if model.labels is None:
            raise CheckpointError(f"{model.source}: its labels cannot be used", hint="see id2label in its config.json")

    def matched(
        self, records: Sequence[TaggedSentence], model: Model
    ) -> tuple[Sequence[TaggedSentence], Mapping[str, int]]:
        """See `TaskObjective.matched`. What a model does not know counts as missed."""
        names, before = (model.labels or Labels()).names, self.scheme
        records, unknown = spelled_as(records, names, before)
        self._reader.scheme = scheme_of(names)
        self._choose_metric()
        if self.scheme != before:
            _LOG.info("the tags of the data are %s, those of %s are %s", before, model.source, self.scheme)
        for note in self._reader.notes:
            _LOG.warning("%s", note)
        if unknown is not None:
            _LOG.warning("%s does not have %s: they count as missed", model.source, unknown)
        return records, unknown.labels if unknown is not None else {}
