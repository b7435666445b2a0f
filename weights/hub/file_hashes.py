"""What a hub says of a file, its size and its hash; whether a file on disk is that file; and what can be a hash."""

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from mlxbert.files import sha256

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ETAG = re.compile(r"[0-9A-Za-z+=_-]{1,128}")  # hexadecimal digits or like base64, with nothing that separates folders
_LARGEST = 2**63 - 1  # bytes; what a file system can hold


class AnnouncedFile(NamedTuple):
    """What a hub says of a file: its bytes, and the SHA-256 of a large file, git's blob hash of a small one."""

    size: int | None = None
    hash: str | None = None


def is_commit(commit: object) -> bool:
    """Whether a value is a full commit hash, which always refers to the same commit."""
    return isinstance(commit, str) and _COMMIT.fullmatch(commit) is not None


def is_size(size: object) -> bool:
    """Whether a value is a number of bytes that a file can have."""
    return type(size) is int and 0 <= size <= _LARGEST


def is_etag(etag: object) -> bool:
    """Whether a value can be the ETag of a file, after which huggingface_hub names a file of the cache."""
    return isinstance(etag, str) and _ETAG.fullmatch(etag) is not None


def is_hash(value: object) -> bool:
    """Whether a value, for example an ETag, is a hash that can be computed from the file."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def is_sha256(value: str) -> bool:
    """Whether a hash is that of a large file."""
    return len(value) == 64


def git_hash(path: Path) -> str:
    """The hash by which git names the content of a file, in hexadecimal digits."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def mismatch(path: Path, known: AnnouncedFile, *, content: bool = True) -> str | None:
    """How a file differs from what is known of it, without `content` by its size alone; `None` if it does not."""
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
