"""Readers in the process of the tests: quick tests start no other."""

from dataclasses import replace

import pytest

from mlxbert.search.documents.document_kinds import KINDS


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reader runs in this process."""
    for kind, reader in KINDS.items():
        monkeypatch.setitem(KINDS, kind, replace(reader, apart=False))
