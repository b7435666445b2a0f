"""Converts exceptions of huggingface_hub and its dependencies to errors that say what to do next."""

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from mlxbert.errors import HubError, MlxbertError
from mlxbert.weights.hub.cache import cache_folder

LOG_IN = "set HF_TOKEN or run `hf auth login`"
CACHED = "use a cached model, which works offline (`mlxbert models list` shows the cached models)"
NO_SPACE = "set HF_HOME to a folder for the cache on a disk with free space"
NO_HUB = "check HF_ENDPOINT, the proxy and the firewall"
_LATER = f"check the network and try again, or {CACHED}"
_TOO_MANY, _PROXY_LOGIN = 429, 407
_LOG = logging.getLogger("mlxbert")
Explain = Callable[[Exception, str, str | None], HubError]


class UnreachableError(HubError):
    """The hub did not answer or is unavailable, or another server answered. A cached copy may be used instead."""


class UnknownRevisionError(HubError):
    """The hub has the model, but not the requested revision."""


@contextmanager
def library(name: str, revision: str | None, explain: Explain | None = None) -> Iterator[Any]:
    """Yields the module huggingface_hub, and converts its errors with `explain`, by default that of this file.

    What huggingface_hub would log to stderr, such as that it waits because a hub is busy, is logged by mlxbert.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when huggingface_hub is imported
    handlers: list[logging.Handler] = []

    def relay(record: logging.LogRecord) -> bool:
        _LOG.log(record.levelno, "%s: %s", name, first_line(record.getMessage()))
        return False

    try:
        with warnings.catch_warnings(action="ignore"):
            import huggingface_hub
            import huggingface_hub.utils.logging  # adds its handler

            handlers = logging.getLogger("huggingface_hub").handlers[:]
            for handler in handlers:
                handler.addFilter(relay)
            yield huggingface_hub
    except MlxbertError:
        raise
    except Exception as problem:  # huggingface_hub passes on errors of four libraries
        _LOG.info("%s: %s: %s", name, type(problem).__name__, first_line(problem))
        raise (explain or explain_download)(problem, name, revision) from None
    finally:
        for handler in handlers:
            handler.removeFilter(relay)


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def first_line(problem: object) -> str:
    """Returns the first line of a message or of an exception's message, without the signatures of addresses."""
    line = str(problem).strip().partition("\n")[0] or type(problem).__name__
    return re.sub(r"\?\S+", "?…", line)  # a signed address gives access to a private file


