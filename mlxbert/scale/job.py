"""A job computes a task for the rows of `.parquet` files, part by part, on as many machines as there are.

A part is a range of rows of one file, and has a file of its own in the output.

Its output is a folder with a file for each part and a manifest, which says what was computed from what. A part appears
complete or not at all, and its content depends only on the job. So it does not matter how often or where a part is
computed, and a job that was interrupted continues with the parts that are missing.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mlxbert.durable_files import from_json
from mlxbert.errors import ArgumentError, ChangedError, InputError, MlxbertError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.readers.parquet import arrow_errors
from mlxbert.readers.parsing import ReadOptions
from mlxbert.scale.callables import CALLABLES, check_texts, distinct_names
from mlxbert.scale.storage import Location, find, locate, matches
from mlxbert.version import __version__
from mlxbert.weights.model_source import ModelRef

PART_ROWS = 4096  # by default; a multiple of the window of a task, so that batches are those of a single process
_REQUESTS = 16  # to an object store at the same time
_BUFFER = 2**20  # bytes of a column that are in memory at a time while rows are skipped
MANIFEST = "_mlxbert.json"  # programs that read a folder of .parquet files ignore names with an underscore
_OURS = re.compile(r"part-\d{8}\.parquet(\.\d+\.unfinished)?|_mlxbert\.json(\.\d+\.unfinished)?")
_KEY = b"mlxbert.job"  # the key of a part's metadata


class PlannedFile(NamedTuple):
    """A `.parquet` file that a job reads: its address, size in bytes, time of modification, and number of rows."""

    address: str
    size: int
    changed: int
    rows: int


@dataclass(frozen=True)
class JobPart:
    """A range of rows of an input file."""

    number: int  # the number of the part, from 0, in the order of the rows
    file: str  # the input file
    size: int  # the size of the file in bytes
    first: int  # the number of its first row in the file, from 0
    rows: int  # the number of rows

    @property
    def name(self) -> str:
        return f"part-{self.number:08}.parquet"


def plan(files: Iterable[PlannedFile], part_rows: int) -> list[JobPart]:
    """Splits files into parts of at most `part_rows` rows; a part has rows of one file only."""
    ranges = [
        (file, first, min(part_rows, file.rows - first)) for file in files for first in range(0, file.rows, part_rows)
    ]
    return [
        JobPart(number, file.address, file.size, first, rows) for number, (file, first, rows) in enumerate(ranges)
    ]  # fmt: skip


def _read_inputs(sources: Sequence[str], wanted: ReadOptions) -> tuple[list[PlannedFile], Any]:
    """Finds the input files and checks that all have the same wanted columns."""
    with ThreadPoolExecutor(_REQUESTS) as threads:
        described = list(threads.map(lambda found: _describe(found[0], found[1], wanted), find(sources)))
    (first, schema), *others = described
    for file, other in others:
        for field, expected in zip(other, schema, strict=False):
            if (field.name, field.type) != (expected.name, expected.type):
                raise InputError(
                    f"{file.address}: column {field.name!r} has the type {field.type}, but in {first.address} column "
                    f"{expected.name!r} has the type {expected.type}",
                    hint="compute files with different columns separately",
                )
        if len(other) != len(schema):
            raise InputError(
                f"{file.address}: only some of the files have a column 'id'", hint="choose columns to keep"
            )
    return [file for file, _ in described], schema


def _describe(file: Location, info: Any, wanted: ReadOptions) -> tuple[PlannedFile, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with file.open() as opened, arrow_errors(file.address):
        read = pq.ParquetFile(opened)
        whole, rows = read.schema_arrow, read.metadata.num_rows
    schema = pa.schema([whole.field(name) for name in wanted.columns(file.address, distinct_names(whole))])
    for name in wanted.texts:
        check_texts(file.address, schema.field(name))
    return PlannedFile(file.address, info.size, info.mtime_ns or 0, rows), schema.remove_metadata()


def read_part(part: JobPart, columns: Sequence[str]) -> Any:
    """Reads the rows of a part as a table of pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    last, batches, end = part.first + part.rows, [], 0
    with locate(part.file).open() as opened, arrow_errors(part.file):
        if opened.size() != part.size:
            raise ChangedError(f"{part.file}: the file has changed since the job was planned")
        file = pq.ParquetFile(opened, pre_buffer=False, buffer_size=_BUFFER)
        for group in range(file.num_row_groups):
            start, end = end, end + file.metadata.row_group(group).num_rows
            if end <= part.first or start >= last:
                continue
            for batch in file.iter_batches(min(part.rows, PART_ROWS), row_groups=[group], columns=[*columns]):
                before, after = max(part.first - start, 0), min(last - start, len(batch))
                batches += [batch.slice(before, after - before)] if before < after else []
                start += len(batch)
                if start >= last:
                    break
        table = pa.Table.from_batches(batches).select([*columns])
    assert len(table) == part.rows, f"{part.file}: {len(table)} rows, expected {part.rows}"
    return table


