"""Weights in ONNX graphs exported by torch; the onnx package parses the file.

The file is mapped and parsed as a whole; tensors in external files are mapped one by one. The graph is never executed.
Format:
https://onnx.ai/onnx/repo-docs/IR.html.
"""

import math
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxbert.errors import CheckpointError
from mlxbert.machine.device import mx
from mlxbert.weights.formats.headers import BYTES, Header, LazyArrays, TensorInfo, from_bytes
from mlxbert.weights.formats.names import ONNX
from mlxbert.weights.formats.onnx import graph
from mlxbert.weights.formats.onnx.graph import Source
from mlxbert.weights.formats.onnx.tensors import Initializer, read_initializers

MAX_FILE = 2**31 - 1  # bytes, the limit of the format
_AGAIN = "download the model again"


def _parse(path: Path) -> Any:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise CheckpointError(
            f"{path}: reading ONNX needs the onnx package, which is not installed",
            hint='run pip install "mlxbert[onnx]", or pip install onnx',
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


def _has_valid_names(graph: Any) -> bool:
    """Whether all names are strings; for invalid UTF-8 some versions of protobuf return bytes, others raise."""
    notes = [note for node in graph.node for note in node.metadata_props]
    notes += [note for proto in graph.initializer for note in proto.external_data]
    texts = [text for note in notes for text in (note.key, note.value)]
    texts += [proto.name for proto in graph.initializer] + [proto.values.name for proto in graph.sparse_initializer]
    for node in graph.node:
        texts += (node.domain, node.op_type, node.name, *node.input, *node.output)
        texts += [attribute.name for attribute in node.attribute]
    return all(isinstance(text, str) for text in texts)


def _open(path: Path) -> tuple[dict[str, list[Source]], dict[str, Initializer], tuple[str, ...]]:
    """Parses a graph into parameters, initializers, and the names of initializers that are not parameters."""
    model = _parse(path)
    try:
        if not _has_valid_names(model.graph):
            raise CheckpointError(f"{path}: damaged: a name is not UTF-8", hint=_AGAIN)
        graph.refuse_operators(model.graph)
        initializers, others = read_initializers(path, model.graph)
        ranks = {name: len(initializer.shape) for name, initializer in initializers.items()}
        places = graph.parameters(model.graph, ranks)
    except UnicodeDecodeError as problem:
        raise CheckpointError(f"{path}: damaged: a name is not UTF-8 ({problem})", hint=_AGAIN) from None
    except OSError as problem:
        raise CheckpointError(f"{path}: its data cannot be read ({problem.strerror})") from None
    except CheckpointError as problem:
        text = problem.message
        raise CheckpointError(text if text.startswith(str(path)) else f"{path}: {text}", hint=problem.hint) from None
    if not places:
        raise CheckpointError(f"{path}: no parameters in the graph, expected an encoder exported by torch")
    used = {source.initializer for sources in places.values() for source in sources}
    return places, initializers, (*others, *(name for name in initializers if name not in used))


def _shape(source: Source, initializers: Mapping[str, Initializer]) -> tuple[int, ...]:
    found = initializers[source.initializer]
    shape = found.shape[::-1] if source.transposed else found.shape
    if source.zeros:
        return shape[:1] if found.size else (0,)  # never more numbers than the file has
    return shape


def _read(source: Source, initializers: Mapping[str, Initializer]) -> mx.array:
    import numpy as np

    found = initializers[source.initializer]
    if source.zeros:
        shape = _shape(source, initializers)
        return from_bytes(np.zeros(math.prod(shape) * BYTES[found.dtype], np.uint8), found.dtype, shape)
    try:
        array = from_bytes(found.read(), found.dtype, found.shape)
    except (OSError, ValueError) as problem:
        raise CheckpointError(f"{found.file}: changed while it was read ({problem})") from None
    return array.T if source.transposed else array


def _info(path: Path, name: str, places: Sequence[Source], initializers: Mapping[str, Initializer]) -> TensorInfo:
    """The metadata of a parameter; all its sources are compared and must be equal."""
    first, *others = places
    dtype, shape = initializers[first.initializer].dtype, _shape(first, initializers)
    for other in others:
        same = (initializers[other.initializer].dtype, _shape(other, initializers)) == (dtype, shape)
        if not same or dtype == "F64" or not _equal(first, other, initializers):
            raise CheckpointError(
                f"{path}: tensor {name!r} is {first.initializer!r} and {other.initializer!r}, expected them to be equal"
            )
    stored_as = None if first.zeros or first.initializer == name else first.initializer
    return TensorInfo(dtype, shape, path, stored_as)


def _equal(first: Source, other: Source, initializers: Mapping[str, Initializer]) -> bool:
    return bool(mx.array_equal(_read(first, initializers), _read(other, initializers), equal_nan=True).item())


def read_headers(folder: Path, classes: Sequence[str] = ()) -> dict[Path, Header] | None:
    """Reads the header of the graph in a model folder, `model.onnx` or `onnx/model.onnx`; `None` if there is neither.

    Raises:
        CheckpointError: The onnx package is missing, or the graph is damaged, quantized or fused.
    """
    path = next((folder / name for name in ONNX if (folder / name).is_file()), None)
    if path is None:
        return None
    places, initializers, skipped = _open(path)
    tensors = {name: _info(path, name, sources, initializers) for name, sources in places.items()}
    companions = {initializer.file: None for initializer in initializers.values() if initializer.file is not None}
    return {
        path: Header(tensors, {}, sum(file.stat().st_size for file in (path, *companions)), skipped, (*companions,))
    }


def load_arrays(path: Path, header: Header) -> Mapping[str, mx.array]:
    """Maps names to the parameters of a graph whose header was checked; each is copied on access.

    Raises:
        CheckpointError: The file does not match the header; on access, a tensor is float64.
    """
    places, initializers, _ = _open(path)
    if not header.tensors.keys() <= places.keys():
        raise CheckpointError(f"{path}: changed while it was read")

    def read(name: str) -> mx.array:
        if header.tensors[name].dtype == "F64":
            raise CheckpointError(f"{path}: tensor {name!r} has dtype F64, expected at most 32 bits per number")
        return _read(places[name][0], initializers)

    return LazyArrays(header.tensors, read)
