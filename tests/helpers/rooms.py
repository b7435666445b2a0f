"""Tests of the core that use a room as a tool, or that look at several rooms."""

import pytest

from mlxbert.rooms import ROOMS

_SEVERAL = ("search", "train", "serve", "export", "explore", "doctor", "scale")


def needs(*rooms: str) -> pytest.MarkDecorator:
    """Skips a test if a room that it uses has been taken out; without names, if any has."""
    gone = [room for room in rooms or _SEVERAL if room not in ROOMS]
    return pytest.mark.skipif(bool(gone), reason=f"there is no mlxbert/{', '.join(gone)}")
