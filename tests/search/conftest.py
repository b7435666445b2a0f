"""Files of tests, which are seconds old."""

import pytest

from mlxbert.search import index_writer


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was just written counts as unchanged until its time changes."""
    monkeypatch.setattr(index_writer, "_SETTLED", 0)
