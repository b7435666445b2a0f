"""Weights written as transformers has them: safetensors under its names, in shards of a size.

One shard is in memory at a time, and of what is converted for it one tensor.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from mlxbert.device import mx
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.weights import build, keymap
from mlxbert.weights.checkpoint import Checkpoint
from mlxbert.weights.formats import safetensors
from mlxbert.weights.formats.headers import BYTES, FLOATS
from mlxbert.weights.formats.quantized import GROUP_SIZES, Quantization, quantizable

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Tensor:
    """A tensor to write.

    Attributes:
        name: What to call it.
        plain: Its plain name in the checkpoint.
        dtype: One of `FLOATS`; of the scales, if it is quantized.
        shape: Of the matrix that is meant.
        quantization: How it is quantized; `None` if it is not.
    """

    name: str
    plain: str
    dtype: str
    shape: tuple[int, ...]
    quantization: Quantization | None = None

    @property
    def bytes(self) -> int:
        """What it takes in a file."""
        count = prod(self.shape)
        if self.quantization is None:
            return count * BYTES[self.dtype]
        groups = count // self.quantization.group_size
        return count * self.quantization.bits // 8 + 2 * groups * BYTES[self.dtype]

    def stored(self, array: mx.array) -> dict[str, mx.array]:
        """What is written for it, if its numbers are those of an array of its dtype."""
        found = {self.name: array} if self.quantization is None else self.quantization.pack(self.name, array)
        mx.eval(found)
        return found


def converted(name: str, array: mx.array, dtype: str) -> mx.array:
    """A tensor in another dtype.

    Args:
        name: Of its file and of itself, for messages.
        array: The tensor.
        dtype: One of `FLOATS`.

    Raises:
        CheckpointError: It holds a number that is too large for it.
    """
    found = array.astype(FLOATS[dtype])
    if found.dtype == array.dtype:
        return array
    lost = mx.logical_and(mx.isfinite(array), mx.logical_not(mx.isfinite(found)))
    if lost.any().item():
        largest = mx.where(lost, mx.abs(array), 0).max().item()
        raise CheckpointError(
            f"{name} holds {largest:g}, more than {NAMES[dtype]} can",
            hint="bfloat16 holds numbers as large as float32 does",
        )
    return found


def plan(checkpoint: Checkpoint, dtype: str | None, quantization: Quantization | None) -> list[Tensor]:
    """What is written of a checkpoint: all its weights, in the order of the network.

    Copies of tied tensors are left out where the configuration ties them, and buffers, which hold nothing of their
    own. Heads that mlxbert does not run go along as they are.

    Args:
        checkpoint: The opened folder.
        dtype: One of `FLOATS` for all of them; `None` leaves each as it is stored.
        quantization: How to quantize those that it suits.

    Raises:
        CheckpointError: The weights are incomplete or quantized already, or a copy differs from what it is tied to.
    """
    problem = build.first_problem(checkpoint, checkpoint.parts)
    if problem is not None:
        raise problem
    if quantization is not None and checkpoint.storage is not None:
        raise CheckpointError(
            f"{checkpoint.folder}: the weights are stored in {checkpoint.storage.name}, expected floats to quantize",
            hint="quantize the model that it was made of",
        )
    build.check_tied(checkpoint)
    ours = build.empty(checkpoint, checkpoint.parts)
    suited = quantizable(ours) if quantization else set()
    tensors = []
    for entry in keymap.pairs(checkpoint.table, checkpoint.config.num_stored_layers, build.parameters(ours)):
        for plain in entry.theirs:
            how = quantization if suited.issuperset(entry.ours) else None
            tensors.append(_tensor(checkpoint, plain, dtype, how, inside=entry.ours[0].startswith("encoder.")))
    tensors += [
        _tensor(checkpoint, plain, dtype, None, inside=inside) for plain, inside in _carried(checkpoint, quantization)
    ]
    if quantization is not None and not any(tensor.quantization for tensor in tensors):
        raise ArgumentError(
            f"group_size is {quantization.group_size}, no divisor of the width of any matrix of {checkpoint.folder}",
            hint="a smaller group may fit: 32" if quantization.group_size > min(GROUP_SIZES) else None,
        )
    return _with_prefix(checkpoint, tensors)


def _tensor(
    checkpoint: Checkpoint, plain: str, dtype: str | None, quantization: Quantization | None, *, inside: bool
) -> Tensor:
    info = checkpoint.tensors[checkpoint.names[plain]]
    stored = info.dtype if info.dtype in FLOATS else _widest(checkpoint)
    fits = quantization is not None and quantization.fits(info.shape)
    name = checkpoint.family.exported(checkpoint.config_json, plain)
    return Tensor(("." if inside else "") + name, plain, dtype or stored, info.shape, quantization if fits else None)


def _widest(checkpoint: Checkpoint) -> str:
    """The widest float that a checkpoint holds besides what is stored in another way."""
    found = {info.dtype for info in checkpoint.tensors.values()}
    return next(dtype for dtype in FLOATS if dtype in found)


def says_untied(checkpoint: Checkpoint) -> bool:
    """Whether the configuration has a copy of the word embeddings beside them, which must be equal."""
    return checkpoint.config_json.values.get("tie_word_embeddings") is False and "masked_lm" in checkpoint.parts


def _carried(checkpoint: Checkpoint, quantization: Quantization | None) -> Iterator[tuple[str, bool]]:
    """Plain names of weights that are none of ours and go along, and whether they lie in the encoder."""
    if says_untied(checkpoint) and quantization is None:  # transformers misses the copy otherwise
        yield from ((copy, False) for copy in checkpoint.family.tied if copy in checkpoint.names)
    roots = {stem.split(".")[0] for entry in checkpoint.family.encoder for stem in entry.theirs}
    for plain in checkpoint.ignored:
        buffer = any(re.fullmatch(pattern, plain) for pattern in checkpoint.family.buffers)
        if not buffer and checkpoint.tensors[checkpoint.names[plain]].dtype in FLOATS:
            yield plain, plain.split(".")[0] in roots


def _with_prefix(checkpoint: Checkpoint, tensors: list[Tensor]) -> list[Tensor]:
    """Whole names: the prefix stands before the encoder's where something else lies beside it."""
    alone = all(tensor.name.startswith(".") for tensor in tensors)
    prefix = "" if alone else checkpoint.family.prefixes[0]
    return [
        replace(tensor, name=prefix + tensor.name[1:]) if tensor.name.startswith(".") else tensor for tensor in tensors
    ]


