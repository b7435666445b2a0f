"""The model of indexes, and files of tests, which are seconds old."""

from pathlib import Path

import pytest

import mlxbert
from mlxbert.search import index_writer


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> mlxbert.Model:
    """A tiny model, which no test changes."""
    return mlxbert.load(tiny_folder, dtype="float32")


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was just written counts as unchanged until its time changes."""
    monkeypatch.setattr(index_writer, "_SETTLED", 0)
