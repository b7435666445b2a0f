"""TensorFlow checkpoints: frozen networks, and indexes that are written byte by byte."""

import json
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlxbert.goldens.golden_outputs import GOLDENS, Array, Case, arrays
from tests.helpers.vocabularies import field, varint as varint

FROZEN = GOLDENS / "tf1"
STEM = "model.ckpt-7"
# The frozen networks: the name of the files next to the checkpoint, and the class of the model.
NETWORKS = {
    "bert-pretraining": ("bert", "BertForPreTraining"),
    "bert-classifier": ("bert", "BertForSequenceClassification"),
    "bert-squad": ("bert", "BertForQuestionAnswering"),
    "albert-pretraining": ("albert", "AlbertForPreTraining"),
    "electra-pretraining": ("electra", "ElectraForPreTraining"),
    "electra-pretraining, generator": ("generator", "ElectraForMaskedLM"),
}


def source(network: str) -> Path:
    return FROZEN / network.partition(",")[0]


def frozen(network: str, kind: str) -> dict[str, Array]:
    """Returns the frozen `tensors`, `inputs` or `outputs` of a network."""
    stored = arrays(source(network) / f"{NETWORKS[network][0]}.safetensors")
    start = f"{kind}/"
    return {name.removeprefix(start): np.array(array) for name, array in stored.items() if name.startswith(start)}


def frozen_case(network: str) -> Case:
    inputs = frozen(network, "inputs")
    return Case(*(np.asarray(inputs[name], np.int32) for name in ("ids", "mask", "segments")))


def copy_checkpoint(network: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for path in source(network).glob(f"{STEM}.*"):
        shutil.copy(path, folder)
    return folder / f"{STEM}.index"


def write_model(network: str, folder: Path) -> Path:
    name, architecture = NETWORKS[network]
    copy_checkpoint(network, folder)
    config = json.loads((source(network) / f"{name}_config.json").read_text(encoding="utf-8"))
    kind = "electra" if name == "generator" else name
    config |= {"model_type": kind, "architectures": [architecture]}
    if architecture.endswith("SequenceClassification"):  # Google's configurations do not say how many labels there are
        config["id2label"] = {number: f"label {number}" for number in range(4)}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def block(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns a block of a table; its keys share no prefixes."""
    written = b"".join(b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in pairs)
    return written + struct.pack("<II", 0, 1)


def table(*blocks: bytes, kind: int = 0) -> bytes:
    """Returns a table with these data blocks; `kind` is their compression type."""
    from mlxbert.export.tensorflow.table import MAGIC, checksum

    out, handles = b"", []
    for number, content in enumerate((*blocks, block([]))):
        handles.append(varint(len(out)) + varint(len(content)))
        whole = content + bytes([kind if number < len(blocks) else 0])
        out += whole + struct.pack("<I", checksum(whole))
    index = block((b"%d" % number, handle) for number, handle in enumerate(handles[:-1])) + b"\0"
    handle = varint(len(out)) + varint(len(index) - 1)
    out += index + struct.pack("<I", checksum(index))
    return out + (handles[-1] + handle).ljust(40, b"\0") + MAGIC


def entry(shape: tuple[int, ...] = (2,), data: bytes = b"\0" * 8, **facts: int) -> bytes:
    """Returns the index entry of a tensor; `facts` replaces some of its values, by name."""
    from mlxbert.export.tensorflow.table import checksum

    values = {"dtype": 1, "shard": 0, "offset": 0, "size": len(data), "crc": checksum(data)} | facts
    axes = b"".join(field(2, field(1, size)) for size in shape)
    plain = zip((1, 3, 4, 5), ("dtype", "shard", "offset", "size"), strict=True)
    written = field(2, axes) + b"".join(field(number, values[name]) for number, name in plain)
    return written + bytes([6 << 3 | 5]) + struct.pack("<I", values["crc"])


HEADER = field(1, 1) + field(3, field(1, 1))  # one file of data, as version 1 writes it


def write_index(folder: Path, entries: Mapping[str, bytes], data: bytes = b"\0" * 8) -> Path:
    pairs: list[tuple[Any, bytes]] = [(b"", HEADER), *((name.encode(), entries[name]) for name in sorted(entries))]
    return write_table(folder, table(block(pairs)), data)


def write_table(folder: Path, content: bytes, data: bytes = b"\0" * 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{STEM}.data-00000-of-00001").write_bytes(data)
    (folder / f"{STEM}.index").write_bytes(content)
    return folder / f"{STEM}.index"
