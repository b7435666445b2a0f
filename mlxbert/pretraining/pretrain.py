"""`mlxbert.pretrain`: from plain text to a model folder, as a stream of events.

The work is done in `DIR.partial/`, see `mlxbert.training.workspace`, on the loop of fine-tuning. The same call resumes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from mlxbert.bounds import check_number, check_whole
from mlxbert.errors import ArgumentError
from mlxbert.files import to_path
from mlxbert.folders import destination
from mlxbert.machine import device as devices
from mlxbert.machine.cores import training_workers
from mlxbert.machine.device import dtype_name
from mlxbert.machine.distributed import join
from mlxbert.model import Model
from mlxbert.nn import dropout
from mlxbert.pretraining.call import Call
from mlxbert.pretraining.data import Data, Maker, OnRead
from mlxbert.pretraining.electra import Electra, generator_of, with_generator
from mlxbert.pretraining.examples import Described
from mlxbert.pretraining.objective import Pretraining
from mlxbert.pretraining.result import finish
from mlxbert.pretraining.settings import Settings, files_of, pairs_of
from mlxbert.pretraining.start import Start, find_start, read_layers
from mlxbert.pretraining.teacher import load_teacher
from mlxbert.pretraining.terms.registry import ELECTRA, heads_of, learned_from, make_terms, read_terms
from mlxbert.tasks.fill_mask import fill_mask
from mlxbert.training.adapters import adapt_model, refuse_with_adapters
from mlxbert.training.command import LORA_RATE, compute_dtype, usual_rate
from mlxbert.training.events import Event, Started
from mlxbert.training.loop import Run, Training
from mlxbert.training.options import TrainingOptions
from mlxbert.training.workspace import Workspace, clean_up
from mlxbert.weights.adapted import find_model
from mlxbert.weights.folder import ModelFolder

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
    **options: Any,
) -> Iterator[Event]:
    """Trains a model on plain text, and writes it as a folder that mlxbert and transformers open.

    Interrupted, it keeps its state in `DIR.partial/`, and the same call resumes there. Iterating does the work.

    Example:
        >>> for event in mlxbert.pretrain("notes.txt", output="my-bert", epochs=2):
        ...     print(event)

    Args:
        corpus: Files of text, `.txt` or `.jsonl`, also `.gz` and `.xz`: see `mlxbert.pretraining.corpus.documents`.
        output: The folder to write.
        objective: The losses, with weights if they are not 1: `mlm`, `mlm,nsp`, `mlm,sop`, `mlm:1,nsp:0.5`;
            from a teacher `soft`, `hidden` and `vectors`, see `mlxbert.pretraining.terms.teachers`; or `electra`, also
            `electra:50` with the weight of the discriminator, which is written with its generator in `generator/`.
        model: The model to continue: hub name, folder or `builtin`, which is the default.
        adapter: An adapter of the model that is merged into its weights first, see `mlxbert.load`.
        layers: Only these layers of the model, from 0, with its embeddings and heads: a smaller student.
        teacher: The model that `soft`, `hidden` and `vectors` learn from: hub name, folder or `builtin`; by default the
            model itself, as it is before training.
        temperature: Divides the scores of hidden words in `soft`, of both models.
        config: Begins a new model instead: `tiny`, `mini`, `small`, `medium`, `base`, or a file as a `config.json`.
        vocabulary: The vocabulary of a new model: a folder, see `mlxbert.vocabulary`, or the name of a model.
        valid: Files to evaluate on; `None` holds out a part of the corpus.
        steps: Updates of the weights, instead of `epochs`.
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
        **options: Those of `mlxbert.pretraining.settings.Settings`: `field`, `documents`, `across_documents`, `length`,
            `whole_words`, `masks`, `mask_share`, `validation_share`, `generator`; and those of
            `mlxbert.training.options.TrainingOptions`. With `lora`, heads that the model has are not trained, fresh
            ones are, and the folder is an adapter in PEFT's format; not with `electra`.

    Returns:
        An iterator of events: `Started`, `Step`, `Evaluated`, `Saved`, `Finished`.

    Raises:
        MlxbertError: An argument, the corpus, the model or the folder cannot be used.
    """
    weights = read_terms(objective)
    known = {name: value for name, value in options.items() if value is not None}
    for name in known:
        if name not in _LOOP | _SETTINGS:
            raise ArgumentError(f"{name} is given, which pretrain does not have")
    if "generator" in known and ELECTRA not in weights:
        raise ArgumentError(f"generator is given with the objective {objective!r:.60}, expected {ELECTRA}")
    chosen = {name: known[name] for name in _SETTINGS & known.keys()}
    settings = Settings(
        corpus=files_of(corpus, "corpus"), valid=files_of(valid, "valid"),
        shards=None if shards is None else to_path(shards, "shards"), **chosen,
    )  # fmt: skip
    pairs_of([*weights], settings.across_documents)
    if valid is not None and "validation_share" in known:
        raise ArgumentError("valid and validation_share are given, expected one: with valid, nothing is held out")
    epochs = _passes(steps, epochs)
    loop = TrainingOptions(**{name: known[name] for name in _LOOP & known.keys()})
    if ELECTRA in weights:
        _check_electra(loop)
    group = join()
    with group.together():
        if not group.rank and not overwrite:
            clean_up(output)
        devices.use(device)
        where: dict[str, Any] = {"revision": revision, "offline": offline, "on_progress": on_progress}
        heads = heads_of(weights)
        start = find_start(model, adapter, config, vocabulary, heads, device, **where)
        start = _of_layers(start, layers)
        if loop.lora is not None:
            _check_lora(start)
        target = Path(output) if group.rank else destination.check_target(output, start.files.path, overwrite)
        first = _begun(start, weights, settings, loop)
        loop.check_layers(first.config.num_stored_layers)
        own = first.architecture.parts or ()
        adapters = adapt_model(first, loop, tuple(head for head in first.network.heads if head not in own))
        learned = learned_from(weights)
        teaching = _find_teacher(teacher, start, learned, where)
        name = str(teacher or start.name)
        taught = None if teaching is None else load_teacher(name, teaching, learned, first, device)
        pretraining = Pretraining(make_terms(weights, temperature), taught)
        texts = (fill,) if isinstance(fill, str) else tuple(fill)
        call = Call(
            start=start, target=target, objective=pretraining, settings=settings, options=loop,
            steps=steps, epochs=epochs, fill=texts, dtype=compute_dtype(dtype), overwrite=overwrite, group=group,
            teacher=teaching, on_read=on_read, adapters=adapters,
        )  # fmt: skip
        call = _with_defaults(call, first, known)
        Maker(settings, first.tokenizer, None, first.config.max_length)  # checked before hours of work
        _filled(first, call.fill)
        manifest = call.manifest()
    if group.size > 1:
        group.check_same({name: value for name, value in manifest.items() if name not in ("streams", "blas")})
    return _events(call, first, manifest)


def _passes(steps: int | None, epochs: float | None) -> float:
    """The passes over the corpus, where `steps` does not say how long training is.

    Raises:
        ArgumentError: One is out of range, or both are given.
    """
    if steps is not None:
        check_whole("steps", steps)
        if epochs is not None:
            raise ArgumentError("steps and epochs are given, expected one")
    if epochs is None:
        return 1.0
    check_number("epochs", epochs)
    return epochs


def _check_electra(options: TrainingOptions) -> None:
    """Refuses what is said of the layers of one model where two are trained.

    Raises:
        ArgumentError: There is such an option.
    """
    for name in ("freeze", "layer_decay", "lora"):
        if (value := getattr(options, name)) != getattr(TrainingOptions, name):
            raise ArgumentError(f"{name} is {value} with {ELECTRA}, whose generator has layers of its own")


def _check_lora(start: Start) -> None:
    """Refuses adapters where their base is no model on disk.

    Raises:
        ArgumentError: It is a new model, or one of some layers; or it has an adapter.
    """
    for name, value in (("config", start.config), ("layers", start.layers)):
        if value is not None:
            raise ArgumentError(f"{name} is given with lora, but an adapter needs a trained model, as it is on disk")
    refuse_with_adapters(start.files, check=False)


def _begun(start: Start, weights: Mapping[str, float], settings: Settings, options: TrainingOptions) -> Model:
    """The model as it is before training; of ELECTRA with its generator."""
    model = start.model(heads_of(weights), options.seed)
    if ELECTRA in weights:
        model = with_generator(model, start, settings.generator, options.seed)
    if options.dropout is not None:
        dropout.set_rate(model.network, options.dropout)
    return model


def _of_layers(start: Start, layers: str | Sequence[int] | None) -> Start:
    """The start with only some of its layers, if they are named.

    Raises:
        ArgumentError: It is a new model.
    """
    if layers is None:
        return start
    if start.config is not None:
        raise ArgumentError("layers and config are given, expected one: layers are those of a trained model")
    return replace(start, layers=read_layers(layers))


def _find_teacher(
    teacher: str | Path | None, start: Start, learned: Sequence[str], where: Mapping[str, Any]
) -> ModelFolder | None:
    """The folder of the teacher that some terms learn from; by default that of the model.

    Raises:
        ArgumentError: No term learns from the teacher, or there is none.
    """
    if not learned:
        if teacher is not None:
            raise ArgumentError("teacher is given, but no term learns from it", hint="for example mlm,soft")
        return None
    if teacher is None and start.config is not None:
        raise ArgumentError(f"the objective has {learned[0]}, which learns from a teacher, but none is given")
    own = teacher is None or (str(teacher) == start.name and start.files.adapter is None)
    return start.files if own else find_model(str(teacher), **{**where, "revision": None})


def _with_defaults(call: Call, model: Model, given: Mapping[str, Any]) -> Call:
    """The call with the learning rate that suits the model, where none is given."""
    if "lr" in given:
        return call
    factor = LORA_RATE if call.adapters is not None else 1 if call.start.config is None else _NEW_RATE
    rate = usual_rate(model.config.hidden_size) * factor
    return replace(call, options=replace(call.options, lr=rate))


def _events(call: Call, model: Model, manifest: Mapping[str, Any]) -> Iterator[Event]:
    first = call.group.rank == 0
    workspace = Workspace(call.target, manifest, overwrite=call.overwrite)
    with workspace.opened() if first else nullcontext():
        data = _read(call, model, workspace)
        with call.group.together():
            finished = first and workspace.is_finished(0)
        if not call.group.broadcast(finished):
            run = _make_run(call, model, data, workspace if first else None)
            if first:
                yield _started(call, run, data)
            for event in run.events():
                if first:
                    yield event
            if first:
                progress = run.state.progress
                kept = {
                    "score": progress.best_score, "step": progress.best_step, "seconds": progress.seconds,
                    "history": progress.history,
                }  # fmt: skip
                workspace.finish(0, kept, run.best())
        if first:
            yield finish(call, model, data, workspace, manifest)


def _read(call: Call, model: Model, workspace: Workspace) -> Data:
    """The examples: the first process reads the corpus, the others open what it wrote, or read it elsewhere."""
    names = [term.name for term in call.objective.weighted]
    pairs = pairs_of(names, call.settings.across_documents)
    electra = isinstance(model.network, Electra)
    maker = Maker(call.settings, model.tokenizer, pairs, model.config.max_length, all_masked=electra)

    def make(on_read: OnRead | None) -> Data:
        return maker.make(workspace.folder, call.options, call.steps, call.epochs, on_read)

    with call.group.together():
        found = make(call.on_read) if call.group.rank == 0 else None
    return make(None) if found is None else found


def _make_run(call: Call, model: Model, data: Data, workspace: Workspace | None) -> Run:
    options, group, objective = call.options, call.group, call.objective
    objective.use(model.config)
    batch = data.order.phases[0].batch_size

    def evaluate() -> Mapping[str, float]:
        return objective.measure(model.network, data.valid, group, batch)

    def show() -> tuple[str, ...]:
        return _filled(model, call.fill)

    training = Training(
        network=model.network, objective=objective, examples=data.train, places=Described(data.train),
        order=data.order, options=options, dtype=call.dtype, evaluate=evaluate, show=show, group=group,
        trained=None if call.adapters is None else call.adapters.trained,
        streams=group.broadcast(max(len(training_workers()), 1)),
    )  # fmt: skip
    return Run(training, None if workspace is None else workspace.store(0))


def _filled(model: Model, texts: Sequence[str]) -> tuple[str, ...]:
    """Texts with the best word in each of their blanks.

    Raises:
        InputError: A text has no blank.
    """
    found = []
    filling = generator_of(model) if isinstance(model.network, Electra) and texts else model
    for one in fill_mask(filling, [*texts], top_k=1) if texts else ():
        text = one.text
        for mask in reversed(one.masks):
            text = text[: mask.start] + mask.fills[0].token.strip() + text[mask.end :]
        found.append(text)
    return tuple(found)


def _started(call: Call, run: Run, data: Data) -> Started:
    return Started(
        task="pretrain", model=call.start.name, output=str(call.target), runs=1, varied={}, examples=len(data.train),
        epochs=data.order.epochs(run.steps), steps=run.steps, first_step=run.state.progress.step,
        parameters=run.parameters - run.frozen, frozen=run.frozen, new_head=None,
        device=f"{'gpu' if devices.on_gpu() else 'cpu'}, {dtype_name(call.dtype)}", processes=call.group.size,
        corpus=asdict(data.report),
    )  # fmt: skip
