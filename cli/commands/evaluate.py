"""`mlxbert evaluate …`: one command per task."""

from typing import Annotated

import typer

from mlxbert.cli import processes as launched, session
from mlxbert.cli.embedding import RelatedColumns, SearchOptions
from mlxbert.cli.pretraining import EvaluateTextOptions
from mlxbert.cli.relevance import QueryColumns, RetrievalOptions, ScoreOptions
from mlxbert.cli.spans import AnswerColumns, AnswerOptions, WordColumns
from mlxbert.cli.training import Columns, EvaluateOptions, Group
from mlxbert.cli.views import console, progress
from mlxbert.cli.views.training import evaluation


def evaluate_classify(options: EvaluateOptions, columns: Columns) -> None:
    """Measure how often a model gives the right label: metrics, each label, confusions, worst mistakes.

    Example: mlxbert evaluate classify --data test.csv --model my-model
    """
    _evaluate("classify", options, columns)


def evaluate_multilabel(options: EvaluateOptions, columns: Columns) -> None:
    """Measure how well a model finds all labels of texts: metrics, each label, worst mistakes.

    Example: mlxbert evaluate multilabel --data test.jsonl --model my-model
    """
    _evaluate("multilabel", options, columns)


def evaluate_regress(options: EvaluateOptions, columns: Columns) -> None:
    """Measure how close the numbers that a model predicts are to the right ones: metrics, worst mistakes.

    Example: mlxbert evaluate regress --data test.csv --model my-model
    """
    _evaluate("regress", options, columns)


def evaluate_tag(options: EvaluateOptions, columns: WordColumns) -> None:
    """Measure how well a model finds entities, or tags words: metrics, each type or tag, worst mistakes.

    Example: mlxbert evaluate tag --data test.conll --model my-model
    """
    _evaluate("tag", options, columns, command="tag")


def evaluate_answer(options: EvaluateOptions, columns: AnswerColumns, answers: AnswerOptions) -> None:
    """Measure how often a model answers questions correctly: exact match and F1 as SQuAD defines them, worst mistakes.

    Example: mlxbert evaluate answer --data dev-v2.0.json --model my-model
    """
    _evaluate("answer", options, columns, answers, command="answer")


def evaluate_embed(options: EvaluateOptions, columns: RelatedColumns, search: SearchOptions) -> None:
    """Measure how well vectors say which texts belong together: with pairs and scores, or by what texts find.

    A folder of BEIR or SMART has queries, documents and judgements: every query ranks all documents.

    Example: mlxbert evaluate embed --data test.csv --model my-model
    """
    folder = search.folder(options.test.data, columns)
    if folder is None:
        _evaluate("embed", options, columns, command="embed")
        return
    loaded = session.load("embed", options.model)
    from mlxbert.training.scores.search import evaluate_search

    test, tokens = options.test, options.model.batch_tokens
    found = evaluate_search(loaded, data=folder, split=search.split, metric=test.metric, batch_tokens=tokens)
    session.show_object(found.to_dict(), lambda: evaluation.evaluation(found, console.stdout().width), options.out)


def evaluate_rerank(
    options: EvaluateOptions, columns: QueryColumns, scores: ScoreOptions, retrieval: RetrievalOptions
) -> None:
    """Measure how well a cross-encoder scores pairs of query and text, or ranks what an embedder finds.

    With --embedder, the data are a folder of BEIR or SMART, or records of query, positives and negatives. The embedder
    finds --top-k documents for each query, and the model ranks them anew; metrics called before_… are the embedder's.

    Example: mlxbert evaluate rerank --data scifact --embedder BAAI/bge-small-en-v1.5 --model my-model
    """
    retrieval.check(options.test.data, columns, scores)
    if retrieval.embedder is None:
        _evaluate("rerank", options, columns, scores)
        return
    loaded, embedder = session.load("classify", options.model), session.load("embed", retrieval.model(options.model))
    from mlxbert.training.scores.search import evaluate_reranking

    with progress.counted("queries") as update:
        given = retrieval.given(options) | {"format": columns.given()["format"]}
        found = evaluate_reranking(loaded, embedder, **given, on_progress=update)
    session.show_object(found.to_dict(), lambda: evaluation.evaluation(found, console.stdout().width), options.out)


def evaluate_mlm(
    options: EvaluateTextOptions,
    objective: Annotated[str, typer.Option(metavar="TERMS", help="mlm, or with pairs mlm,nsp or mlm,sop.")] = "mlm",
) -> None:
    """Measure how well a model predicts hidden words of plain text: accuracy and pseudo-perplexity.

    The same words are hidden every time, so that models with the same vocabulary can be compared.

    Example: mlxbert evaluate mlm --data notes.txt --model my-bert
    """
    model = session.load("fill-mask" if objective == "mlm" else "", options.model)
    from mlxbert.pretraining.evaluate import evaluate_words

    with progress.counted("bytes") as update:
        found = evaluate_words(model, **options.given(), objective=objective, on_progress=update)
    rows = [(name.replace("_", " "), f"{value:.4f}") for name, value in found.metrics.items()]
    rows += [("hidden tokens", f"{found.hidden:,}"), ("examples", f"{found.examples:,}")]
    session.show_object(found.to_dict(), lambda: console.facts("hidden words", rows), options.out)


def _evaluate(task: str, options: EvaluateOptions, *groups: Group, command: str = "classify") -> None:
    """Evaluates, and shows one object.

    Args:
        task: The name of the task.
        options: What every task takes.
        *groups: What differs between tasks.
        command: The command that uses such a model.
    """
    launched.check_stdin(options.test.data)
    loaded = session.load(command, options.model)
    from mlxbert.training.evaluate import evaluate

    with progress.counted("examples") as update:
        own = {name: value for group in groups for name, value in group.given().items()}
        found = evaluate(task, loaded, **options.given(), **own, on_progress=update)
    session.show_object(found.to_dict(), lambda: evaluation.evaluation(found, console.stdout().width), options.out)
