"""Patterns with `*`, `?` and `[…]`: what they cost grows with pattern and text alone, however hostile these are.

`fnmatch` is of no use here: for each bracket that is not closed it walks to the end of the pattern, character by
character, and it reads `[^a]` as the set of these two.
"""

import re
from collections.abc import Iterator


class Glob:
    """A pattern of whole texts; upper and lower case differ.

    `*` stands for any characters, `?` for one; `[abc]` and `[a-c]` for one of some, `[^a]` and `[!a]` for any other.
    A bracket that is not closed stands for itself.

    Args:
        pattern: The pattern.
    """

    def __init__(self, pattern: str) -> None:
        parts = [list[str]()]  # between stars; each matches texts of one length
        for one in _elements(pattern):
            if one is None:
                parts.append([])
            else:
                parts[-1].append(one)
        self._least, self._last = sum(map(len, parts)), len(parts[-1])
        self._parts = [re.compile("".join(part), re.DOTALL) for part in (parts[0], *filter(None, parts[1:-1]))]
        self._end = re.compile("".join(parts[-1]), re.DOTALL) if len(parts) > 1 else None

    def matches(self, text: str) -> bool:
        """Whether the pattern is one of a text.

        The first place where a part between two stars fits is as good as any other.
        """
        first, *others = self._parts
        if len(text) < self._least:
            return False
        if self._end is None:
            return first.fullmatch(text) is not None
        end = len(text) - self._last
        found = first.match(text, 0, end)
        for part in others:
            if found is None:
                return False
            found = part.search(text, found.end(), end)
        return found is not None and self._end.fullmatch(text, end) is not None


def _elements(pattern: str) -> Iterator[str | None]:
    """A regular expression for each character that a pattern asks for, and `None` for a star."""
    place = 0
    while place < len(pattern):
        char = pattern[place]
        # The first character of a set is one of it, even if it is a bracket.
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
    """A regular expression for one of some characters, or for any other."""
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