@dataclass(frozen=True)
class Job:
    """What the processes of a job have to know to compute a part."""

    task: str  # the name of the task, one of `CALLABLES`
    model: ModelRef
    options: Mapping[str, Any]  # the options of the task
    texts: Mapping[str, str]  # the columns with the texts, by the argument of the callable that takes them
    keep: tuple[str, ...]  # the columns that are copied to the output
    output: str  # the address of the output folder
    strict: bool  # whether a row that fails ends the job
    fingerprint: str = ""  # the fingerprint of the model (see `hash_model`)
    key: str = ""  # the hash of all that the results depend on

    def callable(self) -> Any:
        return CALLABLES[self.task](self.model, **self.texts, **self.options)


class PartCounts(NamedTuple):
    """What a finished part says about itself: rows, rows that failed, and rows whose text was truncated."""

    rows: int
    failed: int
    truncated: int


class PartWriter:
    """Computes and writes the parts of a job, in one process."""

    def __init__(self, job: Job) -> None:
        self.job, self._output = job, locate(job.output)
        manifest = self._output / MANIFEST
        if (_read_manifest(job.output) or {}).get("key") != job.key:
            raise MlxbertError(
                f"{manifest.address}: this machine does not see the manifest of the job",
                hint="all machines need the same output: a shared folder, or an object store",
            )
        self._callable = job.callable()
        if hash_model(self._callable.model.files, times=False) != job.fingerprint:
            raise MlxbertError(f"{job.model.source}: this machine has other files of the model than the one that began")

    def write(self, part: JobPart) -> PartCounts:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = read_part(part, [*dict.fromkeys([*self._callable.texts, *self.job.keep])])
        results = self._callable.compute(table, part.file, part.first + 1, strict=self.job.strict)
        failed = part.rows - results["error"].null_count
        counts = PartCounts(part.rows, failed, sum(filter(None, results["truncated"].to_pylist())))
        columns = [
            *((name, table[name]) for name in self._callable.texts),
            *zip(results.schema.names, results.columns, strict=True),
            *((name, table[name]) for name in self.job.keep if name not in self._callable.texts),
        ]
        whole = pa.table(dict(columns)).replace_schema_metadata({_KEY: json.dumps([self.job.key, *counts])})
        buffer = pa.BufferOutputStream()
        pq.write_table(whole, buffer, use_dictionary=False)
        (self._output / part.name).write(buffer.getvalue())
        return counts


