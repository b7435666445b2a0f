"""`mlxbert.pretrain`: from plain text to a model folder, as a stream of events."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from mlxbert.counterparts import no_argument
from mlxbert.data.validation_split import check_fraction
from mlxbert.errors import ArgumentError
from mlxbert.files import to_path
from mlxbert.options import STEPS, bounds_of
from mlxbert.pretraining.corpus_examples import Maker
from mlxbert.pretraining.corpus_material import CorpusMaterial, Passes, begun
from mlxbert.pretraining.electra import Electra
from mlxbert.pretraining.initial_model import InitialModel, find_initial
from mlxbert.pretraining.objective import ELECTRA, Pretraining, heads_of, learned_from, make_terms, read_terms
from mlxbert.pretraining.pretraining_settings import Settings, files_of, pairs_of
from mlxbert.pretraining.teacher import find_teacher, load_teacher
from mlxbert.progress import OnProgress
from mlxbert.readers.input_files import check_there
from mlxbert.training.loop.events import TrainingEvents
from mlxbert.training.loop.phase_times import LOADING, OnPhase, Times
from mlxbert.training.lora_layers import refuse_adapter
from mlxbert.training.options.loop_options import TrainingOptions
from mlxbert.training.training_call import TrainingRequest, begin
from mlxbert.weights.model_source import BUILTIN, ModelRef, check_source

_LOOP = frozenset(field.name for field in fields(TrainingOptions)) - {"epochs", "patience"}
_SETTINGS = frozenset(field.name for field in fields(Settings)) - {"corpus", "valid", "shards"}


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
    on_progress: OnProgress | None = None,
    on_read: OnProgress | None = None,
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
            from a teacher `soft`, `hidden` and `vectors`, see `mlxbert.pretraining.loss_terms`; or `electra`, also
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
        **options: Those of `mlxbert.pretraining.pretraining_settings.Settings`: `field`, `encoding`, `documents`,
            `across_documents`, `length`, `whole_words`, `masks`, `mask_probability`, `validation_fraction`,
            `generator`; and those of `mlxbert.training.options.loop_options.TrainingOptions`. With `lora`, fresh heads
            are trained, heads of the model are not, and the folder is an adapter in PEFT's format; not with `electra`.

    Returns:
        An iterator of events: `Started`, `Step`, `Evaluated`, `Saved`, `Finished`. Its `run()` trains to the end and
        gives the model.

    Raises:
        MlxbertError: An argument, the corpus, the model or the folder cannot be used.
    """
    weights = read_terms(objective)
    known = _known(options, objective, ELECTRA in weights)
    check_fraction(valid, known.get("validation_fraction"))
    settings = Settings(
        corpus=files_of(corpus, "corpus"), valid=files_of(valid, "valid"),
        shards=None if shards is None else to_path(shards, "shards"),
        **{name: known[name] for name in _SETTINGS & known.keys()},
    )  # fmt: skip
    pairs = pairs_of([*weights], settings.across_documents)
    times = Times(on_phase)
    times.begin(LOADING)
    loop = TrainingOptions(**{name: known[name] for name in _LOOP & known.keys()})
    length = Passes(steps, _passes(steps, epochs, loop.minutes))
    _check_electra(weights, loop)
    request = TrainingRequest(
        task="pretrain", what="pre-training", output=output,
        ref=ModelRef(_start(model, config), adapter, revision, offline, dtype, device),
        options=loop, named=known.keys(), overwrite=overwrite, times=times,
    )  # fmt: skip

    def find(ref: ModelRef) -> InitialModel:
        for path in (*settings.corpus, *settings.valid):
            check_there(path)
        base = find_initial(ref, config, vocabulary, layers, heads_of(weights), on_progress)
        _check_lora(base, loop)
        return base

    def read(base: InitialModel) -> CorpusMaterial:
        source = find_teacher(teacher, base, learned_from(weights), on_progress)
        first, adapters = begun(base, weights, settings, loop)
        taught = None if source is None else load_teacher(source, learned_from(weights), first)
        masked = isinstance(first.network, Electra)
        return CorpusMaterial(
            base=base, objective=Pretraining(make_terms(weights, temperature), taught), settings=settings,
            length=length, teacher=source, first=first, adapters=adapters, on_read=on_read,
            maker=Maker(settings, first.tokenizer, pairs, first.config.max_length, all_masked=masked),
            fill=(fill,) if isinstance(fill, str) else tuple(fill),
        )  # fmt: skip

    return begin(request, find, read)


def _start(model: str | Path | None, config: str | Path | None) -> str | Path:
    """The model to continue; the built-in one where none is named."""
    if model is None:
        return BUILTIN
    if config is not None:
        raise ArgumentError(
            "model and config are given: give model to continue one, or config to start a new one, not both"
        )
    check_source(model, "model")
    return model


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


def _check_electra(weights: Mapping[str, float], options: TrainingOptions) -> None:
    """Refuses what is said of the layers of one model where two are trained."""
    for name in ("freeze", "layer_decay", "lora") if ELECTRA in weights else ():
        if (value := getattr(options, name)) != getattr(TrainingOptions, name):
            raise ArgumentError(f"{name} is {value} with {ELECTRA}, whose generator has layers of its own")


def _check_lora(base: InitialModel, options: TrainingOptions) -> None:
    """Refuses adapters where their base is not a model on disk."""
    if options.lora is None:
        return
    for name, value in (("config", base.config), ("layers", base.layers)):
        if value is not None:
            raise ArgumentError(
                f"{name} is given with lora, but an adapter needs a trained model that is saved on disk"
            )
    refuse_adapter(base.files)
