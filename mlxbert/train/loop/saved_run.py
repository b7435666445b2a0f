"""The state of a run on disk. It is replaced atomically, so a run always resumes exactly from the last good state."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxbert.durable_files import DamagedError, atomic_write, check_hash, read_record, write_record, writing
from mlxbert.errors import CheckpointError
from mlxbert.machine.device import mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.train.loop.adamw import AdamW, Arrays

_STATE = "state.json"
_PARTS = ("parameters", "means", "squares")
_MAX_LOSSES = 400  # number of stored losses: as many as a wide terminal can show


@dataclass(frozen=True)
class Progress:
    """The progress of a run: its whole state, except for arrays."""

    step: int = 0  # the number of updates so far
    evaluated: int = -1  # the step of the last evaluation; -1 for none
    updates: int = 0  # the number of updates of the optimizer, not counting updates that float16 skipped
    scale: float = 1.0  # the factor by which the loss is multiplied in float16
    calm: int = 0  # the number of updates since `scale` changed
    # The product of the weight decay factors of all updates, for parameters that never have a gradient.
    decay: float = 1.0
    best_step: int = -1  # the step of the best evaluation; -1 for none
    best_score: float = 0.0  # the score of the best evaluation
    worse: int = 0  # the number of evaluations since the last one that improved the score or the loss
    seconds: float = 0.0  # the time of the run in seconds, including earlier processes
    # Whether the run ended early, because of `patience` or because another update would exceed `budget`.
    stopped: bool = False
    steps: int | None = None  # the total number of updates, if a time limit determined it; `None` if the options did
    budget: float | None = None  # the time for all updates in seconds; `None` without a time limit
    # The metrics of each evaluation: `{"step": 10, "epoch": 1.0, "accuracy": 0.9}`.
    history: tuple[Mapping[str, float], ...] = ()
    # For each part of the run so far, its last step and its mean loss. The run is divided into at most `_MAX_LOSSES`
    # equal parts.
    losses: tuple[tuple[int, float], ...] = ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        """Makes the progress from the values in `state.json`."""
        losses = tuple(map(tuple, values.get("losses", ())))
        return cls(**{**values, "history": tuple(values["history"]), "losses": losses})

    def with_loss(self, loss: float, steps: int) -> "Progress":
        """Returns the progress with the loss of the last update added. `steps` is the total number of updates."""
        size = -(-steps // _MAX_LOSSES)
        part, place = divmod(self.step - 1, size)
        earlier, mean = self.losses, loss
        if earlier and (earlier[-1][0] - 1) // size == part:
            earlier, mean = earlier[:-1], earlier[-1][1] + (loss - earlier[-1][1]) / (place + 1)
        return replace(self, losses=(*earlier, (self.step, mean)))


@dataclass(frozen=True)
class RunState:
    """The state of a run after an update."""

    progress: Progress
    parameters: Arrays  # the trained parameters, float32
    optimizer: AdamW
    # The parameters at the best evaluation; `None` if they are already on disk, or do not exist yet.
    best: Arrays | None = field(default=None, repr=False)


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Converts errors within the `with` block, which reads a stored run, to a `CheckpointError`."""
    try:
        with device_errors():
            yield
    except (OSError, ValueError, TypeError, LookupError, RuntimeError) as problem:
        raise CheckpointError(
            f"{folder}: the {what} of the run cannot be used ({problem})",
            hint=f"remove {folder} and repeat the command, which starts this run over and keeps other runs",
        ) from None


def save_arrays(path: Path, arrays: Arrays) -> str:
    """Writes arrays to a file, and returns the SHA-256 of the file. `load_arrays` needs it to check the file."""
    with atomic_write(path, durable=False) as file, device_errors():
        mx.save_safetensors(file, arrays)
    return file.sha256


def load_arrays(path: Path, digest: str) -> Arrays:
    """Reads the arrays of a file. Raises an error if the SHA-256 of the file is not `digest`."""
    check_hash(path, digest)
    arrays = mx.load(str(path))
    assert isinstance(arrays, dict)
    mx.eval(arrays)
    return arrays


class RunStore:
    """The folder of one run. Its `state.json` names the files that hold the arrays, with their hashes.

    Saving a state replaces `state.json` last, so the files that it names are always complete. Any other files are
    leftovers and are removed. `owner`, a JSON value, identifies the run: a state with another owner is an error.
    """

    def __init__(self, folder: Path, owner: object = None) -> None:
        self.folder, self._owner = folder, owner
        self._files: dict[str, str] = {}

    def load(self, trained: Arrays | None = None) -> RunState | None:
        """Reads the last saved state; returns `None` if there is none."""
        if not (self.folder / _STATE).is_file():
            return None
        parts: dict[str, Arrays] = {part: {} for part in _PARTS}
        with reading(self.folder, "state"):
            values = read_record(self.folder / _STATE, self._owner)
            self._files = values.pop("files")
            progress = Progress.from_dict(values)
            for name, digest in self._files.items():  # also of the best parameters, which are needed at the end
                check_hash(self.folder / name, digest)
            for name, array in self._load("state", progress.step).items():
                part, _, rest = name.partition(":")
                parts[part][rest] = array
            for arrays in parts.values():
                if trained is not None and (mismatches := {*_layout(arrays)} ^ {*_layout(trained)}):
                    raise DamagedError(f"{min(mismatches)[0]} does not fit the network")
        return RunState(progress, parts["parameters"], AdamW(parts["means"], parts["squares"]))

    def best(self, step: int) -> Arrays:
        """Reads the parameters of the best evaluation, which took place after update `step`."""
        with reading(self.folder, "best weights"):
            return self._load("best", step)

    def _load(self, kind: str, step: int) -> Arrays:
        path = self._path(kind, step)
        return load_arrays(path, self._files[path.name])

    def save(self, state: RunState) -> None:
        """Writes a state, then removes the previous one."""
        progress = state.progress
        best, path = self._path("best", progress.best_step), self._path("state", progress.step)
        files = {name: digest for name, digest in self._files.items() if name == best.name}
        parts = zip(_PARTS, (state.parameters, state.optimizer.means, state.optimizer.squares), strict=True)
        arrays = {f"{part}:{name}": array for part, values in parts for name, array in values.items()}
        try:
            with writing(self.folder, "the state ", "; the previous one is kept"):
                self.folder.mkdir(parents=True, exist_ok=True)
                if state.best is not None:
                    files[best.name] = save_arrays(best, state.best)
                files[path.name] = save_arrays(path, arrays)
                write_record(self.folder / _STATE, {**asdict(progress), "files": files}, self._owner)
            self._files = files
        finally:
            self._clean()

    def _path(self, kind: str, step: int) -> Path:
        return self.folder / f"{kind}-{step:08}.safetensors"

    def _clean(self) -> None:
        """Removes files that `state.json` does not name."""
        try:
            named = read_record(self.folder / _STATE, self._owner)["files"]
        except (OSError, DamagedError):
            return
        for path in self.folder.glob("*.safetensors*"):
            if path.name not in named:
                path.unlink(missing_ok=True)


def _layout(arrays: Arrays) -> Iterator[tuple[str, tuple[int, ...], str]]:
    return ((name, array.shape, str(array.dtype)) for name, array in arrays.items())
