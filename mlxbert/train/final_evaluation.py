"""The final evaluation after training: tuned thresholds, metrics, baselines."""

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.model import Model
from mlxbert.train.base_model import BaseModel
from mlxbert.train.loop.phase_times import Times
from mlxbert.train.objectives.predictions import predict
from mlxbert.train.objectives.task_objective import TaskObjective, relabelled
from mlxbert.train.scores.evaluation_summary import Evaluation, Summary, weakest
from mlxbert.train.training_plan import TrainingPlan


@dataclass(frozen=True)
class Assessment:
    """A trained model and its final evaluation."""

    model: Model  # the trained model, with the labels that it will be saved with
    metrics: Mapping[str, float]  # the model's metrics on the validation data
    evaluation: Evaluation | None = None  # the full evaluation on the validation data; `None` for a custom objective
    summary: Summary | None = None  # the comparison of the model's score with baselines; `None` for a custom objective


def assess(
    base: BaseModel, model: Model, plan: TrainingPlan, results: Sequence[Mapping[str, Any]], target: Path, times: Times
) -> Assessment:
    """Evaluates a trained model on the validation data, on which any thresholds of the task are first tuned."""
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
    best = (entry for result in results for entry in result["history"] if entry["step"] == result["step"])
    scores = [entry[evaluation.metric] for entry in best]  # with a teacher, another metric may have selected the best
    with times.phase("comparing with simple methods"):
        baselines = objective.baselines(base.load(heads=objective.baseline_heads), plan.train.records, valid.records)
    completed = [result for result in results if result["score"] is not None]
    chosen = (min if objective.minimize else max)(completed, key=lambda result: result["score"])
    summary = Summary(
        metric=evaluation.metric, score=evaluation.score, interval=evaluation.interval, baselines=baselines,
        advice=_advice(evaluation, baselines, objective.few_shot_hint(plan.train.records) or _early(chosen)),
        weakest=weakest(evaluation),
        deviation=statistics.stdev(scores) if len(scores) > 1 and _differ_in_seed_alone(results) else None,
        command=f"mlxbert {spec.use} --model {shlex.quote(_shown_path(target))} {spec.arguments}",
    )  # fmt: skip
    return Assessment(model, metrics, evaluation, summary)


def _early(result: Mapping[str, Any]) -> str | None:
    """Returns advice against longer training if the run was best in its first planned quarter; otherwise `None`."""
    if result["step"] > result["planned"] / 4:
        return None
    epoch = next(entry["epoch"] for entry in result["history"] if entry["step"] == result["step"])
    return f"training was best at epoch {epoch:.3g}, so the frozen vectors suffice here, or more examples are needed"


def _advice(evaluation: Evaluation, baselines: Mapping[str, float], special: str | None) -> str | None:
    """Returns advice if a baseline is at least as good as the model; otherwise, and for a perfect score, `None`.

    The advice is `special` or, if `special` is `None`, to train longer.
    """
    if evaluation.score == evaluation.spec.perfect(evaluation.metric):
        return None
    sign = 1 if evaluation.metric in evaluation.spec.minimized else -1
    as_good = any(sign * (score - evaluation.score) <= 0 for score in baselines.values())
    return (special or "train longer (`epochs=`) or with a higher `lr=`") if as_good else None


def _shown_path(folder: Path) -> str:
    """Returns the path of a folder for display: relative if the folder lies inside the current folder."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _differ_in_seed_alone(results: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether the runs differ only in their seeds.

    If other options differ, the standard deviation of the scores does not measure randomness.
    """
    measured = {"seed", "score", "step", "seconds", "history", "ended", "planned"}
    others = [{name: value for name, value in result.items() if name not in measured} for result in results]
    return all(other == others[0] for other in others)
