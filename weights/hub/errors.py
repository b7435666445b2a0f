"""Converts exceptions of huggingface_hub and its dependencies to errors that say what to do next."""

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mlxbert.errors import HubError, MlxbertError
from mlxbert.weights.hub.cache import cache_folder, is_offline

LOG_IN = "set HF_TOKEN or run `hf auth login`"
CACHED = "use a cached model, which works offline (`mlxbert models list` shows the cached models)"
NO_SPACE = "set HF_HOME to a folder for the cache on a disk with free space"
NO_HUB = "check HF_ENDPOINT, the proxy and the firewall"
_PROXY, _TOO_MANY = "407", "429"
_LATER = {  # hints by the status; for others, the one of ""
    _PROXY: "set HTTPS_PROXY to http://USER:PASSWORD@HOST:PORT",
    _TOO_MANY: f"wait, set HF_TOKEN, which allows more requests, or {CACHED}",
    "": f"check the network and the name, try again, or {CACHED}",
}
_LOG = logging.getLogger("mlxbert")


class UnreachableError(HubError):
    """The hub did not answer or is unavailable, or another server answered. A cached copy may be used instead."""


class UnknownRevisionError(HubError):
    """The hub has the model, but not the requested revision."""


def check_online(name: str) -> None:
    """Raises `HubError` if mlxbert is offline."""
    if is_offline():
        raise HubError(
            f"{name}: the hub cannot be asked while mlxbert is offline",
            hint="unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE",
        )


@contextmanager
def library(
    name: str,
    revision: str | None,
    explain: Callable[[Exception, str, str | None], HubError] | None = None,
    *,
    local: bool = False,
) -> Iterator[Any]:
    """Yields the module huggingface_hub, and converts its errors with `explain`, by default that of this file.

    What huggingface_hub would log to stderr, such as that it waits because a hub is busy, is logged by mlxbert. Unless
    the hub is not asked (`local`), it is an error if mlxbert is offline.
    """
    if not local:
        check_online(name)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when huggingface_hub is imported
    handlers: list[logging.Handler] = []

    def relay(record: logging.LogRecord) -> bool:
        _LOG.log(record.levelno, "%s: %s", name, first_line(record.getMessage()))
        return False

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import huggingface_hub
            import huggingface_hub.utils.logging  # adds its handler

            handlers = logging.getLogger("huggingface_hub").handlers[:]
            for handler in handlers:
                handler.addFilter(relay)
            yield huggingface_hub
        for warning in caught:
            if "metadata" in (text := str(warning.message)):  # what the hub remarks about the front matter of a card
                _LOG.warning("%s: %s", name, " ".join(text.split()))
    except MlxbertError:
        raise
    except Exception as problem:  # huggingface_hub passes on errors of four libraries
        _LOG.info("%s: %s: %s", name, type(problem).__name__, first_line(problem))
        raise (explain or explain_download)(problem, name, revision) from None
    finally:
        for handler in handlers:
            handler.removeFilter(relay)


def first_line(problem: object) -> str:
    """Returns the first line of a message or of an exception's message, without the signatures of addresses."""
    line = str(problem).strip().partition("\n")[0] or type(problem).__name__
    return re.sub(r"\?\S+", "?…", line)  # a signed address gives access to a private file