class PlannedJob:
    """A job with its parts, and the decision which of them are missing."""

    def __init__(self, job: Job, sources: Sequence[str], wanted: ReadOptions, part_rows: int) -> None:
        output = locate(job.output)
        for source in sources:
            if output.path == locate(source).path or matches(source, output / JobPart(0, "", 0, 0, 0).name):
                raise ArgumentError(f"{job.output}: the output is also an input")
        files, schema = _read_inputs(sources, wanted)
        loaded = job.callable()
        self.parts = plan(files, part_rows)
        keep = tuple(name for name in schema.names if name not in loaded.texts)
        if taken := {*loaded.schema.names} & {*schema.names}:
            raise ArgumentError(
                f"the input's column {min(taken)!r} has the name of a result", hint="rename it, or do not keep it"
            )
        fingerprint = hash_model(loaded.model.files, times=False)
        identity = {
            "version": __version__, "task": job.task, "model": fingerprint,
            "options": {**job.options, "dtype": loaded.model.dtype, "strict": job.strict},
            "columns": [*loaded.texts, *keep], "part rows": part_rows, "input": [list(file) for file in files],
        }  # fmt: skip
        content = json.dumps(identity, sort_keys=True)
        self._identity: dict[str, Any] = json.loads(content)  # as in a manifest, where tuples are lists
        key = hashlib.sha256(content.encode()).hexdigest()
        self.job = replace(job, keep=keep, output=output.address, fingerprint=fingerprint, key=key)

    def begin(self, *, overwrite: bool) -> list[JobPart]:
        """Writes the manifest of a new job, or checks the one of an interrupted job; returns the parts to compute.

        Args:
            overwrite: Whether to remove what is in the folder if it is complete, or belongs to another job.
        """
        output, manifest = locate(self.job.output), _read_manifest(self.job.output)
        names = output.names()
        if foreign := sorted(name for name in names if not _OURS.fullmatch(name)):
            raise ArgumentError(f"{self.job.output}: the folder has other files, such as {foreign[0]}")
        same = manifest is not None and manifest["key"] == self.job.key
        finished = self.finished() if same else {}
        missing = [part for part in self.parts if part.number not in finished]
        if names and (not same or (not missing and manifest and manifest["complete"])):
            if not overwrite:
                raise self._refused(manifest)
            for name in sorted(names, reverse=True):  # the manifest last
                (output / name).remove()
            missing = self.parts
        self._clean()
        self._write_manifest(complete=False)
        return missing

    def _refused(self, manifest: Mapping[str, Any] | None) -> ArgumentError:
        what = f"{self.job.output}:"
        if manifest is None:
            return ArgumentError(f"{what} the folder has parts, but no manifest", hint="`overwrite=True` removes them")
        if manifest["key"] == self.job.key:
            return ArgumentError(f"{what} already exists and is complete", hint="`overwrite=True` replaces it")
        names = [name for name, value in self._identity.items() if manifest["job"].get(name) != value]
        return ArgumentError(
            f"{what} belongs to another job, with other values of: {', '.join(names)}",
            hint="repeat that job as it was, or `overwrite=True` replaces its output",
        )

    def finished(self) -> dict[int, PartCounts]:
        """Returns the counts of the parts that are finished, by number; a damaged part is not finished."""
        names = locate(self.job.output).names()
        there = [part for part in self.parts if part.name in names]
        with ThreadPoolExecutor(_REQUESTS) as threads:
            counts = threads.map(self._counts, there)
        return {part.number: found for part, found in zip(there, counts, strict=True) if found is not None}

    def _counts(self, part: JobPart) -> PartCounts | None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with (locate(self.job.output) / part.name).open() as file, suppress(pa.ArrowException, OSError, ValueError):
            metadata = pq.read_metadata(file)
            key, *counts = json.loads((metadata.metadata or {}).get(_KEY, b"[null]"))
            if key == self.job.key and metadata.num_rows == part.rows:
                return PartCounts(*counts)
        return None

    def finish(self) -> PartCounts:
        """Checks that every part is there, and writes so into the manifest; returns the counts of all parts."""
        finished = self.finished()
        if missing := [part.name for part in self.parts if part.number not in finished]:
            raise MlxbertError(f"{self.job.output}: {len(missing):,} parts are missing, such as {missing[0]}")
        total = PartCounts(*map(sum, zip(*finished.values(), strict=True))) if finished else PartCounts(0, 0, 0)
        self._clean()
        self._write_manifest(complete=True, **total._asdict())
        return total

    def _clean(self) -> None:
        """Removes the files that processes had not finished when they were killed."""
        output = locate(self.job.output)
        for name in output.names():
            if name.endswith(".unfinished"):
                (output / name).remove()

    def _write_manifest(self, **state: Any) -> None:
        values = {"key": self.job.key, **state, "parts": len(self.parts), "written": time.time(), "job": self._identity}
        (locate(self.job.output) / MANIFEST).write(json.dumps(values, indent=1).encode())


def _read_manifest(output: str) -> dict[str, Any] | None:
    """Returns the manifest in a folder; `None` if there is none."""
    manifest = locate(output) / MANIFEST
    content = manifest.read()
    if content is None:
        return None
    try:
        values = dict(from_json(content.decode()))
        return {"complete": False, **values, "key": str(values["key"]), "job": dict(values["job"])}
    except (ValueError, TypeError, KeyError):
        raise MlxbertError(f"{manifest.address}: is damaged, or was not written by mlxbert") from None
