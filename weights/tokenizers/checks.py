"""What the `tokenizers` library must not be given: it ends the process, or takes memory without end.

Checked here, in the bytes of a file and before the library sees them. What it says in exceptions and panics becomes an
error of ours.
"""

import base64
import json
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

from mlxbert.errors import TokenizerError

MAX_TOKEN = 2048  # bytes: 512 characters, the most that SentencePiece makes; the library has a stack frame for each
MAX_FILE = 2**26  # bytes; those of the largest vocabularies have 2**25
MAX_ID = 2**24  # the library lists all numbers that have no token when it writes a vocabulary
MAX_BYTE_STEPS = 8  # each may double a text
_AGAIN = "download it again"
_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]{0,8})')
_ESCAPED = re.compile(rb"\\(?:/|u00[2-7])")  # or seems to be, behind another backslash
_LONG = re.compile(rb'(?:[^"]{0,%d}+")*+[^"]{%d}[^"]*+"?' % (MAX_TOKEN, MAX_TOKEN + 1))


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Makes errors of ours of what the library says: plain exceptions, panics, and that a string has no UTF-8.

    Raises:
        TokenizerError: It did not know what to do with `what`.
    """
    try:
        yield
    except BaseException as problem:
        # A panic is no Exception, and of no class that could be imported.
        if type(problem) not in (Exception, UnicodeEncodeError) and type(problem).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what}: damaged: {problem}", hint="download the vocabulary files again") from None


def check_charsmap(path: Path, start: bytes, size: int) -> None:
    """Refuses a table of replacements whose first number promises more than there is: memory is taken for it.

    Args:
        path: The file that it is in.
        start: Its first bytes.
        size: How many bytes it has.

    Raises:
        TokenizerError: It does.
    """
    promised = struct.unpack("<I", start[:4])[0] if len(start) >= 4 else 0
    if promised > max(size - 4, 0):
        raise TokenizerError(
            f"{path}: damaged: a table of replacements of {size} bytes, expected {promised} and more", hint=_AGAIN
        )


def _unescaped(path: Path, data: bytes) -> bytes:
    """The same JSON without escapes of plain characters, which some writers have and which could hide anything."""
    try:
        return json.dumps(json.loads(data.decode("utf-8")), ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as problem:
        raise TokenizerError(f"{path}: damaged: {problem}", hint=_AGAIN) from None


def read_checked(path: Path) -> bytes:
    """The content of a `tokenizer.json`, as it is to be given to the library.

    Raises:
        OSError: It cannot be read.
        TokenizerError: It would end the process: it is too large, it has a token that is too long, a table of
            replacements that is not as large as it says, or too many steps; or it is no JSON.
    """
    size = path.stat().st_size
    if size > MAX_FILE:
        raise TokenizerError(f"{path}: {size:,} bytes, expected at most {MAX_FILE:,}", hint=_AGAIN)
    data = path.read_bytes()
    if _ESCAPED.search(data):
        data = _unescaped(path, data)
    _check(path, data)
    return data


def _check(path: Path, data: bytes) -> None:
    steps = data.count(b'"ByteLevel"')
    if steps > MAX_BYTE_STEPS:
        raise TokenizerError(f"{path}: names ByteLevel {steps} times, expected at most {MAX_BYTE_STEPS}")
    if b"\\" in data:
        data = data.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    charsmaps = set()
    for found in _CHARSMAP.finditer(data):
        begin, end = found.start(1), data.find(b'"', found.start(1))
        charsmaps.add(begin)
        try:
            start = base64.b64decode(found[1])
        except ValueError:
            continue  # the library refuses it, too
        check_charsmap(path, start, (end - begin) * 3 // 4)
    at = 0
    while (long := _LONG.match(data, at)) is not None:
        begin, at = data.rfind(b'"', at, long.end() - 1) + 1, long.end()
        if begin not in charsmaps:
            raise TokenizerError(
                f"{path}: {at - begin} bytes without a quotation mark, expected tokens of at most {MAX_TOKEN}",
                hint=_AGAIN,
            )


def check_ids(tokenizer: Tokenizer) -> None:
    """Refuses a vocabulary that cannot be written down.

    Raises:
        TokenizerError: An id is too large.
    """
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest > MAX_ID:
        raise TokenizerError(f"a token has id {largest}, expected at most {MAX_ID}")
