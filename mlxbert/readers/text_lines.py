"""Reads the lines of text files, plain or compressed."""

import codecs
import io
import re
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, cast

from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.pipes import LONGEST, Opened, Pipe

UTF8 = "utf-8"
_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 16  # bytes of an overlong line dropped at a time
_ESCAPED = re.compile("[\udc80-\udcff]+")  # bytes that are not valid in the encoding
_COMPRESSED = (".gz", ".xz")
_TO_UTF8 = "convert UTF-16 to UTF-8 with: iconv -f UTF-16 -t UTF-8"
# The first bytes of files that are not UTF-8 text, with the name of their format and a hint.
_OTHER_FORMATS = {
    b"\xff\xfe": ("UTF-16", _TO_UTF8),
    b"\xfe\xff": ("UTF-16", _TO_UTF8),
    b"PK\x03\x04": ("a zip archive, such as a .docx or .xlsx", "save the document as .txt or .csv"),
    b"%PDF-": ("PDF", "convert the PDF to .txt"),
    b"\x1f\x8b": ("gzip", "give the file a name that ends with .gz, or unpack it with: gzip -dc"),
    b"PAR1": ("a Parquet table", "name the format: `format='parquet'`"),
    b"\xfd7zXZ\0": ("xz", "give the file a name that ends with .xz, or unpack it with: xz -dc"),
}


def is_compressed(name: str) -> bool:
    """Whether a file's extension says that it is compressed with gzip or xz."""
    return name.lower().endswith(_COMPRESSED)


def uncompressed_name(name: str) -> str:
    """Returns a file name in lower case, without the extension of a compressed file."""
    name = name.lower()
    return next((name.removesuffix(ending) for ending in _COMPRESSED if name.endswith(ending)), name)


def check_encoding(name: str) -> str:
    """Returns Python's name of an encoding; raises an error if it is unknown, or does not extend ASCII."""
    try:
        contains_ascii, encoding = "..\n".encode(name).removeprefix(_BOM) == b"..\n", codecs.lookup(name).name
    except (LookupError, ValueError, TypeError):
        raise ArgumentError(
            f"`encoding` is {name!r:.60}, expected the name of an encoding",
            hint="use for example `encoding='latin-1'`, or cp1252, koi8-r, shift_jis, gb18030",
        ) from None
    if not contains_ascii:
        raise ArgumentError(f"`encoding` is {name!r}, expected an encoding that extends ASCII", hint=_TO_UTF8)
    return encoding


class Lines(Opened):
    """The lines of a file, without their newlines (LF or CRLF) and without a byte-order mark.

    If no newline follows the first carriage return, lines end with carriage returns, as on old Macs. A line that is too
    long becomes empty; if it has an odd number of quotation marks, one is kept, because it may begin or end a field.

    Args:
        name: The name of the file in errors. If it ends with `.gz` or `.xz`, the file is compressed.
        lenient: Whether `problem` returns the error of a line (encoding, zero byte, length); otherwise it is raised.
        most: Maximum size of a line in bytes.
        other: The encoding of bytes that are not valid in `encoding`; by default, they are an error of their line.
    """

    def __init__(
        self,
        name: str,
        file: BinaryIO,
        *,
        lenient: bool = False,
        most: int = LONGEST,
        encoding: str = UTF8,
        other: str | None = None,
    ) -> None:
        self.name, self._max_bytes, self._encoding = name, most, check_encoding(encoding)
        self._other = other
        self.others = 0, 0  # the number of lines with such bytes so far, and the number of the first one of these lines
        self._line = 0
        self._offset = 0  # bytes into the uncompressed text
        self._lenient = lenient
        self._problem: InputError | None = None
        self._counted = _Counted(file) if is_compressed(name) else None
        self._pipe = file if isinstance(file, Pipe) and self._counted is None else None
        self.piped = self._pipe is not None
        self._raw = file
        self._damage: tuple[type[Exception], ...] = (OSError,)
        if self._counted is not None:
            self._raw, self._damage = _unpacked(self._counted, name)

    @property
    def done(self) -> int:
        """The number of bytes read from the file so far; compressed bytes if the file is compressed."""
        return self._offset if self._counted is None else self._counted.done

    def ready(self) -> bool:
        """Whether the next line, or the end, has arrived."""
        return self._pipe is None or self._pipe.ready()

    def problem(self) -> InputError | None:
        """Returns the first error in the lines that were read since the last call; `None` if there is none."""
        problem, self._problem = self._problem, None
        return problem

    def refuse(self, problem: InputError) -> None:
        """Keeps a line's error for `problem`, or raises it if the lines are not lenient."""
        if not self._lenient:
            raise InputError(f"{self.name}, {problem.message}", hint=problem.hint)
        self._problem = self._problem or problem

    def __iter__(self) -> Iterator[str]:
        size = self._max_bytes + 1
        try:
            while raw := self._raw.readline(size):
                start, self._line = self._offset, self._line + 1
                if start == 0:
                    self._check_encoding(raw)
                    if b"\r" in raw and not raw.endswith(b"\n"):
                        self._raw = cast(BinaryIO, io.BufferedReader(_CarriageReturns(raw, self._raw)))
                        raw = self._raw.readline(size)
                self._offset += len(raw)
                if start == 0:
                    raw, start = raw.removeprefix(_BOM), start + len(_BOM) * raw.startswith(_BOM)
                if len(raw) > self._max_bytes and not raw.endswith(b"\n"):
                    raw = self._shortened(raw, self._max_bytes)
                yield self._decode(raw.removesuffix(b"\n").removesuffix(b"\r"), start)
        except self._damage as problem:
            kind = "xz" if self.name.lower().endswith(".xz") else "gzip"
            reason = problem if self._counted is None else f"damaged {kind} data: {problem}"
            reason = getattr(problem, "strerror", None) or reason  # an error of the system
            raise InputError(f"{self.name}: cannot be read ({reason})") from None

    def _shortened(self, raw: bytes, limit: int) -> bytes:
        """Returns the replacement for an overlong line that begins with `raw`; skips the rest of the line."""
        self.refuse(too_long(f"line {self._line}", limit))
        quotes = raw.count(b'"')
        while not raw.endswith(b"\n") and (raw := self._raw.readline(_CHUNK)):
            self._offset += len(raw)
            quotes += raw.count(b'"')
        return b'"' * (quotes % 2)

    def _check_encoding(self, raw: bytes) -> None:
        for start, (kind, hint) in _OTHER_FORMATS.items():
            if raw.startswith(start):
                raise InputError(f"{self.name}, line 1: the file begins like {kind}, expected UTF-8 text", hint=hint)

    def _decode(self, raw: bytes, start: int) -> str:
        try:
            return _decode(raw, f"line {self._line}", start, self._encoding)
        except InputError as problem:
            if self._other is not None and b"\0" not in raw:
                count, first = self.others
                self.others = count + 1, first or self._line
                return _decode_both(raw, self._encoding, self._other)
            self.refuse(problem)
            return raw.decode(self._encoding, "replace")


