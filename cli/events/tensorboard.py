"""A sink that writes scalars for TensorBoard; needs the package `tensorboard`."""

import errno
import os
from pathlib import Path
from typing import Any

from mlxbert.cli.events.sink import require
from mlxbert.errors import ArgumentError
from mlxbert.paths import may_write
from mlxbert.training.loop.events import Evaluated, Event, Started, Step


class TensorBoard:
    """Writes losses, learning rates and metrics; if there are several runs, each has its own folder."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "--tensorboard", "tensorboard")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not may_write(folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as problem:
            raise ArgumentError(f"--tensorboard {folder}: {problem.strerror}") from None
        self._folder = folder
        self._writer: Any = None

    def write(self, event: Event) -> None:
        """Writes the numbers of an event."""
        match event:
            case Started():
                self._begin(self._folder / f"run-{event.run + 1}" if event.runs > 1 else self._folder)
            case Step():
                numbers = ("loss", "lr", "gradient_norm", "tokens_per_second")
                self._put(event.step, {f"train/{name}": getattr(event, name) for name in numbers})
            case Evaluated():
                self._put(event.step, {f"valid/{name}": value for name, value in event.metrics.items()})
                self._writer.flush()

    def close(self) -> None:
        """Writes buffered values and closes the file."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self, folder: Path) -> None:
        from tensorboard.summary import Writer

        self.close()
        self._writer = Writer(str(folder))

    def _put(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
