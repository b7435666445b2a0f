"""Weights in ONNX graphs, as torch exports them; the onnx package parses the file.

The file is mapped and parsed at once; tensors in files beside it are mapped one by one. Nothing is run. Format:
https://onnx.ai/onnx/repo-docs/IR.html and https://onnx.ai/onnx/repo-docs/ExternalData.html.
"""

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from mlxbert.device import mx
from mlxbert.errors import CheckpointError
from mlxbert.weights import onnx_graph
from mlxbert.weights.file_names import ONNX
from mlxbert.weights.onnx_graph import Source
from mlxbert.weights.stored import BYTES, MAX_SIZE, Header, LazyArrays, TensorInfo, from_bytes

if TYPE_CHECKING:
    import numpy as np

MAX_FILE = 2**31 - 1  # bytes, the limit of the format itself
MAX_AXES = 8
_AGAIN = "download the model again"
# Numbers of TensorProto.DataType.
_DTYPES = {1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64"}
_DTYPES |= {12: "U32", 13: "U64", 16: "BF16"}
_EXTERNAL = 1  # TensorProto.DataLocation
# Where numbers lie that are not written as bytes, and what each becomes.
_FIELDS = {"F32": ("float_data", "<f4"), "I64": ("int64_data", "<i8"), "I32": ("int32_data", "<i4")}
_FIELDS |= {"F16": ("int32_data", "<u2"), "BF16": ("int32_data", "<u2")}


@dataclass(frozen=True)
class _Initializer:
    """A constant of the graph that was checked.

    Attributes:
        file: Where its bytes lie, if not in the graph.
        offset: At which byte of it.
    """

    proto: Any
    dtype: str
    shape: tuple[int, ...]
    file: Path | None = None
    offset: int = 0

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * BYTES[self.dtype]

    def read(self) -> "np.ndarray[Any, Any]":
        """Its bytes."""
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


def _parse(path: Path) -> Any:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise CheckpointError(
            f"{path}: reading ONNX needs the onnx package, which is not installed",
            hint='pip install "mlxbert[onnx]", or: pip install onnx',
        ) from None
    try:
        size = path.stat().st_size
        if not 0 < size <= MAX_FILE:
            raise CheckpointError(f"{path}: {size} bytes, expected 1 to {MAX_FILE}", hint=_AGAIN)
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as whole,
        ):
            return onnx.ModelProto.FromString(whole)
    except OSError as problem:
        raise CheckpointError(f"{path}: cannot be read ({problem.strerror})") from None
    except (DecodeError, ValueError, RuntimeError) as problem:
        raise CheckpointError(f"{path}: damaged, expected an ONNX model ({problem!s:.80})", hint=_AGAIN) from None


def _beside(path: Path, location: str) -> Path:
    """The file with this location, which must not lead out of the folder of the graph."""
    parts = PurePosixPath(location).parts
    if not location or "\\" in location or "\0" in location or ".." in parts or location.startswith("/"):
        raise CheckpointError(f"{path}: data in {location!r}, expected a path within the folder")
    found = path.parent / location
    # In the hub's cache both files are links into one folder.
    if not any(found.resolve().is_relative_to(folder) for folder in (path.parent.resolve(), path.resolve().parent)):
        raise CheckpointError(f"{path}: data in {location!r}, a link that leads out of the folder")
    if not found.is_file():
        raise CheckpointError(f"{path}: data in {location!r}, which is not in the folder", hint=_AGAIN)
    return found


def _checked(path: Path, proto: Any) -> _Initializer | None:
    """The initializer, its size compared with what there is; `None` for dtypes that no weight has."""
    name, shape = proto.name, tuple(proto.dims)
    dtype = _DTYPES.get(proto.data_type)
    if dtype is None:
        return None
    if len(shape) > MAX_AXES or not all(0 <= size <= MAX_SIZE for size in shape):
        raise CheckpointError(
            f"{path}: tensor {name!r} has shape {str(list(shape))[:80]}, expected at most {MAX_AXES} axes of 0 to "
            f"{MAX_SIZE}"
        )
    found = _Initializer(proto, dtype, shape)
    if proto.data_location == _EXTERNAL:
        facts = {entry.key: entry.value for entry in proto.external_data}
        file = _beside(path, facts.get("location", ""))
        texts = facts.get("offset", "0"), facts.get("length", str(found.size))
        if not all(text.isascii() and text.isdigit() and len(text) < 100 for text in texts):
            raise CheckpointError(f"{path}: tensor {name!r} lies at {texts}, expected offset and length in bytes")
        offset, length = (int(text) for text in texts)
        room = file.stat().st_size - offset
        found = _Initializer(proto, dtype, shape, file, offset)
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


