"""Conditions, as they are written, and their patterns."""

import random
import sqlite3
import time

import pytest
from hypothesis import given, settings, strategies as st

from mlxbert.errors import ArgumentError
from mlxbert.search.filters import Condition, Filter, Glob, make_filter, matches
from tests.helpers.cases import together


def test_conditions_are_read() -> None:
    texts = ["lang=de", "a != b=c", "date>=2026-01-01", "n<=1", "n<1", "n>1", "path=a\nb", "x="]
    fields = [(one.field, one.compare, one.value) for one in make_filter(texts).where]
    assert fields == [
        ("lang", "=", "de"), ("a", "!=", "b=c"), ("date", ">=", "2026-01-01"), ("n", "<=", "1"), ("n", "<", "1"),
        ("n", ">", "1"), ("path", "=", "a\nb"), ("x", "=", ""),
    ]  # fmt: skip
    assert not Filter() and not make_filter(()) and make_filter(["a=b"]) and make_filter((), ["a"])


def test_a_path_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h/[me]")
    where = make_filter(["path=~/notes/*"]).where
    found = ["/h/[me]/notes/a.md", "/h/m/notes/a.md", "/x/~/notes/a.md", "/h/[me]/b.md"]
    assert [matches(where, {"path": path}, {}) for path in found] == [True, False, False, False]


@together(
    "where",
    ["lang=de", {"n": ">3"}, {"n": "!=3"}, ["lang"], ["=de"], ["n=>3"], ["n=<3"], [""], ["!"], [3], [None]],
)
def test_what_is_no_condition_is_refused(where: list[str]) -> None:
    with pytest.raises(ArgumentError):
        make_filter(where)


@together(
    ("condition", "values", "expected"),
    [
        ("x>=2", (2, 2.0, "2", 10, "10", True, 1, "a", "", None), "11111....."),
        ("x<b", ("a", "b", "c", 1, None), "1..1."),
        ("x>nan", ("x", "a", 1), "1.."),
        ("x<2026-02-01", ("2026-01-31T12:00", "2026-02-01", "2025"), "1.1"),
        ("x>=2026", ("2026-02-10", "2025-12-31", "unknown", 2027), "1..1"),
        ("x>=9", ("12",), "1"),
        ("x>=2026-01", ("12",), "."),
    ],
)
def test_comparisons(condition: str, values: tuple[object, ...], expected: str) -> None:
    (one,) = make_filter([condition]).where
    assert "".join(".1"[one.holds(value)] for value in values) == expected


@settings(max_examples=30, deadline=None)
@given(st.text(), st.sampled_from(["<", "<=", ">", ">="]), st.text() | st.floats() | st.integers() | st.none())
def test_any_comparison_has_an_answer(value: str, compare: str, found: object) -> None:
    assert Condition("x", compare, value).holds(found) in (True, False)


@together(
    ("condition", "holds"),
    [
        *[(f"tags={value}", True) for value in ("x", "y z", "w", "y*", "x, y z, w")],
        *[(f"tags={value}", False) for value in ("y", "z", "x, w", "title")],
        *[("tags!=w", False), ("tags!=v", True), ("title=a", False)],
    ],
)
def test_a_value_may_be_one_of_a_list(condition: str, holds: bool) -> None:
    assert matches(make_filter([condition]).where, {"tags": "x, y z, w", "title": "a, b"}, {}) is holds


@together(
    ("pattern", "yes", "no"),
    [
        ("*.md", [".md", "a.md", "a/b.md", "a\n.md"], ["a.mdx", "a.MD", ""]),
        ("docs/?", ["docs/a", "docs/\n"], ["docs/", "docs/ab"]),
        ("[!a-c]", ["d", "é", "\n"], ["a", "b", ""]),
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
def test_patterns_match_a_whole_text(pattern: str, yes: list[str], no: list[str]) -> None:
    glob = Glob(pattern)
    assert [text for text in [*yes, *no] if glob.matches(text)] == yes


def test_patterns_are_those_of_sqlite() -> None:
    chosen, base = random.Random(0), sqlite3.connect(":memory:")
    for _ in range(3000):
        pattern = "".join(
            chosen.choices(["a", "b", "ab", "*", "?", "[ab]", "[^a]", "[a-b]", "[]a]"], k=chosen.randint(0, 6))
        )
        text = "".join(chosen.choices("ab]c", k=chosen.randint(0, 7)))
        (expected,) = base.execute("SELECT ? GLOB ?", (text, pattern)).fetchone()
        assert Glob(pattern).matches(text) == bool(expected), (pattern, text)


@together(
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
