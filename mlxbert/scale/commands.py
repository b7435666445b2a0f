"""`mlxbert ray …`: tasks for the rows of large tables, computed on many machines."""

import dataclasses
import os
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from mlxbert.cli import session
from mlxbert.cli.commands.tasks import check_labels
from mlxbert.cli.shared_options import ComputingOptions, OutputOptions, with_options
from mlxbert.cli.views import console, progress, rich
from mlxbert.option_declarations import COUNT, TEXTS, Bounds, Option, OutputPath
from mlxbert.readers.parsing import ReadOptions
from mlxbert.scale import run_with_ray
from mlxbert.scale.callables import require
from mlxbert.scale.job import PART_ROWS, Job, PartCounts, PlannedJob
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.tasks.options import TaskOptions


@dataclass(frozen=True)
class TableOptions:
    """Options that say which tables are read, and which columns of them."""

    panel: ClassVar[str] = "Input"
    input: Annotated[
        list[str],
        Option("A .parquet file, folder or pattern, which may be on s3://. May be repeated.", "FILE", short="-i"),
    ]
    text_column: Annotated[str, Option("Column with the text.", short="--column")] = "text"
    strict: Annotated[bool, Option("Stop at the first bad row.")] = False
    keep: Annotated[TEXTS | None, Option("Copy columns to the output.", usual="id, if any")] = None


@dataclass(frozen=True)
class PairTableOptions(TableOptions):
    """Options that say which tables of texts or pairs of texts are read."""

    pair_column: Annotated[str | None, Option("Column with the second text of a pair.")] = None


@dataclass(frozen=True)
class JobOptions:
    """Options that say what is written, and which machines compute."""

    panel: ClassVar[str] = "Output"
    output: Annotated[str, Option("Folder to write, which may be on s3://.", "DIR", short="-o"), OutputPath("folder")]
    overwrite: Annotated[bool, Option("Replace the output of another job.")] = False
    part_rows: Annotated[int, Option("Maximum rows of an output file.", bounds=Bounds(1, 1_000_000))] = PART_ROWS
    cluster: Annotated[
        str,
        Option(
            "Cluster to compute on. The address of its head; auto for the cluster of this machine; or local, "
            "which starts Ray.",
            "HOST:PORT",
        ),
    ] = run_with_ray.LOCAL
    cpus: Annotated[
        int | None, Option("CPUs of each process. With a GPU, by default all.", usual="1", bounds=COUNT)
    ] = None


_RESULTS = {"embed": "vectors", "classify": "classes", "tag": "entities"}


def _command(task: str) -> Callable[..., None]:
    about = f"""Compute the {_RESULTS[task]} of the texts in .parquet files, on many machines with Ray.

    If it is interrupted, the same command resumes it.

    Example: mlxbert ray {task} --input texts/ --output {_RESULTS[task]}/
    """

    def command(model: ComputingOptions, source: Any, chosen: Any, job: JobOptions, out: OutputOptions) -> None:
        pair_column = getattr(source, "pair_column", None)
        if task == "classify":
            check_labels(chosen, pairs=pair_column is not None)
        _run(task, model, source, {} if pair_column is None else {"pair": pair_column}, chosen, job, out)

    command.__annotations__ |= {
        "source": PairTableOptions if task == "classify" else TableOptions, "chosen": CATALOGUE[task].options
    }  # fmt: skip
    return with_options(command, about, ())


ABOUT = "Large tables, computed on many machines with Ray."
COMMANDS = {task: _command(task) for task in _RESULTS}


def _run(
    task: str,
    model: ComputingOptions,
    source: TableOptions,
    pair: dict[str, str],
    chosen: TaskOptions,
    job: JobOptions,
    out: OutputOptions,
) -> None:
    """Computes the parts of the job that are missing, and shows a summary."""
    start = time.perf_counter()
    planned = _plan(task, model, source, pair, chosen, job)
    missing = planned.begin(overwrite=job.overwrite)
    kept = len(planned.parts) - len(missing)
    if kept > 0:
        console.say("note", f"resumed: {kept:,} of {console.counted(len(planned.parts), 'part')} are kept")
    session.say_queued()
    try:
        # Ray prints what its processes report on stdout, which is for data.
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), progress.counted("rows") as update:
            nodes = run_with_ray.run(planned.job, missing, job.cluster, job.cpus, update)
    except KeyboardInterrupt:
        console.say("hint", f"finished parts are kept in {planned.job.output}: the same command resumes there")
        raise
    counts, rows = planned.finish(), sum(part.rows for part in missing)
    _report(counts, rows, nodes, len(planned.parts), time.perf_counter() - start, out)


def _plan(
    task: str, model: ComputingOptions, source: TableOptions, pair: dict[str, str], chosen: TaskOptions, job: JobOptions
) -> PlannedJob:
    for package in ("pyarrow", "ray"):
        require(package, f"mlxbert ray {task}")
    session.note_builtin(task, model.model)
    named = {"text": source.text_column, **pair}
    options = {
        field.name: value
        for field in dataclasses.fields(chosen)
        if (value := getattr(chosen, field.name)) != field.default
    }
    ref = dataclasses.replace(model.ref, source=_absolute(model.ref.source), adapter=_absolute(model.ref.adapter))
    keep = () if source.keep is None else tuple(dict.fromkeys(source.keep))
    wanted = ReadOptions(tuple(named.values()), keep=keep, with_id=source.keep is None, choose="--text-column")
    planned = Job(task, ref, options, named, (), job.output, source.strict)
    return PlannedJob(planned, source.input, wanted, job.part_rows)


def _absolute(model: Any) -> Any:
    """Returns the absolute path of a folder, since other processes start elsewhere; names are returned unchanged."""
    return os.path.abspath(model) if model is not None and Path(model).is_dir() else model


def _report(counts: PartCounts, rows: int, nodes: int, parts: int, seconds: float, out: OutputOptions) -> None:
    """Shows what was computed in how much time; raises an error if rows failed."""
    summary = {
        "rows": counts.rows, "failed": counts.failed, "truncated": counts.truncated, "parts": parts,
        "computed": rows, "seconds": round(seconds, 1), "rows_per_second": round(rows / seconds, 1), "nodes": nodes,
    }  # fmt: skip
    rate = f"{rows / seconds:,.1f} rows/s on {console.counted(nodes, 'machine')}"
    line = f"{console.counted(rows, 'row')} in {seconds:.1f} s, {rate}; {counts.failed:,} of {counts.rows:,} failed"
    session.show_object(summary, lambda: [rich.Text(line)], out)
    session.report(
        counts.rows, counts.truncated, 0, counts.failed, "the output has an error for each of these inputs", None
    )
