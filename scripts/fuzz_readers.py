"""The readers to fuzz: for each of them small valid files, their mutations, and the way a command reads them."""

import io
import json
import math
import shutil
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from fuzz_mutate import (
    Mutate,
    change_headed,
    change_json,
    change_message,
    change_zip,
    flips,
    same_size,
)

from mlxbert.goldens.golden_outputs import GOLDENS
from mlxbert.machine.device import mx
from mlxbert.weights import save
from mlxbert.weights.build import build_network, first_problem
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.formats import quantized
from mlxbert.weights.formats.quantized import Quantization
from mlxbert.weights.formats.weight_files import open_weights
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.sentence_transformers import read_embedder
from tests.helpers import frozen, st_folder, tf_files, tiny, torch_files, vocabularies as words
from tests.helpers.families import FROZEN, REPRESENTATIVES

Files = Mapping[str, bytes]
_NEWER = (
    *("EuroBert", "Qwen2", "Qwen3", "Gemma3Text", "NeoBERT", "JinaBert", "NormedJinaBert", "JinaEmbeddingsV3"),
    *("JinaFlash", "NomicMoe"),
)
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class FuzzedReader:
    """A reader to fuzz.

    Attributes:
        seeds: Writes valid files into a folder; returns one folder per model.
        mutate: Returns the changed files.
        load: Reads a folder completely, as a command would.
    """

    seeds: Callable[[Path], list[Path]]
    mutate: Callable[[Random, Files], Files]
    load: Callable[[Path], object]


def load_weights(folder: Path) -> None:
    """Reads every tensor whose dtype is supported."""
    weights = open_weights(folder)
    arrays = weights.arrays()
    for name, info in weights.tensors.items():
        if info.dtype != "F64":
            mx.eval(arrays[name])


def load_network(folder: Path, *, packed: bool = False) -> None:
    """Opens a checkpoint and builds its network."""
    checkpoint = open_checkpoint(folder)
    problem = first_problem(checkpoint, checkpoint.parts)
    if problem is not None:
        raise problem
    network = build_network(checkpoint, checkpoint.parts, mx.float32, packed=packed)
    mx.eval(network.encoder(mx.array([[1, 2, 3, 4]])).last_hidden_state)


def load_stored(folder: Path) -> None:
    """Reads every tensor; for a checkpoint, builds its network and plans its conversion."""
    if (folder / "config.json").exists():
        load_network(folder)
        load_network(folder, packed=True)
        save.plan(open_checkpoint(folder), None, None)
    else:
        load_weights(folder)


def load_embedder(folder: Path) -> None:
    """Reads the modules of an embedding model and evaluates their parameters."""
    model_folder = ModelFolder(folder)
    assert model_folder.transformer
    embedder = read_embedder(model_folder, tiny.CONFIG["hidden_size"])
    mx.eval(embedder.parameters())


def on(name: str, change: Mutate) -> Callable[[Random, Files], Files]:
    """Returns a mutation of one of the files whose name ends with `name`."""

    def mutate(rng: Random, files: Files) -> Files:
        chosen = rng.choice(sorted(path for path in files if path.endswith(name)))
        return {chosen: change(rng, files[chosen])}

    return mutate


def _copied(*sources: Path) -> Callable[[Path], list[Path]]:
    """Makes seeds by copying files, each to the name that its reader expects."""

    def seeds(folder: Path) -> list[Path]:
        folders = []
        for source in sources:
            folders.append(folder / source.name)
            folders[-1].mkdir(parents=True)
            shutil.copy(source, folders[-1] / "pytorch_model.bin")
        return folders

    return seeds


_TENSORS = {
    "a.weight": mx.arange(12, dtype=mx.float32).reshape(3, 4),
    "b": mx.array([1.5, 2.5], dtype=mx.bfloat16),
    "c": mx.array([True, False, True]),
    "d": mx.array(7, dtype=mx.int64),
    "e": mx.zeros((0, 4), dtype=mx.float16),
}


