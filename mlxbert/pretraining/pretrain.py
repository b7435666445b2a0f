"""`mlxbert.pretrain`: from plain text to a model folder, as a stream of events.

The work is done in `DIR.partial/`, see `mlxbert.training.workspace`, on the loop of fine-tuning. The same call resumes.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from mlxbert import device as devices
from mlxbert.cores import training_workers
from mlxbert.device import dtype_name, mx
from mlxbert.distributed import Group, join
from mlxbert.errors import ArgumentError, InputError, check_whole
from mlxbert.files import sha256
from mlxbert.folders import destination
from mlxbert.folders.card import trained
from mlxbert.folders.save import write_trained
from mlxbert.model import Model
from mlxbert.nn import dropout
from mlxbert.pretraining.data import Data, Maker, OnRead
from mlxbert.pretraining.examples import Described
from mlxbert.pretraining.objective import Pretraining
from mlxbert.pretraining.settings import Settings, files_of, pairs_of
from mlxbert.pretraining.start import Start, find_start
from mlxbert.pretraining.terms.registry import TERMS, read_terms
from mlxbert.results import FillMask
from mlxbert.tasks.fill_mask import fill_mask
from mlxbert.training.command import compute_dtype, computed_with, usual_rate
from mlxbert.training.events import Event, Finished, Started
from mlxbert.training.gradients import install
from mlxbert.training.loop import Run, Training
from mlxbert.training.options import TrainingOptions
from mlxbert.training.workspace import Workspace, clean_up

_LOOP = frozenset(field.name for field in fields(TrainingOptions)) - {"epochs", "patience"}
_SETTINGS = frozenset(field.name for field in fields(Settings)) - {"corpus", "valid", "shards"}
_NEW_RATE = 5  # new weights need larger steps than trained ones


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of `pretrain`, checked.

    Attributes:
        start: What training starts from.
        target: The folder to write.
        objective: The terms.
        settings: How examples are made.
        options: How it is trained.
        steps: Updates in all; `None` for `epochs` passes.
        epochs: Passes over the corpus.
        fill: Texts with blanks that are filled at each evaluation.
        dtype: The dtype of computation.
        overwrite: Whether existing results and unfinished work are replaced.
        group: The processes.
        on_read: Called while the corpus is read.
    """

    start: Start
    target: Path
    objective: Pretraining
    settings: Settings
    options: TrainingOptions
    steps: int | None
    epochs: float
    fill: tuple[str, ...]
    dtype: mx.Dtype
    overwrite: bool
    group: Group
    on_read: OnRead | None

    def manifest(self) -> dict[str, Any]:
        """What decides every bit of the result: only with the same manifest does a run resume."""
        files = {"corpus": self.settings.corpus, "valid": self.settings.valid}
        return {
            **computed_with(self.dtype, self.group),
            "task": "pretrain",
            **self.start.manifest(),
            "options": {**self.options.to_dict(), **self.objective.settings(), **self.settings.to_dict()},
            "steps": self.steps,
            "passes": self.epochs,
            "variants": [{}],
            "sha256": _hashes(files),
        }


