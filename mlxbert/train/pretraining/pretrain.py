"""`mlxbert.pretrain` and `mlxbert.distill`: train a model or a smaller student on plain text, as a stream of events."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from mlxbert.durable_files import to_path
from mlxbert.errors import ArgumentError
from mlxbert.option_declarations import STEPS, bounds_of
from mlxbert.other_libraries import no_argument
from mlxbert.progress import OnProgress
from mlxbert.readers.input_files import check_there
from mlxbert.train.data.validation_split import check_fraction
from mlxbert.train.loop.events import TrainingEvents
from mlxbert.train.loop.phase_times import LOADING, OnPhase, Times
from mlxbert.train.lora_adapters import refuse_adapter
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.pretraining.corpus_material import CorpusMaterial, ExampleMaker, prepare_model
from mlxbert.train.pretraining.electra_pretraining import Electra
from mlxbert.train.pretraining.initial_model import EVERY_OTHER, InitialModel, find_initial, find_teacher, load_teacher
from mlxbert.train.pretraining.objective import (
    ELECTRA,
    Pretraining,
    heads_of,
    make_terms,
    read_terms,
    terms_with_teacher,
)
from mlxbert.train.pretraining.pretraining_settings import DISTILLED, Settings, files_of, pairs_of
from mlxbert.train.training_call import TrainingCall, check_base, claimed, completed
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

    An interrupted run keeps its state in `DIR.partial/`, and the same call resumes it. The call itself only checks the
    arguments; training starts when `run` is called or the events are iterated over.

    Example:
        >>> for event in mlxbert.pretrain("notes.txt", output="my-bert", epochs=2):
        ...     print(event)

    Args:
        corpus: Text files: `.txt`, `.jsonl` or `.json`, optionally compressed with `.gz` or `.xz` (see
            `mlxbert.train.pretraining.corpus.documents`).
        output: The folder to write.
        objective: The losses, with their weights if these are not 1: `mlm`, `mlm,nsp`, `mlm,sop`, `mlm:1,nsp:0.5`.
            The losses `soft`, `hidden` and `vectors` learn from a teacher (see `mlxbert.train.pretraining.loss_terms`).
            `electra` cannot be combined with others; `electra:50` sets the weight of the discriminator. The written
            folder then holds the generator in `generator/`.
        model: The model whose training is continued: hub name, folder or `builtin` (the default).
        adapter: An adapter that is first merged into the weights of the model (see `mlxbert.load`).
        layers: The layers of the model to keep (numbered from 0), which gives a smaller student. Embeddings and heads
            are always kept.
        teacher: The model that `soft`, `hidden` and `vectors` learn from: hub name, folder or `builtin`; by default the
            model itself as it was before training.
        temperature: Divides the logits of both models in the `soft` loss.
        config: Starts a new model instead: `tiny`, `mini`, `small`, `medium`, `base`, or a file like a `config.json`.
        vocabulary: The vocabulary of a new model: a folder (see `mlxbert.vocabulary`) or the name of a model.
        valid: Text files to evaluate on; by default a part of the corpus is held out.
        steps: The number of updates, instead of `epochs`. The option `minutes` is a third way to limit training.
        epochs: The number of passes over the corpus; by default one.
        fill: Texts with `[MASK]` that are filled in at each evaluation and reported as `Evaluated.filled`.
        shards: A folder where the token ids of the corpus are kept, so that later runs do not read the corpus again.
        revision: The revision of the model (see `mlxbert.load`).
        offline: See `mlxbert.load`.
        dtype: See `mlxbert.finetune`.
        device: See `mlxbert.load`.
        overwrite: Whether to replace an earlier result or the unfinished work of another call.
        on_progress: Called with the number of downloaded bytes and the total.
        on_read: Called with the number of bytes of the corpus that were read, and the total.
        on_phase: See `mlxbert.finetune`.
        **options: The options of `mlxbert.train.pretraining.pretraining_settings.Settings`: `field`, `encoding`,
            `documents`, `across_documents`, `length`, `whole_words`, `masks`, `mask_probability`,
            `validation_fraction`, `generator`; and the options of
            `mlxbert.train.options.loop_options.TrainingOptions`. With `lora`, new heads are trained but
            existing heads are not, and the folder is an adapter in PEFT's format; `lora` cannot be combined
            with `electra`.

    Returns:
        An iterator of events: `Started`, `Step`, `Evaluated`, `Saved`, `Finished`. Its `run()` trains to the end and
        returns the model.

    Raises:
        MlxbertError: An argument, the corpus, the model or the folder is unusable.
    """
    weights = read_terms(objective)
    chosen = _checked_options(options, objective, ELECTRA in weights)
    check_fraction(valid, chosen.get("validation_fraction"))
    settings = Settings(
        corpus=files_of(corpus, "corpus"), valid=files_of(valid, "valid"),
        shards=None if shards is None else to_path(shards, "shards"),
        **{name: chosen[name] for name in _SETTINGS & chosen.keys()},
    )  # fmt: skip
    pairs = pairs_of([*weights], settings.across_documents)
    times = Times(on_phase)
    times.begin(LOADING)
    loop = TrainingOptions(**{name: chosen[name] for name in _LOOP & chosen.keys()})
    epochs = _passes(steps, epochs, loop.minutes)
    _check_electra(weights, loop)
    ref = ModelRef(_initial_source(model, config), adapter, revision, offline, dtype, device)
    with claimed(output, ref, loop, overwrite=overwrite) as (target, group):
        for path in (*settings.corpus, *settings.valid):
            check_there(path)
        base = find_initial(ref, config, vocabulary, layers, heads_of(weights), on_progress)
        _check_lora(base, loop)
        check_base(base, target, loop, group)
        source = find_teacher(teacher, base, terms_with_teacher(weights), on_progress)
        first, adapters = prepare_model(base, weights, settings, loop)
        taught = None if source is None else load_teacher(source, terms_with_teacher(weights), first)
        masked = isinstance(first.network, Electra)
        material = CorpusMaterial(
            base=base, objective=Pretraining(make_terms(weights, temperature), taught), settings=settings,
            steps=steps, epochs=epochs, teacher=source, first=first, adapters=adapters, on_read=on_read,
            maker=ExampleMaker(settings, first.tokenizer, pairs, first.config.max_length, all_masked=masked),
            fill=(fill,) if isinstance(fill, str) else tuple(fill),
        )  # fmt: skip
        call = TrainingCall(
            task="pretrain", what="pre-training", target=target, ref=ref, material=material,
            options=completed(loop, chosen.keys(), material), overwrite=overwrite, times=times, group=group,
        )  # fmt: skip
    return call.begin()


