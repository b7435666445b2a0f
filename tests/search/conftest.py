"""The model of indexes, and files of tests, which are seconds old."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import mlxbert
from mlxbert.search import index as indexes, index_writer


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> mlxbert.Model:
    """A tiny model, which no test changes."""
    return mlxbert.load(tiny_folder, dtype="float32")


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was just written counts as unchanged until its time changes."""
    monkeypatch.setattr(index_writer, "_SETTLED", 0)


@pytest.fixture(scope="package", autouse=True)
def few_unrelated_texts() -> Iterator[None]:
    """Embeds few texts to see how similar unrelated texts are, which otherwise is most of the time of a new index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexes, "_SAMPLE", 40)
        yield
