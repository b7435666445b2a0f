"""Decodes bytes as browsers do; names the encoding of texts that declare none, and counts the bytes that do not fit."""

import codecs
import re
from typing import NamedTuple

from mlxbert.errors import ArgumentError
from mlxbert.search.documents.document import ReadProblem

# The marks of UTF-32 come first, because the mark of UTF-32-LE begins with the mark of UTF-16-LE.
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be",
}  # fmt: skip
WESTERN = "cp1252"  # often declared by default, so it does not precede UTF-8
# What browsers decode in place of other encodings, which lack some of its characters, such as ①.
_SUPERSETS = {"ascii": WESTERN, "iso8859-1": WESTERN, "gb2312": "gb18030", "gbk": "gb18030", "euc_jp": "euc_jis_2004"}
_NOT_OF_TEXTS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape"}
# Encodings of texts without a label: the ones of browsers, and two of DOS and Unix. If all encodings were compared, a
# short text would often fit a rare one best.
_LATIN = ("cp1252", "cp1250", "cp1254", "cp1257", "iso-8859-2")
_DETECTED = (
    *(*_LATIN, "gb18030", "cp932", "cp949", "big5", "euc-jp", "cp1251", "cp1253", "cp1255", "cp1256", "cp874"),
    *("koi8-r", "iso-8859-7", "cp866"),
)
_RUN = re.compile(rb"[\x80-\xff]+")
_ALONE = 1.5  # bytes that are not ASCII, in a run: up to this mean length, they are Latin letters with accents
_SURER = 1.3  # times as probable as windows-1252, which most texts of one byte per character have
_SAMPLE, _BEFORE = 2**15, 2**9  # bytes that are examined from the first that is not ASCII, and before it
_EVIDENCE = 4  # different letters that are not ASCII; with fewer, as in °C, any encoding is as probable
_WIDE = ("utf-16", "utf-32")
_JAPANESE = "iso2022_jp"
_SHIFTED = re.compile(rb"\x1b\$[@B]([^\x1b\n]*)|\x1b\(I([^\x1b\n]*)|\x1b\([BJ]")  # kanji, kana, ASCII


class Decoded(NamedTuple):
    """A text, and what had to be guessed or replaced in it."""

    text: str
    problems: tuple[ReadProblem, ...] = ()


def decode(data: bytes, declared: str | None = None, chosen: str | None = None) -> Decoded:
    """Decodes the bytes of a text, converting CRLF to LF. Bytes that do not fit the encoding become U+FFFD.

    The encoding is the first that applies: the byte-order mark's; the declared one, unless most of the text does
    not fit it; UTF-8, likewise; the chosen one; the most probable one, with a problem that names it.

    Args:
        declared: The encoding that the file, or a header, declares: any label that browsers or Python know.
        chosen: The encoding that the user chose for texts that neither declare one nor are UTF-8.
    """
    text, problems = _decode(data, declared, chosen)
    return Decoded(text.replace("\r\n", "\n"), problems)


def _decode(data: bytes, declared: str | None, chosen: str | None) -> Decoded:
    for mark, name in MARKS.items():
        if data.startswith(mark):
            return _replaced(data[len(mark) :], name)
    named = find_codec(declared) if declared else None
    if named and named.startswith(_WIDE) and b"\0" not in data:  # its label could not have been read
        named = None
    candidates = [(named, False)] if named and named != WESTERN else []
    if data.isascii():  # perhaps in an encoding of seven bits, which only its label or its escapes tell
        candidates += [(chosen, False)] if chosen else [(_JAPANESE, True)] if b"\x1b$" in data else []
    for name, is_guess in (*candidates, ("utf-8", declared is not None and not data.isascii())):
        decoded = _replaced(data, name)
        if _fits(decoded):
            return _guessed(decoded, name, declared) if is_guess else decoded
    if fallback := WESTERN if named == WESTERN else chosen:
        return _replaced(data, fallback)
    return _guessed(_replaced(data, probable := detect(data)), probable, declared)


def _fits(decoded: Decoded) -> bool:
    """Whether most of what is not ASCII in the bytes is valid in the encoding."""
    if not decoded.problems:
        return True
    others = len(decoded.text) - len(decoded.text.encode("ascii", "ignore"))
    return 2 * decoded.text.count("\ufffd") <= others