def _safetensors(folder: Path) -> list[Path]:
    """Plain tensors, and checkpoints whose matrices are quantized in the formats of mlxbert and MLX."""
    words.put(folder / "one", {})
    mx.save_safetensors(str(folder / "one" / "model.safetensors"), _TENSORS, {"format": "pt"})
    config = tiny.CONFIG | {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    facts = {key: config[key] for key in ("hidden_size", "num_attention_heads")}
    network = tiny.random_network(tiny.tiny_config(embedding_size=32, layer_schedule=(0,), **facts), ())
    tensors, quantization = tiny.tensors_of(network), Quantization(4, 32)
    tiny.save(folder / "rows", {}, config)
    stored = {quantized.STORAGE_KEY: quantized.STORAGE}
    mx.save_safetensors(str(folder / "rows" / "model.safetensors"), quantized.pack(tensors), stored)
    groups = {name: quantization.pack(name, array) for name, array in tensors.items() if quantization.fits(array.shape)}
    plain = {name: array for name, array in tensors.items() if name not in groups}
    packed = {name: array for parts in groups.values() for name, array in parts.items()}
    tiny.save(folder / "groups", plain | packed, config | {"quantization": {"bits": 4, "group_size": 32}})
    return [folder / "one", folder / "rows", folder / "groups"]


# Dtypes of the same width, and name suffixes of tensors that belong together.
_ALIKE = (("I8", "U8", "BOOL"), ("F16", "BF16", "I16"), ("F32", "U32", "I32"))
_PARTS = (".weight", ".weight_scale", ".scales", ".biases", ".bias")


def _safetensors_mutant(rng: Random, data: bytes) -> bytes:
    """Half of the mutants have a valid header with another dtype, shape or name."""
    if rng.random() < 0.5:
        return change_headed(rng, data)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    match rng.randrange(4):
        case 0:
            entry["dtype"] = rng.choice(next((alike for alike in _ALIKE if entry["dtype"] in alike), ("F64",)))
        case 1:
            count = math.prod(entry["shape"])
            entry["shape"] = rng.choice(([count], [1, count], [count, 1], [1, 1, count], entry["shape"][::-1]))
        case 2:
            header[name.rpartition(".")[0] + rng.choice(_PARTS)] = header.pop(name)
        case _:
            other = rng.choice([name for name in header if name != "__metadata__"])
            header[name], header[other] = header[other], entry
    written = json.dumps(header).encode()
    return len(written).to_bytes(8, "little") + written + data[8 + size :]


def _shards(folder: Path) -> list[Path]:
    names = {"a.weight": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = {"metadata": {"total_size": 52}, "weight_map": names}
    words.put(folder / "one", {"model.safetensors.index.json": index})
    for name, file in names.items():
        mx.save_safetensors(str(folder / "one" / file), {name: _TENSORS[name]})
    return [folder / "one"]


def _torch(folder: Path) -> list[Path]:
    tied = torch_files.state(
        *(torch_files.text("w"), torch_files.tensor(), torch_files.text("t"), torch_files.tensor((3,), (2,), 1))
    )
    contents = {"zip": torch_files.archive(), "tied": torch_files.archive(tied), "stream": torch_files.stream()}
    own_folders = [words.put(folder / name, {"pytorch_model.bin": content}) for name, content in contents.items()]
    return own_folders + _copied(*sorted((GOLDENS / "torch").glob("*.bin")))(folder)


def _torch_mutant(rng: Random, files: Files) -> Files:
    content = files["pytorch_model.bin"]
    change = change_zip({}) if content.startswith(b"PK") else flips
    return {"pytorch_model.bin": change(rng, content)}


def _npz(folder: Path) -> list[Path]:
    for name, write in {"plain": mx.savez, "packed": mx.savez_compressed}.items():
        words.put(folder / name, {})
        write(str(folder / name / "weights.npz"), **_TENSORS)
    raw = io.BytesIO()
    np.savez(raw, f=np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)))
    return [folder / "plain", folder / "packed", words.put(folder / "transposed", {"weights.npz": raw.getvalue()})]


def _npy_mutant(rng: Random, data: bytes) -> bytes:
    """Mostly changes the header, which is a Python literal."""
    if rng.random() < 0.4:
        return flips(rng, data)
    size = struct.unpack_from("<H", data, 8)[0]
    header = data[10 : 10 + size].decode("latin1")
    old = rng.choice(("<f4", "3, 4", "(", "False", "shape", "descr", "}"))
    new = rng.choice(("O", "<f8", "-1", "2**99", "(" * 500, "9" * 30, "9" * 5000, "True", "None", "|V2", "<U9", "'"))
    changed = header.replace(old, new).encode("latin1")
    return data[:8] + struct.pack("<H", len(changed)) + changed + data[10 + size :]


