"""Converts exceptions of huggingface_hub and its dependencies to errors that say what to do next."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from mlxbert.errors import HubError
from mlxbert.weights.hub.cache import cache_folder

LOG_IN = "set HF_TOKEN or run `hf auth login`"
_CACHED = "use a cached model, which works offline (`mlxbert models list` shows the cached models)"
_LATER = f"check the network and try again, or {_CACHED}"
_RESUME = "try again; large files that have arrived are not sent again"
NO_SPACE = "set HF_HOME to a folder for the cache on a disk with free space"
NO_HUB = "check HF_ENDPOINT, the proxy and the firewall"
_TOO_MANY, _PROXY_LOGIN = 429, 407


class UnreachableError(HubError):
    """The hub did not answer or is unavailable, or another server answered. A cached copy may be used instead."""


class UnknownRevisionError(HubError):
    """The hub has the model, but not the requested revision."""


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip() or type(problem).__name__).split("\n")[0]


def explain(problem: Exception, name: str, revision: str | None) -> HubError:
    """Returns the error to raise instead of an exception of huggingface_hub."""
    if type(problem).__module__.startswith("huggingface_hub"):
        from huggingface_hub import errors

        if isinstance(problem, errors.LocalEntryNotFoundError) and isinstance(problem.__cause__, Exception):
            return explain(problem.__cause__, name, revision)  # its own message says only that the file is not cached
        if isinstance(problem, errors.HfHubHTTPError):
            return _response_error(problem, problem.response, name, revision)
        if isinstance(problem, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
            return _unreachable_error(name, _endpoint(), "huggingface_hub is in offline mode")
        if isinstance(problem, errors.HFValidationError):
            return HubError(f"{name}: {_first_line(problem)}")
        return HubError(f"{name}: {_first_line(problem)}", hint=NO_HUB)
    if isinstance(problem, OSError):
        return _disk_error(problem, name)
    if _is_from_httpx(problem):
        return _network_error(problem, name)
    return HubError(
        f"{name}: the download failed ({type(problem).__name__}: {_first_line(problem)})",
        hint=f"check that {_endpoint()} is a Hugging Face hub, and check HF_ENDPOINT and the other HF_ variables",
    )


def explain_upload(problem: Exception, name: str, revision: str | None = None) -> HubError:
    """Returns the error to raise instead of an exception of huggingface_hub during an upload."""
    from huggingface_hub import errors

    while isinstance(problem, RuntimeError) and isinstance(problem.__cause__, Exception):
        problem = problem.__cause__  # huggingface_hub only says which file it could not send
    if isinstance(problem, errors.HfHubHTTPError) and (error := _refused_upload(problem, name)) is not None:
        return error
    if isinstance(problem, ValueError):  # of huggingface_hub: the answer to a request, or the hub's check of the card
        lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
        return HubError(f"{name}: the hub refuses the upload ({' '.join(lines) or type(problem).__name__:.500})")
    if isinstance(problem, OSError) and problem.errno is not None:  # an upload writes no file
        what = f"{name}: a file" if problem.filename is None else f"{problem.filename}:"
        return HubError(f"{what} cannot be read ({problem.strerror})")
    error = problem if isinstance(problem, HubError) else explain(problem, name, revision)
    if error.hint is not None and _CACHED in error.hint:
        error.hint = f"check the network and {_RESUME}"
    return error


def _refused_upload(problem: Any, name: str) -> HubError | None:
    """Returns the error for a status that has another meaning for an upload than for a download, else `None`."""
    status, answer = problem.response.status_code, problem.response
    reason = (problem.server_message or f"status {status}").split("\n")[0][:300]
    if answer.headers.get("content-type", "").startswith("text/html"):
        return page_error(name, answer)
    match status:
        case 401:
            return HubError(f"{name}: the hub refuses the token ({reason})", hint=LOG_IN)
        case 403:
            return HubError(
                f"{name}: the token may not write to this repository ({reason})",
                hint=f"{LOG_IN} with a token that can write, and check the namespace",
            )
        case 404:
            return HubError(
                f"{name}: the hub has no such namespace or repository, or the token may not see it ({reason})",
                hint="check the spelling, and which repositories the token is for",
            )
        case 409 | 412:
            return HubError(f"{name}: the repository was changed during the upload ({reason})", hint=_RESUME)
        case 413:
            return HubError(
                f"{name}: the hub refuses a file because it is too large ({reason})",
                hint="write the model in smaller files: mlxbert.convert(FOLDER, NEW, max_shard_size='5GB')",
            )
        case 400 | 402 | 422:
            return HubError(f"{name}: the hub refuses the upload ({reason})")
    return None


def retry_after(answer: Any) -> float | None:
    """Returns how many seconds a busy hub asks clients to wait; `None` if its answer does not say."""
    from email.utils import parsedate_to_datetime  # takes 5 ms, which is wasted if nothing is downloaded

    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    value = answer.headers.get("retry-after", "").strip()
    if value.isdecimal() and value.isascii():
        return float(value[:9])
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # no date, or one without a time zone
        limits = parse_ratelimit_headers(answer.headers) if answer.status_code == _TOO_MANY else None
        return float(limits.reset_in_seconds) if limits is not None and limits.remaining == 0 else None


def timeout_message(problem: Exception) -> str | None:
    """Returns the message for a read timeout; `None` for other exceptions."""
    if not (_is_from_httpx(problem) and type(problem).__name__.endswith("Timeout")):
        return None
    request = _request(problem)
    seconds = None if request is None else request.extensions.get("timeout", {}).get("read")
    return "no data arrived in time" if seconds is None else f"no data arrived for {seconds:.0f} s"


def slow_error(what: str, received: int, seconds: float, lowest: int) -> HubError:
    """Returns the error for an answer that arrives with fewer than `lowest` bytes per second."""
    why = f"the hub sent {received:,} bytes in {seconds:.0f} s, expected at least {lowest:,} bytes per second"
    return UnreachableError(f"{what}: {why}", hint=_LATER)


def page_error(what: str, answer: Any) -> HubError:
    """Returns the error for an answer that is a web page."""
    return not_hub_error(what, f"{_origin(answer.url)} answers with a web page (status {answer.status_code})")


def not_hub_error(what: str, fact: str) -> HubError:
    """Returns the error for an answer that no hub would give."""
    return UnreachableError(
        f"{what}: {fact}, which is not how a hub answers",
        hint=f"open {_endpoint()} in a browser, because the answer may come from a proxy, from the login page of a "
        "network, or from a wrong HF_ENDPOINT",
    )


def _is_from_httpx(problem: Exception) -> bool:
    return type(problem).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")


def _request(problem: Any) -> Any:
    """Returns the request that caused an exception of httpx; `None` if the exception does not know its request."""
    try:
        return problem.request
    except (RuntimeError, AttributeError):
        return None


def _origin(url: Any) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


def _network_error(problem: Any, name: str) -> HubError:
    request = _request(problem)
    server = _endpoint() if request is None else _origin(request.url)  # perhaps a server that the hub redirects to
    kind, text = type(problem).__name__, _first_line(problem)
    if kind == "ProxyError" and str(_PROXY_LOGIN) in text:
        return _proxy_login_error(name)
    if kind == "TooManyRedirects":
        return not_hub_error(name, f"{server} redirects endlessly")
    if kind in ("ReadError", "RemoteProtocolError"):
        return UnreachableError(f"{name}: the connection to {server} broke ({text})", hint=f"try again, or {_CACHED}")
    why = timeout_message(problem)
    if why is not None and kind != "ConnectTimeout":
        return UnreachableError(f"{name}: {why} from {server}", hint=_LATER)
    return _unreachable_error(name, server, text)


def _response_error(problem: Any, answer: Any, name: str, revision: str | None) -> HubError:
    from huggingface_hub import errors

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
        return HubError(f"{name}: the hub lists a file that it does not have ({_first_line(problem)})")
    if status == _PROXY_LOGIN:
        return _proxy_login_error(name)
    if status in (408, _TOO_MANY) or status >= 500:
        return busy_error(answer, name)
    if answer.headers.get("content-type", "").startswith("text/html"):
        return page_error(name, answer)
    if status == 404 and not _is_from_hub(answer):
        return not_hub_error(name, f"{_origin(answer.url)} answers with a bare status 404")
    if status == 404 or isinstance(problem, errors.RepositoryNotFoundError):
        return HubError(
            f"{name}: there is no such model on the hub and no such folder",
            hint=f"check the spelling; for a private model, {LOG_IN}",
        )
    if status in (401, 403):
        reason = (getattr(problem, "server_message", None) or f"status {status}").split("\n")[0]
        return HubError(
            f"{name}: the hub denies access ({reason:.200})", hint=f"{LOG_IN} with a token that can read the model"
        )
    return HubError(f"{name}: the hub refused the request ({_first_line(problem)})")


def _is_from_hub(answer: Any) -> bool:
    """Whether an error response has headers or JSON that only a hub sends."""
    hub_headers = {"x-error-code", "x-error-message"} & {key.lower() for key in answer.headers}
    return bool(hub_headers) or answer.headers.get("content-type", "").startswith("application/json")


def busy_error(answer: Any, name: str) -> HubError:
    """Returns the error for a hub that cannot answer now."""
    status = answer.status_code
    meaning = HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else "a server error"
    wait = retry_after(answer)
    when = "" if wait is None else f" and asks to wait {wait:,.0f} s"
    return UnreachableError(
        f"{name}: {_origin(answer.url)} answers with status {status} ({meaning}){when}",
        hint=("wait, set HF_TOKEN, which allows more requests, or " if status == _TOO_MANY else "try later, or ")
        + _CACHED,
    )


def _proxy_login_error(name: str) -> HubError:
    return UnreachableError(
        f"{name}: the proxy asks for a user name and a password (status {_PROXY_LOGIN})",
        hint="set HTTPS_PROXY to http://USER:PASSWORD@HOST:PORT",
    )


def _unreachable_error(name: str, server: str, why: str) -> HubError:
    return UnreachableError(
        f"{name}: {server} cannot be reached ({why})", hint=f"check the network and the name, or {_CACHED}"
    )


def _disk_error(problem: OSError, name: str) -> HubError:
    if problem.errno is None:
        return HubError(f"{name}: {_first_line(problem)}", hint="try again; complete files are kept")
    return HubError(
        f"{problem.filename or cache_folder()}: cannot be written ({problem.strerror})",
        hint=NO_SPACE,
    )
