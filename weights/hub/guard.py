"""Checks the answers of a hub where huggingface_hub does not: metadata, the number of bytes, and the speed.

huggingface_hub names files after headers: the ETag `/…/site-packages/evil.pth` made it write a file with this path,
which Python runs at startup. It reads bodies of any length at any speed, stores a web page as a file, waits as long as
a hub asks, and restarts the transfer of a file without limit. The checks are hooks in its HTTP session, which a user
may have configured, and in its function that reads the metadata of a file. `AnswerLimits` apply to the thread that sets
them.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from mlxbert.errors import HubError
from mlxbert.weights.hub.errors import NO_HUB, busy_error, explain, page_error, retry_after, slow_error, timeout_message
from mlxbert.weights.hub.file_hashes import is_commit, is_etag, is_size

MIN_SPEED, SPEED_WINDOW = 1_000, 20.0  # bytes per second, measured over at least this many seconds
LONGEST_WAIT = 60  # seconds that a hub may ask for; longer waits are left to the user
_MAX_ERROR = 2**16  # bytes of the body of an error
_BUSY = (408, 429, 500, 502, 503, 504)
_GUARDED = "guarded_by_mlxbert"  # an attribute of a function
_LOG = logging.getLogger("mlxbert")


@dataclass
class AnswerLimits:
    """The limits for the hub's answers while one thing is fetched: the list of files, a file, or a part of a file."""

    what: str  # the model and the file, for messages
    # The maximum number of bytes of all bodies together. There may be several bodies, because a transfer restarts if
    # its connection breaks.
    max_bytes: int
    # Called with the metadata of a file, an `HfFileMetadata`, before the file is requested.
    check: Callable[[Any], None] = lambda metadata: None
    retried: bool = True  # whether huggingface_hub repeats requests to a busy hub that does not say when to try again
    received: int = 0  # the number of bytes of all bodies so far
    broken: Exception | None = None  # the last exception that ended a body early


_LIMITS: ContextVar[AnswerLimits | None] = ContextVar("limits", default=None)


@contextmanager
def limited(hub: Any, limits: AnswerLimits) -> Iterator[None]:
    """In a `with` block, limits the answers that huggingface_hub receives in this thread.

    `hub` is the module huggingface_hub.
    """
    guard_library()
    _watch(hub.get_session())
    token = _LIMITS.set(limits)
    try:
        yield
    finally:
        _LIMITS.reset(token)


def _watch(session: Any) -> None:
    """Makes a session check each answer before its body is read."""
    hooks = session.event_hooks["response"]
    if _check_answer not in hooks:
        hooks.append(_check_answer)


def _check_answer(answer: Any) -> None:
    limits = _LIMITS.get()
    if limits is None:
        return
    if answer.status_code in _BUSY:
        wait = retry_after(answer)
        if (wait is None and not limits.retried) or (wait or 0) > LONGEST_WAIT:
            raise busy_error(answer, limits.what)
        _LOG.warning("%s: the hub answers with status %d", limits.what, answer.status_code)
    if answer.is_success:
        if answer.headers.get("content-type", "").startswith("text/html"):
            raise page_error(limits.what, answer)
        if answer.headers.get("content-encoding", "identity") != "identity":  # a few bytes may expand to many
            raise HubError(
                f"{limits.what}: the hub compressed its answer, although this was not requested", hint=NO_HUB
            )
    httpx = sys.modules[type(answer).__module__.partition(".")[0]]  # httpx2, or httpx before huggingface_hub 2
    answer.stream = type("Body", (_LimitedBody, httpx.SyncByteStream), {})(answer, limits, httpx.RemoteProtocolError)


