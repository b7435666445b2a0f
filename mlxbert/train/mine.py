"""`mlxbert.mine`: finds texts that a model considers similar to a query although they do not belong to it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError, InputError
from mlxbert.lazy_numpy import np
from mlxbert.model import Model
from mlxbert.progress import OnProgress
from mlxbert.readers.text_lines import UTF8
from mlxbert.results.result import Result
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.embed import stacked
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.options import SimilarityOptions, TaskOptions
from mlxbert.tasks.query_ranking import nearest, scores_of_pairs
from mlxbert.tasks.similarity import embed_tasks
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.data.related_texts import Related, find_related_columns, read_related
from mlxbert.train.options.training_tasks import MiningOptions


@dataclass(frozen=True)
class Mined(Result):
    """A query with the texts that belong to it, and hard negatives.

    Attributes:
        query: The query.
        positives: The texts that belong to the query.
        negatives: Texts that do not belong to the query, most similar first; possibly fewer than requested.
    """

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


@takes_keywords
def mine(
    model: Model,
    pairs: str | Path | Iterable[Any],
    *,
    options: MiningOptions,
    format: str | None = None,
    no_header: bool = False,
    encoding: str = UTF8,
    text_column: str | None = None,
    pair_column: str | None = None,
    computing: TaskOptions,
    on_progress: OnProgress | None = None,
) -> list[Mined]:
    """Finds hard negatives for training embedders and rerankers: the most similar texts that do not belong to a query.

    The candidates are the positives of all queries. Their vectors are scaled to length 1, as in sentence-transformers,
    and compared by the similarity function in the model's files, as in `similarity`. A text that is nearly as similar
    as the positive is often an unlabelled positive: `margin` excludes it.

    Example:
        >>> pairs = [{"anchor": "a cat", "positive": "a kitten"}, {"anchor": "a dog", "positive": "a puppy"}]
        >>> mlxbert.mine(mlxbert.load(), pairs)[0].negatives

    Args:
        model: The model whose vectors are compared.
        pairs: Texts that belong together: files or records, as `finetune("embed", …)` takes them.
        options: See `MiningOptions`.
        format: The format of the files, if their extensions do not name it.
        no_header: Whether the first row of a .csv or .tsv is data; its columns are then called `1`, `2`, …
        encoding: The encoding of text files.
        text_column: The column of the queries; guessed from names and values if `None`.
        pair_column: The column of the positives; guessed if `None`.
        computing: See `TaskOptions`.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Returns:
        The negatives of each query, in the order of the queries; a repeated query has only one result.

    Raises:
        ArgumentError: An argument is invalid.
        InputError: The data are not pairs, or a pair is unusable.
    """
    check_model(model)
    model.require("embed")
    # The largest difference of two scores of unit vectors; Manhattan distances depend on the number of dimensions.
    widest = 2.0 * (model.embedder.size**0.5 if model.embedder.config.similarity == "manhattan" else 1)
    if abs(options.margin) > widest:
        raise ArgumentError(
            f"`margin` is {options.margin!r:.60}, expected a difference of scores from {-widest:g} to {widest:g}"
        )
    rows = read_rows(pairs, format=format, header=not no_header, encoding=encoding)
    columns = find_related_columns(rows, text_column=text_column, pair_column=pair_column)
    if columns.kind != "pairs":
        hint = "keep only the rows with a high score, and remove the column of scores"
        found = "pairs with scores" if columns.kind == "scored" else "single texts"
        raise InputError(
            f"{', '.join(rows.files)}: the data are {found}, expected pairs of texts that belong together",
            hint=hint if columns.kind == "scored" else "choose the columns with `text_column=` and `pair_column=`",
        )
    return _mine(model, _positives(read_related(rows, columns)), options, computing.batch_tokens, on_progress)


def _positives(records: Sequence[Related]) -> dict[str, tuple[str, ...]]:
    texts: dict[str, dict[str, None]] = {}
    for record in records:
        texts.setdefault(record.text, {}).update(dict.fromkeys(record.positives))
    return {query: tuple(positives) for query, positives in texts.items()}


def _mine(
    model: Model,
    positives: Mapping[str, tuple[str, ...]],
    options: MiningOptions,
    batch_tokens: int | None,
    on_progress: OnProgress | None,
) -> list[Mined]:
    texts = list(dict.fromkeys(text for belonging in positives.values() for text in belonging))
    query_task, task = embed_tasks(model, SimilarityOptions(batch_tokens=batch_tokens, normalize=True), None)
    total = len(positives) + len(texts)
    report = on_progress or (lambda done, total: None)
    queries = stacked(query_task, [*positives], "raise", lambda done, _: report(done, total))
    documents = stacked(task, texts, "raise", lambda done, _: report(len(positives) + done, total))
    numbers = {text: number for number, text in enumerate(texts)}
    lowest = [
        scores_of_pairs(task.similarity, vector, documents[[numbers[text] for text in belonging]]).min()
        for vector, belonging in zip(queries, positives.values(), strict=True)
    ]
    excluded = max(map(len, positives.values())) + 1  # the query itself and its positives
    below = np.array(lowest, np.float32) - options.margin
    best, scores = nearest(task.similarity, queries, documents, options.negatives + options.skip + excluded, below)
    mined: list[Mined] = []
    for row, row_scores, (query, belonging) in zip(best, scores, positives.items(), strict=True):
        candidates = (texts[number] for number in row[np.isfinite(row_scores)].tolist())
        negatives = [text for text in candidates if text != query and text not in belonging]
        mined.append(Mined(query, belonging, tuple(negatives[options.skip : options.skip + options.negatives])))
    return mined
