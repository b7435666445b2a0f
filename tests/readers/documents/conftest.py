"""Readers in the process of the tests: quick tests start no other."""

from dataclasses import replace

import pytest

from mlxbert.readers.documents.read import READERS


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reader runs in this process."""
    for kind, reader in READERS.items():
        monkeypatch.setitem(READERS, kind, replace(reader, apart=False))
