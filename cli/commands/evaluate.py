"""`mlxbert evaluate …`: one command per task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from mlxbert.cli import processes, session
from mlxbert.cli.inputs import check_data
from mlxbert.cli.options import ModelOptions, OutputOptions, options_of, with_options
from mlxbert.cli.training_options import DataFiles, LabelledData, PlainText, task_options
from mlxbert.cli.views import console, progress
from mlxbert.cli.views.training import evaluation
from mlxbert.errors import ArgumentError
from mlxbert.options import COUNT, Option
from mlxbert.pretraining.pretraining_settings import Settings
from mlxbert.training.options.training_tasks import TASKS


@dataclass(frozen=True)
class SearchOptions:
    """What is read of a folder of queries, documents and judgements."""

    panel: ClassVar[str] = "Data"
    split: Annotated[str, Option("File of BEIR's judgements. Its name without .tsv.")] = "test"


@dataclass(frozen=True)
class RetrievalOptions:
    """Whether documents are found by an embedder first."""

    panel: ClassVar[str] = "Data"
    embedder: Annotated[
        str | None, Option("Rank what this model finds. --data is a folder of BEIR, or records of texts.")
    ] = None
    top_k: Annotated[int, Option("Documents per query that are ranked.", bounds=COUNT)] = 100


def _evaluate(task: str, model: ModelOptions, out: OutputOptions, given: dict[str, Any]) -> None:
    """Evaluates, and shows one object.

    Args:
        task: The name of the task.
        model: The model.
        out: How the result is shown.
        given: The arguments of the library.
    """
    processes.check_stdin(given["data"])
    check_data(given["data"], given["encoding"])
    loaded = session.load(TASKS[task].needs, model)
    from mlxbert.training.evaluate import evaluate

    with progress.counted("examples") as update:
        found = evaluate(task, loaded, **given, batch_tokens=model.batch_tokens, on_progress=update)
    _show(found, out)


def _show(found: Any, out: OutputOptions) -> None:
    session.show_object(found.to_dict(), lambda: evaluation.evaluation(found, console.stdout().width), out)


def _evaluate_embed(task: str, model: ModelOptions, out: OutputOptions, given: dict[str, Any]) -> None:
    """Evaluates on files, or on a folder of queries, documents and judgements."""
    split, folder = given.pop("split"), _folder(given["data"])
    if folder is None:
        if split != SearchOptions.split:
            raise ArgumentError("split is given, but --data is not a folder of queries, documents and judgements")
        return _evaluate(task, model, out, given)
    if len(given["data"]) > 1 or _changed(given, task):
        raise ArgumentError(
            f"--data {folder} is a folder, which cannot be combined with other data, columns or --max-length"
        )
    loaded = session.load("embed", model)
    from mlxbert.training.scores.search_evaluation import evaluate_search

    how: dict[str, Any] = {"metric": given["metric"], "batch_tokens": model.batch_tokens}
    _show(evaluate_search(loaded, data=folder, split=split, **how), out)


def _evaluate_rerank(task: str, model: ModelOptions, out: OutputOptions, given: dict[str, Any]) -> None:
    """Evaluates on pairs, or on what an embedder finds."""
    name, search = given.pop("embedder"), {key: given.pop(key) for key in ("top_k", "split")}
    if name is None:
        if (folder := _folder(given["data"])) is not None:
            raise ArgumentError(f"{folder} is a folder, expected a file", hint="retrieval data need --embedder")
        usual = {"top_k": RetrievalOptions.top_k, "split": SearchOptions.split}
        if changed := next((key for key in usual if search[key] != usual[key]), None):
            raise ArgumentError(f"{changed} is given, which works only with --embedder")
        return _evaluate(task, model, out, given)
    if len(given["data"]) > 1:
        raise ArgumentError(f"--embedder takes one --data, {len(given['data'])} are given")
    files = [option.name for option in options_of(DataFiles)]
    if changed := next((key for key in _changed(given, task) if key not in files), None):
        raise ArgumentError(f"{changed} cannot be combined with --embedder")
    check_data(given["data"], given["encoding"])
    loaded = session.load("classify", model)
    embedder = session.load("embed", replace(model, model=name, revision=None, adapter=None))
    from mlxbert.training.scores.search_evaluation import evaluate_reranking

    search |= {key: given[key] for key in files} | {"batch_tokens": model.batch_tokens}
    search |= {} if given["metric"] is None else {"metric": given["metric"]}
    with progress.counted("queries") as update:
        _show(evaluate_reranking(loaded, embedder, data=given["data"][0], **search, on_progress=update), out)


def _folder(data: Sequence[str]) -> str | None:
    return next((path for path in data if Path(path).is_dir()), None)


def _changed(given: dict[str, Any], task: str) -> list[str]:
    """The options of a task's data, and of how files are read, that have another value than the default."""
    options = [*options_of(TASKS[task].data), *options_of(DataFiles)]
    return [one.name for one in options if given[one.name] != one.default]


# By task: what evaluates on more than labelled files, and its options.
_RETRIEVAL: Mapping[str, tuple[Callable[..., None], Sequence[type]]] = {
    "embed": (_evaluate_embed, (SearchOptions,)),
    "rerank": (_evaluate_rerank, (RetrievalOptions, SearchOptions)),
}


def _command(task: str) -> Callable[..., None]:
    """The command that evaluates a model for a task."""
    run, more = _RETRIEVAL.get(task, (_evaluate, ()))

    def command(model: ModelOptions, out: OutputOptions, **given: Any) -> None:
        run(task, model, out, given)

    spec = TASKS[task]
    return with_options(command, spec.evaluate, task_options(spec, LabelledData, DataFiles, spec.data, *more))


def _mlm(model: ModelOptions, out: OutputOptions, **given: Any) -> None:
    check_data(given["data"], given["encoding"])
    loaded = session.load("fill-mask" if given["objective"] == "mlm" else None, model)
    from mlxbert.pretraining.evaluate_words import evaluate_words

    with progress.counted("bytes") as update:
        found = evaluate_words(loaded, **given, batch_tokens=model.batch_tokens, on_progress=update)
    rows = [(name.replace("_", " "), f"{value:.4f}") for name, value in found.metrics.items()]
    rows += [("masked tokens", f"{found.hidden:,}"), ("examples", f"{found.examples:,}")]
    session.show_object(found.to_dict(), lambda: console.facts("masked tokens", rows), out)


_MLM = with_options(
    _mlm,
    """Measure how well a model predicts masked tokens of plain text: accuracy and pseudo-perplexity.

    The same tokens are masked every time, so that models with the same vocabulary can be compared.

    Example: mlxbert evaluate mlm --data notes.txt --model my-bert
    """,
    [*options_of(PlainText), *options_of(Settings, only=["field", "encoding", "documents", "whole_words"])],
)
COMMANDS = {**{task: _command(task) for task in TASKS}, "mlm": _MLM}
