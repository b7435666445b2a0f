"""`mlxbert evaluate …`: one command per task."""

from typing import Annotated, Any

import typer

from mlxbert.cli import launched, session
from mlxbert.cli.options import ModelOptions, OutputOptions
from mlxbert.cli.training import DEFAULT_METRICS, AnswerOptions, Columns
from mlxbert.cli.views import console, progress
from mlxbert.cli.views.training import evaluation

Data = Annotated[
    list[str], typer.Option("--data", metavar="FILE", help="Labelled data; - is stdin.", rich_help_panel="Data")
]
Metric = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Metric to put first.", rich_help_panel="Data", show_default=DEFAULT_METRICS),
]


def evaluate_classify(
    columns: Columns, model: ModelOptions, out: OutputOptions, data: Data, metric: Metric = None
) -> None:
    """Tell how often a model gives texts the right label: metrics, each label, what it confuses, worst mistakes.

    Example: mlxbert evaluate classify --data test.csv --model my-model
    """
    _evaluate("classify", data, metric, columns, model, out)


def evaluate_multilabel(
    columns: Columns, model: ModelOptions, out: OutputOptions, data: Data, metric: Metric = None
) -> None:
    """Tell how well a model finds all labels of texts: metrics, each label, worst mistakes.

    Example: mlxbert evaluate multilabel --data test.jsonl --model my-model
    """
    _evaluate("multilabel", data, metric, columns, model, out)


def evaluate_regress(
    columns: Columns, model: ModelOptions, out: OutputOptions, data: Data, metric: Metric = None
) -> None:
    """Tell how near the numbers that a model predicts are to the right ones: metrics, worst mistakes.

    Example: mlxbert evaluate regress --data test.csv --model my-model
    """
    _evaluate("regress", data, metric, columns, model, out)


def evaluate_answer(
    columns: Columns,
    answers: AnswerOptions,
    model: ModelOptions,
    out: OutputOptions,
    data: Data,
    metric: Metric = None,
) -> None:
    """Tell how often a model answers questions right: exact match and F1 as SQuAD defines them, worst mistakes.

    Example: mlxbert evaluate answer --data dev-v2.0.json --model my-model
    """
    _evaluate("answer", data, metric, columns, model, out, command="answer", **answers.given())


def _evaluate(
    task: str,
    data: list[str],
    metric: str | None,
    columns: Columns,
    model: ModelOptions,
    out: OutputOptions,
    command: str = "classify",
    **more: Any,
) -> None:
    """Evaluates, and shows one object."""
    launched.check_stdin(data)
    loaded = session.load(command, model)
    from mlxbert.training.evaluate import evaluate

    how = columns.given() | {"metric": metric, "batch_tokens": model.batch_tokens} | more
    with progress.counted("examples") as update:
        found = evaluate(task, loaded, data=data, **how, on_progress=update)
    session.show_object(found.to_dict(), lambda: evaluation.evaluation(found, console.stdout().width), out)
