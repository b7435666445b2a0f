"""Conditions, as they are written."""

import pytest
from hypothesis import given, settings, strategies as st

from mlxbert.errors import ArgumentError
from mlxbert.search.filters import Condition, Filter, make_filter, matches


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


@pytest.mark.parametrize(
    "where",
    ["lang=de", {"n": ">3"}, {"n": "!=3"}, ["lang"], ["=de"], ["n=>3"], ["n=<3"], [""], ["!"], [3], [None]],
    ids=repr,
)
def test_what_is_no_condition_is_refused(where: list[str]) -> None:
    with pytest.raises(ArgumentError):
        make_filter(where)


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        ("x>=2", (2, 2.0, "2", 10, "10", True, 1, "a", "", None), "11111....."),
        ("x<b", ("a", "b", "c", 1, None), "1..1."),
        ("x>nan", ("x", "a", 1), "1.."),
        ("x<2026-02-01", ("2026-01-31T12:00", "2026-02-01", "2025"), "1.1"),
    ],
)
def test_comparisons(condition: str, values: tuple[object, ...], expected: str) -> None:
    (one,) = make_filter([condition]).where
    assert "".join(".1"[one.holds(value)] for value in values) == expected


@settings(max_examples=30, deadline=None)
@given(st.text(), st.sampled_from(["<", "<=", ">", ">="]), st.text() | st.floats() | st.integers() | st.none())
def test_any_comparison_has_an_answer(value: str, compare: str, found: object) -> None:
    assert Condition("x", compare, value).holds(found) in (True, False)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        *[(f"tags={value}", True) for value in ("x", "y z", "w", "y*", "x, y z, w")],
        *[(f"tags={value}", False) for value in ("y", "z", "x, w", "title")],
        *[("tags!=w", False), ("tags!=v", True), ("title=a", False)],
    ],
)
def test_a_value_may_be_one_of_a_list(condition: str, holds: bool) -> None:
    assert matches(make_filter([condition]).where, {"tags": "x, y z, w", "title": "a, b"}, {}) is holds


@pytest.mark.parametrize(
    ("found", "condition", "holds"),
    [
        ("2026-02-10", "date>=2026", True),
        ("2025-12-31", "date>=2026", False),
        ("unknown", "date>=2026", False),
        (2027, "date>=2026", True),
        ("12", "date>=9", True),
        ("12", "date>=2026-01", False),
    ],
)
def test_years_and_dates(found: object, condition: str, holds: bool) -> None:
    assert make_filter([condition]).where[0].holds(found) is holds