def _tensorflow(folder: Path) -> list[Path]:
    copies = [tf_files.copy_checkpoint(name, folder / name).parent for name in ("bert-squad", "albert-pretraining")]
    data = struct.pack("<6f", *range(6)) + bytes(range(8))
    entries = {
        "bert/a/kernel": tf_files.entry((2, 3), data[:24]),
        "bert/b": tf_files.entry((1,), data[24:], dtype=9, offset=24),
    }
    return [*copies, tf_files.write_index(folder / "hand", entries, data).parent]


def _index_mutant(rng: Random, files: Files) -> Files:
    """About half of the mutants have valid checksums; some of these are compressed, or claim to be."""
    name = next(name for name in files if name.endswith(".index"))
    if rng.random() < 0.4:
        return {name: flips(rng, files[name])}
    from mlxbert.export.tensorflow import table

    pairs = list(table._table(files[name]))
    if rng.random() < 0.3:
        return {name: tf_files.table(flips(rng, tf_files.block(pairs)), kind=rng.choice((0, 0, 0, 1, 2)))}
    place = rng.choice((0, *range(len(pairs))))
    key, value = pairs[place]
    if rng.random() < 0.15:
        pairs[place] = (flips(rng, key), value)
    else:
        pairs[place] = (key, change_message(rng, value))
    return {name: tf_files.table(tf_files.block(pairs))}


def _data_mutant(rng: Random, files: Files) -> Files:
    """Half of the mutants have an index with the checksums of the changed data."""
    index = next(name for name in files if name.endswith(".index"))
    name = rng.choice(sorted(name for name in files if ".data-" in name))
    if rng.random() < 0.5:
        return {name: flips(rng, files[name])}
    from mlxbert.export.tensorflow import table

    data, pairs = same_size(rng, files[name]), []
    for key, value in table._table(files[index]):
        if key:
            entry = table._entry("", value)
            crc = struct.pack("<I", table.checksum(data[entry.offset : entry.offset + entry.size]))
            value = value.replace(struct.pack("<I", entry.checksum), crc)
        pairs.append((key, value))
    return {name: data, index: tf_files.table(tf_files.block(pairs))}


def _checkpoints(folder: Path) -> list[Path]:
    families = ("bert", "roberta", "albert", "electra", "deberta-v2", "modernbert", "nomic", "distilbert", "mpnet")
    return [frozen.write_model(name, "ForMaskedLM", folder / name) for name in families]


def _newer_checkpoints(folder: Path) -> list[Path]:
    named = [name for name in FROZEN if FROZEN[name].classes in _NEWER]
    return [frozen.write_model(name, REPRESENTATIVES[name], folder / frozen.file_name(name)) for name in named]


def _with_modules(folder: Path) -> list[Path]:
    dense = st_folder.dense(mx.ones((6, 24)), mx.ones((6,)))
    specs = [st_folder.pooling("mean"), dense, st_folder.layer_norm(mx.ones((6,)), mx.ones((6,))), st_folder.NORMALIZE]
    settings = {"prompts": {"query": "q: ", "passage": ""}, "default_prompt_name": "query", "truncate_dim": 4}
    limits = {"max_seq_length": 16, "do_lower_case": True}
    st_folder.save_st(folder / "new", *specs, transformer=limits, settings=settings)
    return [folder / "new", st_folder.save_st(folder / "old", st_folder.pooling("cls", "max", old=True))]


def _modules_mutant(rng: Random, files: Files) -> Files:
    name = "modules.json" if rng.random() < 0.5 else ".json"
    return on(name, change_json)(rng, {key: data for key, data in files.items() if key != "config.json"})


READERS = {
    "safetensors": FuzzedReader(_safetensors, on(".safetensors", _safetensors_mutant), load_stored),
    "model.safetensors.index.json": FuzzedReader(_shards, on(".index.json", change_json), load_weights),
    "torch .bin": FuzzedReader(_torch, _torch_mutant, load_weights),
    "TF .index": FuzzedReader(_tensorflow, _index_mutant, load_weights),
    "TF data": FuzzedReader(_tensorflow, _data_mutant, load_weights),
    "config.json": FuzzedReader(_checkpoints, on("config.json", change_json), load_network),
    "newer config.json": FuzzedReader(_newer_checkpoints, on("config.json", change_json), load_network),
    "modules.json": FuzzedReader(_with_modules, _modules_mutant, load_embedder),
    ".npz": FuzzedReader(_npz, on(".npz", change_zip({".npy": _npy_mutant})), load_weights),
}
