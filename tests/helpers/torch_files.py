"""Checkpoints of torch, assembled from the opcodes of pickles in both file formats."""

import io
import math
import struct
import zipfile
from collections.abc import Iterable, Mapping

import numpy as np

from mlxbert.machine.device import mx

PROTOCOL = b"\x80\x02"
DATA = struct.pack("<6f", *range(6))


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    raw = value.to_bytes(16, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def group(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def numbers(values: Iterable[int]) -> bytes:
    return group(*(number(value) for value in values))


def storage(key: bytes | None = None, kind: str = "FloatStorage", count: int = 6, *rest: bytes) -> bytes:
    key = text("0") if key is None else key
    return group(text("storage"), named("torch", kind), key, text("cpu"), number(count), *rest) + b"Q"


def tensor(
    shape: Iterable[int] = (2, 3),
    strides: Iterable[int] = (3, 1),
    offset: int = 0,
    of: bytes | None = None,
    more: Iterable[bytes] = (),
) -> bytes:
    hooks = named("collections", "OrderedDict") + b")R"
    arguments = (of or storage(), number(offset), numbers(shape), numbers(strides), b"\x89", hooks, *more)
    return named("torch._utils", "_rebuild_tensor_v2") + group(*arguments) + b"R"


def table(*items: bytes) -> bytes:
    return b"}(" + b"".join(items) + b"u"


def state(*items: bytes) -> bytes:
    """Returns the pickle of a dict; the default is a dict with one valid tensor."""
    return PROTOCOL + table(*(items or (text("w"), tensor()))) + b"."


def archive(pickle: bytes | None = None, *, method: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    """Returns a checkpoint in the zip format; in the names of members, `_` stands for a slash."""
    raw = io.BytesIO()
    members = {"data.pkl": state() if pickle is None else pickle, "data_0": DATA, "version": b"3\n"} | members
    with zipfile.ZipFile(raw, "w", method) as file:
        for name, content in members.items():
            file.writestr(f"archive/{name.replace('_', '/')}", content)
    return raw.getvalue()


def saved(arrays: Mapping[str, mx.array]) -> bytes:
    items, members = [], {}
    for index, (name, array) in enumerate(arrays.items()):
        strides = [math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
        own_storage = storage(text(str(index)), "FloatStorage", array.size)
        items += [text(name), tensor(array.shape, strides, of=own_storage)]
        members[f"data_{index}"] = np.array(array, dtype="<f4").tobytes()
    return archive(state(*items), method=zipfile.ZIP_STORED, **members)


def stream(
    pickle: bytes | None = None, *, little: bytes = b"\x88", keys: bytes | None = None, data: bytes = b""
) -> bytes:
    """Returns a checkpoint in the format of torch before 1.6."""
    start = PROTOCOL + number(0x1950A86A20F9469CFC6C) + b"." + PROTOCOL + b"M\xe9\x03."
    facts = PROTOCOL + table(text("little_endian"), little) + b"."
    listed = PROTOCOL + b"](" + (text("0") if keys is None else keys) + b"e."
    return start + facts + (state() if pickle is None else pickle) + listed + (data or struct.pack("<q", 6) + DATA)


def edited(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content and len(old) == len(new)
    return content.replace(old, new)
