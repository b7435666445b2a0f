"""`mlxbert.finetune`: from labelled data to a model folder, as a stream of events.

The work is done in `DIR.partial/`, see `mlxbert.training.workspace`; `DIR` appears when everything is done. The same
call resumes; another one is refused.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Set as AbstractSet
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError, DivergedError
from mlxbert.folders import destination
from mlxbert.folders.save import write_trained
from mlxbert.machine import device as devices
from mlxbert.machine.cores import training_workers
from mlxbert.machine.device import dtype_name
from mlxbert.machine.distributed import Group, join
from mlxbert.nn import dropout
from mlxbert.readers.rows import read_rows
from mlxbert.training import finish
from mlxbert.training.adapters import adapt_model, check_adapters, refuse_with_adapters
from mlxbert.training.check import check as compare, require
from mlxbert.training.command import Command, command_line, compute_dtype, manifest, with_defaults
from mlxbert.training.estimate import estimate
from mlxbert.training.events import Event, Finished, Started
from mlxbert.training.gradients import install
from mlxbert.training.loop import Run, Training
from mlxbert.training.objective import Objective
from mlxbert.training.objectives import make_objective
from mlxbert.training.objectives.teacher import find_teacher
from mlxbert.training.options import TeacherOptions, TrainingOptions, check_sweep
from mlxbert.training.plan import Plan, Source, make_plan
from mlxbert.training.predict import predict
from mlxbert.training.sampler import Epochs
from mlxbert.training.workspace import Workspace, clean_up
from mlxbert.weights.adapted import find_model
from mlxbert.weights.checkpoint import open_checkpoint

Data = str | Path | Iterable[Any]
_LOOP = frozenset(field.name for field in fields(TrainingOptions))
_TEACHER = frozenset(field.name for field in fields(TeacherOptions))
_LOG = logging.getLogger("mlxbert")
OnProgress = Callable[[int, int], None]


def finetune(
    task: str | Objective[Any],
    *,
    train: Data,
    output: str | Path,
    valid: Data | None = None,
    model: str | Path = "builtin",
    adapter: str | Path | None = None,
    teacher: str | Path | None = None,
    revision: str | None = None,
    offline: bool = False,
    dtype: str = "auto",
    device: str = "auto",
    format: str | None = None,
    validation_share: float | None = None,
    seeds: int = 1,
    sweep: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    check: bool = False,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Iterator[Event]:
    """Trains a model on labelled data, and writes it as a folder that mlxbert and transformers open.

    Interrupted, it keeps its state in `DIR.partial/`, and the same call resumes there. Iterating does the work.

    Example:
        >>> for event in mlxbert.finetune("classify", train="questions.csv", output="my-classifier", epochs=3):
        ...     print(event)

    Args:
        task: `classify`, `multilabel`, `regress`, `tag`, `answer`, `embed`, `rerank`, or an `Objective` of one's own.
        train: Training data: a file, several files, a folder of texts per label, or an iterable of records such as
            `{"text": …, "label": …}`.
        output: The folder to write.
        valid: Validation data, which choose the best checkpoint; `None` splits off `validation_share` of `train`.
        model: The model to start from: hub name, folder or `builtin`.
        adapter: An adapter of the model that is merged into its weights first, see `mlxbert.load`.
        teacher: A finished model for the same task and labels, from which is learned, too: its scores are computed once
            for the training data, and `teacher_weight` of the loss is the distance from them. `embed` learns its
            vectors of texts alone.
        revision: See `mlxbert.load`.
        offline: See `mlxbert.load`.
        dtype: The dtype of computation: `float32`, `float16` (with a scaled loss) or `bfloat16`; weights are trained in
            float32. `auto` is bfloat16 on CUDA and float32 elsewhere.
        device: See `mlxbert.load`.
        format: The format of the files, where their endings do not say it.
        validation_share: The share of the examples that become validation data; `None` for 0.1, or as much as 20
            examples need, up to a fifth.
        seeds: How many runs with different seeds, `seed` being the first; the best one is kept.
        sweep: Values of options to try, each with every seed: `{"lr": [1e-5, 2e-5]}`.
        overwrite: Whether an earlier result, or the unfinished work of another call, is replaced.
        dry_run: Whether to stop after the report on the data, with an estimate of time and memory.
        check: Whether the finished folder is opened with transformers (needs torch), to compare what it computes there
            with what it computes here: `Finished.check`. A difference is an error.
        on_progress: Called with the bytes of a download.
        **options: Those of `mlxbert.training.options.TrainingOptions`, and those of the task: `text_column`,
            `pair_column` (not of `tag` and `rerank`), `label_column`, `metric`, `max_length`; for `classify` also
            `label_smoothing`, `class_weights` and `few_shot`; for `tag` `scheme`, `crf`, `label_all_pieces` and
            `stride`; for `answer` `stride` and `max_words`; for `rerank` `query_column`, `loss` and `max_score`; for
            `embed` `negative_column`, and those of `mlxbert.training.objectives.embed.Embed`; with `teacher` also those
            of `mlxbert.training.options.TeacherOptions`, not of `embed`. `epochs` and `lr` depend on data and model if
            they are left out.

    Returns:
        An iterator of events: `Started`, `Step`, `Evaluated`, `Saved`, `Finished`.

    Raises:
        MlxbertError: An argument, the data, the model or the folder cannot be used.
    """
    line = command_line(task, locals()) if isinstance(task, str) else None
    loop = _taken(options, _LOOP)
    learned = _taken(options, _TEACHER if task != "embed" else frozenset())  # temperature means something else there
    objective = task if isinstance(task, Objective) else make_objective(task, **options)
    if isinstance(task, Objective) and any(value is not None for value in options.values()):
        raise ArgumentError(
            f"{next(iter(options))} is given, which works only with a task's name, not with an Objective"
        )
    if sweep and "lora" in sweep and "lora" not in loop and isinstance(sweep["lora"], list | tuple):
        loop["lora"] = next(iter(sweep["lora"]), None)  # defaults depend on whether there are adapters
    given = TrainingOptions(**loop)
    variants = [
        {**one, "seed": one.get("seed", given.seed) + number}
        for one in check_sweep(sweep, seeds)
        for number in range(seeds)
    ]
    group = join()
    with group.together():
        files = find_model(model, adapter, revision=revision, offline=offline, on_progress=on_progress)
        if given.lora is not None:
            refuse_with_adapters(files, check=check)
        folder = files.path
        source = Source(name=str(model), files=files, device=device, revision=revision, packed=given.lora is not None)
        if not group.rank and not overwrite:
            clean_up(output)
        if files.adapter is not None and not group.rank:
            destination.check_target(output, files.adapter, overwrite)
        target = Path(output) if group.rank else destination.check_target(output, folder, overwrite)
        devices.use(device)
        rows = read_rows(train, format=format)
        plan = make_plan(
            objective, source, rows, None if valid is None else read_rows(valid, format=format), validation_share,
            given.seed,
        )  # fmt: skip
        guide = find_teacher(
            teacher, objective, plan.train, plan.valid, TeacherOptions(**learned), device, offline=offline,
            on_progress=on_progress,
        )  # fmt: skip
        plan = plan if guide is None else replace(plan, report=guide.noted(plan.report))
        if check:
            require(plan.heads)
        command = Command(
            source=source, target=target, dtype=compute_dtype(dtype), overwrite=overwrite, dry_run=dry_run, check=check,
            group=group, options=with_defaults(given, loop, plan), variants=tuple(variants), line=line,
            teacher=guide,
        )  # fmt: skip
        for variant in variants:  # checked before hours of work
            chosen = replace(command.options, **variant)
            chosen.check_layers(objective.config.num_stored_layers)
            if chosen.lora is not None:
                check_adapters(open_checkpoint(files), chosen, plan)
    if group.size > 1:
        # How many parts of a batch one process computes at a time is that of the first; BLAS only needs to be fast.
        group.check_same(
            {name: value for name, value in manifest(command, plan).items() if name not in ("streams", "blas")}
        )
    return _events(command, plan)


def _taken(options: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """Some options, which are removed from the rest; those that are `None` stay."""
    return {name: options.pop(name) for name in names & options.keys() if options[name] is not None}


def _events(command: Command, plan: Plan) -> Iterator[Event]:
    first = command.group.rank == 0
    if command.dry_run:
        if first:
            run = _make_run(replace(command, group=Group()), plan, 0, None)
            yield replace(_started(command, plan, run, 0), estimate=estimate(run, plan))
        return
    workspace = Workspace(command.target, manifest(command, plan), overwrite=command.overwrite)
    with workspace.opened() if first else nullcontext():
        for number in range(len(command.variants)):
            with command.group.together():
                finished = first and workspace.is_finished(number)
            if command.group.broadcast(finished):
                continue
            for event in _run(command, plan, number, workspace):
                if first:
                    yield event
        if first:
            yield _finished(command, plan, workspace)


def _run(command: Command, plan: Plan, number: int, workspace: Workspace) -> Iterator[Event]:
    """One of the runs; where there are several, one that diverges is the worst of them and does not end the others."""
    first = command.group.rank == 0
    run = _make_run(command, plan, number, workspace if first else None)
    yield _started(command, plan, run, number)
    diverged = False
    try:
        yield from run.events()
    except DivergedError as problem:
        if len(command.variants) == 1:
            raise
        diverged = True
        _LOG.warning("run %d is abandoned: %s", number + 1, problem)
    if first:
        progress = run.state.progress
        result = {
            "score": None if diverged else progress.best_score, "step": progress.best_step,
            "seconds": progress.seconds, "history": progress.history, **command.variants[number],
        }  # fmt: skip
        workspace.finish(number, result, {} if diverged else run.best())


def _make_run(command: Command, plan: Plan, number: int, workspace: Workspace | None) -> Run:
    options = replace(command.options, **command.variants[number])
    model = command.source.with_heads(plan.heads, options.seed)
    plan.objective.bind(model)
    if options.dropout is not None:
        dropout.set_rate(model.network, options.dropout)
    adapters = adapt_model(model, options)
    group, teacher = command.group, command.teacher

    def evaluate() -> Mapping[str, float]:
        plan.objective.fit(model.network, group)
        predictions = predict(model.network, plan.objective, plan.valid.examples, group=group)
        found = {} if teacher is None else teacher.measured(model.network, group)
        return found | plan.objective.metrics(plan.valid.examples, predictions)

    examples = plan.train.examples
    training = Training(
        network=model.network, objective=plan.objective, examples=examples, places=plan.train.places,
        order=Epochs(examples, options), options=options, dtype=command.dtype,
        evaluate=evaluate, group=group, run=number,
        trained=None if adapters is None else adapters.trained,
        streams=group.broadcast(max(len(training_workers()), 1)),
    )  # fmt: skip
    if teacher is not None:
        lessons = teacher.few_lessons() if command.dry_run else teacher.lessons(group)
        training = replace(training, objective=teacher.objective, examples=lessons)
    return Run(training, None if workspace is None else workspace.store(number))


def _started(command: Command, plan: Plan, run: Run, number: int) -> Started:
    variants = command.variants
    varied = {name: value for name, value in variants[number].items() if any(one[name] != value for one in variants)}
    return Started(
        run=number, task=plan.objective.name, model=command.source.name, output=str(command.target),
        runs=len(variants), varied=varied, examples=len(plan.train.examples),
        epochs=replace(command.options, **variants[number]).epochs, steps=run.steps,
        first_step=run.state.progress.step, parameters=run.parameters - run.frozen, frozen=run.frozen,
        new_head=not command.source.keeps(plan.heads) if plan.heads else None,
        device=f"{'gpu' if devices.on_gpu() else 'cpu'}, {dtype_name(command.dtype)}",
        processes=command.group.size, report=plan.report if number == 0 else None,
    )  # fmt: skip


def _finished(command: Command, plan: Plan, workspace: Workspace) -> Finished:
    """Writes the folder of the best run."""
    results = [workspace.result(number) for number in range(len(command.variants))]
    judged: Objective[Any] = plan.objective if command.teacher is None else command.teacher.objective
    sign = -1 if judged.minimize else 1
    scores = {number: sign * result["score"] for number, result in enumerate(results) if result["score"] is not None}
    if not scores:
        raise DivergedError(f"all {len(results)} runs diverged", hint="smaller learning rates may help")
    chosen = max(scores, key=scores.__getitem__)
    options = replace(command.options, **command.variants[chosen])
    model = command.source.with_heads(plan.heads, options.seed)
    plan.objective.bind(model)
    adapters = adapt_model(model, options)
    install(model.network, workspace.weights(chosen))
    plan.objective.fit(model.network, Group())
    found = finish.assess(command.source, model, plan, results, command.target)
    checked: float | None = None

    def describe(folder: Path) -> Mapping[str, str]:
        nonlocal checked
        if command.check:
            checked = compare(folder, found.model.network, plan.valid.examples, next(iter(plan.heads)))
        record = finish.record(manifest(command, plan), plan, results, found, command.line, checked)
        card = finish.card(found, command.source, command.target, plan, command.line, adapted=adapters is not None)
        return {"training.json": json.dumps(record, indent=1, ensure_ascii=False) + "\n", "README.md": card}

    with workspace.model() as folder:
        write = None if adapters is None else adapters.writer(found.model, command.source)
        keys, embedder = plan.objective.config_keys(), plan.objective.embedder
        write_trained(found.model, folder, describe, keys, embedder, write)
        destination.check_target(command.target, command.source.folder, command.overwrite)  # hours have passed
        destination.move(folder, command.target)
    workspace.remove()
    return Finished(
        run=chosen, output=str(command.target), metric=judged.metric, score=results[chosen]["score"],
        step=results[chosen]["step"], seconds=sum(result["seconds"] for result in results),
        runs=tuple({name: result[name] for name in (*command.variants[0], "score")} for result in results),
        evaluation=found.evaluation, summary=found.summary, check=checked,
    )  # fmt: skip