def _initializers(path: Path, graph: Any) -> tuple[dict[str, _Initializer], list[str]]:
    """Those that can be weights, by name, and the names of the others."""
    found: dict[str, _Initializer] = {}
    others = [tensor.values.name for tensor in graph.sparse_initializer]
    for proto in graph.initializer:
        checked = _checked(path, proto)
        if proto.name in found:
            raise CheckpointError(f"{path}: tensor {proto.name!r} is there twice, expected each once")
        if checked is None:
            others.append(proto.name)
        else:
            found[proto.name] = checked
    return found, others


def _is_text(graph: Any) -> bool:
    """Whether all names are text; some versions of protobuf give bytes for what is no UTF-8, others raise."""
    notes = [note for node in graph.node for note in node.metadata_props]
    notes += [note for proto in graph.initializer for note in proto.external_data]
    texts = [text for note in notes for text in (note.key, note.value)]
    texts += [proto.name for proto in graph.initializer] + [proto.values.name for proto in graph.sparse_initializer]
    for node in graph.node:
        texts += (node.domain, node.op_type, node.name, *node.input, *node.output)
        texts += [attribute.name for attribute in node.attribute]
    return all(isinstance(text, str) for text in texts)


def _open(path: Path) -> tuple[dict[str, list[Source]], dict[str, _Initializer], tuple[str, ...]]:
    """Parameters, initializers, and the names of those that are no parameters."""
    model = _parse(path)
    try:
        if not _is_text(model.graph):
            raise CheckpointError(f"{path}: damaged: a name is not UTF-8", hint=_AGAIN)
        onnx_graph.refuse_operators(model.graph)
        initializers, others = _initializers(path, model.graph)
        ranks = {name: len(initializer.shape) for name, initializer in initializers.items()}
        places = onnx_graph.parameters(model.graph, ranks)
    except UnicodeDecodeError as problem:
        raise CheckpointError(f"{path}: damaged: a name is not UTF-8 ({problem})", hint=_AGAIN) from None
    except OSError as problem:
        raise CheckpointError(f"{path}: its data cannot be read ({problem.strerror})") from None
    except CheckpointError as problem:
        text = problem.message
        raise CheckpointError(text if text.startswith(str(path)) else f"{path}: {text}", hint=problem.hint) from None
    if not places:
        raise CheckpointError(f"{path}: no parameters in this graph, expected an encoder exported by torch")
    used = {source.initializer for sources in places.values() for source in sources}
    return places, initializers, (*others, *(name for name in initializers if name not in used))


def _read(source: Source, initializers: Mapping[str, _Initializer]) -> mx.array:
    found = initializers[source.initializer]
    array = from_bytes(found.read(), found.dtype, found.shape)
    return array.T if source.turned else array


def _info(path: Path, name: str, places: Sequence[Source], initializers: Mapping[str, _Initializer]) -> TensorInfo:
    """What is said of a parameter; places that should hold the same are compared."""
    first, *others = places
    found = initializers[first.initializer]
    shape = found.shape[::-1] if first.turned else found.shape
    for other in others:
        again = initializers[other.initializer]
        same = (again.dtype, again.shape[::-1] if other.turned else again.shape) == (found.dtype, shape)
        if not same or found.dtype == "F64" or not _equal(first, other, initializers):
            raise CheckpointError(
                f"{path}: tensor {name!r} is {first.initializer!r} and {other.initializer!r}, expected them to be equal"
            )
    return TensorInfo(found.dtype, shape, path, first.initializer if first.initializer != name else None)


def _equal(first: Source, other: Source, initializers: Mapping[str, _Initializer]) -> bool:
    return bool(mx.array_equal(_read(first, initializers), _read(other, initializers), equal_nan=True).item())


def read_headers(folder: Path, classes: Sequence[str] = ()) -> dict[Path, Header] | None:
    """The header of the graph in a model folder, `model.onnx` or `onnx/model.onnx`; `None` if there is neither.

    Raises:
        CheckpointError: The onnx package is missing, or the graph is damaged, quantized or fused.
    """
    path = next((folder / name for name in ONNX if (folder / name).is_file()), None)
    if path is None:
        return None
    places, initializers, skipped = _open(path)
    tensors = {name: _info(path, name, sources, initializers) for name, sources in places.items()}
    files = {path} | {initializer.file for initializer in initializers.values() if initializer.file is not None}
    return {path: Header(tensors, {}, sum(file.stat().st_size for file in files), skipped)}


def load_arrays(path: Path, header: Header) -> Mapping[str, mx.array]:
    """The parameters of a graph whose header was checked; each is copied when it is asked for.

    Raises:
        CheckpointError: The file is not the one that the header tells of; on access, a tensor of float64.
    """
    places, initializers, _ = _open(path)
    if not header.tensors.keys() <= places.keys():
        raise CheckpointError(f"{path}: was changed while it was read")

    def read(name: str) -> mx.array:
        if header.tensors[name].dtype == "F64":
            raise CheckpointError(f"{path}: tensor {name!r} has dtype F64, which MLX does not compute with")
        return _read(places[name][0], initializers)

    return LazyArrays(header.tensors, read)
