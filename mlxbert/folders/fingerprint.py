"""Computes fingerprints of models, which change if the files of the model change."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.durable_files import sha256
from mlxbert.mac_files import is_system_file
from mlxbert.weights.formats.file_names import TF_STATE, holds_weights
from mlxbert.weights.model_source import builtin_folder

if TYPE_CHECKING:
    from mlxbert.weights.model_folder import ModelFolder

_SMALL_FILES = (".json", ".txt", ".model", ".jinja")
_HEAD = 2**18  # bytes at the start of a file, where formats have a header or a small index
_BLOCK, _BLOCKS = 2**12, 32  # bytes per sampled block of a weight file, and number of blocks


def hash_folder(folder: Path, *, times: bool = True) -> str:
    """Returns a fingerprint of a model folder.

    It covers the names and the content of small files. Of weight files, it covers the name, the size, the modification
    time, the header and some blocks, because hashing gigabytes of weights would take longer than some runs. Subfolders
    are included, because sentence-transformers keeps the pooling in one; hidden folders and unfinished output are not.
    Links are followed, because a snapshot in the hub's cache consists of links. The modification times of the built-in
    model are left out, because each installation changes them.

    Args:
        times: Whether modification times count; if not, copies of a model on several machines have one
            fingerprint.
    """
    digest, times = hashlib.sha256(), times and folder != builtin_folder()
    for path in sorted(_model_files(folder, frozenset())):
        state = path.stat()
        name = path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
        if holds_weights(path.name):
            digest.update(b"%s\0%d\0%d\0" % (name, state.st_size, state.st_mtime_ns if times else 0))
            for block in _samples(path, state.st_size):
                digest.update(block)
        else:
            digest.update(b"%s\0%s\n" % (name, sha256(path).encode()))
    return digest.hexdigest()


def hash_model(files: "ModelFolder", *, times: bool = True) -> str:
    """Returns a fingerprint of a model (see `hash_folder`) that also covers its adapter, if it has one."""
    own = hash_folder(files.path, times=times)
    if files.own_adapter is not None:
        return hashlib.sha256(f"{own} {files.own_adapter}".encode()).hexdigest()
    if files.adapter is None:
        return own
    return hashlib.sha256(f"{own} {hash_folder(files.adapter, times=times)}".encode()).hexdigest()


def _samples(path: Path, size: int) -> Iterator[bytes]:
    """Yields the beginning of a file, and then blocks that are spread evenly over the rest of the file."""
    with path.open("rb") as file:
        yield file.read(_HEAD)
        rest = size - _HEAD - _BLOCK
        for number in range(_BLOCKS if rest > 0 else 1):
            file.seek(_HEAD + max(rest, 0) * number // (_BLOCKS - 1))
            yield file.read(_BLOCK)


def _model_files(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    above |= {folder.resolve()}
    for path in folder.iterdir():
        if path.is_dir() and not path.name.startswith(".") and path.suffix != ".partial":
            if path.resolve() not in above:  # a link to a parent
                yield from _model_files(path, above)
        elif _counts(path.name) and path.is_file():
            yield path


def _counts(name: str) -> bool:
    return not is_system_file(name) and (name.endswith(_SMALL_FILES) or name == TF_STATE or holds_weights(name))
