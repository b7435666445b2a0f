"""Answers of a hub: how long a body may be, how slowly it may arrive, and how long a busy hub is waited for."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest

from mlxbert.errors import HubError
from mlxbert.weights.hub import guard
from mlxbert.weights.hub.errors import explain, retry_after
from mlxbert.weights.hub.guard import AnswerLimits, limited
from tests.helpers.hub_machine import HTTPX


class TimedBody(HTTPX.SyncByteStream):  # type: ignore[misc]
    """A body of pieces that arrive each after some seconds, by a clock of its own; the last may be an exception."""

    def __init__(self, seconds: float, *pieces: bytes | Exception) -> None:
        self.now, self.seconds, self.pieces = 0.0, seconds, pieces

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            self.now += self.seconds
            if isinstance(piece, Exception):
                raise piece
            yield piece


def client(body: TimedBody, status: int = 200, **headers: str) -> Any:
    """A client whose server always gives one answer."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return HTTPX.Client(
        transport=HTTPX.MockTransport(lambda request: HTTPX.Response(status, headers=named, stream=body))
    )


def received(
    monkeypatch: pytest.MonkeyPatch, body: TimedBody, limits: AnswerLimits, status: int = 200, **headers: str
) -> bytes:
    """The body of an answer within the limits."""
    session = client(body, status, **headers)
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: body.now))
    with limited(SimpleNamespace(get_session=lambda: session), limits):
        content: bytes = session.get("http://hub/x").content
    return content


@pytest.mark.parametrize(
    "body",
    [
        TimedBody(3, *[b"x"] * 5),
        TimedBody(30, b"x"),  # slow, but all is there
        TimedBody(3, *[b"x" * 3001] * 100),
        TimedBody(1, *[b"x" * 100] * 3 + [b"x" * 10**6]),
    ],
)
def test_a_body_that_ends_in_time_or_is_fast_enough_arrives(monkeypatch: pytest.MonkeyPatch, body: TimedBody) -> None:
    whole = b"".join(piece for piece in body.pieces if isinstance(piece, bytes))
    assert received(monkeypatch, body, AnswerLimits("it", len(whole))) == whole


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            TimedBody(1, *[b"x" * 999] * 100),
            "it: the hub sent 19,980 bytes in 20 s, expected at least 1,000 bytes per second",
        ),
        (TimedBody(0, b"x" * 60, b"x" * 41), "it: the hub sends more than 100 bytes"),
    ],
)
def test_a_body_that_is_slow_or_long_is_refused(monkeypatch: pytest.MonkeyPatch, body: TimedBody, message: str) -> None:
    with pytest.raises(HubError) as caught:
        received(monkeypatch, body, AnswerLimits("it", 100 if "more" in message else 10**6))
    assert message in caught.value.message


def test_of_an_error_only_the_beginning_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    body = TimedBody(0, *[b"x" * 2**15] * 2, HubError("it was read on"))
    assert len(received(monkeypatch, TimedBody(0, *body.pieces[:1] * 1000), AnswerLimits("it", 1), status=404)) == 2**16
    slow = TimedBody(1, *[b"x" * 2**11] * 1000)
    assert len(received(monkeypatch, slow, AnswerLimits("it", 1), status=404)) == 2**16


def test_a_compressed_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = AnswerLimits("it", 9)
    assert received(monkeypatch, TimedBody(0, b"{}"), limits, Content_Encoding="identity") == b"{}"
    with pytest.raises(HubError, match="compressed"):
        received(monkeypatch, TimedBody(0, b"{}"), limits, Content_Encoding="gzip")


def test_a_file_whose_connection_breaks_may_begin_anew_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is reset ends like one that is closed early: huggingface_hub resumes after that."""
    limits = AnswerLimits("it", 200)
    for _ in range(2):
        with pytest.raises(HTTPX.RemoteProtocolError):
            received(monkeypatch, TimedBody(0, b"x" * 99, HTTPX.ReadError("reset")), limits)
    with pytest.raises(HubError, match=r"it: the connection to .* broke"):
        received(monkeypatch, TimedBody(0, b"x" * 99), limits)


@pytest.mark.parametrize(
    ("status", "retried", "headers", "refused"),
    [
        (503, False, {}, True),
        (503, True, {}, False),
        (503, False, {"Retry_After": "60"}, False),
        (429, True, {"Retry_After": "61"}, True),
        (429, True, {"ratelimit": '"api";r=0;t=300'}, True),
        (404, False, {}, False),
    ],
)
def test_a_busy_hub_is_waited_for_a_minute(
    monkeypatch: pytest.MonkeyPatch, status: int, retried: bool, headers: dict[str, str], refused: bool
) -> None:
    limits = AnswerLimits("it", 1, retried=retried)
    if not refused:
        assert received(monkeypatch, TimedBody(0, b"x"), limits, status, **headers) == b"x"
        return
    with pytest.raises(HubError, match=f"status {status}"):
        received(monkeypatch, TimedBody(0, b"x"), limits, status, **headers)


def test_other_threads_and_later_requests_have_no_limits() -> None:
    session, answers = client(TimedBody(0, b"x" * 9)), list[Any]()
    with limited(SimpleNamespace(get_session=lambda: session), AnswerLimits("it", 1)):
        thread = threading.Thread(target=lambda: answers.append(session.get("http://hub/x")))
        thread.start()
        thread.join()
        with pytest.raises(HubError):
            session.get("http://hub/x")
    answers.append(session.get("http://hub/x"))
    assert [len(answer.content) for answer in answers] == [9, 9]


def test_a_client_of_the_user_is_watched_once() -> None:
    session = client(TimedBody(0, b"x"))
    for _ in range(3):
        with limited(SimpleNamespace(get_session=lambda: session), AnswerLimits("it", 1)):
            pass
    assert len(session.event_hooks["response"]) == 1


def answer(status: int = 200, **headers: str) -> Any:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return HTTPX.Response(status, headers=named, request=HTTPX.Request("GET", "http://hub/x"))


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
