"""`mlxbert.finetune`: trains a model on labelled data and writes its folder, as a stream of events."""

from collections.abc import Mapping, Set as AbstractSet
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError
from mlxbert.progress import OnProgress
from mlxbert.readers.text_lines import UTF8, check_encoding
from mlxbert.train.base_model import BaseModel
from mlxbert.train.command_line import Data, command_line
from mlxbert.train.data.labelled_rows import check_sources, read_rows
from mlxbert.train.data.validation_split import check_fraction
from mlxbert.train.distillation import Distillation
from mlxbert.train.labelled_material import LabelledMaterial
from mlxbert.train.loop.events import TrainingEvents
from mlxbert.train.loop.phase_times import LOADING, OnPhase, Times
from mlxbert.train.lora_adapters import refuse_adapter
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.objective import Objective
from mlxbert.train.options.loop_options import TeacherOptions, TrainingOptions, variants
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.training_call import TrainingCall, check_base, claimed, completed
from mlxbert.train.training_plan import TrainingPlan, make_plan
from mlxbert.train.transformers_check import require_counterpart, require_packages
from mlxbert.weights.find_model import find_model
from mlxbert.weights.model_source import ModelRef, check_source

_LOOP = frozenset(field.name for field in fields(TrainingOptions))
_TEACHER = frozenset(field.name for field in fields(TeacherOptions))


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
    no_header: bool = False,
    encoding: str = UTF8,
    validation_fraction: float | None = None,
    seeds: int = 1,
    sweep: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    check: bool = False,
    on_progress: OnProgress | None = None,
    on_phase: OnPhase | None = None,
    **options: Any,
) -> TrainingEvents:
    """Trains a model on labelled data, and writes it as a folder that mlxbert and transformers open.

    An interrupted run keeps its state in `DIR.partial/`, and the same call resumes from it. The call itself only checks
    its arguments and data; `run`, or iterating over the events, does the training.

    Example:
        >>> model = mlxbert.finetune("classify", train="questions.csv", output="my-classifier", epochs=3).run()

    Args:
        task: `classify`, `multilabel`, `regress`, `tag`, `answer`, `embed`, `rerank`, or an `Objective` of your own.
        train: Training data: a file, several files, a folder of texts per label, or an iterable of records such as
            `{"text": …, "label": …}`.
        output: The folder to write.
        valid: Validation data, which select the best checkpoint; `None` splits off `validation_fraction` of `train`.
        model: The model to start from: hub name, folder or `builtin`.
        adapter: An adapter that is merged into the model's weights before training (see `mlxbert.load`).
        teacher: A model that was trained for the same task and labels, to learn from in addition to the labels. Its
            scores for the training data are computed once; the distance from these scores has the weight
            `teacher_weight` in the loss. For `embed`, the student learns the teacher's vectors of single texts instead.
        revision: See `mlxbert.load`.
        offline: See `mlxbert.load`.
        dtype: The dtype of computation: `float32`, `float16` (with a scaled loss) or `bfloat16`; weights are trained in
            float32. `auto` is bfloat16 on CUDA and float32 elsewhere.
        device: See `mlxbert.load`.
        format: The format of the files, if it differs from their extensions.
        no_header: Whether the first row of a .csv or .tsv file is data; its columns are then called `1`, `2`, …
        encoding: The encoding of text files.
        validation_fraction: The share of the examples that becomes validation data. `None` means 0.1, or up to 0.2 if
            that is needed to get 20 examples.
        seeds: The number of runs with different seeds, starting at `seed`; the best run is kept.
        sweep: Values of options to try, each with every seed: `{"lr": [1e-5, 2e-5]}`.
        overwrite: Whether to replace an earlier result, or the unfinished work of a different call.
        dry_run: Whether to stop after the report on the data, with an estimate of time and memory.
        check: Whether to open the finished folder with transformers (which needs torch) and to compare the logits of
            both libraries (see `Finished.check`). A difference is an error.
        on_progress: Called with the progress of a download in bytes.
        on_phase: Called with the name of each phase as it begins: reading, training, saving, …
        **options: The fields of `TrainingOptions` in `mlxbert.train.options.loop_options`, and the options of the
            task: `text_column`, `pair_column` (not for `tag` and `rerank`), `label_column`, `metric`, `max_length`; for
            `classify` and `multilabel` also `label_names`; for `classify` `label_smoothing`, `class_weights` and
            `few_shot`; for `tag` `open`, `scheme`, `crf`, `label_all_pieces` and `stride`; for `answer` `stride` and
            `max_words`; for `rerank` `query_column`, `loss` and `max_score`; for `embed` `negative_column` and the
            fields of `VectorLearning` in `mlxbert.train.options.training_tasks`; with `teacher` also the fields of
            `TeacherOptions` in `loop_options` (except for `embed`). If omitted, `epochs` and `lr` depend on the data
            and the model; `minutes` replaces `epochs`.

    Returns:
        An iterator of events: `Started`, `Step`, `Evaluated`, `Saved`, `Finished`. Its `run()` trains to the end and
        returns the model.

    Raises:
        MlxbertError: An argument, the data, the model or the folder cannot be used.
    """
    given = {**locals()}
    check_encoding(encoding)
    check_fraction(valid, validation_fraction)
    chosen = _read_options(task, options, {} if sweep is None else sweep, taught=teacher is not None, check=check)
    loop, objective = chosen.loop, chosen.objective
    times = Times(on_phase)
    times.begin(LOADING)
    check_source(model, "model")
    ref, runs = ModelRef(model, adapter, revision, offline, dtype, device), variants(sweep, seeds, loop.seed)
    with claimed(output, ref, loop, overwrite=overwrite) as (target, group):
        for data in (train, () if valid is None else valid):
            check_sources(data)
        base = _find_base(ref, chosen, on_progress)
        check_base(base, target, loop, group)
        read = partial(read_rows, format=format, header=not no_header, encoding=encoding, words=chosen.labels_words)
        parts = read(train), None if valid is None else read(valid)
        plan, distillation = make_plan(objective, base, *parts, validation_fraction, loop.seed, times), None
        if teacher is not None:
            times.begin(LOADING)
            distillation = _distillation(replace(base.ref, source=teacher), plan, chosen, on_progress)
            plan = replace(plan, report=distillation.noted(plan.report))
        if check:
            require_counterpart(plan.heads, base.files.config_json)
        material = LabelledMaterial(
            base=base, objective=plan.objective if distillation is None else distillation.objective, plan=plan,
            distillation=distillation, encoding=encoding, compares=check,
        )  # fmt: skip
        call = TrainingCall(
            task=objective.name, what="fine-tuning", target=target, ref=ref, material=material, variants=runs,
            options=completed(loop, chosen.named, material), overwrite=overwrite, dry_run=dry_run, times=times,
            line=command_line(finetune, task, given) if isinstance(task, str) else None, group=group,
        )  # fmt: skip
    return call.begin()


