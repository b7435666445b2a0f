"""What is known of a file on the hub, its size and its hash, and whether a file on disk is that file."""

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from mlxbert.files import sha256

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Known(NamedTuple):
    """What a hub says of a file: its bytes, and the SHA-256 of a large file, git's blob hash of a small one."""

    size: int | None = None
    hash: str | None = None


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


def mismatch(path: Path, known: Known, *, content: bool = True) -> str | None:
    """How a file differs from what is known of it, without `content` by its size alone; `None` if it does not."""
    if not path.is_file():
        return "is not in the cache"
    size = path.stat().st_size
    if known.size is not None and size != known.size:
        return f"has {size:,} bytes, expected {known.size:,}"
    if content and known.hash is not None:
        found = (sha256 if is_sha256(known.hash) else git_hash)(path)
        if found != known.hash:
            return f"has the hash {found}, expected {known.hash}"
    return None
