"""Sends files to a model's repository on the Hugging Face hub in one commit, and checks what arrived.

huggingface_hub transfers the files. Large files are sent one after another in the thread of the caller, so that an
interrupt takes effect at once; they become visible only with the commit, which also holds the small files. A repository
that was empty before therefore never shows a part of a model. (`upload_folder` makes several commits, and leaves out
what the repository's own gitignore names.)
"""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError, HubError
from mlxbert.progress import OnProgress
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.download import fetch_info, listing_of
from mlxbert.weights.hub.errors import CACHED, LOG_IN, explain_download, library, page_error, refused
from mlxbert.weights.hub.file_hashes import AnnouncedFile, is_commit, mismatch

_LOG = logging.getLogger("mlxbert")
_MAIN = "main"
_RESUME = "try again; large files that have arrived are not sent again"


@dataclass(frozen=True)
class UploadTarget:
    """A repository on the hub, as it is before an upload."""

    name: str  # the name of the repository, `NAMESPACE/NAME`
    revision: str  # the branch that gets the commit
    exists: bool  # whether the repository exists
    # Whether the branch exists. If not, it is created from `commit`.
    has_branch: bool
    public: bool | None  # whether everybody can read the repository; `None` if it does not exist
    # The newest commit of the branch, or of the main branch if the branch does not exist; `None` if the repository does
    # not exist.
    commit: str | None
    listed: Mapping[str, AnnouncedFile]  # the files of `commit`, with their sizes and hashes

    @property
    def url(self) -> str:
        """The address of the repository's page."""
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{self.name}"


def check_name(name: object, revision: str | None) -> None:
    """Raises `ArgumentError` if a repository cannot have this name, or if the revision cannot be a branch."""
    if not isinstance(name, str) or not cache.is_hub_name(name):
        raise ArgumentError(f"`name` is {name!r:.100}, expected the name of a repository on the hub: NAMESPACE/NAME")
    cache.check_revision(revision)
    if is_commit(revision):
        raise ArgumentError(f"`revision` is {revision!r}, a commit, expected a branch")


@contextmanager
def _hub_for(name: str, *, bars: bool = False) -> Iterator[Any]:
    """Yields the module huggingface_hub, with errors that fit an upload, and with its bars if `bars` is set."""
    if cache.is_offline():
        raise HubError(
            f"{name}: nothing can be uploaded while mlxbert is offline",
            hint="unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE",
        )
    with library(name, None, _explain) as hub:
        if not hub.get_token():
            raise HubError(f"{name}: an upload needs a token of the hub, but there is none", hint=LOG_IN)
        silenced = not bars and not hub.utils.are_progress_bars_disabled()
        if silenced:
            hub.utils.disable_progress_bars()
        try:
            yield hub
        finally:
            if silenced:
                hub.utils.enable_progress_bars()


def _explain(problem: Exception, name: str, revision: str | None) -> HubError:
    """Returns the error to raise instead of an exception of huggingface_hub during an upload, without the token."""
    import huggingface_hub

    while isinstance(problem, RuntimeError) and isinstance(problem.__cause__, Exception):
        problem = problem.__cause__  # huggingface_hub only says which file it could not send
    error = _refusal(problem, name) if isinstance(problem, huggingface_hub.errors.HfHubHTTPError) else None
    if error is None and isinstance(problem, ValueError) and not isinstance(problem, json.JSONDecodeError):
        # about the answer to a request, or from the hub's check of the card
        lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
        error = HubError(f"{name}: the hub refuses the upload ({' '.join(lines) or type(problem).__name__:.500})")
    if error is None and isinstance(problem, OSError) and problem.errno is not None:  # an upload writes no file
        what = f"{name}: a file" if problem.filename is None else f"{problem.filename}:"
        error = HubError(f"{what} cannot be read ({problem.strerror})")
    error = error or explain_download(problem, name, revision)
    hint = f"check the network and {_RESUME}" if CACHED in (error.hint or "") else error.hint
    token = huggingface_hub.get_token()
    return HubError(error.message.replace(token, "…") if token else error.message, hint=hint)


def _refusal(problem: Any, name: str) -> HubError | None:
    """Returns the error for a status that has another meaning for an upload than for a download, else `None`."""
    if (error := page_error(name, problem.response)) is not None:
        return error
    reason = refused(problem)
    match problem.response.status_code:
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
                hint="write the model in smaller files: `mlxbert.convert(FOLDER, NEW, max_shard_size='5GB')`",
            )
        case 400 | 402 | 422:
            return HubError(f"{name}: the hub refuses the upload ({reason})")
    return None


