"""The interface of destinations for training events."""

import importlib.util
from typing import Protocol

from mlxbert.errors import ArgumentError
from mlxbert.optional_packages import install_command
from mlxbert.training.loop.events import Event


class Sink(Protocol):
    """A destination that receives events in order."""

    def write(self, event: Event) -> None:
        """Receives the next event."""

    def close(self) -> None:
        """Ends the output; called once, after the last event or an interruption."""


def require(package: str, option: str, extra: str) -> None:
    """Raises an error if an optional package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ArgumentError(
            f"{option} needs the package {package}, which is not installed",
            hint=install_command(extra),
        )
