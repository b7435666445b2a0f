"""Converts exceptions of huggingface_hub and its dependencies into errors that say what to do next."""

import os
from typing import Any

from mlxbert.errors import HubError
from mlxbert.weights.hub.cache import cache_folder

_LOG_IN = "set HF_TOKEN or run `hf auth login`"


class UnreachableError(HubError):
    """The hub did not answer or is temporarily unavailable; a cached copy may be used instead."""


class UnknownRevisionError(HubError):
    """The hub has the model, but not this revision."""


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip() or type(problem).__name__).split("\n")[0]


def explain(problem: Exception, name: str, revision: str | None) -> HubError:
    """The error to raise in place of an exception of huggingface_hub.

    Args:
        problem: The exception.
        name: The requested model.
        revision: The requested revision.
    """
    if type(problem).__module__.startswith("huggingface_hub"):
        from huggingface_hub import errors

        if isinstance(problem, errors.LocalEntryNotFoundError) and isinstance(problem.__cause__, Exception):
            return explain(problem.__cause__, name, revision)  # its own message says only that the file is not cached
        if isinstance(problem, errors.HfHubHTTPError):
            return _refused(problem, problem.response.status_code, name, revision)
        if isinstance(problem, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
            return _unreachable(name, "huggingface_hub is in offline mode")
        if isinstance(problem, errors.HFValidationError):
            return HubError(f"{name}: {_first_line(problem)}")
        return HubError(f"{name}: {_first_line(problem)}", hint="check HF_ENDPOINT, the proxy and the firewall")
    if isinstance(problem, OSError):
        return _disk(problem, name)
    if type(problem).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2"):
        return _unreachable(name, _first_line(problem))
    return HubError(
        f"{name}: the download failed ({type(problem).__name__}: {_first_line(problem)})",
        hint=f"check that {_endpoint()} is a Hugging Face hub; check HF_ENDPOINT and the other HF_ variables",
    )


def _refused(problem: Any, status: int, name: str, revision: str | None) -> HubError:
    """The error for an answer of the hub that refuses the request."""
    from huggingface_hub import errors

    page = f"{_endpoint()}/{name}"
    if isinstance(problem, errors.GatedRepoError):
        return HubError(
            f"{name}: access is restricted, and you do not have it",
            hint=f"request access at {page}, then {_LOG_IN}",
        )
    if isinstance(problem, errors.RevisionNotFoundError):
        return UnknownRevisionError(
            f"{name}: the hub has no revision {revision!r} of this model",
            hint=f"see {page}/tree/main for branches and tags",
        )
    if isinstance(problem, errors.RemoteEntryNotFoundError):
        return HubError(f"{name}: the hub lists a file that it does not have ({_first_line(problem)})")
    if status == 404 or isinstance(problem, errors.RepositoryNotFoundError):
        return HubError(
            f"{name}: no such model on the hub, and no such folder",
            hint=f"check the spelling; for a private model, {_LOG_IN}",
        )
    if status in (401, 403):
        reason = getattr(problem, "server_message", None) or f"status {status}"
        return HubError(
            f"{name}: the hub denies access ({reason})", hint=f"{_LOG_IN} with a token that can read the model"
        )
    if status == 429 or status >= 500:
        return _unreachable(name, f"status {status}")
    return HubError(f"{name}: the hub refused the request ({_first_line(problem)})")


def _unreachable(name: str, why: str) -> HubError:
    return UnreachableError(
        f"{name}: {_endpoint()} cannot be reached ({why})",
        hint="check the network, or use a cached model: `mlxbert models list` shows them, and they work offline",
    )


def _disk(problem: OSError, name: str) -> HubError:
    """The error for a failed write, or, without an error number, for a download that is not as announced."""
    if problem.errno is None:
        return HubError(f"{name}: {_first_line(problem)}", hint="try again; complete files are kept")
    return HubError(
        f"{problem.filename or cache_folder()}: cannot be written ({problem.strerror})",
        hint="set HF_HOME to a folder on a disk with free space; the cache is in it",
    )