def pretrain(
    corpus: str | Path | Sequence[str | Path],
    *,
    output: str | Path,
    objective: str = "mlm",
    model: str | Path | None = None,
    adapter: str | Path | None = None,
    config: str | Path | None = None,
    vocabulary: str | Path | None = None,
    valid: str | Path | Sequence[str | Path] | None = None,
    steps: int | None = None,
    epochs: float = 1.0,
    fill: Sequence[str] = (),
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
        objective: The losses, with weights if they are not 1: `mlm`, `mlm,nsp`, `mlm,sop`, `mlm:1,nsp:0.5`.
        model: The model to continue: hub name, folder or `builtin`, which is the default.
        adapter: An adapter of the model that is merged into its weights first, see `mlxbert.load`.
        config: Begins a new model instead: `tiny`, `mini`, `small`, `medium`, `base`, or a file as a `config.json`.
        vocabulary: The vocabulary of a new model: a folder, see `mlxbert.vocabulary`, or the name of a model.
        valid: Files to evaluate on; `None` holds out a part of the corpus.
        steps: Updates of the weights; `None` for `epochs`.
        epochs: Passes over the corpus.
        fill: Texts with `[MASK]` that are filled at each evaluation: `Evaluated.filled`.
        shards: A folder for the token ids of the corpus that is kept, so that other runs need not read the corpus.
        revision: See `mlxbert.load`.
        offline: See `mlxbert.load`.
        dtype: See `mlxbert.finetune`.
        device: See `mlxbert.load`.
        overwrite: Whether an earlier result, or the unfinished work of another call, is replaced.
        on_progress: Called with the bytes of a download.
        on_read: Called with the bytes of the corpus that are read, and of how many.
        **options: Those of `mlxbert.pretraining.settings.Settings`: `field`, `documents`, `across_documents`, `length`,
            `whole_words`, `masks`, `mask_share`, `validation_share`; and those of
            `mlxbert.training.options.TrainingOptions`, without adapters.

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
    chosen = {name: known[name] for name in _SETTINGS & known.keys()}
    settings = Settings(
        corpus=files_of(corpus, "corpus"), valid=files_of(valid, "valid"),
        shards=None if shards is None else Path(shards).expanduser(), **chosen,
    )  # fmt: skip
    pairs_of([*weights], settings.across_documents)
    if steps is not None:
        check_whole("steps", steps, 1)
    if not isinstance(epochs, int | float) or not 0 < epochs < 1e6:
        raise ArgumentError(f"epochs is {epochs!r:.60}, expected a number above 0")
    pretraining = Pretraining({TERMS[name](): weight for name, weight in weights.items()})
    loop = TrainingOptions(**{name: known[name] for name in _LOOP & known.keys()})
    if loop.lora is not None:
        raise ArgumentError("lora is given, which pretrain does not have: an adapter holds no masked-word head")
    group = join()
    with group.together():
        if not group.rank and not overwrite:
            clean_up(Path(output).expanduser().resolve())
        devices.use(device)
        start = find_start(
            model, adapter, config, vocabulary, [*pretraining.heads(())], device,
            revision=revision, offline=offline, on_progress=on_progress,
        )  # fmt: skip
        target = Path(output) if group.rank else destination.check_target(output, start.files.path, overwrite)
        call = Call(
            start=start, target=target, objective=pretraining, settings=settings, options=loop, steps=steps,
            epochs=epochs, fill=tuple(fill), dtype=compute_dtype(dtype), overwrite=overwrite, group=group,
            on_read=on_read,
        )  # fmt: skip
        first = start.model([*pretraining.heads(())], loop.seed)
        call = _with_defaults(call, first, known)
        Maker(settings, first.tokenizer, None, first.config.max_length)  # checked before hours of work
        manifest = call.manifest()
    if group.size > 1:
        group.check_same({name: value for name, value in manifest.items() if name not in ("streams", "blas")})
    return _events(call, first, manifest)


def _with_defaults(call: Call, model: Model, given: Mapping[str, Any]) -> Call:
    """The call with the learning rate that suits the model, where none is given."""
    if "lr" in given:
        return call
    rate = usual_rate(model.config.hidden_size) * (1 if call.start.config is None else _NEW_RATE)
    return replace(call, options=replace(call.options, lr=rate))


def _hashes(roles: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """The hashes of all files."""
    found = {}
    for role, paths in roles.items():
        for path in paths:
            try:
                found[f"{role}: {path}"] = sha256(path)
            except OSError as problem:
                raise InputError(f"{path}: cannot be read ({problem.strerror})") from None
    return found


def _events(call: Call, model: Model, manifest: Mapping[str, Any]) -> Iterator[Event]:
    first = call.group.rank == 0
    workspace = Workspace(call.target, manifest, overwrite=call.overwrite)
    with workspace.opened() if first else nullcontext():
        data = _read(call, model, workspace)
        if not call.group.broadcast(workspace.result(0) is not None if first else None):
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
            yield _finished(call, model, data, workspace)


def _read(call: Call, model: Model, workspace: Workspace) -> Data:
    """The examples: the first process reads the corpus, the others open what it wrote, or read it elsewhere."""
    names = [term.name for term in call.objective.weighted]
    pairs = pairs_of(names, call.settings.across_documents)
    maker = Maker(call.settings, model.tokenizer, pairs, model.config.max_length)

    def make(on_read: OnRead | None) -> Data:
        return maker.make(workspace.folder, call.options, call.steps, call.epochs, on_read)

    with call.group.together():
        found = make(call.on_read) if call.group.rank == 0 else None
    return make(None) if found is None else found


def _make_run(call: Call, model: Model, data: Data, workspace: Workspace | None) -> Run:
    options, group, objective = call.options, call.group, call.objective
    objective.use(model.config)
    if options.dropout is not None:
        dropout.set_rate(model.network, options.dropout)
    batch = data.order.phases[0].batch_size

    def evaluate() -> Mapping[str, float]:
        return objective.measure(model.network, data.valid, group, batch)

    def show() -> tuple[str, ...]:
        return tuple(map(_filled, fill_mask(model, [*call.fill], top_k=1))) if call.fill else ()

    training = Training(
        network=model.network, objective=objective, examples=data.train, places=Described(data.train),
        order=data.order, options=options, dtype=call.dtype, evaluate=evaluate, show=show, group=group,
        streams=group.broadcast(max(len(training_workers()), 1)),
    )  # fmt: skip
    return Run(training, None if workspace is None else workspace.store(0))


def _filled(found: FillMask) -> str:
    """A text with the best word in each of its blanks."""
    text = found.text
    for mask in reversed(found.masks):
        text = text[: mask.start] + mask.fills[0].token.strip() + text[mask.end :]
    return text


def _started(call: Call, run: Run, data: Data) -> Started:
    return Started(
        task="pretrain", model=call.start.name, output=str(call.target), runs=1, varied={}, examples=len(data.train),
        epochs=data.order.epochs(run.steps), steps=run.steps, first_step=run.state.progress.step,
        parameters=run.parameters - run.frozen, frozen=run.frozen, new_head=None,
        device=f"{'gpu' if devices.on_gpu() else 'cpu'}, {dtype_name(call.dtype)}", processes=call.group.size,
        corpus=asdict(data.report),
    )  # fmt: skip


def _finished(call: Call, model: Model, data: Data, workspace: Workspace) -> Finished:
    """Writes the folder."""
    result = workspace.result(0) or {}
    install(model.network, workspace.weights(0))
    call.objective.use(model.config)
    record = {
        **call.manifest(), "corpus": asdict(data.report), "run": result, "python": sys.version.split()[0],
        "training_examples": len(data.train), "validation_examples": len(data.valid),
    }  # fmt: skip

    def describe(folder: Path) -> Mapping[str, str]:
        return {"training.json": json.dumps(record, indent=1) + "\n", "README.md": _card(call, data, result)}

    with workspace.model() as folder:
        write_trained(model, folder, describe)
        destination.check_target(call.target, call.start.files.path, call.overwrite)  # hours have passed
        destination.move(folder, call.target)
    workspace.remove()
    return Finished(
        run=0, output=str(call.target), metric=call.objective.metric, score=result["score"], step=result["step"],
        seconds=result["seconds"], runs=({"seed": call.options.seed, "score": result["score"]},),
    )  # fmt: skip


def _card(call: Call, data: Data, result: Mapping[str, Any]) -> str:
    """The model card."""
    measured: Mapping[str, float] = next((one for one in result["history"] if one["step"] == result["step"]), {})
    rows = [f"| {name} | {value:.4f} |" for name, value in measured.items() if name not in ("step", "epoch")]
    terms = " + ".join(f"{weight:g} {term.name}" for term, weight in call.objective.weighted.items())
    report = data.report
    begun = f"from {call.start.name}" if call.start.config is None else f"with fresh weights ({call.start.name})"
    facts = [
        f"Pre-trained by mlxbert {begun}: {terms}, {result['step']:,} updates, "
        f"{measured.get('epoch', 0):g} passes over {report.tokens:,} tokens of {report.documents:,} documents.",
        "", f"On {len(data.valid):,} examples that were held out:", "", "| metric | value |", "|---|---|", *rows, "",
    ]  # fmt: skip
    return trained(call.start.name, call.target.name, "\n".join(facts))
