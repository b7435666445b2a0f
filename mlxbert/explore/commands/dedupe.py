"""`mlxbert dedupe`: which of many texts repeat others."""

from typing import Any

from mlxbert.cli import session
from mlxbert.cli.shared_options import FileOptions, ModelOptions
from mlxbert.cli.views import console, progress, rich
from mlxbert.explore import views
from mlxbert.explore.commands.text_collection import (
    ROWS,
    CollectionOptions,
    Texts,
    check_rows,
    collect,
    computing,
    report,
    show,
    write_rows,
)
from mlxbert.explore.options import DedupeOptions
from mlxbert.readers.text_collection import TextCollection


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
        show(views.draw_duplicates(duplicates, collection), values, out)
    report(collection)


def _group(group: Any, collection: TextCollection) -> dict[str, Any]:
    others = zip(group.duplicates, group.scores, strict=True)
    duplicates = [{**collection.described(number), "score": round(score, 6)} for number, score in others]
    return {"kept": collection.described(group.kept), "duplicates": duplicates}
