"""Sends files to a model's repository on the Hugging Face hub in one commit, and checks what arrived.

huggingface_hub transfers the files. Large files are sent one after another in the thread of the caller, so that an
interrupt takes effect at once; they become visible only with the commit, which also holds the small files. A repository
that was empty before therefore never shows a part of a model.
"""

import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError, HubError
from mlxbert.progress import OnProgress
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.download import fetch_info, library, listing_of
from mlxbert.weights.hub.errors import LOG_IN, explain_upload
from mlxbert.weights.hub.file_hashes import AnnouncedFile, is_commit, mismatch
from mlxbert.weights.hub.guard import AnswerLimits, limited
from mlxbert.weights.hub.transfer import UNCOMPRESSED

_LOG = logging.getLogger("mlxbert")
_MAX_ANSWERS = 2**24  # bytes of all answers to one upload, which are short
_MAIN = "main"


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
        raise ArgumentError(f"name is {name!r:.100}, expected the name of a repository on the hub: NAMESPACE/NAME")
    cache.check_revision(revision)
    if is_commit(revision):
        raise ArgumentError(f"revision is {revision!r}, a commit, expected a branch")


@contextmanager
def _hub_for(name: str) -> Iterator[tuple[Any, Any]]:
    """Yields the module huggingface_hub and its client; answers are limited in size, and errors speak of an upload."""
    if cache.is_offline():
        raise HubError(
            f"{name}: nothing can be uploaded while mlxbert is offline",
            hint="unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE",
        )
    with library(name, None, explain_upload) as hub:
        token = hub.get_token()
        if not token:
            raise HubError(f"{name}: an upload needs a token of the hub, but there is none", hint=LOG_IN)
        try:
            with limited(hub, AnswerLimits(name, _MAX_ANSWERS)), _without_bars(hub):
                yield hub, hub.HfApi(headers=UNCOMPRESSED)
        except Exception as problem:  # of the hub, or of huggingface_hub
            error = explain_upload(problem, name)
            _LOG.info("%s: %s", name, type(problem).__name__)  # the text may have a signed address
            raise HubError(error.message.replace(token, "…"), hint=error.hint) from None


@contextmanager
def _without_bars(hub: Any) -> Iterator[None]:
    before = hub.utils.are_progress_bars_disabled()
    hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            hub.utils.enable_progress_bars()


