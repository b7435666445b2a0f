"""The objective of finding entities of any types: cross-entropy over spans and labels (GLiNER, arXiv:2311.08526).

Each sentence is trained with the types of its entities and a random choice of other types, in random order. Words are
those that `tag` finds in the text, so that training and use agree.

Shapes: B windows in a batch, W words of a window, S span widths, C labels.
"""

import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from mlxbert.errors import ArgumentError
from mlxbert.labels.labels import Labels
from mlxbert.labels.schemes import decode
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.heads import Network
from mlxbert.nn.heads.open_entities import OpenEntityFacts
from mlxbert.tasks.open_tag import HEAD, THRESHOLD, Found, choose, found_in
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from mlxbert.text.labelled_words import LabelledWordEncoder, words_of
from mlxbert.text.words import Span
from mlxbert.train.data.tag_schemes import encode
from mlxbert.train.data.tagged_sentences import TaggedSentence
from mlxbert.train.objectives.objective import Example, Predictions, Split, TrainBatch
from mlxbert.train.objectives.tag import Tag
from mlxbert.train.objectives.task_objective import Origin
from mlxbert.train.scores.tag_scores import Prediction, tag_metrics, tally
from mlxbert.weights.families.registry import family_of
from mlxbert.weights.formats.config_json import GLINER, GLINER_TOKENS, ConfigJson
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.tokenizers.library_guards import largest_id
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer


def is_gliner(folder: ModelFolder) -> bool:
    """Whether a folder holds a GLiNER model."""
    return GLINER in folder.config_json.values


def as_new_gliner(folder: ModelFolder, name: str) -> ModelFolder:
    """Returns the folder of an encoder, described as a GLiNER model without the weights of its head.

    Its vocabulary gets the tokens that mark labels, and its embedding table gets rows for them where rows are missing.
    A folder that holds a GLiNER model is returned unchanged.
    """
    if is_gliner(folder):
        return folder
    config_json = folder.config_json
    config = family_of(config_json)[1].read_config(config_json)
    if config.hidden_size % 2:
        raise ArgumentError(f"{folder.path}: the hidden size is {config.hidden_size}, expected an even number")
    own = {
        "model_type": "gliner_uni_encoder_span", "model_name": name, "span_mode": "markerV0", "max_width": 12,
        "max_len": 384, "hidden_size": config.hidden_size, "num_rnn_layers": 1, "dropout": 0.4,
        "subtoken_pooling": "first", "words_splitter_type": "whitespace", "embed_ent_token": True, **GLINER_TOKENS,
    }  # fmt: skip
    described = replace(folder, described_by=ConfigJson(config_json.path, {**config_json.values, GLINER: own}))
    tokenizer = read_tokenizer(described).tokenizer  # with the new tokens
    rows = max(config.vocab_size, largest_id(tokenizer, set()) + 1)
    own |= {"class_token_index": tokenizer.token_to_id(GLINER_TOKENS["ent_token"]), "vocab_size": rows}
    values = {**config_json.values, "vocab_size": rows, GLINER: own}
    return replace(folder, described_by=ConfigJson(config_json.path, values))


_MOST_TYPES = 25  # types of entities in an input, as in gliner
_NO_WEIGHT = 1e-9  # the weight of a batch without words: its loss is 0


@dataclass(frozen=True)
class OpenTagExample(Example):
    """A window of a sentence; its `target` has the first word, the last word and the type of each entity."""

    record: TaggedSentence
    number: int  # the index of this window among the sentence's windows
    words: Sequence[Span]  # the offsets of the window's words
    tokens: Sequence[Sequence[int]]  # the token ids of each of these words
    # The first and the last index + 1 of the words with which predicted spans of this window may begin.
    judged: tuple[int, int]


