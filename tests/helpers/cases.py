"""Marks the cases of a test as fast or slow, and joins cheap cases in one test."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

ALL = bool(os.environ.get("MLXBERT_TEST_ALL"))  # every case of what is sampled otherwise


def fast(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Marks all cases as slow tests, except the chosen ones; each chosen case covers one mechanism."""
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
    """Works like `pytest.mark.parametrize`, but joins many cheap cases in one test.

    Every test costs some milliseconds, even if it does next to nothing. All cases run with the same fixtures. A failure
    names all cases that failed, whether by an assertion, another exception, or a `pytest.raises` without an exception.
    A function in place of the cases is called when the test runs.
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
        others = [parameter for name, parameter in signature.parameters.items() if name not in parameters]
        vars(all_cases)["__signature__"] = signature.replace(parameters=others)
        return all_cases

    return decorate
