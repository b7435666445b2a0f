"""Readers that do what a damaged parser might; imported in the process for parsers, so they need little."""

import ctypes
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mlxbert.search.documents.document import Document, UnreadableError

_seen: list[bytes] = []


def hang(data: bytes, name: str) -> Iterator[Document]:
    """Never ends, and holds the interpreter."""
    yield Document("never sent")
    ctypes.PyDLL(None).sleep(1000)


def crash(data: bytes, name: str) -> Iterator[Document]:
    """Dies on the data `die`."""
    if data == b"die":
        os.abort()
    yield Document(f"{data!r} {os.getpid()}")


def poison(data: bytes, name: str) -> Iterator[Document]:
    """Dies of every file but the first."""
    _seen.append(data)
    if len(_seen) > 1:
        os.abort()
    yield Document(str(os.getpid()))


def memory(data: bytes, name: str) -> Iterator[Document]:
    """Takes as many bytes as the data say."""
    yield Document(str(len(bytearray(int(data)))))


def fill(data: bytes, name: str) -> Iterator[Document]:
    """Fills as many bytes as the data say, and takes its time."""
    filled = b"x" * int(data)
    time.sleep(1.5)
    yield Document(str(len(filled)))


def much(data: bytes, name: str) -> Iterator[Document]:
    """Says more than was asked for."""
    while True:
        yield Document("x" * 1000)


def write(data: bytes, name: str) -> Iterator[Document]:
    """Prints, imports from the current folder, and writes a file."""
    sys.stdout.write("printed")
    sys.stdout.flush()
    os.write(1, b"printed")
    said = "nothing"
    try:
        Path(data.decode()).write_bytes(b"1")
    except OSError as problem:
        said = errno.errorcode[problem.errno or 0]
    yield Document("")
    raise UnreadableError(f"{said} {'' in sys.path or os.getcwd() in sys.path}", hint="why")
