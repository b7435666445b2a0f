"""Remembers the models that were written on this machine, with a small file for each in the user's data folder."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mlxbert.durable_files import DamagedError, read_record, write_record
from mlxbert.errors import MlxbertError
from mlxbert.mac_files import is_system_file
from mlxbert.machine.user_folders import data_folder
from mlxbert.weights.hub.needed_files import MODULES

# A model, an adapter, or a model of sentence-transformers whose checkpoint is in a subfolder.
_CONFIGS = ("config.json", "adapter_config.json", MODULES)


@dataclass(frozen=True)
class TrainedModel:
    """A model that was written on this machine."""

    folder: Path  # the absolute path of the model's folder
    kind: str  # the command that wrote the model: `finetune classify`, `pretrain`, `distill`, `convert`
    # The `model_type` of the model, or of its first module; `None` for an adapter, or if the configuration is
    # unreadable.
    family: str | None
    bytes: int  # the total size of the model's files in bytes
    written: str  # the time at which the model was written, in ISO 8601


def remember(folder: str | Path, kind: str) -> None:
    """Records that a model was written, so that `written_models` lists it. A failure to do so is ignored.

    Args:
        kind: The command that wrote the model (see `TrainedModel`).
    """
    with suppress(OSError, RuntimeError, ValueError, MlxbertError):
        path = os.path.abspath(folder)
        entry = _entries() / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_record(entry, {"folder": path, "kind": kind, "written": datetime.now(UTC).isoformat(timespec="seconds")})


def written_models() -> list[TrainedModel]:
    """Returns the models that were written on this machine and still exist, sorted by folder.

    A model whose folder was removed or moved is forgotten. A model on a disk that is not mounted is left out, but not
    forgotten.
    """
    try:
        entries = [path for path in _entries().iterdir() if path.suffix == ".json" and not is_system_file(path.name)]
    except OSError:
        return []
    return sorted((model for path in entries for model in _read(path)), key=lambda model: model.folder)


def _entries() -> Path:
    return data_folder() / "models"


def _read(entry: Path) -> Iterator[TrainedModel]:
    """Reads the file that remembers a model. Yields the model if it exists; removes the file if the model is gone."""
    with suppress(OSError):
        try:
            values = read_record(entry)
            folder = Path(str(values["folder"]))
            config = next((folder / name for name in _CONFIGS if _is_there(folder / name)), None)
            unmounted = not _is_there(folder.parent)
        except (DamagedError, KeyError, ValueError):
            config, unmounted = None, False
        if config is None:
            if not unmounted:
                entry.unlink(missing_ok=True)
        else:
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            yield TrainedModel(folder, str(values["kind"]), _family(config), size, str(values["written"]))


def _is_there(path: Path) -> bool:
    """Whether a path exists; raises an `OSError` if that cannot be determined."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _family(config: Path) -> str | None:
    with suppress(OSError, ValueError, RecursionError, AttributeError, LookupError, TypeError):
        values = json.loads(config.read_bytes())
        if config.name == MODULES:
            values = json.loads((config.parent / values[0]["path"] / "config.json").read_bytes())
        family = values.get("model_type")
        return family if isinstance(family, str) else None
    return None
