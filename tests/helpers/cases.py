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
    every = [*cases]
    if absent := [case for case in chosen if case not in every]:
        raise ValueError(f"{absent[0]!r} is not a case")  # otherwise no test of it would run, or none at all
    return [case if case in chosen else pytest.param(*_values(case), marks=pytest.mark.slow) for case in every]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


Test = Callable[..., None]


def together(
    names: str | tuple[str, ...], cases: Iterable[Any] | Callable[[], Iterable[Any]]
) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize` for many cases that take next to no time, which become one test.

    Each test of its own costs milliseconds. All cases run, with the same fixtures, and a failure names the cases that
    fail: an assertion, another exception, or `pytest.raises` without one.

    Args:
        names: Parameters of the test.
        cases: Their values, or what makes the values when the test runs.
    """
    parameters = names.split(",") if isinstance(names, str) else names
    make = cases if callable(cases) else [*cases].copy

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            rows = [(case,) if len(parameters) == 1 else tuple(case) for case in make()]
            failed: list[BaseException] = [] if rows else [ValueError("there is no case")]
            for row in rows:
                try:
                    test(**fixtures, **dict(zip(parameters, row, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # the latter is not an `Exception`
                    error.add_note(f"case: {row!r}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(rows)} cases", failed)

        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in parameters]
        vars(all_cases)["__signature__"] = signature.replace(parameters=others)
        return all_cases

    return decorate
