"""`mlxbert map`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import ModelOptions, OutputOptions
from mlxbert.cli.views import console, progress, rich
from mlxbert.errors import ArgumentError, InputError
from mlxbert.explore import views
from mlxbert.explore.commands.text_collection import (
    CollectionOptions,
    check_columns,
    check_rows,
    collect,
    computing,
    report,
    write_rows,
)
from mlxbert.explore.options import ClusterOptions, MapOptions
from mlxbert.explore.pages.map import MOST, write_page
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.option_declarations import Bounds, Option, OutputPath
from mlxbert.readers.text_collection import TextCollection

_NAMED = 100  # groups that have a colour; a page has no room for more names
_WORDS, _LETTERS = 4, 30  # of a topic, and of a word, in its name


def map(
    model: ModelOptions,
    source: CollectionOptions,
    chosen: MapOptions,
    clusters: ClusterOptions,
    out: OutputOptions,
    output: Annotated[
        Path, Option("Page (.html) or table (.parquet) to write.", "FILE", short="-o"), OutputPath("file")
    ],
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
    label: Annotated[str | None, Option("Column or field whose values are the colours.", usual="topics")] = None,
    neighbors: Annotated[int, Option("Nearest texts of each text in a .parquet.", bounds=Bounds(0, 1_000))] = 0,
    overwrite: Annotated[bool, Option("Replace an existing file.")] = False,
) -> None:
    """Draw a map of many texts. Similar texts are near each other.

    An .html page shows up to 50,000 texts; it needs no connection. Point at a text to read it, turn the wheel to zoom.
    A .parquet table has the rows of the input and the columns x, y, cluster and perhaps neighbors; embedding-atlas
    opens it.

    Example: mlxbert map --input texts.csv --output map.html
    """
    check_rows(output, overwrite, (".html", ".parquet"), source.input or ())
    _check(output, label, neighbors, clusters)
    from mlxbert.explore.near_vectors import unit_vectors
    from mlxbert.explore.projection import chosen_method, coordinates_of, method_for
    from mlxbert.explore.topics import check_clusters

    wanted = chosen_method(chosen.method)
    if clusters.clusters is not None:
        check_clusters(clusters)
    collection = collect(texts or (), source, whole=output.suffix == ".parquet" or label is not None)
    _check_texts(collection, output, label)
    if output.suffix == ".parquet":
        check_columns(collection, ("x", "y", "cluster", *(["neighbors"] if neighbors else [])))
    if clusters.clusters is not None:
        check_clusters(clusters, len(collection.texts))
    loaded, arguments = computing(collection, model)
    with progress.counted("texts") as update:
        how_computed = arguments if collection.texts else {"vectors": np.zeros((0, 2))}
        vectors = unit_vectors(loaded, collection.texts, **how_computed, on_progress=update)
    method = method_for(vectors, wanted)
    session.say_queued()
    with progress.waiting("placing the texts"):
        coordinates = coordinates_of(vectors, method, chosen.seed)
        labels, names = _groups(collection, vectors, label, clusters)
    if output.suffix == ".html":
        title = ", ".join(Path(name).name for name in collection.sources) or "Map of texts"
        none = "no topic" if label is None else f"another {label}, or none"
        named = [f"{name}\n{text}" for name, text in zip(collection.names, collection.texts, strict=False)]
        write_page(output, overwrite, title, named or collection.texts, coordinates, labels, names, none)
    else:
        columns = _columns(coordinates, labels, vectors, neighbors)
        write_rows(output, overwrite, collection, range(len(collection.texts)), columns)
    value = {"output": str(output), "texts": len(collection.texts), "method": method, "groups": len(names)}
    reason = " (too few texts, or equal ones, for tsne)" if method != wanted else ""
    how = f", placed by {method}{reason}" if len(collection.texts) > 1 else ""
    summary = f"{console.counted(len(collection.texts), 'text')}{how}: {output}"
    session.show_object(value, lambda: [rich.Text(console.visible(summary))], out)
    report(collection)


def _check(output: Path, label: str | None, neighbors: int, clusters: ClusterOptions) -> None:
    if neighbors and output.suffix != ".parquet":
        raise ArgumentError("--neighbors works only with a .parquet file", hint="omit --neighbors")
    if label is not None and output.suffix != ".html":
        raise ArgumentError(
            "--label works only with an .html page", hint="omit --label; a .parquet file has all columns of the input"
        )
    own = [one for one in fields(clusters) if one.name != "seed"]  # the seed is also that of the coordinates
    changed = [one.name for one in own if getattr(clusters, one.name) != one.default]
    if label is not None and changed:
        raise ArgumentError(
            f"`{changed[0]}` cannot be combined with --label, which replaces the topics",
            hint=f"omit `{changed[0]}` or --label",
        )


def _check_texts(collection: TextCollection, output: Path, label: str | None) -> None:
    if output.suffix == ".html" and len(collection.texts) > MOST:
        raise InputError(
            f"there are {len(collection.texts):,} texts, but a page shows at most {MOST:,}",
            hint="write a .parquet file, which embedding-atlas opens",
        )
    if label is not None and collection.texts and not any(label in record.values for record in collection.records):
        columns = (
            ", ".join(dict.fromkeys(name for record in collection.records[:100] for name in record.values)) or "none"
        )
        raise ArgumentError(f"--label {label}: the input has no such column (columns: {columns})")


def _groups(
    collection: TextCollection, vectors: Any, label: str | None, clusters: ClusterOptions
) -> tuple[Sequence[int], list[str]]:
    """Returns the group of each text, which is -1 for none, and the names of the groups.

    The groups are the values of the column `label` or, without one, topics. Without the packages that find
    topics, there are no groups.
    """
    if label is not None:
        values = [_name(record.values.get(label)) for record in collection.records]
        names = [name for name, _ in Counter(value for value in values if value).most_common(_NAMED)]
        numbers = {name: number for number, name in enumerate(names)}
        if len({*values} - {""}) > len(names):
            console.say("note", f"only the {_NAMED} most frequent values of {label} have a colour")
        return [numbers.get(value, -1) for value in values], names
    from mlxbert.explore.topics import describe, find_clusters, missing_package

    if not collection.texts or missing_package(clusters) is not None:
        return [-1] * len(collection.texts), []
    topics = describe(collection.texts, vectors, find_clusters(vectors, clusters), clusters)
    views.advise(topics, clusters)
    names = [", ".join(console.line(word.word, _LETTERS) for word in topic.words[:_WORDS]) for topic in topics.topics]
    return topics.labels, [name or f"topic {number}" for number, name in enumerate(names)]


def _name(value: Any) -> str:
    return "" if value is None else str(value)


def _columns(
    coordinates: "NDArray[np.float32]", labels: Sequence[int], vectors: Any, neighbors: int
) -> dict[str, Sequence[Any]]:
    """Returns the columns to add to the rows: the names are those that embedding-atlas expects."""
    x, y = coordinates.T.tolist()
    columns: dict[str, Sequence[Any]] = {"x": x, "y": y, "cluster": labels}
    if neighbors:
        from mlxbert.explore.near_vectors import nearest_of_each

        near, scores = nearest_of_each(vectors, neighbors)
        rows = zip(near.tolist(), (1 - scores).tolist(), strict=True)
        columns["neighbors"] = [{"ids": ids, "distances": distances} for ids, distances in rows]
    return columns
