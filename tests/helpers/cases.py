"""Cases of a test: which of them are fast, and cheap ones that are one test."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

ALL = bool(os.environ.get("MLXBERT_TEST_ALL"))  # every case of what is sampled otherwise


def fast(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """The cases, of which all but the chosen ones are slow tests: each chosen one proves the mechanism."""
    return [case if case in chosen else pytest.param(*_values(case), marks=pytest.mark.slow) for case in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


Test = Callable[..., None]


def together(
    names: str | tuple[str, ...], cases: Iterable[Any] | Callable[[], Iterable[Any]]
) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize` for many cases that take next to no time, which become one test.

    Each test of its own costs milliseconds. All cases run, with the same fixtures, and a failure names those that fail.

    Args:
        names: Parameters of the test.
        cases: Their values, or what makes the values when the test runs.
    """
    parameters = names.split(",") if isinstance(names, str) else names
    given = cases if callable(cases) else [*cases]

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            made = given() if callable(given) else given
            rows = [(case,) if len(parameters) == 1 else tuple(case) for case in made]
            failed: list[Exception] = [] if rows else [ValueError("there is no case")]
            for row in rows:
                try:
                    test(**fixtures, **dict(zip(parameters, row, strict=True)))
                except Exception as error:
                    error.add_note(f"case: {row!r}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(rows)} cases", failed)

        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in parameters]
        vars(all_cases)["__signature__"] = signature.replace(parameters=others)
        return all_cases

    return decorate
