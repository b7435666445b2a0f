"""The weights of a model folder, in any supported format.

A format is a module with the two functions of `WeightReader`. Formats are tried in order: first safetensors, the most
common format today, then the formats of older or other releases.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, cast

from mlxbert import rooms
from mlxbert.errors import CheckpointError
from mlxbert.mac_files import is_system_file
from mlxbert.machine.device import mx
from mlxbert.nn.heads import OWN_LAYERS
from mlxbert.nn.heads.head import OwnLayer
from mlxbert.weights.formats import safetensors
from mlxbert.weights.formats.file_names import (
    ADAPTER_WEIGHTS,
    EXPECTED,
    NOT_READ,
    TENSORFLOW,
    TF_INDEX,
    TF_READER,
    holds_weights,
)
from mlxbert.weights.formats.headers import Header, LazyArrays, TensorInfo

# The module of each format. A module is imported only if no earlier format matches.
_FORMATS = {
    "safetensors": "mlxbert.weights.formats.safetensors",
    "PyTorch": "mlxbert.weights.formats.torch.reader",
    "NumPy archive": "mlxbert.weights.formats.npz",
}


class WeightReader(Protocol):
    """The interface of a module that reads a weight format."""

    def read_headers(self, folder: Path, classes: Sequence[str] = ()) -> dict[Path, Header] | None:
        """Reads the headers of a folder's files in this format; returns `None` if there are no such files.

        `classes` holds the `architectures` in `config.json`, for formats that store several models in one file.
        """

    def load_arrays(self, path: Path, header: Header) -> Mapping[str, mx.array]:
        """Returns the tensors of a file by name. Each access reads the tensor again; nothing is cached."""


@dataclass(frozen=True)
class WeightFiles:
    """The weight files of a folder."""

    format: str  # the name of the format
    headers: Mapping[Path, Header]  # the header of each file; never empty

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """The dtype, shape and file of every tensor, by name."""
        merged: dict[str, TensorInfo] = {}
        for path, header in self.headers.items():
            repeated = merged.keys() & header.tensors.keys()
            if repeated:
                raise CheckpointError(f"{path}: tensor {min(repeated)!r} is also in {merged[min(repeated)].file.name}")
            merged |= header.tensors
        return merged

    @property
    def skipped(self) -> tuple[str, ...]:
        """The names of all entries in the files that are not tensors of the model."""
        return tuple(name for header in self.headers.values() for name in header.skipped)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that are read, each listed once: the files with headers, and their companions."""
        paths = (path for main, header in self.headers.items() for path in (main, *header.companions))
        return tuple(dict.fromkeys(paths))

    def arrays(self) -> Mapping[str, mx.array]:
        """Returns all tensors by name; each is read when it is used."""
        mappings = self._arrays
        return LazyArrays(self.tensors, lambda name: mappings[self.tensors[name].file][name])

    def release(self) -> None:
        """Frees parsed data, such as an index of tensors. If a tensor is accessed later, the data is parsed again."""
        self.__dict__.pop("_arrays", None)

    @cached_property
    def _arrays(self) -> dict[Path, Mapping[str, mx.array]]:
        """The tensors of each file. Their metadata is parsed once; their data is not cached."""
        reader = _reader(self.format)
        return {path: reader.load_arrays(path, header) for path, header in self.headers.items()}


def _reader(format: str) -> WeightReader:
    module = importlib.import_module(_FORMATS[format]) if format in _FORMATS else rooms.part(TF_READER)
    return cast(WeightReader, module)


def open_weights(
    folder: Path, classes: Sequence[str] = (), elsewhere: Mapping[Path, Header] | None = None
) -> WeightFiles:
    """Opens the weights of a folder: reads and checks their headers, but no tensor data.

    Args:
        classes: The `architectures` in `config.json`.
        elsewhere: The headers of safetensors files that are not in the folder, by the path that they would have
            there.
    """
    headers = safetensors.read_headers(folder, classes, elsewhere)
    if headers is not None:
        return WeightFiles("safetensors", headers)
    others = [TENSORFLOW] if rooms.has_part(TF_READER) or [*folder.glob(f"*{TF_INDEX}")] else []
    for format in (*list(_FORMATS)[1:], *others):
        headers = _reader(format).read_headers(folder, classes)
        if headers is not None:
            return WeightFiles(format, headers)
    raise _no_weights_error(folder)


def has_weights(folder: Path) -> bool:
    """Whether a folder holds the weights of a model, judging by file names. Adapters and `OWN_LAYERS` do not count."""
    own_files = (ADAPTER_WEIGHTS, *(layer.file for layer in OWN_LAYERS))
    return any(holds_weights(path.name) and path.name not in own_files for path in folder.iterdir())


def with_own_layers(
    weights: WeightFiles, folder: Path, layers: Iterable[OwnLayer], elsewhere: Mapping[Path, Header]
) -> WeightFiles:
    """Returns the weights of a folder together with the files that hold mlxbert's own layers, if it has such files."""
    paths = [folder / layer.file for layer in layers] if weights.format == "safetensors" else []
    headers = {
        path: elsewhere.get(path) or safetensors.read_header(path)
        for path in paths
        if path in elsewhere or path.is_file()
    }
    return WeightFiles(weights.format, {**weights.headers, **headers}) if headers else weights


def _no_weights_error(folder: Path) -> CheckpointError:
    for ending, (kind, instead) in NOT_READ.items():
        places = (f"*{ending}", f"onnx/*{ending}")
        found = (path for place in places for path in folder.glob(place) if not is_system_file(path.name))
        names = sorted(path.relative_to(folder).as_posix() for path in found)
        if names:
            return CheckpointError(
                f"{folder}: {names[0]} is {kind}, which mlxbert does not read, expected {EXPECTED}", hint=instead
            )
    return CheckpointError(f"{folder}: the folder has no weights, expected {EXPECTED}")
