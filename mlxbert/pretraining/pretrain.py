"""`mlxbert.pretrain`: from plain text to a model folder, as a stream of events."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from mlxbert.counterparts import no_argument
from mlxbert.errors import ArgumentError
from mlxbert.files import to_path
from mlxbert.folders.fingerprint import hash_model
from mlxbert.machine import device as devices
from mlxbert.machine.distributed import join
from mlxbert.model import Model
from mlxbert.nn import dropout
from mlxbert.options import STEPS, bounds_of
from mlxbert.pretraining.data import Data, Maker, OnRead
from mlxbert.pretraining.electra import Electra, discriminator_of, generator_of, with_generator, write_generator
from mlxbert.pretraining.initial import InitialModel, find_initial
from mlxbert.pretraining.objective import ELECTRA, Pretraining, heads_of, learned_from, make_terms, read_terms
from mlxbert.pretraining.settings import Settings, files_of, pairs_of
from mlxbert.pretraining.teacher import find_teacher, load_teacher
from mlxbert.tasks.fill_mask import fill_mask
from mlxbert.training.adapters import Adapters, adapt_model, refuse_with_adapters
from mlxbert.training.base import BaseModel
from mlxbert.training.events import TrainingEvents
from mlxbert.training.loop import Run, Training
from mlxbert.training.options import TrainingOptions
from mlxbert.training.run import Result, TrainingRun, claim, metrics_table, usual_rate
from mlxbert.training.times import LOADING, OnPhase, Times
from mlxbert.weights.source import BUILTIN, ModelRef, check_source

_LOOP = frozenset(field.name for field in fields(TrainingOptions)) - {"epochs", "patience"}
_SETTINGS = frozenset(field.name for field in fields(Settings)) - {"corpus", "valid", "shards"}
_NEW_RATE = 5  # new weights need larger steps than trained ones


def pretrain(
    corpus: str | Path | Sequence[str | Path],
    *,
    output: str | Path,
    objective: str = "mlm",
    model: str | Path | None = None,
    adapter: str | Path | None = None,
    layers: str | Sequence[int] | None = None,
    teacher: str | Path | None = None,
    temperature: float = 2.0,
    config: str | Path | None = None,
    vocabulary: str | Path | None = None,
    valid: str | Path | Sequence[str | Path] | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    fill: str | Sequence[str] = (),
    shards: str | Path | None = None,
    revision: str | None = None,
    offline: bool = False,
    dtype: str = "auto",
    device: str = "auto",
    overwrite: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    on_read: OnRead | None = None,
    on_phase: OnPhase | None = None,
    **options: Any,
) -> TrainingEvents:
    """Trains a model on plain text, and writes it as a folder that mlxbert and transformers open.

    Interrupted, it keeps its state in `DIR.partial/`, and the same call resumes there. The call checks everything;
    `run`, or iterating over the events, does the work.

    Example:
        >>> for event in mlxbert.pretrain("notes.txt", output="my-bert", epochs=2):
        ...     print(event)

    Args:
        corpus: Files of text, `.txt`, `.jsonl` or `.json`, also `.gz` and `.xz`: see
            `mlxbert.pretraining.corpus.documents`.
        output: The folder to write.
        objective: The losses, with weights if they are not 1: `mlm`, `mlm,nsp`, `mlm,sop`, `mlm:1,nsp:0.5`;
            from a teacher `soft`, `hidden` and `vectors`, see `mlxbert.pretraining.terms`; or `electra`, also
            `electra:50` with the weight of the discriminator, which is written with its generator in `generator/`.
        model: The model to continue: hub name, folder or `builtin`, which is the default.
        adapter: An adapter of the model that is merged into its weights first, see `mlxbert.load`.
        layers: Only these layers of the model, from 0, with its embeddings and heads: a smaller student.
        teacher: The model that `soft`, `hidden` and `vectors` learn from: hub name, folder or `builtin`; by default the
            model itself, as it is before training.
        temperature: Divides the scores of masked tokens in `soft`, of both models.
        config: Begins a new model instead: `tiny`, `mini`, `small`, `medium`, `base`, or a file as a `config.json`.
        vocabulary: The vocabulary of a new model: a folder, see `mlxbert.vocabulary`, or the name of a model.
        valid: Files to evaluate on; `None` holds out a part of the corpus.
        steps: Updates of the weights, instead of `epochs`. `minutes`, one of the options, is another way to say it.
        epochs: Passes over the corpus; `None` for one.
        fill: Texts with `[MASK]` that are filled at each evaluation: `Evaluated.filled`.
        shards: A folder for the token ids of the corpus that is kept, so that other runs need not read the corpus.
        revision: Of the model, see `mlxbert.load`.
        offline: See `mlxbert.load`.
        dtype: See `mlxbert.finetune`.
        device: See `mlxbert.load`.
        overwrite: Whether an earlier result, or the unfinished work of another call, is replaced.
        on_progress: Called with the bytes of a download.
        on_read: Called with the bytes of the corpus that are read, and of how many.
        on_phase: See `mlxbert.finetune`.
        **options: Those of `mlxbert.pretraining.settings.Settings`: `field`, `encoding`, `documents`,
            `across_documents`, `length`, `whole_words`, `masks`, `mask_probability`, `validation_fraction`,
            `generator`; and those of `mlxbert.training.options.TrainingOptions`. With `lora`, heads that the model has
            are not trained, fresh ones are, and the folder is an adapter in PEFT's format; not with `electra`.

    Returns:
        An iterator of events: `Started`, `Step`, `Evaluated`, `Saved`, `Finished`. Its `run()` trains to the end and
        gives the model.

    Raises:
        MlxbertError: An argument, the corpus, the model or the folder cannot be used.
    """
    weights = read_terms(objective)
    known = _known(options, objective, ELECTRA in weights)
    settings = Settings(
        corpus=files_of(corpus, "corpus"), valid=files_of(valid, "valid"),
        shards=None if shards is None else to_path(shards, "shards"),
        **{name: known[name] for name in _SETTINGS & known.keys()},
    )  # fmt: skip
    pairs = pairs_of([*weights], settings.across_documents)
    if valid is not None and "validation_fraction" in known:
        raise ArgumentError("valid and validation_fraction are given, expected one: with valid, nothing is held out")
    times = Times(on_phase)
    times.begin(LOADING)
    loop = TrainingOptions(**{name: known[name] for name in _LOOP & known.keys()})
    epochs = _passes(steps, epochs, loop.minutes)
    if ELECTRA in weights:
        _check_electra(loop)
    group = join()
    with group.raise_together():
        if model is not None and config is not None:
            raise ArgumentError(
                "model and config are given: give model to continue one, or config to start a new one, not both"
            )
        if model is not None:
            check_source(model, "model")
        ref = ModelRef(BUILTIN if model is None else model, adapter, revision, offline, dtype, device)
        devices.use(ref.device, fast_float32=loop.fast_float32)
        base = find_initial(ref, config, vocabulary, layers, heads_of(weights), on_progress)
        if loop.lora is not None:
            _check_lora(base)
        target = claim(output, base, overwrite, group)
        if base.config is None:
            base.warn_unless_it_fits(loop)
        first = _begun(base, weights, settings, loop)
        loop.check_layers(first.config.num_stored_layers)
        own = first.architecture.parts or ()
        adapters = adapt_model(first, loop, tuple(head for head in first.network.heads if head not in own))
        learned = learned_from(weights)
        source = find_teacher(teacher, base, learned, on_progress)
        taught = None if source is None else load_teacher(source, learned, first)
        if "lr" not in known:
            factor = 1 if base.config is None else _NEW_RATE
            loop = replace(loop, lr=usual_rate(first.config.hidden_size, loop, factor))
        electra = isinstance(first.network, Electra)
        run = PretrainRun(
            base=base, target=target, task="pretrain", options=loop, overwrite=overwrite,
            dtype=devices.choose_dtype(ref.dtype, training=True),
            objective=Pretraining(make_terms(weights, temperature), taught),
            group=group, settings=settings, steps=steps, epochs=epochs, teacher=source, on_read=on_read, first=first,
            fill=(fill,) if isinstance(fill, str) else tuple(fill), adapters=adapters,
            maker=Maker(settings, first.tokenizer, pairs, first.config.max_length, all_masked=electra),
            times=times,
        )  # fmt: skip
        run.filled()  # checked before hours of work
    result = ModelRef(target, offline=offline, device=device)
    events = run.events()
    times.begin("")
    return TrainingEvents(events, f"pre-training of {base.name}", result, times)


def _known(options: Mapping[str, Any], objective: str, electra: bool) -> dict[str, Any]:
    known = {name: value for name, value in options.items() if value is not None}
    for name in known:
        if name not in _LOOP | _SETTINGS:
            raise no_argument(name, _LOOP | _SETTINGS, f"{name} is given, which pretrain does not have")
    if "generator" in known and not electra:
        raise ArgumentError(f"generator is given with the objective {objective!r:.60}, expected {ELECTRA}")
    return known


def _passes(steps: int | None, epochs: float | None, minutes: float | None) -> float:
    """The passes over the corpus, where nothing else says how long training is."""
    if steps is not None:
        STEPS.check_whole("steps", steps)
    lengths = {"steps": steps, "epochs": epochs, "minutes": minutes}
    if len(given := [name for name, value in lengths.items() if value is not None]) > 1:
        raise ArgumentError(f"{' and '.join(given)} are given, expected one")
    if epochs is None:
        return 1.0
    bounds_of(TrainingOptions, "epochs").check_number("epochs", epochs)
    return epochs


def _check_electra(options: TrainingOptions) -> None:
    """Refuses what is said of the layers of one model where two are trained."""
    for name in ("freeze", "layer_decay", "lora"):
        if (value := getattr(options, name)) != getattr(TrainingOptions, name):
            raise ArgumentError(f"{name} is {value} with {ELECTRA}, whose generator has layers of its own")


def _check_lora(base: InitialModel) -> None:
    """Refuses adapters where their base is not a model on disk."""
    for name, value in (("config", base.config), ("layers", base.layers)):
        if value is not None:
            raise ArgumentError(
                f"{name} is given with lora, but an adapter needs a trained model that is saved on disk"
            )
    refuse_with_adapters(base.files, check=False)


def _begun(base: InitialModel, weights: Mapping[str, float], settings: Settings, options: TrainingOptions) -> Model:
    """The model as it is before training; of ELECTRA with its generator."""
    model = base.model(heads_of(weights), options.seed)
    if ELECTRA in weights:
        model = with_generator(model, base, settings.generator, options.seed)
    if options.dropout is not None:
        dropout.set_rate(model.network, options.dropout)
    return model


@dataclass(frozen=True, kw_only=True)
class PretrainRun(TrainingRun):
    """A checked call of `pretrain`; training changes the model `first`, `data` are the examples once they are made."""

    base: InitialModel
    objective: Pretraining
    settings: Settings
    maker: Maker
    steps: int | None
    epochs: float
    fill: tuple[str, ...]
    teacher: BaseModel | None
    on_read: OnRead | None
    first: Model
    adapters: Adapters | None
    data: Data | None = None

    def manifest(self) -> dict[str, Any]:
        """See `TrainingRun.manifest`."""
        files, hashes = {"corpus": self.settings.corpus, "valid": self.settings.valid}, self.settings.hashes
        return {
            "task": self.task,
            **self.base.manifest(),
            "teacher": self.teacher and hash_model(self.teacher.files),
            "options": {**self.options.to_dict(), **self.objective.settings(), **self.settings.to_dict()},
            "steps": self.steps,
            "passes": self.epochs,
            "variants": [dict(variant) for variant in self.variants],
            "corpus_files": len(self.settings.corpus),
            "sha256": {f"{role}: {path}": hashes[path][0] for role, paths in files.items() for path in paths},
        }

    def opened(self, folder: Path) -> Self:
        """The run with examples: the first process reads the corpus, the others open what it wrote, or read it, too."""
        self.times.begin("reading the corpus")

        def make(on_read: OnRead | None) -> Data:
            return self.maker.make(folder, self.options, self.steps, self.epochs, on_read)

        with self.group.raise_together():
            data = make(self.on_read) if self.group.rank == 0 else None
        return replace(self, data=data or make(None))

    def model(self, number: int) -> tuple[Model, Adapters | None]:
        """See `TrainingRun.model`."""
        self.objective.use(self.first.config)
        return self.first, self.adapters

    def training(self, number: int) -> Training:
        """See `TrainingRun.training`."""
        data, (model, adapters) = self._made, self.model(number)
        batch = data.order.phases[0].batch_size

        def evaluate() -> Mapping[str, float]:
            return self.objective.measure(model.network, data.valid, self.group, batch)

        return self._training(
            number, model, adapters, objective=self.objective, examples=data.train, place=data.train.describe,
            order=data.order, evaluate=evaluate, show=self.filled,
        )  # fmt: skip

    @property
    def _made(self) -> Data:
        assert self.data is not None
        return self.data

    def filled(self) -> tuple[str, ...]:
        """The texts of `fill` with the best word in each of their blanks."""
        found = []
        filling = generator_of(self.first) if isinstance(self.first.network, Electra) and self.fill else self.first
        for one in fill_mask(filling, [*self.fill], top_k=1) if self.fill else ():
            text = one.text
            for mask in reversed(one.masks):
                text = text[: mask.start] + mask.fills[0].token.strip() + text[mask.end :]
            found.append(text)
        return tuple(found)

    def reads(self) -> tuple[int, int]:
        """See `TrainingRun.reads`."""
        return len(self._made.valid) * self._made.order.phases[0].tokens, 0

    def facts(self, number: int, loop: Run) -> Mapping[str, Any]:
        """See `TrainingRun.facts`."""
        data = self._made
        return {
            "examples": len(data.train), "epochs": data.order.epochs(loop.steps), "new_head": None,
            "corpus": asdict(data.report),
        }  # fmt: skip

    def result(self, model: Model, results: Sequence[Mapping[str, Any]]) -> Result:
        """See `TrainingRun.result`."""
        data, electra, [result] = self._made, isinstance(model.network, Electra), results
        record = {
            "corpus": asdict(data.report), "run": result, "training_examples": len(data.train),
            "validation_examples": len(data.valid),
        }  # fmt: skip

        def complete(folder: Path) -> Mapping[str, Any]:
            if electra:
                write_generator(model, folder)
            return {}

        kept = "vectors" in [term.name for term in self.objective.weighted] and self.base.files.modules
        return Result(
            model=discriminator_of(model) if electra else model, record=record, card=self._card(data, result),
            embedder=model.embedder if kept else None, complete=complete,
        )  # fmt: skip

    def _card(self, data: Data, result: Mapping[str, Any]) -> list[str]:
        name, report = self.base.name, data.report
        found: Mapping[str, float] = next((one for one in result["history"] if one["step"] == result["step"]), {})
        terms = " + ".join(f"{weight:g} {term.name}" for term, weight in self.objective.weighted.items())
        return [
            f"Pre-trained by mlxbert {f'from {name}' if self.base.config is None else f'with fresh weights ({name})'}: "
            f"{terms}, {result['step']:,} updates, {found.get('epoch', 0):g} passes over {report.tokens:,} tokens of "
            f"{report.documents:,} documents.",
            "", f"On {len(data.valid):,} examples that were not trained on:", "",
            *metrics_table({name: value for name, value in found.items() if name not in ("step", "epoch")}),
        ]  # fmt: skip
