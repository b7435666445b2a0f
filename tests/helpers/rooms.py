"""Tests of the core that use a room as a tool, or that look at several rooms."""

import pytest

_SEVERAL = ("search", "train", "serve", "export", "explore", "doctor", "scale")


def needs(*rooms: str) -> pytest.MarkDecorator:
    """Marks a test that uses rooms, without names all of them; it is skipped if one has been taken out."""
    return pytest.mark.uses_rooms(*rooms or _SEVERAL)
