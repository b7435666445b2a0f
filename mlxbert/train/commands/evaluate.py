"""`mlxbert evaluate …`: one command per task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from mlxbert.cli import session
from mlxbert.cli.shared_options import ModelOptions, OutputOptions, options_of, with_options
from mlxbert.cli.views import console, progress
from mlxbert.errors import ArgumentError, MissingHeadError
from mlxbert.option_declarations import COUNT, Option
from mlxbert.train.command_options import DataFiles, LabelledData, PlainText, check_data, task_options
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.pretraining.pretraining_settings import Settings
from mlxbert.train.views import evaluation
from mlxbert.weights.model_source import BUILTIN


@dataclass(frozen=True)
class SearchOptions:
    """The option that selects which judgements to read from a folder of queries, documents and judgements."""

    panel: ClassVar[str] = "Data"
    split: Annotated[str, Option("Name of the BEIR file of judgements, without .tsv.")] = "test"


@dataclass(frozen=True)
class RetrievalOptions:
    """Options for an embedder that finds the documents to rank."""

    panel: ClassVar[str] = "Data"
    embedder: Annotated[
        str | None, Option("Rerank what this model finds. --data is then a BEIR folder, or records of texts.")
    ] = None
    top_k: Annotated[int, Option("Documents to rank per query.", bounds=COUNT)] = 100


def _evaluate(task: str, model: ModelOptions, out: OutputOptions, values: dict[str, Any]) -> None:
    check_data(values["data"], values["encoding"])
    try:
        loaded = session.load(TASKS[task].needs, model)
    except MissingHeadError:
        if model.model != BUILTIN:
            raise
        raise ArgumentError(
            "the built-in model, which is the default of --model, has no head for this task",
            hint=f"for example: mlxbert evaluate {task} --data test.csv --model my-model",
        ) from None
    from mlxbert.train.evaluate import evaluate

    with progress.counted("examples") as update:
        result = evaluate(task, loaded, **values, batch_tokens=model.batch_tokens, on_progress=update)
    _show(result, out)


def _show(result: Any, out: OutputOptions) -> None:
    session.show_object(result.to_dict(), lambda: evaluation.evaluation(result, console.stdout().width), out)


def _evaluate_embed(task: str, model: ModelOptions, out: OutputOptions, values: dict[str, Any]) -> None:
    split, folder = values.pop("split"), _folder(values["data"])
    if folder is None:
        if split != SearchOptions.split:
            raise ArgumentError("--split works only if --data is a folder of queries, documents and judgements")
        return _evaluate(task, model, out, values)
    if len(values["data"]) > 1 or _changed(values, task):
        raise ArgumentError(
            f"--data {folder} is a folder, which cannot be combined with other data, column names or --max-length"
        )
    loaded = session.load("embed", model)
    from mlxbert.train.scores.search_evaluation import evaluate_search

    settings: dict[str, Any] = {"metric": values["metric"], "batch_tokens": model.batch_tokens}
    _show(evaluate_search(loaded, data=folder, split=split, **settings), out)


def _evaluate_rerank(task: str, model: ModelOptions, out: OutputOptions, values: dict[str, Any]) -> None:
    name, search = values.pop("embedder"), {key: values.pop(key) for key in ("top_k", "split")}
    if name is None:
        if (folder := _folder(values["data"])) is not None:
            raise ArgumentError(
                f"{folder} is a folder, expected a file",
                hint="add --embedder to evaluate on a folder of retrieval data",
            )
        defaults = {"top_k": RetrievalOptions.top_k, "split": SearchOptions.split}
        if changed := next((key for key in defaults if search[key] != defaults[key]), None):
            raise ArgumentError(f"`{changed}` works only with --embedder")
        return _evaluate(task, model, out, values)
    if len(values["data"]) > 1:
        raise ArgumentError(f"--data is given {len(values['data'])} times, but only one --data works with --embedder")
    files = [option.name for option in options_of(DataFiles)]
    if changed := next((key for key in _changed(values, task) if key not in files), None):
        raise ArgumentError(f"`{changed}` cannot be combined with --embedder")
    check_data(values["data"], values["encoding"])
    loaded = session.load("classify", model)
    embedder = session.load("embed", replace(model, model=name, revision=None, adapter=None))
    from mlxbert.train.scores.search_evaluation import evaluate_reranking

    search |= {key: values[key] for key in files} | {"batch_tokens": model.batch_tokens}
    search |= {} if values["metric"] is None else {"metric": values["metric"]}
    with progress.counted("queries") as update:
        _show(evaluate_reranking(loaded, embedder, data=values["data"][0], **search, on_progress=update), out)


def _folder(data: Sequence[str]) -> str | None:
    return next((path for path in data if Path(path).is_dir()), None)


def _changed(values: dict[str, Any], task: str) -> list[str]:
    """Returns the names of those options for the task's data and files that differ from their defaults."""
    options = [*options_of(TASKS[task].data), *options_of(DataFiles)]
    return [option.name for option in options if values[option.name] != option.default]


# By task: the function that also evaluates on retrieval data, and its additional options.
_RETRIEVAL: Mapping[str, tuple[Callable[..., None], Sequence[type]]] = {
    "embed": (_evaluate_embed, (SearchOptions,)),
    "rerank": (_evaluate_rerank, (RetrievalOptions, SearchOptions)),
}


def _command(task: str) -> Callable[..., None]:
    run, extra = _RETRIEVAL.get(task, (_evaluate, ()))

    def command(model: ModelOptions, out: OutputOptions, **values: Any) -> None:
        run(task, model, out, values)

    spec = TASKS[task]
    return with_options(command, spec.evaluate, task_options(spec, LabelledData, DataFiles, spec.data, *extra))


def _mlm(model: ModelOptions, out: OutputOptions, **values: Any) -> None:
    check_data(values["data"], values["encoding"])
    loaded = session.load("fill-mask" if values["objective"] == "mlm" else None, model)
    from mlxbert.train.pretraining.evaluate_words import evaluate_words

    with progress.counted("bytes") as update:
        result = evaluate_words(loaded, **values, batch_tokens=model.batch_tokens, on_progress=update)
    rows = [(name.replace("_", " "), f"{value:.4f}") for name, value in result.metrics.items()]
    rows += [("masked tokens", f"{result.hidden:,}"), ("examples", f"{result.examples:,}")]
    session.show_object(result.to_dict(), lambda: console.facts("masked tokens", rows), out)


_MLM = with_options(
    _mlm,
    """Measure how well a model predicts masked tokens of plain text: accuracy and pseudo-perplexity.

    The same tokens are masked every time, so that models with the same vocabulary can be compared.

    Example: mlxbert evaluate mlm --data notes.txt --model my-bert
    """,
    [*options_of(PlainText), *options_of(Settings, only=["field", "encoding", "documents", "whole_words"])],
)
ABOUT = "Measure how good a model is on labelled texts."
COMMANDS = {**{task: _command(task) for task in TASKS}, "mlm": _MLM}
