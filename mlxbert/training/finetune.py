"""`mlxbert.finetune`: from labelled data to a model folder, as a stream of events."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.machine import device as devices
from mlxbert.machine.distributed import ProcessGroup, join
from mlxbert.model import Model
from mlxbert.nn import dropout
from mlxbert.nn.heads import OWN_LAYERS
from mlxbert.readers.lines import UTF8
from mlxbert.readers.rows import read_rows
from mlxbert.training.adapters import Adapters, adapt_model, check_adapters, refuse_with_adapters
from mlxbert.training.assess import Assessment, assess
from mlxbert.training.base import BaseModel
from mlxbert.training.check import check as compare, require
from mlxbert.training.command import command_line
from mlxbert.training.distillation import Distillation
from mlxbert.training.events import Event, TrainingEvents
from mlxbert.training.loop import Run, Training
from mlxbert.training.objectives import make_objective
from mlxbert.training.objectives.objective import Objective
from mlxbert.training.objectives.predict import predict
from mlxbert.training.options import TeacherOptions, TrainingOptions, check_sweep
from mlxbert.training.options.tasks import TASKS
from mlxbert.training.plan import Plan, make_plan
from mlxbert.training.run import Result, TrainingRun, claim, metrics_table, usual_rate
from mlxbert.training.sampler import Epochs
from mlxbert.training.times import LOADING, OnPhase, Times
from mlxbert.weights.adapted import find_model
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.source import ModelRef, check_source

Data = str | Path | Iterable[Any]
_LOOP = frozenset(field.name for field in fields(TrainingOptions))
_TEACHER = frozenset(field.name for field in fields(TeacherOptions))
_FEW_UPDATES, _MOST_EPOCHS = 300, 20  # of the default number of epochs
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

    Interrupted, it keeps its state in `DIR.partial/`, and the same call resumes there. The call checks everything;
    `run`, or iterating over the events, does the work.

    Example:
        >>> model = mlxbert.finetune("classify", train="questions.csv", output="my-classifier", epochs=3).run()

    Args:
        task: `classify`, `multilabel`, `regress`, `tag`, `answer`, `embed`, `rerank`, or an `Objective` of your own.
        train: Training data: a file, several files, a folder of texts per label, or an iterable of records such as
            `{"text": …, "label": …}`.
        output: The folder to write.
        valid: Validation data, which choose the best checkpoint; `None` splits off `validation_fraction` of `train`.
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
        format: The format of the files, if their extensions do not name it.
        no_header: Whether the first row of a .csv or .tsv is data; its columns are then called `1`, `2`, …
        encoding: The encoding of text files.
        validation_fraction: The share of the examples that become validation data; `None` for 0.1, or as much as 20
            examples need, up to a fifth.
        seeds: How many runs with different seeds, `seed` being the first; the best one is kept.
        sweep: Values of options to try, each with every seed: `{"lr": [1e-5, 2e-5]}`.
        overwrite: Whether an earlier result, or the unfinished work of another call, is replaced.
        dry_run: Whether to stop after the report on the data, with an estimate of time and memory.
        check: Whether the finished folder is opened with transformers (needs torch), to compare what it computes there
            with what it computes here: `Finished.check`. A difference is an error.
        on_progress: Called with the bytes of a download.
        on_phase: Called with the name of each phase as it begins: reading, training, saving, …
        **options: Those of `mlxbert.training.options.TrainingOptions`, and those of the task: `text_column`,
            `pair_column` (not of `tag` and `rerank`), `label_column`, `metric`, `max_length`; for `classify` and
            `multilabel` also `label_names`; for `classify` `label_smoothing`, `class_weights` and `few_shot`; for `tag`
            `scheme`, `crf`, `label_all_pieces` and `stride`; for `answer` `stride` and `max_words`; for `rerank`
            `query_column`, `loss` and `max_score`; for `embed` `negative_column`, and those of
            `mlxbert.training.options.tasks.VectorLearning`; with `teacher` also those of
            `mlxbert.training.options.TeacherOptions`, not of `embed`. `epochs` and `lr` depend on data and model if
            they are left out; `minutes` takes the place of `epochs`.

    Returns:
        An iterator of events: `Started`, `Step`, `Evaluated`, `Saved`, `Finished`. Its `run()` trains to the end and
        gives the model.

    Raises:
        MlxbertError: An argument, the data, the model or the folder cannot be used.
    """
    line = command_line(task, locals()) if isinstance(task, str) else None
    loop = _taken(options, _LOOP)
    spec = TASKS.get(task) if isinstance(task, str) else None
    own = spec is not None and TeacherOptions not in spec.teacher  # of the task, whose `temperature` is another one
    learned = _taken(options, frozenset() if own else _TEACHER)
    if teacher is None:
        TeacherOptions(**learned).refuse_alone()
    _take_adapters(loop, sweep or {})
    if spec is not None and (teacher is not None or check or loop.get("lora") is not None):
        options |= {name: False for name in spec.variants if options.get(name) is None}  # they work with none of these
    objective = task if isinstance(task, Objective) else make_objective(task, **options)
    if isinstance(task, Objective) and any(value is not None for value in options.values()):
        raise ArgumentError(
            f"{next(iter(options))} is given, which works only with a task's name, not with an Objective"
        )
    given = TrainingOptions(**loop)
    if given.minutes is not None and ("epochs" in loop or "epochs" in (sweep or {})):
        raise ArgumentError("minutes and epochs are given, expected one")
    times = Times(on_phase)
    times.begin(LOADING)
    variants = tuple(
        {**one, "seed": one.get("seed", given.seed) + number}
        for one in check_sweep(sweep, seeds)
        for number in range(seeds)
    )
    group = join()
    with group.raise_together():
        check_source(model, "model")
        ref = ModelRef(model, adapter, revision, offline, dtype, device)
        base = BaseModel(ref=ref, files=find_model(ref, on_progress), packed=given.lora is not None)
        if given.lora is not None:
            refuse_with_adapters(base.files, check=check)
        target = claim(output, base, overwrite, group)
        devices.use(ref.device, fast_float32=given.fast_float32)
        base.warn_unless_it_fits(given)
        words = spec is not None and spec.of_words
        read = partial(read_rows, format=format, header=not no_header, encoding=encoding, words=words)
        plan = make_plan(
            objective, base, read(train), None if valid is None else read(valid), validation_fraction, given.seed,
            times,
        )  # fmt: skip
        distillation = None
        if teacher is not None:
            times.begin(LOADING)
            asked, other = TeacherOptions(**learned), replace(ref, source=teacher, adapter=None, revision=None)
            distillation = Distillation(other, objective, plan.train, plan.valid, asked, on_progress)
            plan = replace(plan, report=distillation.noted(plan.report))
        if check:
            require(plan.heads, base.files.config_json)
        run = FinetuneRun(
            base=base, target=target, task=objective.name, plan=plan, distillation=distillation, encoding=encoding,
            objective=plan.objective if distillation is None else distillation.objective,
            options=_with_defaults(given, loop, plan), variants=variants,
            dtype=devices.choose_dtype(ref.dtype, training=True),
            overwrite=overwrite, group=ProcessGroup() if dry_run else group, check=check, dry_run=dry_run, line=line,
            times=times,
        )  # fmt: skip
        for number in range(len(variants)):  # checked before hours of work
            chosen = run.chosen(number)
            chosen.check_layers(plan.objective.config.num_stored_layers)
            if chosen.lora is not None:
                check_adapters(open_checkpoint(base.files), chosen, plan)
    events = run.estimated(first=not group.rank) if dry_run else run.events()
    times.begin("")
    result = ModelRef(target, offline=offline, device=device)
    return TrainingEvents(events, f"fine-tuning of {base.name}", result, times, dry=dry_run)


