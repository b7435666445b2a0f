"""The constants of an ONNX graph: their metadata is checked against the data, in the graph or in external files.

Format: https://onnx.ai/onnx/repo-docs/IR.html and https://onnx.ai/onnx/repo-docs/ExternalData.html.
"""

import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from mlxbert.errors import CheckpointError
from mlxbert.weights.formats.headers import BYTES, MAX_SIZE

if TYPE_CHECKING:
    import numpy as np

MAX_AXES = 8
_AGAIN = "download the model again"
# By the numbers of TensorProto.DataType.
_DTYPES = {1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64"}
_DTYPES |= {12: "U32", 13: "U64", 16: "BF16"}
_EXTERNAL = 1  # TensorProto.DataLocation
# The fields of values that are not stored as raw bytes, and the type to convert them to.
_FIELDS = {"F32": ("float_data", "<f4"), "I64": ("int64_data", "<i8"), "I32": ("int32_data", "<i4")}
_FIELDS |= {"F16": ("int32_data", "<u2"), "BF16": ("int32_data", "<u2")}


@dataclass(frozen=True)
class Initializer:
    """A checked constant of the graph: its data is in the graph, or in `file` from byte `offset`."""

    proto: Any
    dtype: str
    shape: tuple[int, ...]
    file: Path | None = None
    offset: int = 0

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * BYTES[self.dtype]

    def read(self) -> "np.ndarray[Any, Any]":
        """Reads its bytes."""
        import numpy as np

        if self.size == 0:
            return np.empty(0, np.uint8)
        if self.file is not None:
            return np.memmap(self.file, np.uint8, "r", self.offset, (self.size,))
        if self.proto.HasField("raw_data"):
            return np.frombuffer(self.proto.raw_data, np.uint8)
        field, dtype = _FIELDS[self.dtype]
        values = np.array(getattr(self.proto, field), "<f4" if self.dtype == "F32" else "<i8")
        return values.astype(dtype).view(np.uint8)


def _external_file(path: Path, location: str) -> Path:
    """The external file at this location, which must be within the folder of the graph."""
    parts = PurePosixPath(location).parts
    if not location or "\\" in location or "\0" in location or ".." in parts or location.startswith("/"):
        raise CheckpointError(f"{path}: data in {location!r}, expected a path within the folder")
    found = path.parent / location
    # In the hub cache both files are symlinks into one folder.
    if not any(found.resolve().is_relative_to(folder) for folder in (path.parent.resolve(), path.resolve().parent)):
        raise CheckpointError(f"{path}: data in {location!r}, a link to outside the folder")
    if not found.is_file():
        raise CheckpointError(f"{path}: data in {location!r}, which is not in the folder", hint=_AGAIN)
    return found


def _checked(path: Path, proto: Any) -> Initializer | None:
    """Checks the size of an initializer against its data; `None` for dtypes that no weight has."""
    name, shape = proto.name, tuple(proto.dims)
    dtype = _DTYPES.get(proto.data_type)
    if dtype is None:
        return None
    if len(shape) > MAX_AXES or not all(0 <= size <= MAX_SIZE for size in shape):
        raise CheckpointError(
            f"{path}: tensor {name!r} has shape {str(list(shape))[:80]}, expected at most {MAX_AXES} axes of 0 to "
            f"{MAX_SIZE}"
        )
    found = Initializer(proto, dtype, shape)
    if proto.data_location == _EXTERNAL:
        facts = {entry.key: entry.value for entry in proto.external_data}
        file = _external_file(path, facts.get("location", ""))
        texts = facts.get("offset", "0"), facts.get("length", str(found.size))
        if not all(text.isascii() and text.isdigit() and len(text) < 100 for text in texts):
            raise CheckpointError(f"{path}: tensor {name!r} is at {texts}, expected offset and length in bytes")
        offset, length = (int(text) for text in texts)
        room = file.stat().st_size - offset
        found = Initializer(proto, dtype, shape, file, offset)
    elif proto.HasField("raw_data"):
        length = room = len(proto.raw_data)
    else:
        count = len(getattr(proto, _FIELDS[dtype][0])) if dtype in _FIELDS else 0
        length = room = count * BYTES[dtype]
    if length != found.size or length > room:
        raise CheckpointError(
            f"{path}: tensor {name!r} of {dtype} {list(shape)} has {min(length, room)} bytes, expected {found.size}",
            hint=_AGAIN,
        )
    return found


def read_initializers(path: Path, graph: Any) -> tuple[dict[str, Initializer], list[str]]:
    """The initializers that can be weights, by name, and the names of the others.

    Raises:
        CheckpointError: The size of an initializer does not match its data, its data is missing, or two initializers
            have the same name.
    """
    found: dict[str, Initializer] = {}
    others = [tensor.values.name for tensor in graph.sparse_initializer]
    for proto in graph.initializer:
        checked = _checked(path, proto)
        if proto.name in found:
            raise CheckpointError(f"{path}: tensor {proto.name!r} appears twice, expected once")
        if checked is None:
            others.append(proto.name)
        else:
            found[proto.name] = checked
    return found, others
