"""Writes weights as safetensors, in shards, under the names that transformers uses.

The tensors come from a checkpoint on disk or from a network in memory. For both, the same rules decide the names,
prefixes, copies, dtypes and shards. Only one shard is in memory at a time, plus the tensor that is being converted.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.nn.heads import HEADS, OWN_LAYERS, Network, class_names, is_tied
from mlxbert.nn.token_embedder import TOKEN_LAYERS
from mlxbert.progress import OnProgress
from mlxbert.weights import build
from mlxbert.weights.checkpoint import Checkpoint, network_shapes, part_of
from mlxbert.weights.families import keymap
from mlxbert.weights.families.config_reader import generates
from mlxbert.weights.families.registry import Architecture
from mlxbert.weights.formats import safetensors
from mlxbert.weights.formats.config_json import GLINER, GLINER_CONFIG, gliner_values
from mlxbert.weights.formats.headers import BYTES, FLOATS
from mlxbert.weights.formats.quantized import GROUP_SIZES, KEY, THEIR_KEY, Quantization, quantizable
from mlxbert.weights.hub.needed_files import CONFIG

if TYPE_CHECKING:
    from mlxbert.weights.formats.rounding import Floats

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_DTYPE_KEYS = ("dtype", "torch_dtype")  # the names in transformers since version 5, and before


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor to write."""

    name: str  # the name in the file
    plain: str  # the plain name: without prefix, as in the family's table
    dtype: str  # the dtype in the file, one of `FLOATS`; for a quantized tensor, the dtype of the scales
    shape: tuple[int, ...]  # the shape of the tensor before it is quantized
    read: Callable[[], mx.array]  # returns the values in any dtype; called once
    source: str  # the file or parameter that holds the values, for messages
    quantization: Quantization | None = None  # the parameters of quantization; `None` if the tensor is not quantized
    # Returns the products of the matrix's inputs for `Quantization.pack`; called once.
    inputs: Callable[[], "Floats | None"] | None = None

    @property
    def bytes(self) -> int:
        """The number of bytes that the tensor takes in a file."""
        count = prod(self.shape)
        if self.quantization is None:
            return count * BYTES[self.dtype]
        groups = count // self.quantization.group_size
        return count * self.quantization.bits // 8 + 2 * groups * BYTES[self.dtype]

    def arrays(self) -> dict[str, mx.array]:
        """Returns the arrays to write: three if the tensor is quantized, otherwise one."""
        array = converted(self.source, self.read(), self.dtype)
        written = {self.name: array}
        if self.quantization is not None:
            products = self.inputs() if self.inputs is not None and self.quantization.carries_errors else None
            usable = products is not None and products.shape[1] == self.shape[1]
            written = self.quantization.pack(self.name, array, products if usable else None)
        mx.eval(written)
        return written


def converted(name: str, array: mx.array, dtype: str) -> mx.array:
    """Casts a tensor; raises `CheckpointError` if the new dtype cannot hold one of its numbers.

    Args:
        name: The file and the name of the tensor, for messages.
        dtype: The new dtype, one of `FLOATS`.
    """
    cast = array.astype(FLOATS[dtype])
    if cast.dtype == array.dtype:
        return array
    overflows = mx.logical_and(mx.isfinite(array), mx.logical_not(mx.isfinite(cast)))
    if overflows.any().item():
        largest = mx.where(overflows, mx.abs(array), 0).max().item()
        raise CheckpointError(
            f"{name} holds {largest:g}, more than {NAMES[dtype]} can hold",
            hint="use bfloat16, which has the range of float32",
        )
    return cast


