"""Patterns with `*`, `?` and `[…]`.

Even with a hostile pattern, matching takes only time proportional to the lengths of the pattern and the text.

`fnmatch` is not suitable: for each unclosed bracket it scans the rest of the pattern, and it reads `[^a]` as the set of
the two characters `^` and `a`.
"""

import re
from collections.abc import Iterator


class Glob:
    """A case-sensitive pattern that must match a whole text.

    `*` matches any characters, and `?` one character. `[abc]` and `[a-c]` match one character of a set, `[^a]` and
    `[!a]` one character that is not in the set. An unclosed bracket matches itself.

    Args:
        pattern: The pattern.
    """

    def __init__(self, pattern: str) -> None:
        parts = [list[str]()]  # the parts between stars; each part matches texts of a fixed length
        for element in _elements(pattern):
            if element is None:
                parts.append([])
            else:
                parts[-1].append(element)
        self._min_length, self._end_length = sum(map(len, parts)), len(parts[-1])
        self._parts = [re.compile("".join(part), re.DOTALL) for part in (parts[0], *filter(None, parts[1:-1]))]
        self._end = re.compile("".join(parts[-1]), re.DOTALL) if len(parts) > 1 else None

    def matches(self, text: str) -> bool:
        """Whether the whole text matches.

        A part of the pattern between two stars is tried only at the first place in the text where it matches. No later
        place can be better, since it leaves less text for the rest of the pattern.
        """
        first, *middle = self._parts
        if len(text) < self._min_length:
            return False
        if self._end is None:
            return first.fullmatch(text) is not None
        end = len(text) - self._end_length
        match = first.match(text, 0, end)
        for part in middle:
            if match is None:
                return False
            match = part.search(text, match.end(), end)
        return match is not None and self._end.fullmatch(text, end) is not None


def _elements(pattern: str) -> Iterator[str | None]:
    """Yields a regular expression for each character of a pattern, and `None` for each star."""
    place = 0
    while place < len(pattern):
        char = pattern[place]
        # The first character of a set is a member, even if it is a closing bracket.
        end = pattern.find("]", place + 2 + pattern.startswith(("^", "!"), place + 1)) if char == "[" else -1
        if char == "*":
            yield None
        elif char == "?":
            yield "."
        elif end > 0:
            yield _set(pattern[place + 1 : end])
            place = end
        else:
            yield re.escape(char)
        place += 1


def _set(inside: str) -> str:
    """Converts the inside of brackets to a regular expression."""
    negated = inside.startswith(("^", "!"))
    members, place = list[str](), int(negated)
    while place < len(inside):
        ranges = inside[place + 1 : place + 2] == "-" and place + 2 < len(inside)
        first, last = inside[place], inside[place + 2 if ranges else place]
        if first <= last:
            members.append(f"{re.escape(first)}-{re.escape(last)}" if ranges else re.escape(first))
        place += 3 if ranges else 1
    if not members:
        return "." if negated else "(?!)"
    return f"[{'^' * negated}{''.join(members)}]"
