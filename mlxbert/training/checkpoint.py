"""The state of a run on disk: written atomically, the last good one stays, and a run resumes from it exactly."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.device import mx
from mlxbert.errors import CheckpointError, MlxbertError
from mlxbert.files import atomic_write
from mlxbert.training.optimizer import AdamW, Arrays

_STATE, _NO_SPACE = "state.json", 28
_PARTS = ("parameters", "means", "squares")


@dataclass(frozen=True)
class Progress:
    """How far a run is: everything but arrays.

    Attributes:
        step: Updates so far.
        evaluated: The update after which was evaluated last; -1 for none.
        updates: Updates of the optimizer: without those that float16 skipped.
        scale: Factor of the loss in float16.
        calm: Updates since this factor changed.
        decay: Product of the decay of parameters that never have a gradient.
        best_step: The update after which the best evaluation was; -1 for none.
        best_score: Its metric.
        worse: Evaluations since.
        seconds: Time of all processes.
        stopped: Whether early stopping ended the run.
        history: The metrics of every evaluation: `{"step": 10, "epoch": 1.0, "accuracy": 0.9}`.
    """

    step: int = 0
    evaluated: int = -1
    updates: int = 0
    scale: float = 1.0
    calm: int = 0
    decay: float = 1.0
    best_step: int = -1
    best_score: float = 0.0
    worse: int = 0
    seconds: float = 0.0
    stopped: bool = False
    history: tuple[Mapping[str, float], ...] = ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        """From what JSON keeps of it."""
        return cls(**{**values, "history": tuple(values["history"])})


@dataclass(frozen=True)
class State:
    """The state of a run after an update.

    Attributes:
        progress: How far the run is.
        parameters: The trained parameters, float32.
        optimizer: The optimizer's memory.
        best: The parameters of the best evaluation, unless they are on disk already.
    """

    progress: Progress
    parameters: Arrays
    optimizer: AdamW
    best: Arrays | None = field(default=None, repr=False)


class Store:
    """The folder of one run: `state.json`, which names the files with arrays.

    `state.json` is replaced last. What it names is complete; other files are left-overs, and removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> State | None:
        """The last saved state; `None` if there is none.

        Raises:
            CheckpointError: It is damaged.
        """
        path = self.folder / _STATE
        if not path.is_file():
            return None
        try:
            progress = Progress.from_dict(json.loads(path.read_bytes()))
            arrays = mx.load(str(self._path("state", progress.step)))
            assert isinstance(arrays, dict)
            mx.eval(arrays)
        except (OSError, ValueError, TypeError, KeyError, RuntimeError) as problem:
            raise CheckpointError(
                f"{path}: the state of the run is damaged ({problem})", hint="overwrite=True starts over"
            ) from None
        parts: dict[str, Arrays] = {part: {} for part in _PARTS}
        for name, array in arrays.items():
            part, _, rest = name.partition(":")
            parts[part][rest] = array
        optimizer = AdamW(parts["means"], parts["squares"], progress.updates)
        return State(progress, parts["parameters"], optimizer)

    def best(self, step: int) -> Arrays:
        """The parameters of the best evaluation.

        Raises:
            CheckpointError: They are damaged.
        """
        try:
            arrays = mx.load(str(self._path("best", step)))
            assert isinstance(arrays, dict)
            mx.eval(arrays)
        except (OSError, RuntimeError, ValueError) as problem:
            raise CheckpointError(f"{self.folder}: the best weights are damaged ({problem})") from None
        return arrays

    def save(self, state: State) -> None:
        """Writes a state; the earlier one is removed after that.

        Raises:
            MlxbertError: It cannot be written; the earlier one stays.
        """
        progress = state.progress
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if state.best is not None:
                self._write(self._path("best", progress.best_step), state.best)
            optimizer = state.optimizer
            parts = zip(_PARTS, (state.parameters, optimizer.means, optimizer.squares), strict=True)
            arrays = {f"{part}:{name}": array for part, found in parts for name, array in found.items()}
            self._write(self._path("state", progress.step), arrays)
            with atomic_write(self.folder / _STATE) as file:
                file.write(json.dumps(asdict(progress)).encode())
        except OSError as problem:
            hint = "make room and repeat the command: it resumes" if problem.errno == _NO_SPACE else None
            raise MlxbertError(
                f"{self.folder}: the state cannot be written ({problem.strerror}); the one before is kept", hint=hint
            ) from None
        finally:
            self._clean()

    def _write(self, path: Path, arrays: Arrays) -> None:
        with atomic_write(path) as file:
            mx.save_safetensors(file, arrays)

    def _path(self, kind: str, step: int) -> Path:
        return self.folder / f"{kind}-{step:08}.safetensors"

    def _clean(self) -> None:
        """Removes files that `state.json` does not name."""
        try:
            values = json.loads((self.folder / _STATE).read_bytes())
        except (OSError, ValueError):
            return
        named = {self._path("state", values["step"]), self._path("best", values["best_step"])}
        for path in self.folder.glob("*.safetensors*"):
            if path not in named:
                path.unlink(missing_ok=True)