def find_target(name: str, revision: str | None) -> UploadTarget:
    """Asks the hub who the user is and what the repository holds; nothing is changed.

    A `name` without a namespace is in the user's own.

    Raises:
        HubError: There is no token, the hub refuses it or it may only read, or the hub cannot be reached.
    """
    check_name(name, revision)
    branch = revision or _MAIN
    with _hub_for(name) as (hub, api):
        user = api.whoami()
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
        public, has_branch = info.get("private") is False, True
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
        on_progress: Called with the number of sent bytes and the total, for files in Xet in another thread.

    Raises:
        HubError: The hub refuses or cannot be reached, the repository has changed since `find_target`, or the hub has
            other content than the files.
        Exception: `on_progress` has raised it.
    """
    try:
        with _hub_for(target.name) as (hub, api):
            if not target.exists:
                api.create_repo(target.name, private=not public)
            if not target.has_branch and target.revision != _MAIN:
                api.create_branch(target.name, branch=target.revision, revision=target.commit)
            if target.commit is not None and not files:
                return target.commit
            return _commit(hub, api, target, _Sending(hub, files, on_progress), message)
    except _CallbackError as carrier:
        problem = carrier.problem
    raise problem  # here, so that its cause and its context stay as they are


def _commit(hub: Any, api: Any, target: UploadTarget, sending: "_Sending", message: str) -> str:
    """Sends files to a branch that exists and compares what the hub then has; returns the hash of the commit."""
    additions = []
    for path in sending.files:
        with sending.file(path) as addition:
            # An empty gitignore, since huggingface_hub silently leaves out what the repository's own one names.
            options = {"revision": target.revision, "free_memory": False, "gitignore_content": ""}
            api.preupload_lfs_files(target.name, [addition], **options)
        additions.append(addition)
    with _metadata_warnings(target.name):
        sent = api.create_commit(
            target.name, additions, commit_message=message, revision=target.revision, parent_commit=target.commit
        )
    _compare(hub, target.name, sent.oid, sending.files)
    sending.finish()
    return str(sent.oid)


class _CallbackError(BaseException):
    """Carries an exception of `on_progress` through huggingface_hub, which would convert or retry it."""

    def __init__(self, problem: Exception) -> None:
        super().__init__()
        self.problem = problem


class _Sending:
    """Counts the bytes of files while they are sent."""

    def __init__(self, hub: Any, files: Mapping[str, Path], on_progress: OnProgress | None) -> None:
        self._hub, self.files, self._on_progress = hub, files, on_progress
        self._sizes = {path: file.stat().st_size for path, file in files.items()}
        self.total, self._before = sum(self._sizes.values()), 0
        self._thread = threading.get_ident()
        self._problem: _CallbackError | None = None
        self._listen(0)

    def _listen(self, done: int) -> None:
        """Calls `on_progress`; raises `_CallbackError` if the function fails.

        In a thread of Xet, where nobody would see the error, it is kept for the next call in the thread of the caller.
        """
        if self._problem is None and self._on_progress is not None:
            try:
                self._on_progress(done, self.total)
            except Exception as problem:
                self._problem = _CallbackError(problem)
        if self._problem is not None and threading.get_ident() == self._thread:
            raise self._problem

    @contextmanager
    def file(self, path: str) -> Iterator[Any]:
        """Yields huggingface_hub's object for a file to add; the file is sent in the `with` block."""

        def count(sent: int) -> None:
            done = self._before + min(sent, self._sizes[path])
            self._listen(max(0, min(done, self.total - 1)))

        with _count_xet(self._hub, count):
            yield _addition(self._hub, path, self.files[path], count)
        count(self._sizes[path])
        self._before += self._sizes[path]

    def finish(self) -> None:
        """Reports that everything is done."""
        self._listen(self.total)


@contextmanager
def _count_xet(hub: Any, count: Callable[[int], None]) -> Iterator[None]:
    """Makes huggingface_hub report the bytes that Xet has sent, instead of drawing bars.

    `count` may be called in another thread.
    """
    from huggingface_hub.utils import _runtime, _xet_progress_reporting as reporting

    class Reporter:
        def update_progress(self, group: Any, items: Any = None) -> None:
            count(group.total_transfer_bytes_completed)

        def close(self, *values: Any) -> None:
            pass

    if not _runtime.is_xet_available():
        yield
        return
    bars = reporting.XetUploadProgressReporter
    reporting.XetUploadProgressReporter = Reporter  # type: ignore[assignment,misc]
    hub.utils.enable_progress_bars()  # otherwise Xet reports nothing
    try:
        yield
    finally:
        hub.utils.disable_progress_bars()
        reporting.XetUploadProgressReporter = bars  # type: ignore[misc]


@contextmanager
def _metadata_warnings(name: str) -> Iterator[None]:
    """Logs what the hub remarks about the front matter of a model card; huggingface_hub warns of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if "metadata" in (text := str(warning.message)):
            _LOG.warning("%s: %s", name, " ".join(text.split()))


def _addition(hub: Any, path: str, file: Path, count: Callable[[int], None]) -> Any:
    """Returns huggingface_hub's object for a file to add, which calls `count` with the number of bytes read so far."""

    class Reader(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            count(self.tell())
            return data

    class Addition(hub.CommitOperationAdd):  # type: ignore[misc]
        @contextmanager
        def as_file(self, with_tqdm: bool = False) -> Iterator[io.BufferedReader]:
            if not with_tqdm:  # only read, not sent
                with super().as_file() as opened:
                    yield opened
                return
            with Reader(io.FileIO(file)) as opened:
                yield opened

    with file.open("rb"):  # for the reason if it cannot be read, which huggingface_hub does not say
        return Addition(path_in_repo=path, path_or_fileobj=str(file))


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