def explain_download(problem: Exception, name: str, revision: str | None) -> HubError:
    """Returns the error to raise instead of an exception of huggingface_hub."""
    from huggingface_hub import errors

    kind = type(problem).__module__.split(".")[0]
    if isinstance(problem, errors.LocalEntryNotFoundError) and isinstance(problem.__cause__, Exception):
        return explain_download(problem.__cause__, name, revision)  # its own message: the file is not cached
    if isinstance(problem, errors.HfHubHTTPError):
        return _response_error(problem, name, revision)
    if isinstance(problem, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
        return _unreachable_error(name, _endpoint(), "huggingface_hub is in offline mode")
    if isinstance(problem, errors.FileMetadataError):
        return not_hub_error(name, f"{_endpoint()} sends neither a commit nor an ETag of a file")
    if kind == "huggingface_hub":
        no_name = isinstance(problem, errors.HFValidationError)
        return HubError(f"{name}: {first_line(problem)}", hint=None if no_name else NO_HUB)
    if kind in ("httpx", "httpx2", "httpcore", "httpcore2"):  # httpx2, or httpx before huggingface_hub 2
        return _network_error(problem, name)
    if isinstance(problem, OSError) and problem.errno is not None:
        return HubError(f"{problem.filename or cache_folder()}: cannot be written ({problem.strerror})", hint=NO_SPACE)
    return not_hub_error(
        name, f"{_endpoint()} answers something else ({type(problem).__name__}: {first_line(problem)})"
    )


def refused(problem: Any) -> str:
    """Returns the reason that a hub gives for a refusal, a `HfHubHTTPError`."""
    reason = problem.server_message or f"status {problem.response.status_code}"
    return str(reason).split("\n")[0][:300]


def not_hub_error(what: str, fact: str) -> HubError:
    """Returns the error for an answer that no hub would give."""
    return UnreachableError(
        f"{what}: {fact}, which is not how a hub answers",
        hint=f"open {_endpoint()} in a browser, because the answer may come from a proxy, from the login page of a "
        "network, or from a wrong HF_ENDPOINT",
    )


def page_error(what: str, answer: Any) -> HubError | None:
    """Returns the error for an answer that is a web page; `None` for other answers."""
    if not answer.headers.get("content-type", "").startswith("text/html"):
        return None
    return not_hub_error(what, f"{_origin(answer.url)} answers with a web page (status {answer.status_code})")


def _origin(url: Any) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


def _network_error(problem: Any, name: str) -> HubError:
    try:
        request = problem.request
    except (RuntimeError, AttributeError):  # it is not known
        request = None
    server = _endpoint() if request is None else _origin(request.url)  # perhaps a server that the hub redirects to
    kind, text = type(problem).__name__, first_line(problem)
    if kind == "ProxyError" and str(_PROXY_LOGIN) in text:
        return _proxy_login_error(name)
    if kind == "TooManyRedirects":
        return not_hub_error(name, f"{server} redirects endlessly")
    if kind in ("ReadError", "WriteError", "RemoteProtocolError"):
        return UnreachableError(f"{name}: the connection to {server} broke ({text})", hint=f"try again, or {CACHED}")
    if kind.endswith("Timeout") and kind != "ConnectTimeout":
        seconds = None if request is None else request.extensions.get("timeout", {}).get("read")
        waited = "in time" if seconds is None else f"for {seconds:.0f} s"
        return UnreachableError(f"{name}: no data arrived {waited} from {server}", hint=_LATER)
    return _unreachable_error(name, server, text)


def _response_error(problem: Any, name: str, revision: str | None) -> HubError:
    from huggingface_hub import errors

    answer = problem.response
    page, status = f"{_endpoint()}/{name}", answer.status_code
    if isinstance(problem, errors.GatedRepoError):
        return HubError(
            f"{name}: you have no access yet to this restricted model",
            hint=f"request access at {page}, then {LOG_IN}",
        )
    if isinstance(problem, errors.RevisionNotFoundError):
        return UnknownRevisionError(
            f"{name}: the hub has no revision {revision!r} of this model",
            hint=f"see {page}/tree/main for branches and tags",
        )
    if isinstance(problem, errors.RemoteEntryNotFoundError):
        return HubError(f"{name}: the hub lists a file that it does not have ({first_line(problem)})")
    if status == _PROXY_LOGIN:
        return _proxy_login_error(name)
    if status in (408, _TOO_MANY) or status >= 500:
        return _busy_error(answer, name)
    if (error := page_error(name, answer)) is not None:
        return error
    named = {"x-error-code", "x-error-message"} & {*answer.headers}  # as only a hub does
    if status == 404 and not named and "json" not in answer.headers.get("content-type", ""):
        return not_hub_error(name, f"{_origin(answer.url)} answers with a bare status 404")
    if status == 404 or isinstance(problem, errors.RepositoryNotFoundError):
        return HubError(
            f"{name}: there is no such model on the hub and no such folder",
            hint=f"check the spelling; for a private model, {LOG_IN}",
        )
    if status in (401, 403):
        return HubError(
            f"{name}: the hub denies access ({refused(problem)})", hint=f"{LOG_IN} with a token that can read the model"
        )
    return HubError(f"{name}: the hub refused the request ({first_line(problem)})")


def _busy_error(answer: Any, name: str) -> HubError:
    status, wait = answer.status_code, answer.headers.get("retry-after")
    meaning = HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else "a server error"
    when = "" if wait is None else f" and asks to wait (Retry-After: {wait:.40})"
    return UnreachableError(
        f"{name}: {_origin(answer.url)} answers with status {status} ({meaning}){when}",
        hint=("wait, set HF_TOKEN, which allows more requests, or " if status == _TOO_MANY else "try later, or ")
        + CACHED,
    )


def _proxy_login_error(name: str) -> HubError:
    return UnreachableError(
        f"{name}: the proxy asks for a user name and a password (status {_PROXY_LOGIN})",
        hint="set HTTPS_PROXY to http://USER:PASSWORD@HOST:PORT",
    )


def _unreachable_error(name: str, server: str, why: str) -> HubError:
    return UnreachableError(
        f"{name}: {server} cannot be reached ({why})", hint=f"check the network and the name, or {CACHED}"
    )