def too_long(place: str, most: int = LONGEST, hint: str = "split the text into several records") -> InputError:
    """Returns the error for a line or row that exceeds the size limit."""
    return InputError(f"{place}: the size is more than {most:,} bytes, the maximum of a record", hint=hint)


def read_text(name: str, file: BinaryIO, encoding: str = UTF8) -> str:
    """Reads a file as a single text, with its newlines unchanged and without a byte-order mark."""
    try:
        raw = file.read(LONGEST + 1)
    except OSError as problem:
        raise InputError(f"{name}: cannot be read ({problem.strerror or problem})") from None
    if len(raw) > LONGEST:
        raise too_long(name)
    return _decode(raw.removeprefix(_BOM), name, len(_BOM) * raw.startswith(_BOM), check_encoding(encoding))


def _decode(raw: bytes, place: str, start: int, encoding: str) -> str:
    nul = raw.find(b"\0")
    if nul >= 0:
        raise InputError(
            f"{place}: the byte at offset {start + nul} is zero (a binary file or UTF-16), expected UTF-8 text",
            hint=_TO_UTF8,
        )
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as problem:
        byte, line = raw[problem.start], raw.count(b"\n", 0, problem.start)
        likely = "cp1252" if encoding == UTF8 and 0x80 <= byte < 0xA0 else "latin-1"
        place += f", line {line + 1}" if line else ""
        raise InputError(
            f"{place}: byte 0x{byte:02x} at offset {start + problem.start} is not {encoding.upper()}",
            hint=f"name the encoding of the file, for example `encoding='{likely}'`",
        ) from None


def _decode_both(raw: bytes, encoding: str, other: str) -> str:
    """Decodes bytes; those that are not valid in the encoding are decoded with the other one, or else replaced."""
    text = raw.decode(encoding, "surrogateescape")
    return _ESCAPED.sub(lambda match: match[0].encode("ascii", "surrogateescape").decode(other, "replace"), text)


class _Counted(io.RawIOBase):
    """A file that counts the bytes read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.done = file, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.done += len(data)
        return data


def _unpacked(file: _Counted, name: str) -> tuple[BinaryIO, tuple[type[Exception], ...]]:
    """Returns the decompressed content of a file, and the exceptions that reading it may raise."""
    import gzip
    import lzma
    import zlib

    packed = cast(IO[bytes], file)
    unpacked: Any = lzma.LZMAFile(packed) if name.lower().endswith(".xz") else gzip.GzipFile(fileobj=packed)  # noqa: SIM115
    return cast(BinaryIO, io.BufferedReader(unpacked)), (OSError, EOFError, zlib.error, lzma.LZMAError)


class _CarriageReturns(io.RawIOBase):
    """A file in which newlines replace carriage returns; its `start` was already read."""

    def __init__(self, start: bytes, file: BinaryIO) -> None:
        self._start, self._file = io.BytesIO(start), file

    def readable(self) -> bool:
        return True

    def readinto(self, target: bytearray) -> int:  # type: ignore[override]
        """Fills the target as far as possible; returns the number of bytes, or 0 at the end."""
        data = self._start.read(len(target)) or self._file.read(len(target))
        target[: len(data)] = data.replace(b"\r", b"\n")
        return len(data)
