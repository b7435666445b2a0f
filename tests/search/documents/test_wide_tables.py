"""Tables with many columns: time grows with their number, not with its square."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxbert.readers.formats import read_records
from mlxbert.search.documents.table_documents import DocumentColumns, read_record_documents
from mlxbert.train.data.labelled_rows import read_rows

COLUMNS = 20_000
SECONDS = 3  # of computing; one comparison of each name with every other takes ten
READS: dict[str, Callable[[Path], list[Any]]] = {
    "texts": lambda path: [record.text for record in read_records(path)],
    "keep": lambda path: [one.text for one in read_records(path, keep=[f"c{n}" for n in range(COLUMNS)])],
    "training": lambda path: [row.values["text"] for row in read_rows(path)],
    "search": lambda path: [one.text.split("\n")[0] for one in read_record_documents(path, DocumentColumns())],
}


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_many_columns_are_read_at_once(read: Callable[[Path], list[Any]], ending: str, tmp_path: Path) -> None:
    comma, path = "," if ending == "csv" else "\t", tmp_path / f"wide.{ending}"
    rows = [[*(f"c{n}" for n in range(COLUMNS)), "text"], [*map(str, range(COLUMNS)), "the cat sat on the mat"]]
    path.write_text("".join(comma.join(row) + "\n" for row in rows))
    start = time.process_time()
    assert read(path) == ["the cat sat on the mat"]
    assert time.process_time() - start < SECONDS