def explain_download(problem: Exception, name: str, revision: str | None) -> HubError:
    """Returns the error to raise instead of an exception of huggingface_hub."""
    from huggingface_hub import constants, errors

    if isinstance(problem, errors.LocalEntryNotFoundError) and isinstance(problem.__cause__, Exception):
        return explain_download(problem.__cause__, name, revision)  # its own message: the file is not cached
    if isinstance(problem, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return UnreachableError(f"{name}: {first_line(problem)}", hint=_LATER[""])
    if isinstance(problem, errors.HFValidationError):
        return HubError(f"{name}: {first_line(problem)}")
    kind = type(problem).__module__.split(".")[0]
    if isinstance(problem, errors.HfHubHTTPError):
        return _response_error(problem, name, revision)
    if kind.startswith(("httpx", "httpcore")):
        return _network_error(problem, name)
    if isinstance(problem, OSError) and problem.errno is not None:
        return HubError(f"{problem.filename or cache_folder()}: cannot be written ({problem.strerror})", hint=NO_SPACE)
    if kind == "huggingface_hub" and not isinstance(problem, errors.FileMetadataError):
        return HubError(f"{name}: {first_line(problem)}", hint=NO_HUB)
    fact = f"{constants.ENDPOINT} answers something else ({type(problem).__name__}: {first_line(problem)})"
    return not_hub_error(name, fact)


def refused(problem: Any) -> str:
    """Returns the reason that a hub gives for a refusal, a `HfHubHTTPError`."""
    reason = problem.server_message or f"status {problem.response.status_code}"
    return str(reason).split("\n")[0][:300]


def not_hub_error(what: str, fact: str) -> HubError:
    """Returns the error for an answer that no hub would give."""
    from huggingface_hub import constants

    return UnreachableError(
        f"{what}: {fact}, which is not how a hub answers",
        hint=f"open {constants.ENDPOINT} in a browser, because the answer may come from a proxy, from the login page "
        "of a network, or from a wrong HF_ENDPOINT",
    )


def _origin(url: Any) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


def _network_error(problem: Any, name: str) -> HubError:
    from huggingface_hub import constants

    try:
        server = _origin(problem.request.url)  # perhaps a server that the hub redirects to
    except (RuntimeError, AttributeError):  # it is not known
        server = constants.ENDPOINT
    kind, text = type(problem).__name__, first_line(problem)
    if kind == "TooManyRedirects":
        return not_hub_error(name, f"{server} redirects endlessly")
    if kind in ("ReadError", "WriteError", "RemoteProtocolError"):
        what = f"the connection to {server} broke ({text})"
    elif kind.endswith("Timeout") and kind != "ConnectTimeout":
        what = f"no data arrived in time from {server}"
    else:
        what = f"{server} cannot be reached ({text})"
    return UnreachableError(f"{name}: {what}", hint=_LATER.get(text[:3], _LATER[""]))


def _response_error(problem: Any, name: str, revision: str | None) -> HubError:
    from huggingface_hub import constants, errors

    answer, status = problem.response, problem.response.status_code
    page, headers = f"{constants.ENDPOINT}/{name}", answer.headers
    if isinstance(problem, errors.GatedRepoError):
        message, hint = "you have no access yet to this restricted model", f"request access at {page}, then {LOG_IN}"
        return HubError(f"{name}: {message}", hint=hint)
    if isinstance(problem, errors.RevisionNotFoundError):
        message, hint = (
            f"the hub has no revision {revision!r} of this model",
            f"see {page}/tree/main for branches and tags",
        )
        return UnknownRevisionError(f"{name}: {message}", hint=hint)
    if isinstance(problem, errors.RemoteEntryNotFoundError):
        return HubError(f"{name}: the hub lists a file that it does not have ({first_line(problem)})")
    if status in (407, 408, 429) or status >= 500:
        when = f" and asks to wait (Retry-After: {headers['retry-after']:.40})" if "retry-after" in headers else ""
        phrase = f" ({answer.reason_phrase})" if answer.reason_phrase else ""
        message = f"{_origin(answer.url)} answers with status {status}{phrase}{when}"
        return UnreachableError(f"{name}: {message}", hint=_LATER.get(str(status), _LATER[""]))
    if headers.get("content-type", "").startswith("text/html"):
        return not_hub_error(name, f"{_origin(answer.url)} answers with a web page (status {status})")
    named = {"x-error-code", "x-error-message"} & {*headers}  # as only a hub does
    if status == 404 and not named and "json" not in headers.get("content-type", ""):
        return not_hub_error(name, f"{_origin(answer.url)} answers with a bare status 404")
    if status == 404 or isinstance(problem, errors.RepositoryNotFoundError):
        message = "there is no such model on the hub and no such folder"
        return HubError(f"{name}: {message}", hint=f"check the spelling; for a private model, {LOG_IN}")
    if status in (401, 403):
        message = f"the hub denies access ({refused(problem)})"
        return HubError(f"{name}: {message}", hint=f"{LOG_IN} with a token that can read the model")
    return HubError(f"{name}: the hub refused the request ({first_line(problem)})")
