"""Reads checkpoints that torch.save wrote (`pytorch_model.bin`), single and sharded, without torch.

content.py describes the two formats.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.errors import CheckpointError
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import mx
from mlxbert.weights.formats import file_names
from mlxbert.weights.formats.headers import BYTES, Header, LazyArrays, TensorInfo, from_bytes
from mlxbert.weights.formats.shards import find_shards
from mlxbert.weights.formats.torch.content import read_content
from mlxbert.weights.formats.torch.pickle import Storage, TorchTensor
from mlxbert.weights.formats.zip_archive import Member

SINGLE, INDEX = file_names.TORCH, file_names.TORCH_INDEX
_CHANGED = "the file changed while it was read"


def read_header(path: Path) -> Header:
    """Reads and checks the metadata of the tensors in a file, but reads no tensor."""
    content = read_content(path)
    infos = {name: TensorInfo(each.storage.dtype, each.shape, path) for name, each in content.tensors.items()}
    return Header(infos, {}, content.size, content.skipped)


def read_headers(folder: Path, classes: Sequence[str] = ()) -> dict[Path, Header] | None:
    """Reads the headers of the torch checkpoints in a model folder; returns `None` if there are none."""
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: read_header(folder / SINGLE)}
    if not (folder / INDEX).is_file():
        return None
    return {path: replace(read_header(path), companions=(folder / INDEX,)) for path in find_shards(folder / INDEX)}


def _bytes_of(raw: "np.ndarray[Any, Any]", tensor: TorchTensor) -> "np.ndarray[Any, Any]":
    """Returns the bytes of a tensor in row-major order. They are not copied if the storage has this order."""
    from numpy.lib.stride_tricks import as_strided

    width = BYTES[tensor.storage.dtype]
    if not math.prod(tensor.shape):
        return raw[:0]
    numbers = raw.view(f"<u{width}")[tensor.offset :]
    # The stride of an axis of size 1 has no effect and may have any value.
    strides = [stride * width if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    strided = as_strided(numbers, tensor.shape, strides, writeable=False)
    return np.ascontiguousarray(strided).reshape(-1).view(np.uint8)


def _map(path: Path, span: Member) -> "np.ndarray[Any, Any]":
    """Maps the bytes of a storage into memory. Mapped pages count as memory of this process until they are released."""
    try:
        return np.memmap(path, np.uint8, "r", span.start, (span.size,)) if span.size else np.empty(0, np.uint8)
    except (OSError, ValueError):
        raise CheckpointError(f"{path}: {_CHANGED}") from None


def load_arrays(path: Path, header: Header) -> Mapping[str, mx.array]:
    """Returns, by name, the tensors of a file whose header was checked; each is read when it is accessed."""
    content = read_content(path)
    if {name: (each.storage.dtype, each.shape) for name, each in content.tensors.items()} != {
        name: (info.dtype, info.shape) for name, info in header.tensors.items()
    }:
        raise CheckpointError(f"{path}: {_CHANGED}")
    checked: set[Storage] = set()

    def read(name: str) -> mx.array:
        tensor = content.tensors[name]
        storage = tensor.storage
        if storage.dtype == "F64":
            raise CheckpointError(f"{path}: tensor {name!r} has dtype F64, expected at most 32 bits per number")
        span = content.spans[storage.key]
        raw = _map(path, span)
        if storage not in checked:
            span.check(path, f"the data of {name!r}", raw)
            checked.add(storage)
        return from_bytes(_bytes_of(raw, tensor), storage.dtype, tensor.shape)

    return LazyArrays(header.tensors, read)
