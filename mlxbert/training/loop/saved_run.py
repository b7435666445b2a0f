"""The state of a run on disk: written atomically, the last good one stays, and a run resumes from it exactly."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxbert.errors import CheckpointError
from mlxbert.files import DamagedError, atomic_write, check_hash, read_record, write_record, writing
from mlxbert.machine.device import mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.training.loop.optimizer import AdamW, Arrays

_STATE = "state.json"
_PARTS = ("parameters", "means", "squares")
_PARTS_OF_RUN = 400  # whose losses are kept: as many as a wide terminal has dots


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
        stopped: Whether the run ended early, as `patience` asks for or because no other update fits into `budget`.
        steps: Updates in all, where a time decided that; `None` where the options say it.
        budget: Seconds for all of them.
        history: The metrics of every evaluation: `{"step": 10, "epoch": 1.0, "accuracy": 0.9}`.
        losses: The mean loss of each of at most `_PARTS_OF_RUN` equal parts of the run, after its last step so far.
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
    steps: int | None = None
    budget: float | None = None
    history: tuple[Mapping[str, float], ...] = ()
    losses: tuple[tuple[int, float], ...] = ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        """From what JSON keeps of it."""
        losses = tuple(map(tuple, values.get("losses", ())))
        return cls(**{**values, "history": tuple(values["history"]), "losses": losses})

    def with_loss(self, loss: float, steps: int) -> "Progress":
        """With the loss of the last of its updates; of `steps` in all."""
        size = -(-steps // _PARTS_OF_RUN)
        part, place = divmod(self.step - 1, size)
        earlier, mean = self.losses, loss
        if earlier and (earlier[-1][0] - 1) // size == part:
            earlier, mean = earlier[:-1], earlier[-1][1] + (loss - earlier[-1][1]) / (place + 1)
        return replace(self, losses=(*earlier, (self.step, mean)))


@dataclass(frozen=True)
class RunState:
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


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Reads what a run has stored in a folder."""
    try:
        with device_errors():
            yield
    except (OSError, ValueError, TypeError, LookupError, RuntimeError) as problem:
        raise CheckpointError(
            f"{folder}: the {what} of the run cannot be used ({problem})",
            hint=f"remove {folder} and repeat the command: this run starts over, other runs are kept",
        ) from None


def save_arrays(path: Path, arrays: Arrays) -> str:
    """Writes arrays; returns the SHA-256 of the file, for the record that names it and is written after it."""
    with atomic_write(path, durable=False) as file, device_errors():
        mx.save_safetensors(file, arrays)
    return file.sha256


def load_arrays(path: Path, digest: str) -> Arrays:
    """The arrays of a file with this SHA-256."""
    check_hash(path, digest)
    arrays = mx.load(str(path))
    assert isinstance(arrays, dict)
    mx.eval(arrays)
    return arrays


class RunStore:
    """The folder of one run: `state.json`, which names the files with arrays, and their hashes.

    `state.json` is replaced last. What it names is complete; other files are left-overs, and removed.

    Args:
        folder: The folder.
        owner: The run, a JSON value: the states of other ones are refused.
    """

    def __init__(self, folder: Path, owner: object = None) -> None:
        self.folder, self._owner = folder, owner
        self._files: dict[str, str] = {}

    def load(self, trained: Arrays | None = None) -> RunState | None:
        """The last saved state; `None` if there is none.

        Args:
            trained: Arrays of the names, shapes and dtypes that the parameters have to have.
        """
        if not (self.folder / _STATE).is_file():
            return None
        parts: dict[str, Arrays] = {part: {} for part in _PARTS}
        with reading(self.folder, "state"):
            values = read_record(self.folder / _STATE, self._owner)
            self._files = values.pop("files")
            progress = Progress.from_dict(values)
            for name, digest in self._files.items():  # also the best parameters: they are needed at the end
                check_hash(self.folder / name, digest)
            for name, array in self._load("state", progress.step).items():
                part, _, rest = name.partition(":")
                parts[part][rest] = array
            for found in parts.values():
                if trained is not None and (other := {*_layout(found)} ^ {*_layout(trained)}):
                    raise DamagedError(f"{min(other)[0]} does not fit the network")
        optimizer = AdamW(parts["means"], parts["squares"], progress.updates)
        return RunState(progress, parts["parameters"], optimizer)

    def best(self, step: int) -> Arrays:
        """The parameters of the best evaluation."""
        with reading(self.folder, "best weights"):
            return self._load("best", step)

    def _load(self, kind: str, step: int) -> Arrays:
        path = self._path(kind, step)
        return load_arrays(path, self._files[path.name])

    def save(self, state: RunState) -> None:
        """Writes a state; the earlier one is removed after that."""
        progress = state.progress
        best, path = self._path("best", progress.best_step), self._path("state", progress.step)
        files = {name: digest for name, digest in self._files.items() if name == best.name}
        optimizer = state.optimizer
        parts = zip(_PARTS, (state.parameters, optimizer.means, optimizer.squares), strict=True)
        arrays = {f"{part}:{name}": array for part, found in parts for name, array in found.items()}
        try:
            with writing(self.folder, "the state ", "; the one before is kept"):
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