def plan(
    checkpoint: Checkpoint,
    dtype: str | None,
    quantization: Quantization | None,
    inputs_of: Callable[[str], "Floats | None"] | None = None,
) -> list[TensorToWrite]:
    """Lists the tensors to write for a checkpoint: all of its weights, in the order of the network.

    Buffers are omitted, because they are not learned, and so are copies of tied tensors if the configuration ties them.
    Heads that mlxbert does not run are written unchanged.

    Args:
        dtype: The dtype of all written tensors, one of `FLOATS`; `None` keeps the dtype of each.
        quantization: How to quantize the matrices that can be quantized; `None` quantizes none.
        inputs_of: Returns the products of a matrix's inputs, given our name of the matrix; called once per matrix.
    """
    if (problem := build.first_problem(checkpoint, checkpoint.parts)) is not None:
        raise problem
    if quantization is not None and isinstance(checkpoint.storage, Quantization):
        raise CheckpointError(
            f"{checkpoint.folder}: the weights are stored in {checkpoint.storage.name}, expected floats",
            hint="quantize the original model",
        )
    if quantization is not None and checkpoint.config.is_static:
        raise ArgumentError(
            f"`quantize` is {quantization.bits}, but a static model has no layers to quantize",
            hint="use `dtype='float16'`",
        )

    def stored(plain: str) -> TensorToWrite:
        name = checkpoint.names[plain]
        info = checkpoint.tensors[name]
        stored_dtype = info.dtype if info.dtype in FLOATS else _widest(checkpoint)
        read = lambda: checkpoint.arrays(mx.float32)[plain]  # noqa: E731 - rounded only where it is converted
        return TensorToWrite(plain, plain, dtype or stored_dtype, info.shape, read, f"{info.file}: tensor {name!r}")

    quantizable_names = quantizable(build.empty(checkpoint, checkpoint.parts)) if quantization else set()
    shapes = build.shapes(checkpoint, checkpoint.parts)
    used: dict[str, TensorToWrite] = {}
    for entry in keymap.pairs(checkpoint.table, checkpoint.config, shapes):
        how = quantization if quantizable_names.issuperset(entry.ours) else None
        inputs = None if inputs_of is None else partial(inputs_of, entry.ours[0])  # shared by all its matrices
        used |= {plain: _quantized(stored(plain), how, inputs) for plain in entry.theirs if plain not in used}
    tensors = [*used.values()]
    if quantization is None:  # an unquantized copy would differ from the quantized original
        tensors += [stored(copy) for copy in _copies(checkpoint, checkpoint.parts) if copy in checkpoint.names]
    tensors += map(stored, _unused_weights(checkpoint))
    if quantization is not None and not any(tensor.quantization for tensor in tensors):
        raise ArgumentError(
            f"`group_size` is {quantization.group_size}, but no matrix of {checkpoint.folder} has a width divisible by "
            f"{quantization.group_size}",
            hint="use a group size of 32" if quantization.group_size > min(GROUP_SIZES) else None,
        )
    return _with_full_names(checkpoint, tensors)


def plan_network(architecture: Architecture, network: Network, dtype: str | None = None) -> list[TensorToWrite]:
    """Lists the tensors to write for a network in memory: all of its parameters, in the order of the family's table.

    Args:
        architecture: The model whose family and configuration decide the names.
        dtype: The dtype of all written tensors, one of `FLOATS`; `None` keeps the dtype of each.
    """
    ours = {name: array for name, array in build.parameters(network).items() if part_of(name) != TOKEN_LAYERS}
    family, config = architecture.family, network.encoder.config
    parts = [part for part in family.parts if part in network.heads or (part == "pooler" and config.pooler)]
    entries = list(keymap.pairs(family.table(parts), config, ours))
    unnamed = ours.keys() - {name for entry in entries for name in entry.ours}
    if unnamed:
        raise CheckpointError(
            f"the network's parameter {min(unnamed)!r} has no counterpart in the file format of "
            f"{architecture.family_name} models",
            hint="use mlxbert.convert to write quantized weights",
        )
    for name, shape in network_shapes(config).items():
        if part_of(name) in ("encoder", *parts) and (name not in ours or ours[name].shape != shape):
            problem = f"has shape {ours[name].shape}" if name in ours else "is missing"
            raise CheckpointError(
                f"the network's parameter {name!r} {problem}, expected shape {shape} by the configuration"
            )
    by_dtype = {mlx: name for name, mlx in FLOATS.items()}
    other = next((name for name, array in ours.items() if array.dtype not in by_dtype), None)
    if other is not None and dtype is None:
        raise CheckpointError(
            f"the network's parameter {other!r} has dtype {ours[other].dtype}, expected one of "
            f"{', '.join(NAMES.values())}",
            hint="pass `dtype='float32'` to convert the parameter",
        )

    def stored(entry: keymap.TensorName, plain: str) -> TensorToWrite:
        array = keymap.save(entry, ours)[plain]
        read = lambda: keymap.save(entry, ours)[plain]  # noqa: E731 - fused tensors are made one at a time
        return TensorToWrite(
            plain, plain, dtype or by_dtype[array.dtype], array.shape, read, f"parameter {entry.ours[0]!r}"
        )

    if collision := family.colliding(parts):
        raise CheckpointError(
            "the network has the heads {!r} and {!r}, whose tensors have the same names in files".format(*collision)
        )
    tensors = {plain: stored(entry, plain) for entry in entries for plain in entry.theirs}
    for copy in _copies(architecture, parts):
        tensors[copy] = replace(tensors[family.tied[copy]], plain=copy)
    return _with_full_names(architecture, list(tensors.values()))


