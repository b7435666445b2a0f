"""`mlxbert cluster`: what many texts are about."""

from typing import Any

from mlxbert.cli.shared_options import FileOptions, ModelOptions
from mlxbert.cli.views import progress
from mlxbert.explore import views
from mlxbert.explore.commands.text_collection import (
    ROWS,
    CollectionOptions,
    Texts,
    check_columns,
    check_rows,
    collect,
    computing,
    report,
    show,
    write_rows,
)
from mlxbert.explore.options import ClusterOptions
from mlxbert.readers.text_collection import TextCollection


def cluster(
    model: ModelOptions,
    source: CollectionOptions,
    chosen: ClusterOptions,
    out: FileOptions,
    texts: Texts = None,
) -> None:
    """Find topics among many texts.

    Each topic is shown with the words that distinguish it and with typical texts. --output writes all rows of the
    input and the column cluster, to a .csv, .jsonl or .parquet file. Texts that belong to no topic get the cluster
    -1. Finding topics needs scikit-learn and, without --clusters, openTSNE.

    Example: mlxbert cluster --input texts.csv --clusters 8 --output topics.csv
    """
    from mlxbert.explore.topics import check_clusters, cluster as find_topics

    check_rows(out.output, out.overwrite, ROWS, source.input or ())
    check_clusters(chosen)
    collection = collect(texts or (), source, whole=out.output is not None)
    check_clusters(chosen, len(collection.texts))
    if out.output is not None:
        check_columns(collection, ("cluster",))
    loaded, arguments = computing(collection, model)
    with progress.counted("texts") as update:
        topics = find_topics(loaded, collection.texts, **vars(chosen), **arguments, on_progress=update)
    if out.output is not None:
        write_rows(out.output, out.overwrite, collection, range(len(collection.texts)), {"cluster": topics.labels})
    show(views.draw_topics(topics, collection), [_topic(topic, collection) for topic in topics.topics], out)
    views.advise(topics, chosen)
    report(collection)


def _topic(topic: Any, collection: TextCollection) -> dict[str, Any]:
    typical = [collection.described(number) for number in topic.typical]
    return {**topic.to_dict(), "typical": typical}
