"""Splits texts into sentences, to mark the one that answers a query best."""

import re

# The end of a sentence and the whitespace after it, which Chinese and Japanese do without.
SENTENCE = re.compile(
    r"[.!?\u2026][\"')\]\u2019\u201d]*\s++(?![a-z])|[\u3002\uff01\uff1f][\u2019\u201d\u300d\u300f\uff09]*\s*"
)
BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_ENDS = re.compile(f"{SENTENCE.pattern}|{BLANK_LINE.pattern}")


def sentences(text: str) -> list[tuple[int, int]]:
    """Returns the start and end of each sentence, in code points, without surrounding whitespace.

    A blank line ends a sentence, too; other line breaks count as spaces. Abbreviations are not recognized.
    """
    ends = [match.end() for match in _ENDS.finditer(text)]
    return [
        span for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if (span := strip(text, start, end))
    ]


def strip(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Strips whitespace from a part of a text; returns the span of the rest, or `None` if nothing remains."""
    part = text[start:end]
    kept = part.lstrip()
    return (end - len(kept), end - len(kept) + len(kept.rstrip())) if kept else None
