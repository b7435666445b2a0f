"""`mlxbert.mine`: texts that a model finds similar to a query although they do not belong to it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxbert.data.related_texts import Related, find_related_columns, read_related
from mlxbert.errors import ArgumentError, InputError
from mlxbert.model import Model
from mlxbert.progress import OnProgress
from mlxbert.readers.labelled_rows import read_rows
from mlxbert.readers.text_lines import UTF8
from mlxbert.results.related import Mined
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.embed import stacked
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.options import MiningOptions, SimilarityOptions
from mlxbert.tasks.query_ranking import nearest, scores_of_pairs
from mlxbert.tasks.similarity import embed_tasks


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
    batch_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> list[Mined]:
    """Finds hard negatives for training embedders and rerankers: the texts nearest to a query that are not its own.

    Vectors are scaled to length 1, as sentence-transformers does, and compared as the model's files say, see
    `similarity`. The candidates are the positives of all queries. Texts nearly as similar as the positive are often
    unlabelled positives: `margin` leaves them out.

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
        text_column: The column of the queries; found if left out. The same for `pair_column`.
        pair_column: The column of the positives.
        batch_tokens: Tokens per batch, padding included.
        on_progress: Called with how many texts have vectors, and of how many.

    Returns:
        One for each different query, in their order.

    Raises:
        ArgumentError: An argument is invalid.
        InputError: The data are not pairs, or one cannot be used.
    """
    check_model(model)
    model.require("embed")
    # The largest difference of scores of vectors of length 1; the Manhattan distance depends on their size.
    most = 2.0 * (model.embedder.size**0.5 if model.embedder.config.similarity == "manhattan" else 1)
    if abs(options.margin) > most:
        raise ArgumentError(
            f"margin is {options.margin!r:.60}, expected a difference of scores, from {-most:g} to {most:g}"
        )
    rows = read_rows(pairs, format=format, header=not no_header, encoding=encoding)
    columns = find_related_columns(rows, text_column=text_column, pair_column=pair_column)
    if columns.kind != "pairs":
        hint = "rows with a score say less: keep those with a high one, without the column of scores"
        raise InputError(
            f"{', '.join(rows.files)}: read as {columns.kind}, expected pairs of texts that belong together",
            hint=hint if columns.kind == "scored" else "choose the columns with text_column= and pair_column=",
        )
    belonging = _belonging(read_related(rows, columns))
    return _mined(model, belonging, options, batch_tokens, on_progress)


def _belonging(records: Sequence[Related]) -> dict[str, tuple[str, ...]]:
    """The positives of each query."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        found.setdefault(record.text, {}).update(dict.fromkeys(record.positives))
    return {query: tuple(positives) for query, positives in found.items()}


def _mined(
    model: Model,
    belonging: Mapping[str, tuple[str, ...]],
    options: MiningOptions,
    batch_tokens: int | None,
    on_progress: OnProgress | None,
) -> list[Mined]:
    import numpy as np

    texts = list(dict.fromkeys(text for positives in belonging.values() for text in positives))
    asking, task = embed_tasks(model, SimilarityOptions(batch_tokens=batch_tokens, normalize=True), None)
    total = len(belonging) + len(texts)
    tell = on_progress or (lambda done, total: None)
    queries = stacked(asking, [*belonging], "raise", lambda done, _: tell(done, total))
    documents = stacked(task, texts, "raise", lambda done, _: tell(len(belonging) + done, total))
    numbers = {text: number for number, text in enumerate(texts)}
    worst = [
        scores_of_pairs(task.similarity, vector, documents[[numbers[text] for text in positives]]).min()
        for vector, positives in zip(queries, belonging.values(), strict=True)
    ]
    most = max(map(len, belonging.values())) + 1  # its own texts, and itself
    below = np.array(worst, np.float32) - options.margin
    best, scores = nearest(task.similarity, queries, documents, options.negatives + options.skip + most, below)
    found: list[Mined] = []
    for row, near, (query, positives) in zip(best, scores, belonging.items(), strict=True):
        own = {query, *positives}
        counted = (texts[number] for number in row[np.isfinite(near)].tolist())
        others = [text for text in counted if text not in own]
        found.append(Mined(query, positives, tuple(others[options.skip : options.skip + options.negatives])))
    return found
