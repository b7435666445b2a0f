"""Sentences, to mark the one that answers best."""

import re

# The end of a sentence and the space behind it; in Chinese and Japanese there need not be any.
SENTENCE = re.compile(
    r"[.!?\u2026][\"')\]\u2019\u201d]*\s++(?![a-z])|[\u3002\uff01\uff1f][\u2019\u201d\u300d\u300f\uff09]*\s*"
)
BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_ENDS = re.compile(f"{SENTENCE.pattern}|{BLANK_LINE.pattern}")


def sentences(text: str) -> list[tuple[int, int]]:
    """Where the sentences of a text start and end, in characters, without the space around them.

    A blank line ends one, too; any other new line is a space. Abbreviations are not known.
    """
    ends = [found.end() for found in _ENDS.finditer(text)]
    return [
        span for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if (span := strip(text, start, end))
    ]


def strip(text: str, start: int, end: int) -> tuple[int, int] | None:
    """A part of a text without the space around it; `None` if there is nothing else."""
    part = text[start:end]
    kept = part.lstrip()
    return (end - len(kept), end - len(kept) + len(kept.rstrip())) if kept else None
