"""Reads the TensorFlow 1 checkpoints of BERT, ALBERT and ELECTRA: `X.index` and `X.data-00000-of-00001`.

Names and shapes are the same as in transformers. table.py describes the format.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.errors import CheckpointError
from mlxbert.export.tensorflow.names import is_transposed, translate, unsupported_reason
from mlxbert.export.tensorflow.table import MAGIC, Bundle, TensorEntry, checksum, read_bundle
from mlxbert.lazy_numpy import np
from mlxbert.mac_files import is_system_file
from mlxbert.machine.device import mx
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.formats.file_names import TF_INDEX, TF_STATE
from mlxbert.weights.formats.headers import BYTES, MAX_SIZE, Header, LazyArrays, TensorInfo, from_bytes
from mlxbert.weights.formats.protobuf import MalformedError

_AGAIN = "download the checkpoint again"
_DTYPES = {  # by TensorFlow's numbers; without double, which Apple GPUs do not support
    1: "F32", 3: "I32", 4: "U8", 5: "I16", 6: "I8", 9: "I64", 10: "BOOL", 14: "BF16", 17: "U16", 19: "F16",
    22: "U32", 23: "U64",
}  # fmt: skip
_SHARD = re.compile(r"(.+)\.data-\d{5}-of-\d{5}")
_SINGLE = re.compile(r".+\.ckpt(-\d+)?")
_MAX_STATE = 2**20  # bytes
_KINDS = {"bert": "Bert", "albert": "Albert", "electra": "Electra"}
# The suffix of the class in transformers, by a tensor that identifies the class; the first match counts.
_CLASSES = {
    "classifier.weight": "ForSequenceClassification",
    "qa_outputs.weight": "ForQuestionAnswering",
    "generator_lm_head.bias": "ForMaskedLM",
    "discriminator_predictions.dense.weight": "ForPreTraining",
    "cls.predictions.bias": "ForPreTraining",
    "predictions.bias": "ForPreTraining",
}


def _ends_as_table(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - len(MAGIC)))
            return file.read() == MAGIC
    except OSError:
        return False


def _choose(folder: Path, indexes: list[str]) -> str:
    """Returns one of several indexes in a folder: the one that the file named `checkpoint` refers to."""
    text = ""
    if (folder / TF_STATE).is_file():
        try:
            with (folder / TF_STATE).open("rb") as file:
                text = file.read(_MAX_STATE).decode("utf-8", "replace")
        except OSError as problem:
            raise CheckpointError(f"{folder / TF_STATE}: cannot be read ({problem.strerror})") from None
    named = re.search(r'^\s*model_checkpoint_path:\s*"([^"\n]*)"', text, re.MULTILINE)
    # Only the name matters: the folder is on the machine that trained the model.
    name = re.split(r"[/\\]", named[1])[-1] + TF_INDEX if named else None
    if name in indexes:
        return str(name)
    state = f"the file '{TF_STATE}' names {name!r}" if name else f"no file '{TF_STATE}' says which one to load"
    raise CheckpointError(
        f"{folder}: the folder has {len(indexes)} TensorFlow checkpoints ({', '.join(indexes[:5])}), but {state}",
        hint=f'write into {folder / TF_STATE} which one to load: model_checkpoint_path: "NAME"',
    )


def find_index(folder: Path) -> Path | None:
    """Finds the `.index` of a folder's TensorFlow checkpoint; returns `None` if the folder has no such checkpoint."""
    inside = [*folder.iterdir()] if folder.is_dir() else []
    names = sorted(path.name for path in inside if path.is_file() and not is_system_file(path.name))
    stems = {shard[1] for name in names if (shard := _SHARD.fullmatch(name))}
    indexes = [name for name in names if name.endswith(TF_INDEX)]
    indexes = [name for name in indexes if name.removesuffix(TF_INDEX) in stems or _ends_as_table(folder / name)]
    if indexes:
        return folder / (indexes[0] if len(indexes) == 1 else _choose(folder, indexes))
    if stems:
        raise CheckpointError(
            f"{folder}: {min(stems)}{TF_INDEX} is missing next to the data of the checkpoint", hint=_AGAIN
        )
    for name in names:
        if _SINGLE.fullmatch(name) and _ends_as_table(folder / name):
            raise CheckpointError(
                f"{folder / name}: is a single-file TensorFlow checkpoint (version 1 of the format), "
                f"expected {name}{TF_INDEX} and {name}.data-00000-of-00001",
                hint="load the checkpoint in TensorFlow, and save it with tf.compat.v1.train.Saver",
            )
    return None


def _shards(path: Path, count: int) -> list[tuple[Path, int]]:
    stem = path.name.removesuffix(TF_INDEX)
    shards = []
    for number in range(count):
        shard = path.with_name(f"{stem}.data-{number:05}-of-{count:05}")
        if not shard.is_file():
            raise CheckpointError(
                f"{path}: the data file {shard.name} (one of {count}) is not in the folder", hint=_AGAIN
            )
        shards.append((shard, shard.stat().st_size))
    return shards