def _taken(options: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """Some options, which are removed from the rest; those that are `None` stay."""
    return {name: options.pop(name) for name in names & options.keys() if options[name] is not None}


def _take_adapters(loop: dict[str, Any], sweep: Mapping[str, Any]) -> None:
    """Adds the first size of adapters that a sweep tries, as defaults depend on whether there are adapters."""
    if "lora" not in loop and isinstance(sweep.get("lora"), list | tuple):
        loop["lora"] = next(iter(sweep["lora"]), None)


def _with_defaults(options: TrainingOptions, given: Mapping[str, Any], plan: Plan) -> TrainingOptions:
    """The options with epochs and learning rate that suit data and model, where they are not given."""
    updates = -(-len(plan.train.examples) // (options.batch_size * options.gradient_accumulation))
    usual = {
        # Few examples need more epochs: below some hundred updates even the head is not trained.
        "epochs": min(max(TrainingOptions.epochs, -(-_FEW_UPDATES // updates)), _MOST_EPOCHS),
        "lr": usual_rate(plan.objective.config.hidden_size, options, plan.objective.lr_factor),
    }
    return replace(options, **{name: given.get(name, value) for name, value in usual.items()})


@dataclass(frozen=True, kw_only=True)
class FinetuneRun(TrainingRun):
    """A checked call of `finetune`.

    Attributes:
        plan: The data, and the objective of the task.
        distillation: What is learned from a teacher, if there is one.
        encoding: That of the files: their hashes do not tell how they were read.
        check: Whether the finished folder is compared with transformers.
        dry_run: Whether time and memory are estimated only.
    """

    plan: Plan
    distillation: Distillation | None
    encoding: str
    check: bool
    dry_run: bool

    def manifest(self) -> dict[str, Any]:
        """See `TrainingRun.manifest`."""
        plan = self.plan
        return {
            "task": self.task,
            "model": hash_model(self.base.files),
            **({} if self.distillation is None else self.distillation.manifest()),
            "heads": {head: labels and list(labels.names) for head, labels in plan.heads.items()},
            "options": {**self.options.to_dict(), **plan.objective.settings()},
            "variants": [dict(variant) for variant in self.variants],
            **({} if self.encoding == UTF8 else {"encoding": self.encoding}),
            "sha256": dict(plan.sha256),
            "training_examples": len(plan.train.examples),
            "validation_examples": len(plan.valid.examples),
        }

    def model(self, number: int) -> tuple[Model, Adapters | None]:
        """See `TrainingRun.model`."""
        options = self.chosen(number)
        model = self.base.with_heads(self.plan.heads, options.seed)
        self.plan.objective.bind(model)
        if options.dropout is not None:
            dropout.set_rate(model.network, options.dropout)
        return model, adapt_model(model, options)

    def training(self, number: int) -> Training:
        """See `TrainingRun.training`."""
        model, adapters = self.model(number)
        plan, distillation, group, examples = self.plan, self.distillation, self.group, self.plan.train.examples

        def evaluate() -> Mapping[str, float]:
            plan.objective.fit(model.network, group)
            predictions = predict(model.network, plan.objective, plan.valid.examples, group=group)
            found = {} if distillation is None else distillation.measured(model.network, group)
            return found | plan.objective.metrics(plan.valid.examples, predictions)

        order = Epochs(examples, self.chosen(number))
        if distillation is not None:
            examples = distillation.examples(None if self.dry_run else group)
        return self._training(
            number, model, adapters, objective=self.objective, examples=examples, place=plan.train.places.__getitem__,
            order=order, evaluate=evaluate,
        )  # fmt: skip

    def reads(self) -> tuple[int, int]:
        """See `TrainingRun.reads`; simple methods compare the frozen vectors of all texts."""
        valid, train = (sum(map(len, part.examples)) for part in (self.plan.valid, self.plan.train))
        return valid, valid + (0 if self.plan.report is None else train + valid)

    def facts(self, number: int, loop: Run) -> Mapping[str, Any]:
        """See `TrainingRun.facts`."""
        plan = self.plan
        return {
            "examples": len(plan.train.examples),
            "epochs": loop.order.epochs(loop.steps) if self.options.minutes else self.chosen(number).epochs,
            "new_head": not self.base.keeps(plan.heads) if plan.heads else None,
            "report": plan.report if number == 0 else None,
        }  # fmt: skip

    def estimated(self, *, first: bool) -> Generator[Event, None, None]:
        """What a run would take, measured by the first process: the only event of a dry run."""
        if first:
            yield self.started(0, Run(self.training(0), None), always=True)

    def result(self, model: Model, results: Sequence[Mapping[str, Any]]) -> Result:
        """See `TrainingRun.result`."""
        plan, objective = self.plan, self.plan.objective
        objective.fit(model.network, ProcessGroup())
        found = assess(self.base, model, plan, results, self.target, self.times)

        def complete(folder: Path) -> Mapping[str, Any]:
            compared = (found.model.network, plan.valid.examples, next(iter(plan.heads), ""))
            with self.times.phase("checking with transformers" if self.check else "saving"):
                return {"check": compare(folder, *compared) if self.check else None}

        return Result(
            model=found.model, record=self._record(found, results), card=self._card(found),
            keys=objective.config_keys(), embedder=objective.embedder,
            facts={"evaluation": found.evaluation, "summary": found.summary}, complete=complete,
        )  # fmt: skip

    def _record(self, found: Assessment, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What `training.json` says besides the manifest."""
        report, evaluation, summary = self.plan.report, found.evaluation, found.summary
        # Without texts: a published folder should not hold the data.
        scores = evaluation and {name: value for name, value in asdict(evaluation).items() if name != "mistakes"}
        return {
            "command": self.line, "report": report and asdict(report), "runs": list(results),
            "metrics": dict(found.metrics), "evaluation": scores,
            "baselines": dict(summary.baselines) if summary else None,
        }  # fmt: skip

    def _card(self, found: Assessment) -> list[str]:
        """The lines of the model card."""
        plan, labels = self.plan, found.model.labels
        facts = [
            f"Trained by mlxbert for `{self.task}` from {self.base.name}, on {len(plan.train.records):,} examples. "
            f"On {len(plan.valid.records):,} validation examples, which also chose the checkpoint:",
            "", *metrics_table(found.metrics),
        ]  # fmt: skip
        if labels is not None and not plan.objective.numeric:
            facts += [f"Labels: {', '.join(labels.names)}.", ""]
            facts += [line for own in OWN_LAYERS if own.used(labels) for line in (f"{own.note}.", "")]
        return facts
