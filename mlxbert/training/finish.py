"""After training: thresholds, the evaluation, baselines, and what the folder says about how it was made."""

import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlxbert.folders.card import adapter_note, trained
from mlxbert.model import Model
from mlxbert.nn.heads import OWN_LAYERS
from mlxbert.training.objectives.task import TaskObjective, relabelled
from mlxbert.training.plan import Plan, Source
from mlxbert.training.predict import predict
from mlxbert.training.scores.summary import Evaluation, Summary, weakest


@dataclass(frozen=True)
class Assessment:
    """What is known about a trained model.

    Attributes:
        model: The model, with the labels that it is saved with.
        metrics: Its metrics on the validation data.
        evaluation: All about it on the validation data, for a built-in task.
        summary: The same beside baselines.
    """

    model: Model
    metrics: Mapping[str, float]
    evaluation: Evaluation | None = None
    summary: Summary | None = None


def assess(source: Source, model: Model, plan: Plan, results: Sequence[Mapping[str, Any]], target: Path) -> Assessment:
    """Evaluates a trained model on the validation data; tunes what is tuned there.

    Args:
        source: What training started from.
        model: The trained model, to which the objective is bound.
        plan: The data.
        results: The `step` of every run that is kept, and its `history`.
        target: The folder that will hold the model.
    """
    objective, valid = plan.objective, plan.valid
    predictions = predict(model.network, objective, valid.examples)
    metrics = objective.metrics(valid.examples, predictions)
    if not isinstance(objective, TaskObjective):
        return Assessment(model, metrics)
    model = relabelled(model, objective.tuned(valid, predictions))
    objective.bind(model)
    evaluation = objective.evaluation(
        valid, predictions, model=str(target), data=plan.valid_files, truncated=valid.truncated
    )
    best = (one for result in results for one in result["history"] if one["step"] == result["step"])
    scores = [one[evaluation.metric] for one in best]  # a teacher may have chosen by another metric
    summary = Summary(
        metric=evaluation.metric, score=evaluation.score, interval=evaluation.interval,
        baselines=objective.baselines(source.load(task="embed"), plan.train.records, valid.records),
        weakest=weakest(evaluation),
        deviation=statistics.stdev(scores) if len(scores) > 1 and _differ_in_seed_alone(results) else None,
        command=f"mlxbert {objective.command} --model {shlex.quote(_shown_path(target))} {objective.arguments}",
    )  # fmt: skip
    return Assessment(model, metrics, evaluation, summary)


def _shown_path(folder: Path) -> str:
    """A folder as one types it: from the current folder, if it is inside of it."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _differ_in_seed_alone(results: Sequence[Mapping[str, Any]]) -> bool:
    """Whether runs differ in nothing but the seed: the deviation over other options says nothing of chance."""
    measured = {"seed", "score", "step", "seconds", "history"}
    others = [{name: value for name, value in result.items() if name not in measured} for result in results]
    return all(other == others[0] for other in others)


def record(
    manifest: Mapping[str, Any],
    plan: Plan,
    results: Sequence[Mapping[str, Any]],
    found: Assessment,
    command: str | None,
    checked: float | None,
) -> dict[str, Any]:
    """The content of `training.json`.

    Args:
        manifest: What decides the result: options, hashes of the data, versions.
        plan: The data.
        results: What the runs gave.
        found: What is known about the model.
        command: The command that repeats it; `None` where the data were not files.
        checked: The largest difference of a logit from what transformers computes, if it was compared.
    """
    return {
        "command": command,
        **manifest,
        "python": sys.version.split()[0],
        "report": plan.report and asdict(plan.report),
        "runs": list(results),
        "metrics": dict(found.metrics),
        "evaluation": found.evaluation and _shown(found.evaluation),
        "baselines": dict(found.summary.baselines) if found.summary else None,
        "check": checked,
    }


def _shown(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation without texts: a published folder should not hold the data."""
    return {name: value for name, value in asdict(evaluation).items() if name != "mistakes"}


def card(
    found: Assessment, source: Source, target: Path, plan: Plan, command: str | None, *, adapted: bool = False
) -> str:
    """The model card; `adapted` says that the folder holds an adapter."""
    name, objective = target.name, plan.objective
    rows = [f"| {metric} | {value:.4f} |" for metric, value in found.metrics.items()]
    facts = [
        f"Trained by mlxbert for `{objective.name}` from {source.name}, on {len(plan.train.records):,} examples. "
        f"On {len(plan.valid.records):,} validation examples, which also chose the checkpoint:",
        "", "| metric | value |", "|---|---|", *rows, "",
    ]  # fmt: skip
    if found.model.labels is not None and not getattr(objective, "numeric", False):
        facts += [f"Labels: {', '.join(found.model.labels.names)}.", ""]
        facts += [line for own in OWN_LAYERS if own.used(found.model.labels) for line in (f"{own.note}.", "")]
    if adapted:
        facts += adapter_note(source.name)
    if command is not None:
        facts += ["The command that repeats it:", "", "```sh", command, "```", ""]
    return trained(source.name, name, "\n".join(facts), "peft" if adapted else "transformers")
