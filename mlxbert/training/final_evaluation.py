"""After training: thresholds, the evaluation, baselines."""

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.model import Model
from mlxbert.training.base_model import BaseModel
from mlxbert.training.loop.phase_times import Times
from mlxbert.training.objectives.predictions import predict
from mlxbert.training.objectives.task_objective import TaskObjective, relabelled
from mlxbert.training.scores.evaluation_summary import Evaluation, Summary, weakest
from mlxbert.training.training_plan import TrainingPlan


@dataclass(frozen=True)
class Assessment:
    """What is known about a trained model.

    Attributes:
        model: The model, with the labels that it is saved with.
        metrics: Its metrics on the validation data.
        evaluation: All about it on the validation data, for a built-in task.
        summary: The same next to baselines.
    """

    model: Model
    metrics: Mapping[str, float]
    evaluation: Evaluation | None = None
    summary: Summary | None = None


def assess(
    base: BaseModel, model: Model, plan: TrainingPlan, results: Sequence[Mapping[str, Any]], target: Path, times: Times
) -> Assessment:
    """Evaluates a trained model on the validation data; tunes what is tuned there.

    Args:
        base: What training started from.
        model: The trained model, to which the objective is bound.
        plan: The data.
        results: The `step` and the `score` of every run that is kept, and its `history`.
        target: The folder that will hold the model.
        times: Where time goes.
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
    spec = objective.spec
    best = (one for result in results for one in result["history"] if one["step"] == result["step"])
    scores = [one[evaluation.metric] for one in best]  # a teacher may have chosen by another metric
    with times.phase("comparing with simple methods"):
        baselines = objective.baselines(base.load(heads=()), plan.train.records, valid.records)
    known = [result for result in results if result["score"] is not None]
    chosen = (min if objective.minimize else max)(known, key=lambda result: result["score"])
    summary = Summary(
        metric=evaluation.metric, score=evaluation.score, interval=evaluation.interval, baselines=baselines,
        advice=_advice(evaluation, baselines, objective.few_shot_hint(plan.train.records) or _early(chosen)),
        weakest=weakest(evaluation),
        deviation=statistics.stdev(scores) if len(scores) > 1 and _differ_in_seed_alone(results) else None,
        command=f"mlxbert {spec.use} --model {shlex.quote(_shown_path(target))} {spec.arguments}",
    )  # fmt: skip
    return Assessment(model, metrics, evaluation, summary)


def _early(result: Mapping[str, Any]) -> str | None:
    """What to try instead of longer training, if a run was best in its first quarter."""
    epochs = {one["step"]: one["epoch"] for one in result["history"]}
    best = epochs.get(result["step"], math.inf)
    if best > max(epochs.values()) / 4:
        return None
    return f"it was best after epoch {best:.3g}: the frozen vectors suffice here, or it needs more examples"


def _advice(evaluation: Evaluation, baselines: Mapping[str, float], special: str | None) -> str | None:
    """What to try where a simple method is as good, if nothing special; a perfect score cannot be improved."""
    if evaluation.score == evaluation.spec.perfect(evaluation.metric):
        return None
    sign = 1 if evaluation.metric in evaluation.spec.minimized else -1
    as_good = any(sign * (score - evaluation.score) <= 0 for score in baselines.values())
    return (special or "train longer (epochs=) or with a higher lr=") if as_good else None


def _shown_path(folder: Path) -> str:
    """A folder as one types it: from the current folder, if it is inside of it."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _differ_in_seed_alone(results: Sequence[Mapping[str, Any]]) -> bool:
    """Whether runs differ in nothing but the seed: the deviation over other options says nothing of chance."""
    measured = {"seed", "score", "step", "seconds", "history", "ended", "planned"}
    others = [{name: value for name, value in result.items() if name not in measured} for result in results]
    return all(other == others[0] for other in others)
