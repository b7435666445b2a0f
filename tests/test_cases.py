"""Cases that are one test, and cases of which some are fast."""

from pathlib import Path

import pytest

from tests.helpers.cases import fast, together


def test_all_cases_run_with_the_fixtures_and_those_that_fail_are_named(tmp_path: Path) -> None:
    seen: list[int] = []

    @together(("number", "text"), ((number, str(number)) for number in range(4)))
    def check(number: int, text: str, tmp_path: Path) -> None:
        seen.append(number)
        assert tmp_path.is_dir() and number != 1
        with pytest.raises(ZeroDivisionError):
            _ = 1 // (number % 2)

    for _ in range(2):
        with pytest.raises(BaseExceptionGroup, match="2 of 4 cases") as caught:
            check(tmp_path=tmp_path)
        assert [error.__notes__ for error in caught.value.exceptions] == [["case: (1, '1')"], ["case: (3, '3')"]]
    assert seen == [0, 1, 2, 3] * 2
    with pytest.raises(ExceptionGroup, match="0 cases"):
        together("number", list)(check)()


def test_the_cases_that_are_not_chosen_are_slow() -> None:
    one, two, three = fast([(1, "a"), (2, "b"), (3, "c")], (2, "b"))
    assert two == (2, "b") and [found.values for found in (one, three)] == [(1, "a"), (3, "c")]
    assert all(mark.name == "slow" for found in (one, three) for mark in found.marks)
    with pytest.raises(ValueError, match="4 is not a case"):
        fast([1, 2, 3], 4)
