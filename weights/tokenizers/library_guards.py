"""Guards against files that make the `tokenizers` library abort the process or allocate memory without bound.

The bytes of a file are checked here before the library reads them. Exceptions and panics of the library become
`TokenizerError`s.
"""

import base64
import json
import re
import struct
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer, models

from mlxbert.errors import InputError, TokenizerError
from mlxbert.weights.tokenizers.text_growth import check_growth, longest_output, offsets

MAX_TOKEN = 2048  # bytes: 512 characters, the maximum of SentencePiece; the library recurses over them
MAX_FILE = 2**26  # bytes; the largest vocabularies have 2**25
MAX_ID = 2**24  # when the library writes a vocabulary, it lists every id without a token
MAX_OUTPUT = 256  # bytes of a replacement in the table of a normalizer; NFKC has up to 33
_AGAIN = "download the file again"
_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)')
# An odd number of backslashes and an escaped plain character. The literal comes first: `re` searches for it fast.
_ESCAPED = re.compile(rb"\\(?<!\\\\)(?:\\\\)*+(?:/|u00[2-7])")


@contextmanager
def guarded(what: str, *, text: bool = False) -> Iterator[None]:
    """Converts exceptions and panics of the library, and failures to encode a string as UTF-8, to errors of mlxbert."""
    try:
        yield
    except BaseException as problem:
        # A panic is not an Exception, and its class cannot be imported.
        if type(problem) not in (Exception, UnicodeEncodeError) and type(problem).__name__ != "PanicException":
            raise
        if text:
            raise InputError(f"{what}: the tokenizer fails ({problem})") from None
        raise TokenizerError(
            f"{what}: the tokenizer is damaged ({problem})", hint="download the vocabulary files again"
        ) from None


def check_charsmap(path: Path, table: bytes) -> None:
    """Raises `TokenizerError` for an invalid table of character replacements.

    A table must not declare more bytes than it has, because the library allocates them. A replacement must not be very
    long.
    """
    declared = struct.unpack("<I", table[:4])[0] if len(table) >= 4 else 0
    if declared > max(len(table) - 4, 0):
        raise TokenizerError(
            f"{path}: the damaged table of character replacements has {len(table)} bytes, expected at least {declared}",
            hint=_AGAIN,
        )
    longest = longest_output(table)
    if longest > MAX_OUTPUT:
        raise TokenizerError(
            f"{path}: a character is replaced by {longest:,} bytes, expected at most {MAX_OUTPUT}", hint=_AGAIN
        )


def _unescape(path: Path, data: bytes) -> bytes:
    """Returns the same JSON without escapes of plain characters, which some writers emit.

    The checks search for plain text, so they would not find a key that is written with escapes.
    """
    try:
        return json.dumps(json.loads(data.decode("utf-8")), ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as problem:
        raise TokenizerError(f"{path}: the file is damaged ({problem})", hint=_AGAIN) from None


def read_checked(path: Path) -> bytes:
    """Reads and checks a `tokenizer.json`; returns the bytes to pass to the library."""
    size = path.stat().st_size
    if size > MAX_FILE:
        raise TokenizerError(f"{path}: the file has {size:,} bytes, expected at most {MAX_FILE:,}", hint=_AGAIN)
    data = path.read_bytes()
    if _ESCAPED.search(data):
        data = _unescape(path, data)
    _check(path, data)
    check_growth(path, data)
    return data


def _check(path: Path, data: bytes) -> None:
    charsmaps = set()
    for at in offsets(data, b'"precompiled_charsmap"'):
        charsmap = _CHARSMAP.match(data, at)
        if charsmap is None:
            continue
        charsmaps.add(charsmap.start(1))
        try:
            table = base64.b64decode(charsmap[1])
        except ValueError:
            continue  # the library rejects it, too
        check_charsmap(path, table)
    at = 0  # after a quotation mark
    while at + MAX_TOKEN < len(data):
        window = data[at : at + MAX_TOKEN + 1]
        if window[(last := window.rfind(b'"')) - 1 : last] == b"\\":  # it may be part of a token
            last = window.replace(b"\\\\", b"__").replace(b'\\"', b"__").rfind(b'"')
        if last >= 0:
            at += last + 1
            continue
        if at not in charsmaps:
            raise TokenizerError(
                f"{path}: a string has more than {MAX_TOKEN} bytes, which is too long for a token",
                hint=_AGAIN,
            )
        at = data.find(b'"', at) + 1 or len(data)


def largest_id(tokenizer: Tokenizer, aside: Set[int] = frozenset()) -> int:
    """Returns the largest id of all tokens, including added tokens, except the ids in `aside`; -1 if there are none."""
    if isinstance(tokenizer.model, models.Unigram):  # ids are list indexes: no need to copy all tokens
        added = tokenizer.get_added_tokens_decoder().keys() - aside
        return max(tokenizer.get_vocab_size(with_added_tokens=False) - 1, *added, -1)
    return max({*tokenizer.get_vocab(with_added_tokens=True).values()} - aside, default=-1)


def check_ids(tokenizer: Tokenizer) -> None:
    """Raises `TokenizerError` if the id of a token is so large that the library could not write the vocabulary."""
    largest = largest_id(tokenizer)
    if largest > MAX_ID:
        raise TokenizerError(f"a token has id {largest}, expected at most {MAX_ID}")
