"""Patterns with `*`, `?` and `[…]`, which must match a whole text, in upper and lower case as they stand.

Even with a hostile pattern, the time of a match grows with the product of the lengths of pattern and text at most.
"""

import fnmatch
import re

# `fnmatch` scans the rest of the pattern for each bracket that is not closed, and takes the `^` of `[^a]` for a member.
_BRACKET = re.compile(r"\[(?:([!^]?)(\]?[^]]*+\]))?")


class Glob:
    """A pattern.

    `*` matches any characters, and `?` one character. `[abc]` and `[a-c]` match one character of a set, `[^a]` and
    `[!a]` one character that is not in the set. An unclosed bracket matches itself.
    """

    def __init__(self, pattern: str) -> None:
        spelled = _BRACKET.sub(lambda found: f"[{found[1] and '!'}{found[2]}" if found[2] else "[[]", pattern)
        self._expression = re.compile(fnmatch.translate(spelled))

    def matches(self, text: str) -> bool:
        return self._expression.match(text) is not None