def _quantized(
    tensor: TensorToWrite, quantization: Quantization | None, inputs: Callable[[], "Floats | None"] | None
) -> TensorToWrite:
    fits = quantization is not None and quantization.fits(tensor.shape)
    return replace(tensor, quantization=quantization, inputs=inputs) if fits else tensor


def _widest(checkpoint: Checkpoint) -> str:
    """Returns the widest float dtype in a checkpoint, for matrices that are stored packed."""
    dtypes = {info.dtype for info in checkpoint.tensors.values()}
    return next((dtype for dtype in FLOATS if dtype in dtypes), "F32")


def is_untied(architecture: Architecture, parts: Iterable[str]) -> bool:
    """Whether a model has a decoder that, according to `config.json`, is not tied to the word embeddings.

    In mlxbert, they are always tied. But transformers expects both tensors in the files of such a model, so a copy of
    the word embeddings is written as the decoder.
    """
    return architecture.config_json.values.get("tie_word_embeddings") is False and is_tied(parts)


def _copies(architecture: Architecture, parts: Iterable[str]) -> Iterator[str]:
    """Yields the plain names of the copies of tied tensors that are written."""
    if is_untied(architecture, parts):
        yield from architecture.family.tied


def _unused_weights(checkpoint: Checkpoint) -> Iterator[str]:
    """Yields the plain names of weights that mlxbert does not use, but writes unchanged."""
    for plain in checkpoint.ignored:
        buffer = any(re.fullmatch(pattern, plain) for pattern in checkpoint.family.buffers)
        if not buffer and checkpoint.tensors[checkpoint.names[plain]].dtype in FLOATS:
            yield plain


def _with_full_names(architecture: Architecture, tensors: list[TensorToWrite]) -> list[TensorToWrite]:
    """Gives tensors their full names: the tensors of the encoder get a prefix if the files also hold other tensors."""
    family = architecture.family
    roots = {stem.split(".")[0] for entry in family.table(["pooler"]) for stem in entry.theirs}
    inside = [tensor.plain.split(".")[0] in roots for tensor in tensors]
    alone = all(within or is_own(tensor.plain) for tensor, within in zip(tensors, inside, strict=True))
    prefix = "" if alone else family.prefixes[0]
    return [
        replace(tensor, name=family.exported(architecture.config_json, (prefix if within else "") + tensor.plain))
        for tensor, within in zip(tensors, inside, strict=True)
    ]


def is_own(plain: str) -> bool:
    """Whether a tensor is unknown to transformers and is therefore stored in one of mlxbert's own files."""
    return any(layer.holds(plain) for layer in OWN_LAYERS)


def left_out(checkpoint: Checkpoint, tensors: list[TensorToWrite]) -> list[str]:
    """Returns the names of all tensors and other entries that are in a checkpoint's files, but are not written."""
    written = {tensor.plain for tensor in tensors}
    return [name for plain, name in checkpoint.names.items() if plain not in written] + list(checkpoint.weights.skipped)


