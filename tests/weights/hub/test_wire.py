"""Requests to a hub: how slow they may be, how often they are repeated, how long is waited."""

import importlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError

from mlxbert.errors import HubError
from mlxbert.weights.hub import wire
from mlxbert.weights.hub.errors import BrokenError, explain, retry_after

HTTPX: Any = importlib.import_module(HfHubHTTPError.__mro__[1].__module__.split(".")[0])  # the one that the hub uses


def answer(status: int = 200, **headers: str) -> Any:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return HTTPX.Response(status, headers=named, request=HTTPX.Request("GET", "http://hub/x"))


def refusal(status: int, **headers: str) -> Exception:
    return HfHubHTTPError("refused", response=answer(status, **headers))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, without waiting."""
    found: list[float] = []
    monkeypatch.setattr(wire, "time", SimpleNamespace(sleep=found.append))
    return found


def arriving(monkeypatch: pytest.MonkeyPatch, size: int, seconds: float, count: int) -> Any:
    """An answer of pieces that arrive each after some seconds."""
    clock = [0.0]
    monkeypatch.setattr(wire, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def pieces() -> Iterator[bytes]:
        for _ in range(count):
            clock[0] += seconds
            yield b"x" * size

    return SimpleNamespace(iter_bytes=pieces)


def test_what_ends_in_time_or_is_fast_enough_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"".join(wire.pieces("it", arriving(monkeypatch, 1, 3, 5), 10)) == b"x" * 5
    assert b"".join(wire.pieces("it", arriving(monkeypatch, 1, 30, 1), 1)) == b"x"  # slow, but all is there
    assert len(b"".join(wire.pieces("it", arriving(monkeypatch, 3001, 3, 100), 10**6))) == 300_100
    assert b"".join(wire.pieces("it", arriving(monkeypatch, 8, 1, 100), 20)) == b"x" * 20  # and no more


def failing(problem: Exception, times: int = 10**6) -> tuple[list[int], Callable[[], str]]:
    made: list[int] = []

    def attempt() -> str:
        made.append(len(made))
        if len(made) > times:
            return "there"
        raise problem

    return made, attempt


@pytest.mark.parametrize(
    ("problem", "attempts", "waited"),
    [
        (BrokenError("it", "short"), 4, [1, 2, 4]),
        (HTTPX.ReadTimeout("slow"), 4, [1, 2, 4]),
        (HTTPX.ConnectError("refused"), 4, [1, 2, 4]),
        (HTTPX.RemoteProtocolError("broke"), 4, [1, 2, 4]),
        (refusal(503), 4, [1, 2, 4]),
        (refusal(429, retry_after="7"), 4, [7, 7, 7]),
        (refusal(429, retry_after="61"), 1, []),
        (refusal(404), 1, []),
        (HTTPX.ProxyError("407"), 1, []),
        (HTTPX.UnsupportedProtocol("ftp"), 1, []),
        (OSError(28, "full"), 1, []),
        (HubError("no"), 1, []),
    ],
)
def test_attempts_end(waits: list[float], problem: Exception, attempts: int, waited: list[float]) -> None:
    made, attempt = failing(problem)
    with pytest.raises(type(problem)):
        wire.persist("it", attempt)
    assert (len(made), waits) == (attempts, waited)
    made, attempt = failing(problem, times=1)
    if attempts > 1:
        assert wire.persist("it", attempt) == "there"


def test_attempts_that_bring_much_do_not_count(waits: list[float]) -> None:
    made, attempt = failing(BrokenError("it", "cut"), times=50)
    assert wire.persist("it", attempt, lambda: len(made) * wire.ENOUGH) == "there"
    made, attempt = failing(BrokenError("it", "cut"), times=50)
    with pytest.raises(BrokenError):
        wire.persist("it", attempt, lambda: len(made) * 100_000)


def test_a_listing_is_asked_for_again_only_when_the_hub_says_when(waits: list[float]) -> None:
    for problem, attempts in ((refusal(503), 1), (HTTPX.ReadTimeout(""), 1), (refusal(503, retry_after="2"), 4)):
        made, attempt = failing(problem)
        with pytest.raises(type(problem)):
            wire.persist("it", attempt, patient=False)
        assert len(made) == attempts


def test_when_a_busy_hub_is_to_be_asked_again() -> None:
    later = datetime.now(UTC) + timedelta(seconds=100)
    assert retry_after(answer(429, retry_after="120")) == 120
    assert 90 < (retry_after(answer(503, retry_after=format_datetime(later, usegmt=True))) or 0) <= 100
    assert retry_after(answer(503, retry_after="Thu, 01 Jan 1970 00:00:00 GMT")) == 0
    assert retry_after(answer(429, ratelimit='"api";r=0;t=55')) == 55
    for headers in ({}, {"retry_after": "soon"}, {"retry_after": "-1"}, {"ratelimit": '"api";r=3;t=55'}):
        assert retry_after(answer(429, **headers)) is None


def test_a_proxy_that_asks_for_a_password_is_told() -> None:
    told = explain(HTTPX.ProxyError("407 Proxy Authentication Required"), "org/tiny", None)
    assert "407" in told.message and "HTTPS_PROXY" in str(told.hint)