def find_target(name: str, revision: str | None) -> UploadTarget:
    """Asks the hub who the user is and what the repository holds; nothing is changed.

    A `name` without a namespace is in the user's own.

    Raises:
        HubError: There is no token, the hub refuses it or it may only read, or the hub cannot be reached.
    """
    check_name(name, revision)
    branch = revision or _MAIN
    with _hub_for(name) as hub:
        user = hub.HfApi().whoami()
        _check_role(name, user)
        if "/" not in name:
            name = f"{user['name']}/{name}"
            check_name(name, revision)
        try:
            info = fetch_info(hub, name, None)
        except hub.errors.RepositoryNotFoundError as problem:
            if isinstance(problem, hub.errors.GatedRepoError):
                raise
            return UploadTarget(name, branch, exists=False, has_branch=False, public=None, commit=None, listed={})
        public, has_branch = info.private is False, True
        try:
            info = info if revision is None else fetch_info(hub, name, revision)
        except hub.errors.RevisionNotFoundError:
            has_branch = False
        commit, listed = listing_of(name, None, info)
        return UploadTarget(
            name, branch, exists=True, has_branch=has_branch, public=public, commit=commit, listed=listed
        )


def _check_role(name: str, user: Any) -> None:
    """Raises `HubError` if the hub's answer about the user is not as expected, or if the token may only read."""
    if not isinstance(user, dict) or not isinstance(user.get("name"), str):
        raise HubError(f"{name}: the hub does not say whose token this is")
    auth = user.get("auth")
    token = auth.get("accessToken") if isinstance(auth, dict) else None
    if isinstance(token, dict) and token.get("role") == "read":
        raise HubError(
            f"{name}: the token of {user['name']} can only read",
            hint=f"{LOG_IN} with a token that can write",
        )


def send(
    target: UploadTarget, files: Mapping[str, Path], message: str, *, public: bool, on_progress: OnProgress | None
) -> str:
    """Sends files in one commit, compares what the hub then has with them, and returns the hash of the commit.

    A repository or a branch that does not exist is created. Other files of the branch remain.

    Args:
        files: The files to send, by their path in the repository. Without files there is no new commit, which
            is possible only if `target.commit` is known.
        on_progress: Called before and after each file with the number of sent bytes and the total. If it is `None`,
            huggingface_hub draws its bars in a terminal or a notebook.

    Raises:
        HubError: The hub refuses or cannot be reached, the repository has changed since `find_target`, or the hub has
            other content than the files.
    """
    listen = on_progress or (lambda done, total: None)
    with _hub_for(target.name) as hub:
        if not target.exists:
            hub.HfApi().create_repo(target.name, private=not public)
        if not target.has_branch and target.revision != _MAIN:
            hub.HfApi().create_branch(target.name, branch=target.revision, revision=target.commit)
        if target.commit is not None and not files:
            return target.commit
        sizes = {path: file.stat().st_size for path, file in files.items()}
    done, additions = 0, []
    for path, file in files.items():
        listen(done, sum(sizes.values()))
        with _hub_for(target.name, bars=on_progress is None) as hub, file.open("rb"):  # says why it cannot be read
            addition = hub.CommitOperationAdd(path, str(file))
            # An empty gitignore, since huggingface_hub silently leaves out what the repository's own one names.
            options = {"revision": target.revision, "free_memory": False, "gitignore_content": ""}
            hub.HfApi().preupload_lfs_files(target.name, [addition], **options)
        additions.append(addition)
        done += sizes[path]
    with _hub_for(target.name) as hub, _metadata_warnings(target.name):
        sent = hub.HfApi().create_commit(
            target.name, additions, commit_message=message, revision=target.revision, parent_commit=target.commit
        )
        _compare(hub, target.name, sent.oid, files)
    listen(done, done)
    return str(sent.oid)


@contextmanager
def _metadata_warnings(name: str) -> Iterator[None]:
    """Logs what the hub remarks about the front matter of a model card; huggingface_hub warns of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if "metadata" in (text := str(warning.message)):
            _LOG.warning("%s: %s", name, " ".join(text.split()))


def _compare(hub: Any, name: str, commit: str, files: Mapping[str, Path]) -> None:
    """Raises `HubError` if the commit lacks a file, or if the hub states another size or hash than the file has."""
    _, listed = listing_of(name, commit, fetch_info(hub, name, commit))
    for path, file in files.items():
        file.stat()  # `mismatch` takes a file that has disappeared for one of the cache
        announced = listed.get(path)
        if announced is not None and announced.hash is None:
            _LOG.warning("%s: the hub sends no hash of %s, so only its size is checked", name, path)
        why = "is missing on the hub" if announced is None else mismatch(file, announced)
        if why is not None:
            raise HubError(
                f"{name}: commit {commit} is not what was sent: {path} {why}",
                hint="check that no program changes the files, then upload them again",
            )