def _shards(tensors: list[TensorToWrite], limit: int) -> list[list[TensorToWrite]]:
    """Splits tensors into shards of at most `limit` bytes and keeps their order. A larger tensor gets its own shard."""
    shards: list[list[TensorToWrite]] = [[]]
    room = limit
    for tensor in tensors:
        if shards[-1] and tensor.bytes > room:
            shards.append([])
            room = limit
        shards[-1].append(tensor)
        room -= tensor.bytes
    return shards


def write_weights(tensors: list[TensorToWrite], folder: Path, limit: int, on_progress: OnProgress | None = None) -> int:
    """Writes tensors into a folder.

    Args:
        tensors: The tensors, as returned by `plan` or `plan_network`.
        limit: The maximum size of the data in a file, in bytes.
        on_progress: Called with the written and the total bytes.

    Returns:
        The number of files.
    """
    extra = [tensor for tensor in tensors if is_own(tensor.plain)]
    tensors = [tensor for tensor in tensors if not is_own(tensor.plain)]
    shards = _shards(tensors, limit)
    total, done = sum(tensor.bytes for tensor in tensors), 0
    weight_map: dict[str, str] = {}
    metadata = {"format": "mlx" if any(tensor.quantization for tensor in tensors) else "pt"}
    for number, shard in enumerate(shards, 1):
        file = safetensors.SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        arrays: dict[str, mx.array] = {}
        for tensor in shard:
            arrays |= tensor.arrays()
            done += tensor.bytes
            if on_progress is not None:
                on_progress(done, total)
        write_file(folder / file, arrays, metadata)
        weight_map |= dict.fromkeys(arrays, file)
        del arrays
        mx.clear_cache()
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / safetensors.INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return len(shards) + write_own({name: array for tensor in extra for name, array in tensor.arrays().items()}, folder)


def write_own(arrays: Mapping[str, mx.array], folder: Path) -> int:
    """Writes the layers that transformers does not know; returns the number of files that were written."""
    files: dict[str, dict[str, mx.array]] = {}
    for name, array in arrays.items():
        files.setdefault(next(layer.file for layer in OWN_LAYERS if layer.holds(name)), {})[name] = array
    for file, inside in files.items():
        write_file(folder / file, inside, {"format": "mlxbert"})
    return len(files)


def config_changes(
    architecture: Architecture, dtype: str | None, quantization: Quantization | None = None
) -> dict[str, Any]:
    """Returns the keys of `config.json` that would be wrong for the written weights, with their new values.

    Args:
        dtype: The dtype that the weights were converted to, one of `FLOATS`; `None` if they were not converted.
        quantization: How the weights were quantized; `None` if they were not quantized.

    Returns:
        The keys and their new values. The value `None` means that a key is omitted.
    """
    values = architecture.config_json.values
    changed: dict[str, Any] = {key: values[key] for key in architecture.config_json.added}
    if dtype is not None:
        keys = [key for key in _DTYPE_KEYS if key in values] or [_DTYPE_KEYS[0]]
        changed |= {key: NAMES[dtype] for key in keys if values.get(key) != NAMES[dtype]}
    for key, value in architecture.family.config_overrides(architecture.config_json, architecture.config).items():
        if values.get(key) != value:
            changed[key] = value
    changed |= {key: None for key in (KEY, THEIR_KEY) if key in values}
    if architecture.parts is not None:
        changed |= _without_claims(architecture, changed)
    if quantization is not None:
        if is_untied(architecture, architecture.parts or ()):  # the copy would differ
            changed["tie_word_embeddings"] = None
        changed[KEY] = {"group_size": quantization.group_size, "bits": quantization.bits}
    return changed


