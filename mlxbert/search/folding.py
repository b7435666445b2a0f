"""Converts text to the words that are indexed and searched: without case, marks and invisible characters.

The index, queries, phrases and the counts of words all use the same words.
"""

import re
import unicodedata
from collections.abc import Mapping
from itertools import pairwise
from operator import add

# Scripts that put no spaces between words (Han, kana, Bopomofo, Thai, Lao, Khmer, Myanmar), and Hangul, in which a word
# has many forms. Without digits.
_UNSPACED = (
    "\u0e01-\u0e4e\u0e81-\u0ecf\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109d\u1100-\u11ff\u1780-\u17dd"
    "\u3005-\u3007\u3021-\u30ff\u3105-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\ua9e0-\ua9ef"
    "\ua9fa-\ua9fe\uaa60-\uaa7f\uac00-\ud7ff\U00016fe0-\U00016fff\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
_FUTURE = "\U00020000-\U0003ffff"  # for Han characters, of which Python may not know all
_IGNORABLE = (  # Unicode: Default_Ignorable_Code_Point; and the tatweel, which makes Arabic words wider
    *(*range(0x115F, 0x1161), *range(0x17B4, 0x17B6), *range(0x180B, 0x1810), *range(0x200B, 0x2010)),
    *(*range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFE00, 0xFE10), *range(0x1BCA0, 0x1BCA4)),
    *(*range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000), 0xAD, 0x34F, 0x61C, 0x640, 0x3164, 0xFEFF, 0xFFA0),
)
# Letters that Unicode does not decompose, though many people type the simple ones; first the Turkish i without a dot.
_PLAIN = str.maketrans({"\u0131": "i", "ø": "o", "ł": "l", "đ": "d", "ħ": "h", "æ": "ae", "œ": "oe"})
# A space, or a letter or digit of Latin, Greek, Cyrillic, Hebrew or Arabic, all of whose marks are removed.
_BASE = (
    " -\u02ff\u0370-\u0482\u048a-\u052f\u05d0-\u05f2\u0620-\u064a\u0660-\u06d5\u06ee-\u06ff\u0750-\u077f\u0870-\u08c9"
    "\u1c80-\u1c8f\u1d00-\u1dbf\u1e00-\u1fff\u2c60-\u2c7f\ua640-\ua66e\ua680-\ua69d\ua720-\ua7ff\uab30-\uab6f"
)
_POSSESSIVE = re.compile(r"['\u2019](?<=\w.)[sS](?!\w)")  # "Newton's" has to be found with "Newton"
_NOT_WORD = "[^\\w \ue000-\uf8ff\U00010000-\U0010ffff]"  # only marks, in a text of words and spaces
_MARKS = re.compile(f"(?<=[{_BASE}]){_NOT_WORD}+")
_MANY_MARKS = re.compile(f"({_NOT_WORD}{{30}}){_NOT_WORD}+")  # more than in any language, and slow to normalize
_UNIT = f"[{_UNSPACED}][^\\w {_FUTURE}]*"  # a character with its marks
_RUN = re.compile(f"(?:{_UNIT})+")
_SINGLE = re.compile(_UNIT)
_MARK = ("Mn", "Mc", "Me")
_ATTACHED = (*_MARK, "Cf")  # categories of characters that belong to the character before


class _KeptCharacters(dict[int, int | None]):
    """Maps letters, digits and marks to themselves, and other characters to a space; looks each one up on first use."""

    def __missing__(self, code: int) -> int:
        is_kept = chr(code).isalnum() or unicodedata.category(chr(code)) in (*_MARK, "Co")
        self[code] = value = code if is_kept or 0x20000 <= code < 0x40000 else ord(" ")
        return value


_CHARACTERS = _KeptCharacters(dict.fromkeys(_IGNORABLE))
_ASCII: Mapping[int, str] = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}


def plain(text: str) -> str:
    """Returns a text without case, marks, invisible characters and `'s`, with spaces between the words.

    Marks remain where they are letters of their own, as in kana and in the scripts of India.
    """
    text = _POSSESSIVE.sub("", text)
    if text.isascii():
        return text.translate(_ASCII)
    decomposed = unicodedata.normalize("NFKD", _MANY_MARKS.sub(r"\1", text)).translate(_CHARACTERS)
    folded = _MARKS.sub("", f" {decomposed}").casefold().translate(_PLAIN)
    return unicodedata.normalize("NFC", folded[1:])


def plain_with_places(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Returns a text as `plain` does, but with `'s`, and where each of its characters begins and ends in the text."""
    if text.isascii():
        return text.translate(_ASCII), [(place, place + 1) for place in range(len(text))]
    starts = [place for place, character in enumerate(text) if unicodedata.category(character) not in _ATTACHED]
    pieces = [(plain(text[start:end]), (start, end)) for start, end in pairwise([*starts, len(text)])]
    return "".join(piece for piece, _ in pieces), [place for piece, place in pieces for _ in piece]


def folded(text: str) -> str:
    """Returns the words of a text, separated by spaces.

    In scripts without spaces, each character makes a word with the next one, and the last one a word alone.
    """
    text = plain(text)
    return text if text.isascii() else _RUN.sub(_pairs, text)


def is_unspaced(word: str) -> bool:
    """Whether a folded word is of a script without spaces."""
    return _SINGLE.match(word) is not None


def first_character(word: str) -> str:
    """Returns the first character of a folded word of a script without spaces, with its marks."""
    found = _SINGLE.match(word)
    return found[0] if found else ""


def is_single(word: str) -> bool:
    """Whether a folded word is a single character of a script without spaces."""
    return _SINGLE.fullmatch(word) is not None


def _pairs(run: re.Match[str]) -> str:
    """Returns the words of a run of characters of scripts without spaces."""
    characters = run[0] if run[0].isalnum() else _SINGLE.findall(run[0])  # without and with marks
    return f" {' '.join(map(add, characters, [*characters[1:], '']))} "
