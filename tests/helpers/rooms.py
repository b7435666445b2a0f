"""Tests of the core that use a room as a tool, or that look at several rooms."""

import pytest

import mlxbert
from mlxbert.rooms import ROOMS

_SEVERAL = ("search", "train", "serve", "export", "explore", "doctor", "scale")


def needs(*rooms: str) -> pytest.MarkDecorator:
    """Marks a test that uses rooms, without names all of them; it is skipped if one has been taken out."""
    return pytest.mark.uses_rooms(*rooms or _SEVERAL)


def missing(*rooms: str) -> list[str]:
    """Which of some rooms, and of those that they import, have been taken out."""
    from tests.test_structure import ARROWS  # it uses `needs`

    needed = {*rooms}
    while more := {end for start, end in ARROWS if start in needed} - needed:
        needed |= more
    return sorted(needed - {*ROOMS})


def public_names() -> list[str]:
    """The public names that can be used without the rooms that have been taken out."""
    homes = {name: mlxbert._homes[name].split(".")[1] for name in dir(mlxbert)}  # type: ignore[attr-defined]
    return [name for name, room in homes.items() if room not in _SEVERAL or not missing(room)]
