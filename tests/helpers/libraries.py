"""Libraries that only some tests need, such as torch."""

from typing import Any

import pytest


class Library:
    """A library that is imported when a test uses it; if it is not installed, the test is skipped."""

    def __init__(self, name: str, minversion: str | None = None) -> None:
        self._name, self._minversion = name, minversion

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # which pytest looks for when it collects tests
            raise AttributeError(name)
        reason = f"needs {self._name}: pip install -r requirements-parity.txt"
        return getattr(pytest.importorskip(self._name, self._minversion, reason=reason), name)
