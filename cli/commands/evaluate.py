"""`mlxbert evaluate …`: one command per task."""

from typing import Annotated

import typer

from mlxbert.cli import launched, session
from mlxbert.cli.options import ModelOptions, OutputOptions
from mlxbert.cli.tags import WordColumns
from mlxbert.cli.training import DEFAULT_METRICS, Columns
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


def evaluate_tag(
    columns: WordColumns, model: ModelOptions, out: OutputOptions, data: Data, metric: Metric = None
) -> None:
    """Tell how well a model finds entities, or tags words: metrics, each type or tag, worst mistakes.

    Example: mlxbert evaluate tag --data test.conll --model my-model
    """
    _evaluate("tag", data, metric, columns, model, out, uses="tag")


def _evaluate(
    task: str,
    data: list[str],
    metric: str | None,
    columns: Columns | WordColumns,
    model: ModelOptions,
    out: OutputOptions,
    uses: str = "classify",
) -> None:
    """Evaluates, and shows one object; `uses` is the command that uses such a model."""
    launched.check_stdin(data)
    loaded = session.load(uses, model)
    from mlxbert.training.evaluate import evaluate

    how = columns.given() | {"metric": metric, "batch_tokens": model.batch_tokens}
    with progress.counted("examples") as update:
        found = evaluate(task, loaded, data=data, **how, on_progress=update)
    session.show_object(found.to_dict(), lambda: evaluation.evaluation(found, console.stdout().width), out)
