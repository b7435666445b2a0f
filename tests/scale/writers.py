"""Indexes in Lance tables as rows of `tests/test_kills.py`."""

import importlib.util
from pathlib import Path

import pytest

from mlxbert.search import index_writer
from mlxbert.search.index import open_index
from tests.helpers.indexes import Contents, contents
from tests.helpers.kills import Writer, changing
from tests.search.writers import Inputs, check_hits, prepare, same

_NAME = "lance:{}/table"


def _update(inputs: Inputs, folder: Path) -> None:
    """Lance writes its files itself; the index is killed between the events of an update."""
    docs, model = inputs
    with pytest.MonkeyPatch.context() as patch, open_index(_NAME.format(folder), model=model, paths=[docs]) as index:
        patch.setattr(index_writer, "_GROUP", 5)
        patch.setattr(index_writer, "_SPOOL_BYTES", 200)
        for _ in index.update():
            changing()


def _look(inputs: Inputs, folder: Path) -> None:
    with open_index(_NAME.format(folder), model=inputs[1], paths=[inputs[0]]) as index:
        index.check()
        check_hits(index)


def _result(folder: Path) -> tuple[tuple[int, ...], Contents]:
    """Reads an index without its word searches: BM25 counts removed chunks until their part of the table is merged."""
    with open_index(_NAME.format(folder)) as index:
        index.check()
        now, found = index.stats(), contents(index)
    for key in [key for key in found.hits if key[1] == "words"]:
        del found.hits[key]
    return (now.files, now.documents, now.chunks), found


WRITERS: dict[str, Writer] = {}
if importlib.util.find_spec("lance"):
    WRITERS["Lance table"] = Writer(prepare, _update, _result, check=same, look=_look, errors=False)
