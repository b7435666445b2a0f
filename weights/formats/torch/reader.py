"""Reading the checkpoints that torch.save writes (`pytorch_model.bin`), single and sharded, without torch.

See torch_content.py for the two forms that they have.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.device import mx
from mlxbert.errors import CheckpointError
from mlxbert.weights.formats import names
from mlxbert.weights.formats.headers import BYTES, Header, LazyArrays, TensorInfo, from_bytes
from mlxbert.weights.formats.shards import find_shards
from mlxbert.weights.formats.torch.archive import Member
from mlxbert.weights.formats.torch.content import read_content
from mlxbert.weights.formats.torch.records import Storage, Tensor

if TYPE_CHECKING:
    import numpy as np

SINGLE, INDEX = names.TORCH, names.TORCH_INDEX
_CHANGED = "has changed while it was read"


def read_header(path: Path) -> Header:
    """Reads and checks what a file says of its tensors; no tensor is read.

    Raises:
        CheckpointError: The file cannot be read, is truncated or damaged, or is no table of tensors.
    """
    content = read_content(path)
    infos = {name: TensorInfo(each.storage.dtype, each.shape, path) for name, each in content.tensors.items()}
    return Header(infos, {}, content.size, content.skipped)


def read_headers(folder: Path, classes: Sequence[str] = ()) -> dict[Path, Header] | None:
    """The headers of the checkpoints of torch in a model folder, or nothing where there is none.

    Args:
        folder: The model folder.
        classes: Of the model; of no matter here.

    Raises:
        CheckpointError: A file is damaged or missing; see `read_header` and `find_shards`.
    """
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: read_header(folder / SINGLE)}
    if not (folder / INDEX).is_file():
        return None
    return {path: replace(read_header(path), beside=(folder / INDEX,)) for path in find_shards(folder / INDEX)}


def _bytes_of(raw: "np.ndarray[Any, Any]", tensor: Tensor) -> "np.ndarray[Any, Any]":
    """The bytes of a tensor, row by row, from those of its storage; no copy if they lie like that."""
    import numpy as np
    from numpy.lib.stride_tricks import as_strided

    width = BYTES[tensor.storage.dtype]
    if not math.prod(tensor.shape):
        return raw[:0]
    numbers = raw.view(f"<u{width}")[tensor.offset :]
    # Of an axis of one number the stride is of no matter and may be any.
    strides = [stride * width if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    strided = as_strided(numbers, tensor.shape, strides, writeable=False)
    return np.ascontiguousarray(strided).reshape(-1).view(np.uint8)


def _mapped(path: Path, span: Member) -> "np.ndarray[Any, Any]":
    """The bytes of a storage; what is mapped counts as memory of ours until it is let go."""
    import numpy as np

    try:
        return np.memmap(path, np.uint8, "r", span.start, (span.size,)) if span.size else np.empty(0, np.uint8)
    except (OSError, ValueError):
        raise CheckpointError(f"{path}: {_CHANGED}") from None


def load_arrays(path: Path, header: Header) -> Mapping[str, mx.array]:
    """The tensors of a file whose header was checked, each read when it is asked for.

    Raises:
        CheckpointError: The file has changed since; on access, data has another checksum than was noted, or a tensor is
            of float64, which MLX does not have everywhere.
    """
    content = read_content(path)
    if {name: (each.storage.dtype, each.shape) for name, each in content.tensors.items()} != {
        name: (info.dtype, info.shape) for name, info in header.tensors.items()
    }:
        raise CheckpointError(f"{path}: {_CHANGED}")
    sound: set[Storage] = set()

    def read(name: str) -> mx.array:
        tensor = content.tensors[name]
        storage = tensor.storage
        if storage.dtype == "F64":
            raise CheckpointError(f"{path}: tensor {name!r} has dtype F64, expected at most 32 bits")
        span = content.spans[storage.key]
        raw = _mapped(path, span)
        if storage not in sound:
            span.check(path, f"the data of {name!r}", raw)
            sound.add(storage)
        return from_bytes(_bytes_of(raw, tensor), storage.dtype, tensor.shape)

    return LazyArrays(header.tensors, read)