class OpenTag(Tag):
    """Finding entities of any types."""

    head = HEAD
    pure = False
    types: tuple[str, ...] = ()  # the types of entities in the records

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._missed: dict[str, int] = {}  # number of entities that cannot be learned, by the sentence's location
        for name, value in (*vars(self.learning).items(), ("stride", self.data.stride)):
            if value and name in ("crf", "label_all_pieces", "stride"):
                raise ArgumentError(f"`{name}` cannot be combined with `open`, which trains spans of words")

    def described(self, files: ModelFolder, name: str) -> ModelFolder:
        return as_new_gliner(files, name)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"open": True}

    def facts(self) -> dict[str, str]:
        return super().facts() | {"method": "any types of entities (open)"}

    def notes(self) -> tuple[str, ...]:
        count, widest = sum(self._missed.values()), self._facts.max_width
        missed = (
            f"{count:,} entities have more than {widest} words, or begin or end inside of a word, and are not trained"
        )
        return (*super().notes(), *([f"{missed} (the first in {next(iter(self._missed))})."] if count else ()))

    def check_teacher(self) -> None:
        raise ArgumentError("`teacher` cannot be combined with `open`, which trains spans of words")

    def start(self, source: Origin) -> None:
        """See `TaskObjective.start`."""

    def read(self, rows: Any) -> list[TaggedSentence]:
        records = super().read(rows)
        if self.scheme == "plain":
            raise ArgumentError("the tags mark no entities, which `open` needs", hint="omit open, or use spans")
        return records

    def check_valid(self, train: Sequence[TaggedSentence], valid: Sequence[TaggedSentence]) -> None:
        """Accepts any types: that is the point."""

    def heads(self, records: Sequence[TaggedSentence]) -> Mapping[str, Labels | None]:
        self._set_types(records)
        return {HEAD: None}

    def _set_types(self, records: Sequence[TaggedSentence]) -> None:
        self.types = tuple(sorted({kind for record in records for kind, _, _ in decode(record.tags, self.scheme)}))
        self.labels = Labels(("O", *(f"B-{kind}" for kind in self.types)))

    def bind(self, model: Model) -> None:
        super(Tag, self).bind(model)
        self._facts = cast(OpenEntityFacts, self.config.heads[HEAD])
        self._encoder = LabelledWordEncoder(self.tokenizer, self._facts)

    def tuned(self, part: Split, predictions: Predictions) -> Labels:
        """Returns the labels of the configuration, which this head does not use."""
        return self.config.labels or Labels()

    def check_model(self, model: Model) -> None:
        """See `TaskObjective.check_model`."""

    def matched(
        self, records: Sequence[TaggedSentence], model: Model
    ) -> tuple[Sequence[TaggedSentence], Mapping[str, int]]:
        self._set_types(records)
        return records, {}

    @property
    def _groups(self) -> list[list[str]]:
        """The types in groups that fit into an input; a word if the records have no entities."""
        return self._encoder.groups(self.types or ("entity",))

    @property
    def _longest_group(self) -> list[str]:
        """The group whose types take the most tokens: windows leave room for it, and no input has more types."""
        return max(self._groups, key=lambda group: len(self._encoder.prompt(group)))

    def examples(self, record: TaggedSentence) -> list[OpenTagExample]:  # type: ignore[override]
        """Splits a sentence into windows. Their `encoding` has the longest group of types."""
        words = [*words_of(record.text)]
        tokens, group, entities = (
            self._encoder.words(record.text, words),
            self._longest_group,
            self._entities(record, words),
        )
        examples: list[OpenTagExample] = []
        for window in self._encoder.windows(tokens, group):
            part, (low, high) = slice(window.first, window.end), window.judged
            target = [
                (first - window.first, last - window.first, kind)
                for first, last, kind in entities
                if window.first <= first <= last < window.end
            ]
            encoding, judged = self._encoder.encode(tokens[part], group), (low - window.first, high - window.first)
            examples.append(OpenTagExample(encoding, target, record, len(examples), words[part], tokens[part], judged))
        return examples

    def _entities(self, record: TaggedSentence, words: Sequence[Span]) -> list[tuple[int, int, str]]:
        """Returns the first word, the last word and the type of each entity that can be learned; counts the others."""
        firsts, lasts = ({span[end]: word for word, span in enumerate(words)} for end in (0, 1))
        widest = len(words) if self._facts.span_mode == "token_level" else self._facts.max_width
        found, missed = [], 0
        for kind, start, end in decode(record.tags, self.scheme):
            first, last = firsts.get(record.offsets[start][0]), lasts.get(record.offsets[end - 1][1])
            if first is None or last is None or not 0 <= last - first < widest:
                missed += 1
            else:
                found.append((first, last, kind))
        if missed:
            self._missed[record.place] = missed
        return found

    def inputs(self, examples: Sequence[OpenTagExample]) -> list[Encoding]:  # type: ignore[override]
        """Returns an input for each example and each group of types."""
        return [self._encoder.encode(example.tokens, group) for example in examples for group in self._groups]

    def tokens(self, example: OpenTagExample) -> Iterable[int]:  # type: ignore[override]
        return {*example.encoding.ids, *self._encoder.prompt(self.types)}

    def collate(self, examples: Sequence[OpenTagExample], rng: random.Random) -> TrainBatch:  # type: ignore[override]
        """Chooses the types of each input. The targets are 1 for an entity, else 0, and the mask of the loss.

        Both are (B, W, S, C), or (B, W, 3, C) if words are scored.
        """
        chosen = [self._choose_types(example, rng) for example in examples]
        encodings = [self._encoder.encode(*pair) for pair in zip((e.tokens for e in examples), chosen, strict=True)]
        inputs = make_batch(encodings, self.config)
        assert inputs.labelled_words is not None
        of_words = self._facts.span_mode == "token_level"
        width = 3 if of_words else self._facts.max_width
        shape = (len(examples), inputs.labelled_words.words.shape[1], width, inputs.labelled_words.labels.shape[1])
        targets, mask = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for row, (example, types) in enumerate(zip(examples, chosen, strict=True)):
            for size in range(width):
                mask[
                    row, : len(example.words) if of_words else max(len(example.words) - size, 0), size, : len(types)
                ] = 1
            for first, last, kind in example.target:
                if kind not in types:  # more types than fit into an input: this one is not asked for
                    continue
                label = types.index(kind)
                if of_words:
                    targets[row, first, 0, label] = targets[row, last, 1, label] = 1
                    targets[row, first : last + 1, 2, label] = 1
                else:
                    targets[row, first, last - first, label] = 1
        return TrainBatch(inputs, (mx.array(targets), mx.array(mask), sum(len(example.words) for example in examples)))

    def _choose_types(self, example: OpenTagExample, rng: random.Random) -> list[str]:
        """Returns the types in an example and a random choice of others, in random order."""
        present = sorted({kind for _, _, kind in example.target})
        others = [kind for kind in self.types if kind not in present]
        most = min(len(others), max(_MOST_TYPES - len(present), 0))
        types = [*present, *rng.sample(others, rng.randint(min(not present, most), most))] or ["entity"]
        room = len(self._encoder.prompt(self._longest_group))
        while len(types) > 1 and len(self._encoder.prompt(types)) > room:
            types.pop()  # the types that are absent come last
        rng.shuffle(types)
        return types

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        targets, mask, words = batch.targets
        logits = network.logits(HEAD, batch.inputs).astype(mx.float32)
        return (_cross_entropies(logits, targets) * mask).sum(), max(float(words), _NO_WEIGHT)

    def metrics(self, examples: Sequence[OpenTagExample], predictions: Predictions) -> dict[str, float]:  # type: ignore[override]
        decoded = [*self._predicted(examples, predictions)]
        expected = [example.record.tags for example in examples if not example.number]
        return tag_metrics(tally(expected, [prediction.tags for prediction in decoded], self.scheme), self.scheme)

    def _predicted(self, examples: Sequence[OpenTagExample], predictions: Predictions) -> Iterator[Prediction]:  # type: ignore[override]
        """Yields the predicted tags of each sentence; a span covers the words of the record that it touches."""
        groups, rows = self._groups, iter(predictions)
        found: list[Found] = []
        for number, example in enumerate(examples):
            for group, logits in zip(groups, rows, strict=False):
                found += self._found(example, group, logits)
            if number + 1 == len(examples) or not examples[number + 1].number:
                yield self._tags(example.record, found)
                found = []

    def _found(self, example: OpenTagExample, group: Sequence[str], logits: Any) -> Iterator[Found]:
        """Yields the spans of a window above the threshold, by their places in the text."""
        scores = 1 / (1 + np.exp(-np.asarray(logits, np.float64)[: len(example.words), :, : len(group)]))
        low, high = example.judged
        for score, first, last, label in found_in(scores, self._facts, THRESHOLD):
            if low <= first < high:
                yield score, example.words[first][0], example.words[last][1], group[label]

    def _tags(self, record: TaggedSentence, found: Sequence[Found]) -> Prediction:
        starts = [start for start, _ in record.offsets]
        spans = [
            (score, bisect_right(starts, start) - 1, bisect_right(starts, end - 1) - 1, kind)
            for score, start, end, kind in found
        ]
        chosen = choose(spans, nested=False)
        confidences = [1.0] * len(starts)
        for score, first, last, _ in chosen:
            confidences[first : last + 1] = [score] * (last + 1 - first)
        tags = encode([(kind, first, last + 1) for _, first, last, kind in chosen], len(starts), self.scheme)
        return Prediction(tags, confidences)


def _cross_entropies(logits: mx.array, targets: mx.array) -> mx.array:
    return mx.maximum(logits, 0) - logits * targets + mx.log1p(mx.exp(-mx.abs(logits)))