def is_utf8(data: bytes) -> bool:
    """Whether most of what is not ASCII in the bytes is valid UTF-8."""
    return _fits(_replaced(data, "utf-8"))


def _guessed(decoded: Decoded, name: str, declared: str | None) -> Decoded:
    but = f", although {declared!r:.40} is declared" if declared else ""
    return Decoded(decoded.text, (ReadProblem("guessed", f"the encoding is probably {name}{but}"), *decoded.problems))


def _replaced(data: bytes, name: str) -> Decoded:
    """Decodes bytes, with a problem that counts the characters that are not valid in the encoding."""
    try:
        return Decoded(_text(data, name, "strict"))
    except ValueError:
        text = _text(data, name, "replace")
    count = text.count("\ufffd") - (data.count("\ufffd".encode()) if name == "utf-8" else 0)
    line = text.count("\n", 0, text.find("\ufffd")) + 1
    characters = f"{count:,} characters are" if count > 1 else "a character is"
    return Decoded(text, (ReadProblem("cut", f"{characters} not valid {name}, the first in line {line:,}"),))


def _text(data: bytes, name: str, errors: str) -> str:
    if name == _JAPANESE:  # Python's decoder refuses the characters that most programs add to it, such as ①
        data, name = _SHIFTED.sub(_to_euc, data), "euc_jis_2004"
    return data.decode(name, errors)


def _to_euc(part: "re.Match[bytes]") -> bytes:
    kanji, kana = part.groups()
    if kana:
        return b"".join(b"\x8e%c" % (byte | 0x80) for byte in kana)
    return bytes(byte | 0x80 for byte in kanji or b"")


def find_codec(label: str) -> str | None:
    """Returns Python's name of the encoding that browsers use for a label, or else Python; `None` if it is unknown."""
    import webencodings

    try:
        encoding = webencodings.lookup(label)
        codec = encoding.codec_info if encoding else codecs.lookup(label)
        if codec.name in ("replacement", "x-user-defined"):  # browsers decode nothing; Python may
            codec = codecs.lookup(label)
        " ".encode(codec.name)  # fails for what encodes bytes, such as base64
    except (LookupError, ValueError):
        return None
    if codec.name.replace("-", "_") in _NOT_OF_TEXTS:
        return None
    return _SUPERSETS.get(codec.name, codec.name)


def check_chosen_encoding(label: str | None) -> str | None:
    """Returns Python's name of the encoding that a user chose for texts without a label.

    Raises:
        ArgumentError: The encoding is unknown, or is UTF-16 or UTF-32.
    """
    if label is None:
        return None
    name = find_codec(label) if isinstance(label, str) else None
    if name is None:
        hint = "use a name that browsers or Python know, such as windows-1251, gbk, shift_jis, cp850"
        raise ArgumentError(f"`encoding` is {label!r:.60}, expected the name of an encoding", hint=hint)
    if name.startswith(_WIDE):
        hint = "files in UTF-16 and UTF-32 are recognized by their byte-order mark"
        raise ArgumentError(
            f"`encoding` is {label!r}, expected an encoding that contains ASCII, such as cp1252", hint=hint
        )
    return name


def detect(data: bytes) -> str:
    """Returns the most probable encoding of a text that is not UTF-8, or windows-1252 if there is too little of it."""
    import chardet

    first = re.search(rb"[\x80-\xff]", data)
    begin = max(first.start() - _BEFORE, 0) if first else 0
    sample = data[begin : begin + _SAMPLE]
    if begin + _SAMPLE < len(data):  # whole characters: none of several bytes contains a space or the end of a line
        sample = sample[: max(sample.rfind(b"\n"), sample.rfind(b" ")) + 1] or sample
    runs = _RUN.findall(sample)
    if sum(byte >= 0xA0 for byte in {*sample}) < _EVIDENCE:  # bytes before are punctuation
        return WESTERN
    among = _LATIN if sum(map(len, runs)) <= _ALONE * len(runs) else _DETECTED
    matches = chardet.detect_all(sample, ignore_threshold=True, include_encodings=among, prefer_superset=True)
    confidence = {
        find_codec(match["encoding"] or WESTERN) or WESTERN: match["confidence"] for match in reversed(matches)
    }
    best = max(confidence, key=confidence.__getitem__, default=WESTERN)
    return best if confidence.get(best, 0.0) > _SURER * confidence.get(WESTERN, 0.0) else WESTERN
