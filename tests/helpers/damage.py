"""Damages files a little: a bit, a block, a dtype, a name."""

import json
import random
import re
from pathlib import Path

DAMAGES = ("bit", "block", "dtype", "name")
_DTYPES = ("F32", "I32", "U32", "F16", "BF16", "F64", "I8")
_MOST = 512  # bytes of a block


def damage(path: Path, kind: str, rng: random.Random) -> None:
    """Damages a file at a random offset. If it has no dtypes or names to change, one bit is changed."""
    before = path.read_bytes()
    after = before
    while after == before:
        after = _damaged(before, kind, path.suffix, rng)
    path.write_bytes(after)


def _damaged(content: bytes, kind: str, ending: str, rng: random.Random) -> bytes:
    if kind == "block":
        start = rng.randrange(len(content))
        stop = min(start + rng.randint(1, _MOST), len(content))
        return content[:start] + bytes(stop - start) + content[stop:]
    if kind in ("dtype", "name") and ending == ".safetensors":
        return _header_damaged(content, kind, rng)
    if kind == "name" and ending == ".json":
        return _letter_changed(content, rb'"[^"]+"(?=:)', rng)
    if kind == "dtype" and ending == ".json":  # a whole number becomes a fraction, a fraction a text, a text a number
        match = rng.choice([*re.finditer(rb'(?<=: )("[^"]*"|-?[\d.e+-]+)', content)])
        old = match[0]
        new = b"7" if old.startswith(b'"') else b'"%s"' % old if b"." in old else old + b".0"
        return content[: match.start()] + new + content[match.end() :]
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def _header_damaged(content: bytes, kind: str, rng: random.Random) -> bytes:
    """Changes the name or the dtype of one tensor; the header remains valid."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = rng.choice([name for name in header if name != "__metadata__"])
    if kind == "dtype":
        header[name]["dtype"] = rng.choice([dtype for dtype in _DTYPES if dtype != header[name]["dtype"]])
    else:
        header = {other.replace(name, f"{name}{rng.choice('xyz_.0')}"): value for other, value in header.items()}
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    return len(written).to_bytes(8, "little") + written + content[8 + size :]


def _letter_changed(content: bytes, pattern: bytes, rng: random.Random) -> bytes:
    match = rng.choice([*re.finditer(pattern, content)])
    place = rng.randrange(match.start() + 1, match.end() - 1)
    return content[:place] + bytes([rng.choice(b"abcxyz_")]) + content[place + 1 :]
