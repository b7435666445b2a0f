"""The weights of a model folder, in whichever format they were published.

A format is a module with two functions, see `Reader`. Formats are tried in an order: safetensors first, for they are
what everybody writes today; the others for what was published before, or elsewhere.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, cast

from mlxbert.device import mx
from mlxbert.errors import CheckpointError
from mlxbert.weights.formats import safetensors
from mlxbert.weights.formats.headers import Header, LazyArrays, TensorInfo
from mlxbert.weights.formats.names import EXPECTED, NOT_READ

TENSORFLOW = "TensorFlow 1"
# What to call a format, by the module that reads it; imported when a folder holds nothing of those before it.
_FORMATS = {
    "safetensors": "safetensors",
    "torch.reader": "PyTorch",
    "npz": "NumPy archive",
    "tensorflow.reader": TENSORFLOW,
    "onnx.reader": "ONNX",
}


class Reader(Protocol):
    """What a module that reads a format offers."""

    def read_headers(self, folder: Path, classes: Sequence[str] = ()) -> dict[Path, Header] | None:
        """The headers of a folder's files of this format; `None` if there are none.

        Args:
            folder: The model folder.
            classes: What `config.json` calls the architectures, for formats that keep several models in one file.
        """

    def load_arrays(self, path: Path, header: Header) -> Mapping[str, mx.array]:
        """The tensors of a file by name, each read whenever it is asked for and not kept."""


@dataclass(frozen=True)
class WeightFiles:
    """The weights of one folder.

    Attributes:
        format: What the format is called.
        headers: Of each file; none is empty.
    """

    format: str
    headers: Mapping[Path, Header]

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """What the headers say of every tensor, by its name.

        Raises:
            CheckpointError: Two files hold a tensor of the same name.
        """
        found: dict[str, TensorInfo] = {}
        for path, header in self.headers.items():
            twice = found.keys() & header.tensors.keys()
            if twice:
                raise CheckpointError(f"{path}: tensor {min(twice)!r} is in {found[min(twice)].file.name} too")
            found |= header.tensors
        return found

    @property
    def skipped(self) -> tuple[str, ...]:
        """What else the files hold."""
        return tuple(name for header in self.headers.values() for name in header.skipped)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that are read, each once: those with headers, and what lies beside each."""
        found = (path for own, header in self.headers.items() for path in (own, *header.beside))
        return tuple(dict.fromkeys(found))

    def arrays(self) -> Mapping[str, mx.array]:
        """All tensors by name, each read when it is used."""
        found = self._arrays
        return LazyArrays(self.tensors, lambda name: found[self.tensors[name].file][name])

    def release(self) -> None:
        """Lets go of what was parsed, all data of a graph say; it is parsed again if tensors are asked for again."""
        self.__dict__.pop("_arrays", None)

    @cached_property
    def _arrays(self) -> dict[Path, Mapping[str, mx.array]]:
        """The tensors of each file. What it says of them is parsed once; data is not kept."""
        reader = _reader(self.format)
        return {path: reader.load_arrays(path, header) for path, header in self.headers.items()}


def _reader(format: str) -> Reader:
    module = next(module for module, name in _FORMATS.items() if name == format)
    return cast(Reader, importlib.import_module(f"mlxbert.weights.formats.{module}"))


def open_weights(
    folder: Path, classes: Sequence[str] = (), elsewhere: Mapping[Path, Header] | None = None
) -> WeightFiles:
    """The weights of a folder; headers are read and checked, data is not.

    Args:
        folder: The folder.
        classes: What `config.json` calls the architectures.
        elsewhere: Headers of safetensors that are not in the folder but elsewhere, by where they would lie.

    Raises:
        CheckpointError: There are none, or they are damaged, incomplete, or of a kind that mlxbert does not read.
    """
    found = safetensors.read_headers(folder, classes, elsewhere)
    if found is not None:
        return WeightFiles("safetensors", found)
    for format in tuple(_FORMATS.values())[1:]:
        found = _reader(format).read_headers(folder, classes)
        if found is not None:
            return WeightFiles(format, found)
    raise _nothing(folder)


def _nothing(folder: Path) -> CheckpointError:
    for ending, (kind, instead) in NOT_READ.items():
        others = sorted(path.name for path in folder.glob(f"*{ending}"))
        if others:
            return CheckpointError(
                f"{folder}: {others[0]} is {kind}, which mlxbert does not read, expected {EXPECTED}", hint=instead
            )
    return CheckpointError(f"{folder}: no weights in this folder, expected {EXPECTED}")