def left_out(checkpoint: Checkpoint, tensors: list[Tensor]) -> list[str]:
    """What the files of a checkpoint hold besides, by the names in them."""
    written = {tensor.plain for tensor in tensors}
    return [name for plain, name in checkpoint.names.items() if plain not in written] + list(checkpoint.weights.skipped)


def _shards(tensors: list[Tensor], most: int) -> list[list[Tensor]]:
    """In order, each as large as it may be; a tensor that is larger on its own has a shard of its own."""
    shards: list[list[Tensor]] = [[]]
    room = most
    for tensor in tensors:
        if shards[-1] and tensor.bytes > room:
            shards.append([])
            room = most
        shards[-1].append(tensor)
        room -= tensor.bytes
    return shards


def write_weights(
    checkpoint: Checkpoint, tensors: list[Tensor], folder: Path, most: int, on_progress: OnProgress | None = None
) -> int:
    """Writes tensors of a checkpoint into a folder.

    Args:
        checkpoint: The opened folder.
        tensors: What `plan` gave.
        folder: Where to; it is there.
        most: Bytes of data in one file.
        on_progress: Called with bytes done and bytes in all.

    Returns:
        How many files that took.

    Raises:
        CheckpointError: A tensor cannot be read, holds a number too large, or a file cannot be written.
    """
    shards = _shards(tensors, most)
    total, done = sum(tensor.bytes for tensor in tensors), 0
    weight_map: dict[str, str] = {}
    metadata = {"format": "mlx" if any(tensor.quantization for tensor in tensors) else "pt"}
    for number, shard in enumerate(shards, 1):
        file = safetensors.SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        arrays: dict[str, mx.array] = {}
        for tensor in shard:
            name = checkpoint.names[tensor.plain]
            array = checkpoint.arrays(mx.float32)[tensor.plain]  # rounded here only, where it is looked at
            said = f"{checkpoint.tensors[name].file}: tensor {name!r}"
            arrays |= tensor.stored(converted(said, array, tensor.dtype))
            done += tensor.bytes
            if on_progress is not None:
                on_progress(done, total)
        save(folder / file, arrays, metadata)
        weight_map |= dict.fromkeys(arrays, file)
        del arrays
        mx.clear_cache()
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / safetensors.INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return len(shards)


def save(path: Path, arrays: Mapping[str, mx.array], metadata: dict[str, str]) -> None:
    """Writes a safetensors file.

    Raises:
        CheckpointError: It cannot be written; MLX does not say when a disk is full, so its header is read again.
    """
    try:
        mx.save_safetensors(str(path), dict(arrays), metadata)
        header = safetensors.read_header(path)
    except (RuntimeError, ValueError, CheckpointError) as problem:
        raise CheckpointError(f"{path}: cannot be written ({problem})") from None
    assert header.tensors.keys() == arrays.keys()
