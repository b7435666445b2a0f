"""Patterns: what they match, next to SQLite's GLOB, and what hostile ones cost."""

import random
import sqlite3
import time

import pytest

from mlxbert.search.filters import Glob


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.md", [".md", "a.md", "a/b.md", "a\n.md"], ["a.mdx", "a.MD", ""]),
        ("docs/?", ["docs/a", "docs/\n"], ["docs/", "docs/ab"]),
        ("ab*ba", ["abba", "abcba"], ["aba", "ab", "abbac"]),
        ("*a*b*c", ["abc", "xaxbxc"], ["acb", "ab", "abcx"]),
        ("[abc]x", ["ax", "cx"], ["dx", "x"]),
        ("[!a-c]", ["d", "é", "\n"], ["a", "b", ""]),
        ("[^a-c]", ["d"], ["b"]),
        ("[]a]", ["]", "a"], ["[]a]"]),
        ("[!]a]", ["b"], ["]", "a"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[c-a]", [], ["a", "b", "c"]),
        ("[!c-a]", ["a", "b"], [""]),
        ("[[]x", ["[x"], ["x"]),
        ("a[b", ["a[b"], ["ab"]),
        ("[&&a||b~~.-]", ["&", "|", "~", "-", "."], ["c", ","]),
        ("", [""], ["a"]),
        ("*", ["", "a"], []),
        ("é?", ["éa"], ["e\u0301a"]),
        (".+(x)\\", [".+(x)\\"], ["a"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    glob = Glob(pattern)
    assert [text for text in [*yes, *no] if glob.matches(text)] == yes


def test_sqlite_agrees() -> None:
    chosen, base = random.Random(0), sqlite3.connect(":memory:")
    for _ in range(3000):
        pattern = "".join(
            chosen.choices(["a", "b", "ab", "*", "?", "[ab]", "[^a]", "[a-b]", "[]a]"], k=chosen.randint(0, 6))
        )
        text = "".join(chosen.choices("ab]c", k=chosen.randint(0, 7)))
        (expected,) = base.execute("SELECT ? GLOB ?", (text, pattern)).fetchone()
        assert Glob(pattern).matches(text) == bool(expected), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        "[" * 10_000,
        "[a" * 5000,
        "*a" * 50 + "b",
        "*[" + "a" * 9000 + "]b",
        "*?a" * 40 + "b",
        "[a-" * 3000,
        "*" * 10_000,
    ],
)
def test_hostile_patterns_take_no_time(pattern: str) -> None:
    started = time.process_time()
    glob = Glob(pattern)
    assert [glob.matches("a" * 200 + str(number)) for number in range(200)] == [not pattern.strip("*")] * 200
    assert time.process_time() - started < 1
