"""Compares files on disk with the sizes and hashes that a hub announces, and checks values that a hub sends."""

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from mlxbert.durable_files import sha256

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_SIZE = 2**63 - 1  # bytes, the limit of file systems


class AnnouncedFile(NamedTuple):
    """The size in bytes and the hash that a hub announces for a file.

    The hash is SHA-256 for a large file, and git's blob hash for a small file.
    """

    size: int | None = None
    hash: str | None = None


def is_commit(commit: object) -> bool:
    """Whether a value is a full commit hash; such a hash always refers to the same commit."""
    return isinstance(commit, str) and _COMMIT.fullmatch(commit) is not None


def is_size(size: object) -> bool:
    """Whether a value can be the size of a file in bytes."""
    return type(size) is int and 0 <= size <= _MAX_SIZE


def is_hash(value: object) -> bool:
    """Whether a value, such as an ETag, is a hash that can be computed from the file."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def is_sha256(value: str) -> bool:
    """Whether a hash is a SHA-256 hash, which large files have."""
    return len(value) == 64


def git_hash(path: Path) -> str:
    """Returns the hash that git gives to the content of a file, in hexadecimal digits."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def mismatch(path: Path, known: AnnouncedFile, *, content: bool = True) -> str | None:
    """Returns how a file differs from its expected size or, if `content` is set, its expected hash; else `None`."""
    if not path.is_file():
        return "is not in the cache"
    size = path.stat().st_size
    if known.size is not None and size != known.size:
        return f"has {size:,} bytes, expected {known.size:,}"
    if content and known.hash is not None:
        actual = (sha256 if is_sha256(known.hash) else git_hash)(path)
        if actual != known.hash:
            return f"has the hash {actual}, expected {known.hash}"
    return None