def _initial_source(model: str | Path | None, config: str | Path | None) -> str | Path:
    if model is None:
        return BUILTIN
    if config is not None:
        raise ArgumentError(
            "`model` and `config` cannot be combined",
            hint="use `model=` to continue a trained model, or `config=` to start a new model",
        )
    check_source(model, "model")
    return model


def _checked_options(options: Mapping[str, Any], objective: str, electra: bool) -> dict[str, Any]:
    chosen = {name: value for name, value in options.items() if value is not None}
    for name in chosen:
        if name not in _LOOP | _SETTINGS:
            raise no_argument(name, _LOOP | _SETTINGS, f"`{name}` is not an option of pretrain")
    if "generator" in chosen and not electra:
        raise ArgumentError(
            f"`generator` works only with the objective {ELECTRA}, but the objective is {objective!r:.60}"
        )
    return chosen


def _passes(steps: int | None, epochs: float | None, minutes: float | None) -> float:
    """Returns the number of passes over the corpus: `epochs`, or 1.0 if it is `None`."""
    if steps is not None:
        steps = STEPS.check_whole("steps", steps)
    lengths = {"steps": steps, "epochs": epochs, "minutes": minutes}
    if len(names := [f"`{name}`" for name, value in lengths.items() if value is not None]) > 1:
        raise ArgumentError(f"{' and '.join(names)} cannot be combined")
    return 1.0 if epochs is None else bounds_of(TrainingOptions, "epochs").check_number("epochs", epochs)


def _check_electra(weights: Mapping[str, float], options: TrainingOptions) -> None:
    """For ELECTRA, rejects options that refer to the layers of a single model, because it trains two models."""
    for name in ("freeze", "layer_decay", "lora") if ELECTRA in weights else ():
        if (value := getattr(options, name)) != getattr(TrainingOptions, name):
            raise ArgumentError(
                f"`{name}` is {value}, which {ELECTRA} does not allow, because the generator has layers of its own"
            )


def _check_lora(base: InitialModel, options: TrainingOptions) -> None:
    """Rejects `lora` if the base is an adapter, or is not on disk (a new model, or some layers of a model)."""
    if options.lora is None:
        return
    for name, value in (("config", base.config), ("layers", base.layers)):
        if value is not None:
            raise ArgumentError(
                f"`{name}` and `lora` cannot be combined, because an adapter needs a trained model on disk"
            )
    refuse_adapter(base.files)


def distill(
    corpus: str | Path | Sequence[str | Path],
    *,
    teacher: str | Path,
    output: str | Path,
    student: str | Path | None = None,
    layers: str | Sequence[int] | None = None,
    objective: str = DISTILLED,
    **options: Any,
) -> TrainingEvents:
    """Trains a student on plain text to predict what its teacher predicts, and writes it as a model folder.

    Example:
        >>> for event in mlxbert.distill("notes.txt", teacher="google-bert/bert-base-uncased", output="my-student"):
        ...     print(event)

    Args:
        corpus: See `mlxbert.pretrain`.
        teacher: The model that the student learns from: hub name, folder or `builtin`.
        output: The folder to write.
        student: The model to train, which must have the teacher's vocabulary; by default a copy of the teacher with
            only some of its layers.
        layers: The layers of the teacher that the student starts with (numbered from 0); by default every other one.
        objective: The losses with their weights (see `mlxbert.pretrain`).
        **options: All other options of `mlxbert.pretrain`.

    Returns:
        An iterator of events (see `mlxbert.pretrain`).

    Raises:
        MlxbertError: See `mlxbert.pretrain`.
    """
    for name in ("model", "config", "vocabulary", "adapter"):
        if options.get(name) is not None:
            raise ArgumentError(
                f"`{name}` is not an option of distill", hint="choose the student with `student=` or `layers=`"
            )
    if student is not None:
        if layers is not None:
            raise ArgumentError("`student` and `layers` cannot be combined, because layers are taken from the teacher")
        return pretrain(corpus, output=output, model=student, teacher=teacher, objective=objective, **options)
    check_source(teacher, "teacher")
    chosen = EVERY_OTHER if layers is None else layers
    return pretrain(
        corpus, output=output, model=teacher, layers=chosen, teacher=teacher, objective=objective, **options
    )