def _find_base(ref: ModelRef, chosen: "_Chosen", on_progress: OnProgress | None) -> BaseModel:
    base = BaseModel(ref=ref, files=find_model(ref, on_progress), packed=chosen.loop.lora is not None)
    base = replace(base, files=chosen.objective.described(base.files, base.public_name))
    if chosen.loop.lora is not None:
        refuse_adapter(base.files)
    return base


def _distillation(
    teacher: ModelRef, plan: TrainingPlan, chosen: "_Chosen", on_progress: OnProgress | None
) -> Distillation:
    own = replace(teacher, adapter=None, revision=None)
    return Distillation(own, plan.objective, plan.train, plan.valid, TeacherOptions(**chosen.teacher), on_progress)


@dataclass(frozen=True)
class _Chosen:
    """The options of a call, divided by purpose."""

    objective: Objective[Any]  # the objective, which holds the options of the task
    loop: TrainingOptions
    named: AbstractSet[str]  # the names of the options in `loop` that the caller set
    teacher: Mapping[str, Any]  # the options of the teacher
    labels_words: bool  # whether each word has a label, which decides how files are read


def _read_options(
    task: str | Objective[Any], options: Mapping[str, Any], sweep: Mapping[str, Any], *, taught: bool, check: bool
) -> _Chosen:
    """Checks the options of a call, and divides them among the loop, the teacher and the objective."""
    if not isinstance(sweep, Mapping):
        raise ArgumentError(f"`sweep` is {sweep!r:.60}, expected lists of values by option: {{'lr': [1e-5, 2e-5]}}")
    rest = dict(options)
    loop = _pop_options(rest, _LOOP)
    spec = TASKS.get(task) if isinstance(task, str) else None
    no_teacher_options = spec is not None and TeacherOptions not in spec.teacher  # `temperature` belongs to the task
    teacher = _pop_options(rest, frozenset() if no_teacher_options else _TEACHER)
    if not taught:
        TeacherOptions(**teacher).refuse_alone()
    if "lora" not in loop and isinstance(sweep.get("lora"), list | tuple):  # some defaults depend on lora
        loop["lora"] = next(iter(sweep["lora"]), None)
    if spec is not None and (taught or check or loop.get("lora") is not None):
        flags = [name for name in spec.variants if "=" not in name]
        rest |= {name: False for name in flags if rest.get(name) is None}  # no variant allows these
    objective = task if isinstance(task, Objective) else make_objective(task, **rest)
    if isinstance(task, Objective) and any(value is not None for value in rest.values()):
        raise ArgumentError(f"`{next(iter(rest))}` works only with the name of a task, not with an Objective")
    training = TrainingOptions(**loop)
    if check:
        _check_comparable(training)
    if training.minutes is not None and ("epochs" in loop or "epochs" in sweep):
        raise ArgumentError("`minutes` and `epochs` cannot be combined")
    return _Chosen(objective, training, loop.keys(), teacher, spec is not None and spec.of_words)


def _check_comparable(options: TrainingOptions) -> None:
    """Raises `ArgumentError` if options or missing packages make a comparison with transformers impossible."""
    if options.lora is not None:
        raise ArgumentError(
            "`check` and `lora` cannot be combined, because check compares whole models",
            hint="`mlxbert.convert(BASE, FOLDER, adapter=DIR)` merges the adapter into a model for transformers",
        )
    require_packages()


def _pop_options(options: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """Removes the options with these names from `options`, and returns them. Options that are `None` stay."""
    return {name: options.pop(name) for name in names & options.keys() if options[name] is not None}