def _check_offsets(path: Path, bundle: Bundle, shards: Sequence[tuple[Path, int]]) -> None:
    """Rejects tensors that overlap or extend past the end of their file."""
    position, before = (0, 0), ""
    for name, entry in sorted(bundle.entries.items(), key=lambda item: (item[1].shard, item[1].offset, item[1].size)):
        if entry.shard >= len(shards):
            raise CheckpointError(
                f"{path}: the index is damaged, because tensor {name!r} is in data file {entry.shard}, expected 0 to "
                f"{len(shards) - 1}"
            )
        shard, size = shards[entry.shard]
        if entry.offset + entry.size > size:
            raise CheckpointError(
                f"{shard}: the file is truncated, because tensor {name!r} is at bytes {entry.offset} to "
                f"{entry.offset + entry.size} of {size} bytes",
                hint=_AGAIN,
            )
        if (entry.shard, entry.offset) < position:
            raise CheckpointError(f"{path}: the index is damaged, because tensors {before!r} and {name!r} overlap")
        position, before = (entry.shard, entry.offset + entry.size), name


def _info(path: Path, name: str, entry: TensorEntry) -> TensorInfo:
    if entry.dtype not in _DTYPES:
        raise CheckpointError(
            f"{path}: tensor {name!r} has TensorFlow dtype number {entry.dtype}, expected one of "
            f"{', '.join(f'{number} ({dtype})' for number, dtype in _DTYPES.items())}"
        )
    dtype = _DTYPES[entry.dtype]
    if any(size > MAX_SIZE for size in entry.shape):
        raise CheckpointError(
            f"{path}: the index is damaged, because tensor {name!r} has the invalid shape {list(entry.shape)}"
        )
    expected = math.prod(entry.shape) * BYTES[dtype]
    if entry.size != expected:
        raise CheckpointError(
            f"{path}: the index is damaged, because tensor {name!r} has {entry.size} bytes of data, expected {expected}"
        )
    return TensorInfo(dtype, _model_shape(name, entry), path, name)


def _model_shape(name: str, entry: TensorEntry) -> tuple[int, ...]:
    return entry.shape[::-1] if is_transposed(name) else entry.shape


def _read_header(path: Path, classes: Sequence[str]) -> Header:
    bundle = read_bundle(path)
    reason = unsupported_reason(bundle.entries)
    if reason is not None:
        raise CheckpointError(f"{path}: {reason[0]}", hint=reason[1])
    shards = _shards(path, bundle.shards)
    _check_offsets(path, bundle, shards)
    try:
        translated = translate(bundle.entries, classes)
    except MalformedError as problem:
        raise CheckpointError(f"{path}: {problem}") from None
    tensors = {new: _info(path, name, bundle.entries[name]) for new, name in translated.names.items()}
    size = path.stat().st_size + sum(size for _, size in shards)
    return Header(tensors, {}, size, translated.skipped, tuple(shard for shard, _ in shards))


def read_headers(folder: Path, classes: Sequence[str] = ()) -> dict[Path, Header] | None:
    """Maps the path of a TensorFlow checkpoint's `.index` to its header; returns `None` if there is no checkpoint."""
    path = find_index(folder)
    if path is None:
        return None
    header = _read_header(path, classes)
    if sum(not is_system_file(index.name) for index in folder.glob(f"*{TF_INDEX}")) > 1:
        # The file that names the selected index was read, too.
        header = replace(header, companions=(*header.companions, folder / TF_STATE))
    return {path: header}


def load_arrays(path: Path, header: Header) -> Mapping[str, mx.array]:
    """Returns, by name, the tensors of a checkpoint whose header was checked; each is read when it is accessed."""
    bundle = read_bundle(path)
    shards = _shards(path, bundle.shards)

    def read(name: str) -> mx.array:
        info = header.tensors[name]
        stored = info.stored_as or name
        entry = bundle.entries.get(stored)
        if entry is None or _model_shape(stored, entry) != info.shape or entry.shard >= len(shards):
            raise CheckpointError(f"{path}: the file changed since it was opened")
        return _read(shards[entry.shard][0], stored, entry, info.dtype)

    return LazyArrays(header.tensors, read)


def _read(shard: Path, name: str, entry: TensorEntry, dtype: str) -> mx.array:
    """Reads one tensor, in the layout that transformers uses."""
    try:
        data = np.memmap(shard, np.uint8, "r", entry.offset, (entry.size,)) if entry.size else np.empty(0, np.uint8)
    except (OSError, ValueError) as problem:
        raise CheckpointError(f"{shard}: tensor {name!r} cannot be read ({problem})") from None
    if checksum(data) != entry.checksum:
        raise CheckpointError(
            f"{shard}: the file is damaged, because the data of tensor {name!r} does not match its checksum",
            hint=_AGAIN,
        )
    array = from_bytes(data, dtype, entry.shape)
    return array.T if is_transposed(name) else array


def with_google_defaults(config: ConfigJson, tensors: Mapping[str, TensorInfo]) -> ConfigJson:
    """Adds `architectures` and the labels of a classifier to a configuration without them, based on the tensors.

    A release of Google has a `bert_config.json` or `albert_config.json`, a vocabulary and a checkpoint; only
    transformers states the class and the labels.
    """
    kind = _KINDS.get(str(config.values.get("model_type")))
    if config.strings("architectures") or kind is None:
        return config
    suffix = next((suffix for name, suffix in _CLASSES.items() if name in tensors), "Model")
    inferred: dict[str, Any] = {"architectures": [kind + suffix]}
    if "classifier.weight" in tensors and config.get("id2label") is None and config.get("num_labels") is None:
        count = tensors["classifier.weight"].shape[0]
        inferred["id2label"] = {str(number): f"LABEL_{number}" for number in range(count)}
        inferred["label2id"] = {f"LABEL_{number}": number for number in range(count)}
    added = tuple(key for key in inferred if key not in config.values)
    return replace(config, values=config.values | inferred, added=config.added + added)
