"""The parts of a job: ranges of rows of `.parquet` files, each with a file of its own in the output."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from mlxbert.errors import ChangedError, InputError
from mlxbert.readers.parquet import arrow_errors
from mlxbert.readers.parsing import ReadOptions
from mlxbert.scale.callables import check_texts, distinct_names
from mlxbert.scale.storage import Location, find, locate

PART_ROWS = 4096  # by default; a multiple of the window of a task, so that batches are those of a single process
REQUESTS = 16  # to an object store at the same time
_BUFFER = 2**20  # bytes of a column that are in memory at a time while rows are skipped


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
        """The name of its file in the output; names sort like the rows."""
        return f"part-{self.number:08}.parquet"


def plan(files: Iterable[PlannedFile], part_rows: int) -> list[JobPart]:
    """Splits files into parts of at most `part_rows` rows; a part has rows of one file only."""
    ranges = [
        (file, first, min(part_rows, file.rows - first)) for file in files for first in range(0, file.rows, part_rows)
    ]
    return [
        JobPart(number, file.address, file.size, first, rows) for number, (file, first, rows) in enumerate(ranges)
    ]  # fmt: skip


def read_inputs(sources: Sequence[str], wanted: ReadOptions) -> tuple[list[PlannedFile], Any]:
    """Finds the input files and checks that all have the same wanted columns."""
    with ThreadPoolExecutor(REQUESTS) as threads:
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
