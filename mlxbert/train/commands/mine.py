"""`mlxbert mine`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.output.formats import JSON_LINES
from mlxbert.cli.output.resumable_file import check_output
from mlxbert.cli.shared_options import ModelOptions, OutputOptions
from mlxbert.cli.views import console, progress, rich
from mlxbert.durable_files import atomic_write, writing
from mlxbert.errors import InputError
from mlxbert.option_declarations import Option, OutputPath
from mlxbert.train.command_options import DataFiles, check_data
from mlxbert.train.options.training_tasks import MiningOptions

if TYPE_CHECKING:
    from mlxbert.train.mine import Mined


def mine(
    model: ModelOptions,
    files: DataFiles,
    out: OutputOptions,
    chosen: MiningOptions,
    pairs: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Files with pairs of texts that belong together.")
    ],
    output: Annotated[Path, Option("File of JSON lines to write.", "FILE", short="-o"), OutputPath("file")],
    text_column: Annotated[str | None, Option("Column with the queries.", usual="guessed")] = None,
    pair_column: Annotated[
        str | None, Option("Column with the texts that belong to the queries.", usual="guessed")
    ] = None,
    overwrite: Annotated[bool, Option("Replace an existing file.")] = False,
) -> None:
    """Find hard negatives for training: texts that the model considers similar to a query but that do not belong to it.

    Each line of the output has a query, positives and negatives; finetune embed and finetune rerank read it.

    Example: mlxbert mine pairs.csv --output hard.jsonl
    """
    check_output(output, overwrite, JSON_LINES, pairs)
    check_data(pairs, files.encoding)
    loaded = session.load("embed", model)
    from mlxbert.train.mine import mine as find_negatives

    arguments: dict[str, Any] = {**vars(chosen), "batch_tokens": model.batch_tokens, **vars(files)}
    arguments |= {"text_column": text_column, "pair_column": pair_column}
    with progress.counted("texts") as update:
        queries = find_negatives(loaded, pairs, **arguments, on_progress=update)
    _write(queries, output, pairs, overwrite)
    few = sum(len(query.negatives) < chosen.negatives for query in queries)
    count = sum(len(query.negatives) for query in queries)
    if few:
        console.say("note", f"{few:,} of {len(queries):,} queries have fewer than {chosen.negatives} negatives")
    value = {"output": str(output), "queries": len(queries), "negatives": count, "with_fewer": few}
    summary = f"{count:,} negatives for {len(queries):,} queries: {output}"
    session.show_object(value, lambda: [rich.Text(console.visible(summary))], out)


def _write(queries: Sequence["Mined"], output: Path, pairs: Sequence[str], overwrite: bool) -> None:
    """Writes each query with its positives and negatives; raises an error if no query has a negative."""
    if not any(query.negatives for query in queries):
        raise InputError(
            f"{', '.join(pairs)}: no negatives can be found among the texts of the other queries",
            hint="give more pairs or a smaller --margin, because each text is a positive or too similar to one",
        )
    with writing(output), atomic_write(output, locked=False) as file:
        file.writelines(json.dumps(query.to_dict(), ensure_ascii=False).encode() + b"\n" for query in queries)
        check_output(output, overwrite, JSON_LINES, pairs)  # minutes have passed
