"""`mlxbert dedupe` and `mlxbert cluster`: which of many texts repeat others, and what the texts are about."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import FileOptions, ModelOptions
from mlxbert.cli.views import console, json_lines, progress, rich
from mlxbert.explore import views
from mlxbert.explore.commands.text_collection import (
    ROWS,
    CollectionOptions,
    check_columns,
    check_rows,
    collect,
    computing,
    report,
    write_rows,
)
from mlxbert.explore.options import ClusterOptions, DedupeOptions
from mlxbert.readers.text_collection import TextCollection
from mlxbert.results.json import to_json

if TYPE_CHECKING:
    from mlxbert.explore.results import Topics

_FEW = 10  # texts from which a large topic is worth a hint
_MORE_TOPICS = "--clusters N finds N topics by k-means; a smaller --min-size finds smaller topics"
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")]


def dedupe(
    model: ModelOptions,
    source: CollectionOptions,
    chosen: DedupeOptions,
    out: FileOptions,
    texts: Texts = None,
) -> None:
    """Find texts that repeat others, exactly or by meaning.

    Without --output, each group is shown with the text that is kept and its duplicates; a pipe gets a JSON line per
    group. With --output, the rows that are kept are written with all columns, and a summary is shown. The file is .csv,
    .jsonl, .parquet or .txt.

    Example: mlxbert dedupe --input texts.csv --output distinct.csv
    """
    check_rows(out.output, out.overwrite, (*ROWS, ".txt"), source.input or ())
    collection = collect(texts or (), source, whole=out.output is not None)
    loaded, arguments = (None, {}) if chosen.exact else computing(collection, model)
    from mlxbert.explore.duplicates import dedupe as find_duplicates

    with progress.counted("texts") as update:
        duplicates = find_duplicates(loaded, collection.texts, **vars(chosen), **arguments, on_progress=update)
    if out.output is not None:
        write_rows(out.output, out.overwrite, collection, duplicates.kept)
        kept, groups = len(duplicates.kept), len(duplicates.groups)
        value = {"output": str(out.output), "texts": duplicates.texts, "kept": kept, "groups": groups}
        summary = f"{kept:,} of {console.counted(duplicates.texts, 'text')} kept: {out.output}"
        if groups:
            dropped = console.counted(duplicates.texts - kept, "duplicate")
            console.say("note", f"{dropped} in {console.counted(groups, 'group')} left out; omit --output to see them")
        session.show_object(value, lambda: [rich.Text(console.visible(summary))], out)
    else:
        values = [_group(group, collection) for group in duplicates.groups]
        _show(views.draw_duplicates(duplicates, collection), values, out)
    report(collection)


def _group(group: Any, collection: TextCollection) -> dict[str, Any]:
    others = zip(group.duplicates, group.scores, strict=True)
    duplicates = [{**collection.described(number), "score": round(score, 6)} for number, score in others]
    return {"kept": collection.described(group.kept), "duplicates": duplicates}


def _show(drawn: Any, lines: Sequence[dict[str, Any]], out: FileOptions) -> None:
    """Draws a result in a terminal, or prints it as JSON lines."""
    session.say_queued()
    console.require_stdout()
    if console.draws(out.json):
        screen = console.stdout()
        for part in drawn:
            screen.print(part)
    else:
        for line in lines:
            json_lines.put_line(to_json(line))


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
    _show(views.draw_topics(topics, collection), [_topic(topic, collection) for topic in topics.topics], out)
    advise(topics, chosen)
    report(collection)


def _topic(topic: Any, collection: TextCollection) -> dict[str, Any]:
    typical = [collection.described(number) for number in topic.typical]
    return {**topic.to_dict(), "typical": typical}


def advise(topics: "Topics", chosen: ClusterOptions) -> None:
    """Prints how many texts are in no topic, and what to try if there is no topic or if one has most of the texts."""
    largest = topics.topics[0].size if topics.topics else 0
    as_asked = chosen.clusters is None or 1 < chosen.clusters == len(topics.topics)
    if largest > len(topics.labels) / 2 and as_asked and len(topics.labels) >= _FEW:
        more = _MORE_TOPICS
        if chosen.clusters is not None:
            more = "a larger --clusters splits it; without --clusters, the number of topics is found"
        console.say("hint", f"topic 0 has {largest:,} of {len(topics.labels):,} texts; {more}")
    if topics.outliers:
        count, whole = topics.outliers, len(topics.labels)
        console.say("note", f"in no topic: {count:,} of {console.counted(whole, 'text')}")
        if not topics.topics:
            console.say("hint", _MORE_TOPICS)
