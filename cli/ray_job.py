"""Runs a task with Ray on many machines, for the commands with the options of `RayOptions`."""

import dataclasses
import os
import re
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.cli import session
from mlxbert.cli.shared_options import FileOptions, RayOptions, RecordOptions, ServedOptions
from mlxbert.cli.views import console, progress, rich
from mlxbert.errors import ArgumentError
from mlxbert.readers.parsing import Wanted
from mlxbert.tasks.options import TaskOptions

if TYPE_CHECKING:
    from mlxbert.ray.job import PartCounts, PlannedJob

_NO_VALUE = ("field", "no_header", "encoding")  # options for other formats than .parquet
_SLASH = re.compile(r"^(\w+):/(?!/)", re.ASCII)  # what `Path` makes of `s3://`


def run_if_asked(
    task: str,
    model: ServedOptions,
    source: RecordOptions,
    chosen: TaskOptions,
    out: FileOptions,
    many: RayOptions,
    texts: Sequence[str] | None,
) -> bool:
    """Runs a task with Ray, if `--ray` is given; returns whether it is."""
    if many.ray is None:
        for name in ("ray_cpus", "part_rows"):
            if getattr(many, name) is not None:
                raise ArgumentError(f"--{name.replace('_', '-')} works only with --ray")
        return False
    _check(model, source, out, texts)
    from mlxbert.ray import cluster

    start = time.perf_counter()
    planned = _plan(task, model, source, chosen, out, many)
    missing = planned.begin(overwrite=out.overwrite)
    kept = len(planned.parts) - len(missing)
    if kept > 0:
        console.say("note", f"resumed: {kept:,} of {console.counted(len(planned.parts), 'part')} are kept")
    session.say_queued()
    try:
        # Ray prints what its processes report on stdout, which is for data.
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), progress.counted("rows") as update:
            nodes = cluster.run(planned.job, missing, many.ray, many.ray_cpus, update)
    except KeyboardInterrupt:
        console.say("hint", f"finished parts are kept in {planned.job.output}: the same command resumes there")
        raise
    counts, rows = planned.finish(), sum(part.rows for part in missing)
    _report(counts, rows, nodes, len(planned.parts), time.perf_counter() - start, out)
    return True


def _check(model: ServedOptions, source: RecordOptions, out: FileOptions, texts: Sequence[str] | None) -> None:
    """Raises an error for options that do not work with Ray."""
    if texts:
        raise ArgumentError("--ray cannot be combined with texts as arguments", hint="--input names .parquet files")
    if model.server is not None:
        raise ArgumentError("--server cannot be combined with --ray")
    if not source.input or out.output is None:
        raise ArgumentError("--ray needs --input, with .parquet files, and --output, a folder")
    if source.format not in (None, "parquet"):
        raise ArgumentError(f"--format is {source.format}, but --ray reads only .parquet files")
    for name in _NO_VALUE:
        if getattr(source, name) != getattr(RecordOptions(), name):
            raise ArgumentError(f"--{name.replace('_', '-')} cannot be combined with --ray, which reads .parquet files")


def _plan(
    task: str,
    model: ServedOptions,
    source: RecordOptions,
    chosen: TaskOptions,
    out: FileOptions,
    many: RayOptions,
) -> "PlannedJob":
    from mlxbert.ray.callables import require
    from mlxbert.ray.job import Job, PlannedJob
    from mlxbert.ray.parts import PART_ROWS

    for package in ("pyarrow", "ray"):
        require(package, "--ray")
    session.note_builtin(task, model.model)
    named = {"text": source.text_column or "text"}
    if (pair := getattr(source, "pair_column", None)) is not None:
        named["pair"] = pair
    options = {
        field.name: value
        for field in dataclasses.fields(chosen)
        if (value := getattr(chosen, field.name)) != field.default
    }
    ref = dataclasses.replace(model.ref, source=_absolute(model.ref.source), adapter=_absolute(model.ref.adapter))
    job = Job(task, ref, options, named, (), _SLASH.sub(r"\1://", str(out.output)), source.strict)
    keep = () if source.keep is None else tuple(dict.fromkeys(source.keep))
    wanted = Wanted(tuple(named.values()), keep=keep, with_id=source.keep is None, choose="--text-column")
    return PlannedJob(job, source.input or [], wanted, many.part_rows or PART_ROWS)


def _absolute(model: Any) -> Any:
    """Returns the absolute path of a folder, since other processes start elsewhere; names are returned unchanged."""
    return os.path.abspath(model) if model is not None and Path(model).is_dir() else model


def _report(counts: "PartCounts", rows: int, nodes: int, parts: int, seconds: float, out: FileOptions) -> None:
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
