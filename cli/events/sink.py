"""What takes the events of training."""

import importlib.util
from typing import Protocol

from mlxbert.errors import ArgumentError
from mlxbert.training.loop.events import Event


class Sink(Protocol):
    """Takes events in their order."""

    def write(self, event: Event) -> None:
        """Takes the next event."""

    def close(self) -> None:
        """Is called once, after the last event or when training was interrupted."""


def require(package: str, option: str, extra: str) -> None:
    """Checks that an optional package is there."""
    if importlib.util.find_spec(package) is None:
        raise ArgumentError(
            f"{option} needs the package {package}, which is not installed",
            hint=f'install it with: pip install "mlxbert[{extra}]"',
        )