def _without_claims(architecture: Architecture, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns new values for keys that name missing heads, which transformers would initialize at random.

    Embedding models often keep the class and the labels of the model that they were trained from.
    """
    config = architecture.config_json
    stated = changed.get("architectures") or config.strings("architectures")
    endings = {ending for spec in HEADS.values() for ending in spec.class_names}
    heads = [part for part in architecture.parts or () if part in HEADS]
    known = [head for head in heads if not HEADS[head].is_own(architecture.config.labels)]
    held_names = {*class_names("", known), *(HEADS[head].class_names[0] for head in known)}
    if not any(name.endswith(tuple(endings)) and not name.endswith(tuple(held_names)) for name in stated):
        return {}
    labelled = any(HEADS[head].labelled for head in heads)
    removed = {key: None for key in Labels().to_config() if key in config.values and not labelled}
    return removed | {"architectures": classes_of(architecture, known)}


def network_changes(architecture: Architecture, network: Network) -> dict[str, Any]:
    """Returns the keys of `config.json` that are wrong for the heads and labels of a network, with their new values."""
    changed: dict[str, Any] = {}
    heads = [part for part in architecture.family.parts if part in network.heads]
    labels, before = network.encoder.config.labels, architecture.config.labels
    theirs, former = ([head for head in heads if not HEADS[head].is_own(each)] for each in (labels, before))
    gained = bool(heads) and generates(architecture.config_json)  # a language model has none of our heads
    if architecture.parts is None or {*heads} != {*architecture.parts} - {"pooler"} or theirs != former or gained:
        changed["architectures"] = classes_of(architecture, theirs)
        # Unused labels are removed: transformers creates an output of question answering for each label.
        stated = {} if labels is None else labels.to_config()
        used = {key for head in heads for key in (stated if HEADS[head].labelled else HEADS[head].keys)}
        changed |= {key: stated.get(key) if key in used else None for key in Labels().to_config()}
    elif labels is not None and labels != before:
        changed |= labels.to_config()
    return changed


def classes_of(architecture: Architecture, heads: list[str]) -> list[str]:
    """Returns the `architectures` in the `config.json` of a model with these heads."""
    names = class_names(_class_prefix(architecture), heads)
    return [architecture.family.class_names.get(name, name) for name in names]


def _class_prefix(architecture: Architecture) -> str:
    """Returns the prefix that the names of the model's classes have in `config.json`."""
    family = architecture.family
    in_code = family.authors_prefix and family.foreign(architecture.config_json, architecture.config)
    return family.authors_prefix if in_code else family.class_prefixes[architecture.family_name]


def write_config(architecture: Architecture, folder: Path, changed: Mapping[str, Any]) -> str:
    """Writes the model's `config.json` into a folder. Keys in `changed` get new values; `None` removes a key.

    For a GLiNER model, the file is `gliner_config.json`.

    Returns:
        The name of the file.
    """
    values = architecture.config_json.values
    kept = {key: value for key, value in values.items() if key not in changed}
    written = kept | {key: value for key, value in changed.items() if value is not None}
    name, content = (GLINER_CONFIG, gliner_values(written)) if GLINER in written else (CONFIG, written)
    write_json(folder / name, content)
    return name


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object to a file, indented."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_file(path: Path, arrays: Mapping[str, mx.array], metadata: dict[str, str]) -> None:
    """Writes a safetensors file, and checks it by reading its header."""
    try:
        with device_errors():
            mx.save_safetensors(str(path), dict(arrays), metadata)
        header = safetensors.read_header(path)
    except (RuntimeError, ValueError, CheckpointError) as problem:
        raise CheckpointError(f"{path}: cannot be written ({problem})") from None
    assert header.tensors.keys() == arrays.keys()


def parse_size(text: str) -> int:
    """Parses a size such as `400MB`, `5GB` or `1GiB`, or a number of bytes that is at least a megabyte."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*((?:[KMG]i?)?B)?\s*", str(text), re.IGNORECASE)
    size = int(Decimal(match[1]) * _UNITS[(match[2] or "").upper()]) if match else 0
    if size < 1:
        raise ArgumentError(f"`max_shard_size` is {text!r:.60}, expected a size such as 400MB, 5GB or 1GiB")
    if match and not match[2] and size < _UNITS["MB"]:  # surely a mistake: hundreds of files
        raise ArgumentError(
            f"`max_shard_size` is {text!r:.60} bytes, expected at least a megabyte", hint=f"write {match[1]}MB"
        )
    return size
