"""Requests to a hub whose answers are bounded: in bytes, in time, and in how often they are asked for again.

huggingface_hub's own `http_get` and `model_info` write and parse whatever arrives, wait as long as it takes, and begin
anew without end if each attempt brings a byte.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from mlxbert.errors import HubError
from mlxbert.weights.hub.errors import BrokenError, page_error, retry_after, silence

TIMEOUT = 10.0  # seconds; the timeout of huggingface_hub for requests about files
LOWEST, OVER = 1_000, 20.0  # bytes per second, over at least that many seconds
TRIES = 4  # in a row, each of which brings less than ENOUGH
ENOUGH = 2**20  # bytes
FIRST_WAIT = 1.0  # seconds until the second attempt; twice as many until the next
LONGEST_WAIT = 60.0  # seconds that a hub may ask for; longer ones are left to the user
_MOST_JSON, _MOST_ERROR = 2**24, 2**16  # bytes of answers; a listing has about 300 for a file
_BUSY = (408, 429, 500, 502, 503, 504)
_BREAKS = ("ConnectError", "ReadError", "WriteError", "CloseError", "RemoteProtocolError")  # exceptions of httpx
_LOG = logging.getLogger("mlxbert")
_Result = TypeVar("_Result")


@contextmanager
def get(what: str, hub: Any, url: str, headers: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The answer to a request, a response of httpx whose body has not been read."""
    own = {"Accept-Encoding": "identity"}  # sizes and ranges are those of the file, not of a compressed form
    options = {"timeout": hub.constants.HF_HUB_DOWNLOAD_TIMEOUT, "follow_redirects": True}
    sent = hub.utils.build_hf_headers() | own | dict(headers or {})
    with hub.utils.get_session().stream("GET", url, headers=sent, **options) as answer:
        if answer.is_error:  # huggingface_hub would read all of the body
            body = b"".join(pieces(what, answer, _MOST_ERROR))
            kept = [(key, value) for key, value in answer.headers.items() if key != "content-encoding"]
            whole = type(answer)(answer.status_code, headers=kept, content=body, request=answer.request)
            hub.utils.hf_raise_for_status(whole)
        if answer.headers.get("content-type", "").startswith("text/html"):
            raise page_error(what, answer)
        yield answer


def pieces(what: str, answer: Any, most: int) -> Iterator[bytes]:
    """The first `most` bytes of an answer, as they arrive."""
    begin, received = time.monotonic(), 0
    for piece in answer.iter_bytes():
        yield piece[:most]
        most -= len(piece)
        if most <= 0:
            return
        received += len(piece)
        took = time.monotonic() - begin
        if took >= OVER:
            if received < LOWEST * took:
                why = f"received {received:,} bytes in {took:.0f} s, expected {LOWEST:,} per second or more"
                raise BrokenError(what, why, slow=True)
            begin, received = time.monotonic(), 0


def get_json(what: str, hub: Any, url: str) -> Any:
    """The answer to a request for JSON."""
    with get(what, hub, url) as answer:
        body = b"".join(pieces(what, answer, _MOST_JSON + 1))
    if len(body) > _MOST_JSON:
        raise HubError(f"{what}: the answer has more than {_MOST_JSON:,} bytes", hint="check HF_ENDPOINT and the proxy")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise HubError(
            f"{what}: the answer begins with {body[:40]!r}, expected JSON",
            hint="check that HF_ENDPOINT is the address of a Hugging Face hub",
        ) from None


def persist(
    what: str,
    attempt: Callable[[], _Result],
    reached: Callable[[], int] = lambda: 0,
    *,
    patient: bool = True,
) -> _Result:
    """Repeats an attempt while it fails in a way that may pass; without `patient`, only where the hub says when.

    `reached` says how many bytes there are: after `ENOUGH` new ones, earlier failures do not count.
    """
    tried, before = 0, reached()
    while True:
        try:
            return attempt()
        except Exception as problem:  # those of huggingface_hub and of httpx
            if reached() - before >= ENOUGH:
                tried, before = 0, reached()
            tried += 1
            wait = _pause(problem, tried, patient)
            if wait is None or tried >= TRIES:
                raise
            if (why := _reason(problem)) is not None:
                _LOG.warning("%s: %s; trying again%s", what, why, f" in {wait:.0f} s" if wait else "")
        time.sleep(wait)


def _pause(problem: Exception, tried: int, patient: bool) -> float | None:
    """Seconds until the next attempt; `None` if there should be none."""
    own = FIRST_WAIT * 2 ** (tried - 1) if patient else None
    if isinstance(problem, BrokenError) or silence(problem) is not None or type(problem).__name__ in _BREAKS:
        return own
    answer = getattr(problem, "response", None)
    if answer is None or answer.status_code not in _BUSY:
        return None
    asked = retry_after(answer)
    if asked is None:
        return own
    return asked if asked <= LONGEST_WAIT else None


def _reason(problem: Exception) -> str | None:
    """What the user should know of a failed attempt; `None` of a connection that broke, which is taken up at once."""
    if isinstance(problem, BrokenError):
        return problem.why if problem.slow else None
    if (why := silence(problem)) is not None:
        return why
    answer = getattr(problem, "response", None)
    return None if answer is None else f"the hub answers with status {answer.status_code}"
