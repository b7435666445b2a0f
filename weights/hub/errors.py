"""What huggingface_hub and the libraries under it raise, as errors that say what to do next."""

import os
from typing import Any

from mlxbert.errors import HubError
from mlxbert.weights.hub.cache import cache_folder

_LOG_IN = "set HF_TOKEN or run `hf auth login`"


class UnreachableError(HubError):
    """The hub gave no answer, or not now: a copy in the cache may serve instead."""


class UnknownRevisionError(HubError):
    """The hub knows the model but not this revision of it."""


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip() or type(problem).__name__).split("\n")[0]


def explain(problem: Exception, name: str, revision: str | None) -> HubError:
    """The error to raise for something that huggingface_hub raised.

    Args:
        problem: What it raised.
        name: The model that was asked for.
        revision: Its revision.
    """
    if type(problem).__module__.startswith("huggingface_hub"):
        from huggingface_hub import errors

        if isinstance(problem, errors.LocalEntryNotFoundError) and isinstance(problem.__cause__, Exception):
            return explain(problem.__cause__, name, revision)  # its own text says only that there is no cached file
        if isinstance(problem, errors.HfHubHTTPError):
            return _refused(problem, problem.response.status_code, name, revision)
        if isinstance(problem, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
            return _unreachable(name, "huggingface_hub is in its offline mode")
        if isinstance(problem, errors.HFValidationError):
            return HubError(f"{name}: {_first_line(problem)}")
        return HubError(f"{name}: {_first_line(problem)}", hint="check HF_ENDPOINT, a proxy or a firewall")
    if isinstance(problem, OSError):
        return _disk(problem, name)
    if type(problem).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2"):
        return _unreachable(name, _first_line(problem))
    return HubError(
        f"{name}: the download failed ({type(problem).__name__}: {_first_line(problem)})",
        hint=f"is {_endpoint()} a Hugging Face hub? Check HF_ENDPOINT, and the other variables that begin with HF_",
    )


def _refused(problem: Any, status: int, name: str, revision: str | None) -> HubError:
    """The hub answered, with something else than what was asked for."""
    from huggingface_hub import errors

    page = f"{_endpoint()}/{name}"
    if isinstance(problem, errors.GatedRepoError):
        return HubError(
            f"{name}: its authors give access on request, and you have none",
            hint=f"ask for it at {page}, then {_LOG_IN}",
        )
    if isinstance(problem, errors.RevisionNotFoundError):
        return UnknownRevisionError(
            f"{name}: the hub knows no revision {revision!r} of it", hint=f"{page}/tree/main shows branches and tags"
        )
    if isinstance(problem, errors.RemoteEntryNotFoundError):
        return HubError(f"{name}: the hub lists a file that it does not have ({_first_line(problem)})")
    if status == 404 or isinstance(problem, errors.RepositoryNotFoundError):
        return HubError(
            f"{name}: the hub shows no model of this name, and there is no such folder",
            hint=f"check the spelling; for a private model {_LOG_IN}",
        )
    if status in (401, 403):
        said = getattr(problem, "server_message", None) or f"status {status}"
        return HubError(f"{name}: the hub does not permit it ({said})", hint=f"{_LOG_IN} with a token that may read it")
    if status == 429 or status >= 500:
        return _unreachable(name, f"status {status}")
    return HubError(f"{name}: the hub refuses the request ({_first_line(problem)})")


def _unreachable(name: str, why: str) -> HubError:
    return UnreachableError(
        f"{name}: {_endpoint()} cannot be reached ({why})",
        hint="check the network, or name a model that is here: `mlxbert models list`; "
        "what is in the cache is used without a network",
    )


def _disk(problem: OSError, name: str) -> HubError:
    """Something could not be written; or, where there is no error number, what came is not what was announced."""
    if problem.errno is None:
        return HubError(f"{name}: {_first_line(problem)}", hint="try again; files that are whole are kept")
    return HubError(
        f"{problem.filename or cache_folder()}: cannot be written ({problem.strerror})",
        hint="HF_HOME names the folder that holds the cache; another disk may have room",
    )
