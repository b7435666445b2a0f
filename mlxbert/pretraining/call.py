"""A checked call of `pretrain`, and what decides its result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.folders.fingerprint import hash_model
from mlxbert.machine.device import mx
from mlxbert.machine.distributed import Group
from mlxbert.pretraining.data import OnRead
from mlxbert.pretraining.objective import Pretraining
from mlxbert.pretraining.settings import Settings
from mlxbert.pretraining.start import Start
from mlxbert.training.adapters import Adapters
from mlxbert.training.command import computed_with
from mlxbert.training.options import TrainingOptions
from mlxbert.weights.folder import ModelFolder


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of `pretrain`, checked.

    Attributes:
        start: What training starts from.
        target: The folder to write.
        objective: The terms.
        settings: How examples are made.
        options: How it is trained.
        steps: Updates in all; `None` for `epochs` passes.
        epochs: Passes over the corpus.
        fill: Texts with blanks that are filled at each evaluation.
        teacher: The folder of the teacher, if there is one.
        dtype: The dtype of computation.
        overwrite: Whether existing results and unfinished work are replaced.
        group: The processes.
        on_read: Called while the corpus is read.
        adapters: The adapters that are trained instead of all weights, if there are any.
    """

    start: Start
    target: Path
    objective: Pretraining
    settings: Settings
    options: TrainingOptions
    steps: int | None
    epochs: float
    fill: tuple[str, ...]
    teacher: ModelFolder | None
    dtype: mx.Dtype
    overwrite: bool
    group: Group
    on_read: OnRead | None
    adapters: Adapters | None = None

    def manifest(self) -> dict[str, Any]:
        """What decides every bit of the result: only with the same manifest does a run resume."""
        files, hashes = {"corpus": self.settings.corpus, "valid": self.settings.valid}, self.settings.hashes
        return {
            **computed_with(self.dtype, self.group),
            "task": "pretrain",
            **self.start.manifest(),
            "teacher": self.teacher and hash_model(self.teacher),
            "options": {**self.options.to_dict(), **self.objective.settings(), **self.settings.to_dict()},
            "steps": self.steps,
            "passes": self.epochs,
            "variants": [{}],
            "corpus_files": len(self.settings.corpus),
            "sha256": {f"{role}: {path}": hashes[path][0] for role, paths in files.items() for path in paths},
        }
