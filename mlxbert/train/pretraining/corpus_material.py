"""A corpus as training material: plain text, its examples, the objective of pre-training, and an optional teacher."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from mlxbert.errors import ArgumentError, InputError
from mlxbert.export.card import Scores
from mlxbert.folders.fingerprint import hash_model
from mlxbert.model import Model
from mlxbert.nn import dropout
from mlxbert.progress import OnProgress
from mlxbert.tasks.fill_mask import fill_mask
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.train.base_model import BaseModel
from mlxbert.train.loop.training_run import Run
from mlxbert.train.lora_adapters import Adapters, adapt_model
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.pretraining.chunks import (
    Chunks,
    Length,
    Phase,
    Phases,
    full_sentences,
    held_out,
    read_lengths,
    sentence_pairs,
    without_overlap,
)
from mlxbert.train.pretraining.corpus.token_store import Corpus, CorpusReport, read_corpus
from mlxbert.train.pretraining.electra_pretraining import (
    Electra,
    discriminator_of,
    generator_of,
    with_generator,
    write_generator,
)
from mlxbert.train.pretraining.examples import Examples, Frame, Masking, Pairs
from mlxbert.train.pretraining.initial_model import InitialModel
from mlxbert.train.pretraining.objective import ELECTRA, Pretraining, heads_of
from mlxbert.train.pretraining.pretraining_settings import Settings
from mlxbert.train.training_call import Material, TrainingCall, usual_rate
from mlxbert.train.training_folders import FolderContent, metrics_table

MAX_HELD_OUT = 1000  # examples, so that evaluation does not take long


@dataclass(frozen=True)
class Data:
    """The training and validation examples of a run, the order of training, and a report on the corpus."""

    train: Examples
    valid: Examples
    order: Phases
    report: CorpusReport


def make_frame(tokenizer: Tokenizer) -> Frame:
    """Returns the special tokens that a tokenizer adds to one text and to a pair."""
    separator = tokenizer.token_id(tokenizer.special.get("sep", ""))
    if separator is None:
        raise ArgumentError("the vocabulary has no separator token, which pre-training needs")
    numbers = (tokenizer.token_id(token) for token in tokenizer.special.values())
    special = np.array([number for number in numbers if number is not None], np.int32)
    return Frame(*tokenizer.templates, special, separator)


def make_masking(tokenizer: Tokenizer, settings: Settings, *, all_masked: bool = False) -> Masking:
    """Makes the rule for masking tokens from the vocabulary of a tokenizer and the settings of a run."""
    mask = None if tokenizer.mask_token is None else tokenizer.token_id(tokenizer.mask_token)
    if mask is None:
        raise ArgumentError("the vocabulary has no mask token, which pre-training needs")
    used = tokenizer.known_ids()
    words = np.setdiff1d(np.arange(tokenizer.vocab_size) if used is None else used, make_frame(tokenizer).special)
    share, whole_words = settings.mask_probability, settings.whole_words
    return Masking(mask, words.astype(np.int32), share=share, whole_words=whole_words, all_masked=all_masked)


class ExampleMaker:
    """Makes the examples of a run: single texts, or the kind of `pairs` that the objective needs."""

    def __init__(
        self, settings: Settings, tokenizer: Tokenizer, pairs: Pairs | None, longest: int, *, all_masked: bool = False
    ) -> None:
        self._settings, self._tokenizer, self._pairs = settings, tokenizer, pairs
        self._frame = make_frame(tokenizer)
        self._masking = make_masking(tokenizer, settings, all_masked=all_masked)
        self.lengths = read_lengths(settings.length, longest)

    def make(
        self, folder: Path, options: TrainingOptions, steps: int | None, epochs: float, on_read: OnProgress | None
    ) -> Data:
        """Reads the corpus into the folder and splits it into examples.

        Training has `steps` updates or, if `steps` is `None`, as many as `epochs` passes over the corpus take.
        """
        settings = self._settings
        shards = settings.shards
        corpus = self._read(settings.corpus, shards or folder / "corpus", on_read, keyed=shards is not None)
        phases: list[Phase] = []
        held = others = None  # `others`: the source of second texts in evaluation
        for length in self.lengths:
            chunks = self._chunks(corpus, length, options.seed, folder)
            if not settings.valid:
                held = held or held_out(chunks, settings.validation_fraction, MAX_HELD_OUT, options.seed)
                chunks = Chunks.written(without_overlap(chunks, held), folder)
            if not len(chunks):
                raise InputError(
                    "the corpus is so small that all examples are held out for evaluation",
                    hint="use more text, or evaluate on other files with `valid=`",
                )
            size = max(options.batch_size * self.lengths[0].tokens // length.tokens, 1)  # equal tokens in each phase
            phases.append(Phase(chunks, length.tokens, length.share, size, chunks))
        order = Phases(
            phases, steps=steps, epochs=epochs, gradient_accumulation=options.gradient_accumulation, seed=options.seed
        )
        evaluated = corpus
        if held is None:
            evaluated = self._read(settings.valid, folder / "valid", None)
            others = self._chunks(evaluated, self.lengths[0], options.seed, folder)
            held = others.sample(MAX_HELD_OUT, options.seed)
        train = self._examples(corpus, order, options.seed)
        second_texts = held if held.several_documents else others or phases[0].chunks  # from other documents
        valid = self.evaluated(evaluated, held, second_texts)
        return Data(train, valid, order, corpus.report)

    def evaluated(self, corpus: Corpus, chunks: Chunks, others: Chunks) -> Examples:
        """Makes examples for evaluation; their masks do not depend on the seed of the run."""
        phase = Phase(chunks, self.lengths[0].tokens, 1.0, 1, others)
        order = Phases([phase], steps=1, epochs=1, gradient_accumulation=1, seed=0)
        return self._examples(corpus, order, 0)

    def all_of(self, files: Sequence[Path], folder: Path, limit: int | None, on_read: OnProgress | None) -> Examples:
        """Makes examples for evaluation from other files: `limit` random examples, or all if `limit` is `None`."""
        corpus = self._read(files, folder, on_read)
        chunks = self._chunks(corpus, self.lengths[0], 0, folder)
        return self.evaluated(corpus, chunks if limit is None else chunks.sample(limit, 0), chunks)

    def _examples(self, corpus: Corpus, order: Phases, seed: int) -> Examples:
        return Examples(
            corpus, order, self._frame, self._masking, pairs=self._pairs, copies=self._settings.masks, seed=seed
        )

    def _read(self, files: Sequence[Path], folder: Path, on_read: OnProgress | None, *, keyed: bool = False) -> Corpus:
        return read_corpus(
            files, folder, self._tokenizer, field=self._settings.field, documents=self._settings.documents,
            encoding=self._settings.encoding, keyed=keyed, on_progress=on_read, hashes=self._settings.hashes,
        )  # fmt: skip

    def _chunks(self, corpus: Corpus, length: Length, seed: int, folder: Path) -> Chunks:
        template = self._frame.single if self._pairs is None else self._frame.pair
        room = length.tokens - sum(special is not None for special, _ in template)
        if self._pairs is None:
            chunks = full_sentences(corpus, room, across=self._settings.across_documents)
        else:
            chunks = sentence_pairs(corpus, room, seed)
        stored = Chunks.written(chunks, folder)
        if not len(stored):
            raise InputError(
                "no document of the corpus has two sentences, which are needed for a pair",
                hint="use the objective mlm, which needs no pairs",
            )
        return stored


_NEW_RATE = 5  # factor of the learning rate: new weights need larger steps than trained ones


def prepare_model(
    base: InitialModel, weights: Mapping[str, float], settings: Settings, options: TrainingOptions
) -> tuple[Model, Adapters | None]:
    """Returns the model before training (for ELECTRA, with its generator), and its adapters, if any."""
    model = base.model(heads_of(weights), options.seed)
    if ELECTRA in weights:
        model = with_generator(model, base, settings.generator, options.seed)
    if options.dropout is not None:
        dropout.set_rate(model.network, options.dropout)
    options.check_layers(model.config.num_stored_layers)
    trained = model.architecture.parts or ()
    return model, adapt_model(model, options, tuple(head for head in model.network.heads if head not in trained))


@dataclass(frozen=True, kw_only=True)
class CorpusMaterial(Material):
    """Plain text as training material.

    `first` is the model that training changes. `data` holds the examples after `opened` has made them.
    """

    base: InitialModel
    objective: Pretraining
    settings: Settings
    maker: ExampleMaker
    steps: int | None  # the number of updates; `None` if `epochs` decides
    epochs: float  # the number of passes over the corpus
    fill: tuple[str, ...]
    teacher: BaseModel | None
    on_read: OnProgress | None
    first: Model
    adapters: Adapters | None
    data: Data | None = None

    def usual(self, options: TrainingOptions) -> Mapping[str, Any]:
        factor = 1 if self.base.config is None else _NEW_RATE
        return {"lr": usual_rate(self.first.config.hidden_size, options, factor)}

    def check(self, options: TrainingOptions) -> None:
        self.filled()

    def manifest(self, call: TrainingCall) -> dict[str, Any]:
        files, hashes = {"corpus": self.settings.corpus, "valid": self.settings.valid}, self.settings.hashes
        return {
            "task": call.task,
            **self.base.manifest(),
            "teacher": self.teacher and hash_model(self.teacher.files),
            "options": {**call.options.to_dict(), **self.objective.settings(), **self.settings.to_dict()},
            "steps": self.steps,
            "passes": self.epochs,
            "variants": [dict(variant) for variant in call.variants],
            "corpus_files": len(self.settings.corpus),
            "sha256": {f"{role}: {path}": hashes[path][0] for role, paths in files.items() for path in paths},
        }

    def opened(self, call: TrainingCall, folder: Path) -> Self:
        """Returns the material with examples.

        The process of rank 0 reads the corpus first. The other processes then open the files that it wrote or, if they
        do not have these files, read the corpus themselves.
        """
        call.times.begin("reading the corpus")

        def make(on_read: OnProgress | None) -> Data:
            return self.maker.make(folder, call.options, self.steps, self.epochs, on_read)

        with call.group.raise_together():
            data = make(self.on_read) if call.group.rank == 0 else None
        return replace(self, data=data or make(None))

    def model(self, options: TrainingOptions) -> tuple[Model, Adapters | None]:
        self.objective.use(self.first.config)
        return self.first, self.adapters

    def training(self, call: TrainingCall, options: TrainingOptions, model: Model) -> Mapping[str, Any]:
        data, measure = self._made, self.objective.measure
        batch = data.order.phases[0].batch_size
        return {
            "objective": self.objective, "examples": data.train, "place": data.train.describe, "order": data.order,
            "evaluate": partial(measure, model.network, data.valid, call.group, batch), "show": self.filled,
        }  # fmt: skip

    @property
    def _made(self) -> Data:
        assert self.data is not None
        return self.data

    def filled(self) -> tuple[str, ...]:
        """Returns the texts of `fill`, with each mask replaced by the most probable token."""
        if not self.fill:
            return ()
        texts = []
        filling = generator_of(self.first) if isinstance(self.first.network, Electra) else self.first
        for result in fill_mask(filling, [*self.fill], top_k=1):
            text = result.text
            for mask in reversed(result.masks):
                text = text[: mask.start] + mask.fills[0].token.strip() + text[mask.end :]
            texts.append(text)
        return tuple(texts)

    def reads(self) -> tuple[int, int]:
        return len(self._made.valid) * self._made.order.phases[0].tokens, 0

    def facts(self, call: TrainingCall, number: int, loop: Run) -> Mapping[str, Any]:
        data, epochs = self._made, self._made.order.epochs(loop.steps)
        return {"examples": len(data.train), "epochs": epochs, "new_head": None, "corpus": asdict(data.report)}

    def content(self, call: TrainingCall, model: Model, results: Sequence[Mapping[str, Any]]) -> FolderContent:
        data, electra, [result] = self._made, isinstance(model.network, Electra), results
        record = {
            "corpus": asdict(data.report), "run": result, "training_examples": len(data.train),
            "validation_examples": len(data.valid),
        }  # fmt: skip

        keeps_embedder = "vectors" in [term.name for term in self.objective.weighted] and self.base.files.modules
        return FolderContent(
            model=discriminator_of(model) if electra else model, record=record, card=self._card(data, result),
            scores=Scores("fill-mask" if "masked_lm" in model.network.heads and not electra else None, _best(result)),
            embedder=model.embedder if keeps_embedder else None,
            complete=partial(write_generator, model) if electra else lambda folder: {},
        )  # fmt: skip

    def _card(self, data: Data, result: Mapping[str, Any]) -> list[str]:
        name, report = self.base.public_name, data.report
        epoch = next((entry["epoch"] for entry in result["history"] if entry["step"] == result["step"]), 0)
        terms = " + ".join(f"{weight:g} {term.name}" for term, weight in self.objective.weighted.items())
        return [
            f"Pre-trained by mlxbert {f'from {name}' if self.base.config is None else f'with fresh weights ({name})'}: "
            f"{terms}, {result['step']:,} updates, {epoch:g} passes over {report.tokens:,} tokens of "
            f"{report.documents:,} documents.",
            "", f"On {len(data.valid):,} examples that were not trained on:", "",
            *metrics_table(_best(result)),
        ]  # fmt: skip


def _best(result: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of the chosen checkpoint, by name."""
    best: Mapping[str, float] = next((entry for entry in result["history"] if entry["step"] == result["step"]), {})
    return {name: value for name, value in best.items() if name not in ("step", "epoch")}