class _LimitedBody:
    """The body of an answer as it arrives. The limits are checked, and the body of an error response is truncated."""

    def __init__(self, answer: Any, limits: AnswerLimits, resumed: type[Exception]) -> None:
        self._stream, self._is_error, self._limits, self._resumed = answer.stream, answer.is_error, limits, resumed

    def __iter__(self) -> Iterator[bytes]:
        limits = self._limits
        first = before = limits.received
        begin, seconds = time.monotonic(), 0.0
        for piece in self._pieces():
            if seconds >= SPEED_WINDOW:
                if limits.received - before < MIN_SPEED * seconds:
                    raise slow_error(limits.what, limits.received - before, seconds, MIN_SPEED)
                before, begin = limits.received, begin + seconds
            limits.received += len(piece)
            if self._is_error:
                if limits.received - first > _MAX_ERROR:
                    return
            elif limits.received > limits.max_bytes:
                if limits.broken is not None:
                    raise explain(limits.broken, limits.what, None)
                raise HubError(f"{limits.what}: the hub sends more than {limits.max_bytes:,} bytes", hint=NO_HUB)
            yield piece
            seconds = time.monotonic() - begin  # counts if another piece arrives

    def _pieces(self) -> Iterator[bytes]:
        """Yields the pieces of the body; makes huggingface_hub resume the transfer even if the connection is reset."""
        try:
            yield from self._stream
        except Exception as problem:  # of httpx
            self._limits.broken = problem
            if (why := timeout_message(problem)) is not None:
                _LOG.warning("%s: %s", self._limits.what, why)
            if type(problem).__name__ != "ReadError":
                raise
            raise self._resumed(str(problem)) from problem

    def close(self) -> None:
        self._stream.close()


def metadata_problem(metadata: Any) -> str | None:
    """Returns what is wrong with the metadata of a file, an `HfFileMetadata`; `None` if it is safe to use in paths."""
    if not is_commit(metadata.commit_hash):
        return f"the hub returned the commit {metadata.commit_hash!r:.60}, expected 40 hexadecimal digits"
    if not is_etag(metadata.etag):
        return f"the hub returned the ETag {metadata.etag!r:.60}, expected a hash without separators"
    if metadata.size is not None and not is_size(metadata.size):
        return f"the hub returned the size {metadata.size!r:.60}, expected a number of bytes"
    return None


def guard_library() -> None:
    """Makes huggingface_hub check the values that it uses in paths, even if another package calls it."""
    from huggingface_hub import HfApi, file_download

    if not hasattr(file_download.get_hf_file_metadata, _GUARDED):
        guarded = _with_checks(file_download.get_hf_file_metadata)
        setattr(guarded, _GUARDED, True)
        file_download.get_hf_file_metadata = guarded
        HfApi.dataset_info = _with_commit(HfApi.dataset_info)  # type: ignore[method-assign]


def _refuse(why: str | None) -> None:
    """Raises huggingface_hub's error for invalid metadata, unless `why` is `None`.

    After this error, huggingface_hub uses its cache as if it were offline.
    """
    from huggingface_hub.errors import FileMetadataError

    if why is not None:
        raise FileMetadataError(why)


def _with_checks(real: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `get_hf_file_metadata` so that its result is checked."""
    from huggingface_hub import constants, errors, get_session

    @wraps(real)
    def metadata(*args: Any, **options: Any) -> Any:
        limits = _LIMITS.get()
        if limits is not None:
            options["timeout"] = constants.HF_HUB_ETAG_TIMEOUT  # also for repeated requests, which may take a minute
        try:
            result = real(*args, **options)
        except errors.RemoteEntryNotFoundError as problem:  # cached in a folder named by the commit
            commit = problem.response.headers.get("X-Repo-Commit")
            _refuse(None if commit is None or is_commit(commit) else f"the hub returned the commit {commit!r:.60}")
            raise
        except Exception as problem:  # of httpx
            if limits is not None and (why := timeout_message(problem)) is not None:
                _LOG.warning("%s: %s", limits.what, why)
            raise
        _refuse(metadata_problem(result))
        if limits is not None:
            limits.check(result)
            _watch(get_session())  # huggingface_hub replaces its session when a connection fails
        return result

    return metadata


def _with_commit(real: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `dataset_info` so that the commit in its result is checked."""

    @wraps(real)
    def info(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        _refuse(None if is_commit(result.sha) else f"the hub returned the commit {result.sha!r:.60}")
        return result

    return info
