"""Downloads models from the Hugging Face hub into the shared cache, and removes models from it.

huggingface_hub transfers the files and manages the cache: it supports tokens, mirrors, proxies, locks and Xet. Three
parts are our own:

- Only the files that a model needs are fetched. They are fetched one after another in the thread of the caller, so that
  an interrupt takes effect at once: `snapshot_download` would first finish the files in progress.
- `transfer` compares each file with the size and the hash that the hub announced. A commit is recorded when all of its
  files are correct; the files of a commit without a record are compared again before they are used.
- `guard` limits the answers of a hub.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlxbert.durable_files import check_space, identity, is_system_file
from mlxbert.errors import HubError, MlxbertError
from mlxbert.progress import OnProgress
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.errors import NO_HUB, NO_SPACE, explain
from mlxbert.weights.hub.file_hashes import AnnouncedFile, is_commit, is_hash, is_size, mismatch
from mlxbert.weights.hub.guard import AnswerLimits, limited
from mlxbert.weights.hub.needed_files import leaves_folder, needed_files, parse_json
from mlxbert.weights.hub.transfer import UNCOMPRESSED, fetch_file

_LOG = logging.getLogger("mlxbert")
# Telemetry requests a list from the hub and reads an answer of any length. Progress is reported once per chunk.
_SETTINGS = {"HF_HUB_DISABLE_TELEMETRY": True, "DOWNLOAD_CHUNK_SIZE": 2**20}
_MAX_LISTING = 2**24  # bytes; about 300 per file


@contextmanager
def library(
    name: str, revision: str | None, explain: Callable[[Exception, str, str | None], HubError] = explain
) -> Iterator[Any]:
    """Yields the module huggingface_hub with its logging silenced, and converts its errors with `explain`.

    Without this, huggingface_hub writes to stderr about retries, tokens and file systems without symlinks.
    """
    log = logging.getLogger("huggingface_hub")
    level: int | None = None
    constants: Any = None
    settings: dict[str, Any] = {}
    try:
        with warnings.catch_warnings(action="ignore"):
            import huggingface_hub
            import huggingface_hub.utils.logging  # sets its log level, so it is imported before the level is saved

            level = log.level
            log.setLevel(logging.CRITICAL)
            constants = huggingface_hub.constants
            settings = {setting: getattr(constants, setting) for setting in _SETTINGS}
            vars(constants).update(_SETTINGS)
            yield huggingface_hub
    except MlxbertError:
        raise
    except Exception as problem:  # huggingface_hub passes on errors of four libraries
        _LOG.info("%s: %s: %s", name, type(problem).__name__, problem)
        raise explain(problem, name, revision) from None
    finally:
        if level is not None:
            log.setLevel(level)
        if constants is not None:
            vars(constants).update(settings)


def fetch_info(hub: Any, name: str, revision: str | None) -> Any:
    """Fetches the hub's description of a model at a revision, as parsed JSON; `listing_of` reads it.

    `HfApi.model_info` is not used: it ignores a busy hub's request to retry later, and its errors about unexpected JSON
    are unclear.
    """
    hub.utils.validate_repo_id(name)
    at = "" if revision is None else f"/revision/{quote(revision, safe='')}"
    url = f"{hub.constants.ENDPOINT}/api/models/{name}{at}?blobs=true"
    with limited(hub, AnswerLimits(name, _MAX_LISTING, retried=False)):
        options = {"timeout": hub.constants.HF_HUB_DOWNLOAD_TIMEOUT, "max_retries": 3, "retry_on_exceptions": ()}
        answer = hub.utils.http_backoff("GET", url, headers=hub.utils.build_hf_headers(headers=UNCOMPRESSED), **options)
        hub.utils.hf_raise_for_status(answer)
    try:
        return answer.json()
    except (ValueError, RecursionError):
        raise HubError(
            f"{name}: the hub's answer begins with {answer.content[:40]!r}, expected JSON", hint=NO_HUB
        ) from None


def listing_of(name: str, revision: str | None, info: Any) -> tuple[str, dict[str, AnnouncedFile]]:
    """Returns the hash of the commit in a description, and its files with their announced sizes and hashes."""
    commit, listed = (info.get("sha"), info.get("siblings") or []) if isinstance(info, dict) else (None, [])
    if not isinstance(commit, str) or not is_commit(commit):
        raise HubError(f"{name}: the hub returned the commit {commit!r:.60}, expected 40 hexadecimal digits")
    if is_commit(revision) and commit != revision:
        raise HubError(f"{name}: the hub returned the commit {commit}, expected {revision}")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise HubError(f"{name}: the hub lists the files {listed!r:.60}, expected a list of objects")
    return commit, {entry.get("rfilename"): _checked(name, entry) for entry in listed}


def _checked(name: str, entry: dict[str, Any]) -> AnnouncedFile:
    """Checks the entry of a file in the hub's list; returns the announced size and hash."""
    file, size, large = entry.get("rfilename"), entry.get("size"), entry.get("lfs")
    if not isinstance(file, str) or leaves_folder(file):
        raise HubError(
            f"{name}: the repository lists the file {file!r:.60} outside its folder, so nothing was written",
            hint="do not trust this repository",
        )
    if size is not None and not is_size(size):
        raise HubError(f"{name}: the hub lists {file!r:.60} with the size {size!r:.60}, expected a number of bytes")
    hash = large.get("sha256") if isinstance(large, dict) else entry.get("blobId")
    return AnnouncedFile(size, hash if is_hash(hash) else None)


class Commit:
    """A commit of a model on the hub, and the files that the model needs.

    Attributes:
        hash: The commit hash.
        folder: The folder that holds the commit's files in the cache.
        listed: All files of the commit, with their announced sizes and hashes.
        needed: The files that the model needs, small files first. The small files that determine this list are already
            in the cache.
    """

    def __init__(self, hub: Any, name: str, revision: str | None) -> None:
        """Asks the hub for the commit of the revision; `hub` is the module that `library` yields."""
        self.hash, self.listed = listing_of(name, revision, fetch_info(hub, name, revision))
        self.folder = cache.repository_folder(name) / "snapshots" / self.hash
        self._snapshot = cache.Snapshot(name, self.hash, self.folder)
        self._hub, self._name = hub, name
        self._recorded = self._snapshot.listing() is not None
        if not self._recorded:
            self._snapshot.listing_file.unlink(missing_ok=True)  # huggingface_hub would name files by its hashes
        self.needed = needed_files(name, self.listed, lambda file: parse_json(name, self._verified(file)), self.has)

    def has(self, file: str, *, content: bool = False) -> bool:
        """Whether a file is in the cache with the expected size and, if `content` is set, the expected hash."""
        expected = self._snapshot.expected(file, self.listed)
        return mismatch(self.folder / file, expected, content=content) is None

    def _verified(self, file: str) -> Path:
        return self.folder / file if self.has(file, content=True) else self._fetch(file, lambda received: None)

    def fetch(self, files: Iterable[str], on_progress: OnProgress | None, *, check: bool = False) -> None:
        """Downloads the files that are not in the cache and, if `check` is set, the files whose hash differs."""
        missing = [file for file in files if not self.has(file, content=check or not self._recorded)]
        if missing:
            total = sum(self.listed[file].size or 0 for file in missing)
            check_space(self.folder, total, hint=NO_SPACE)
            listen = on_progress or (lambda done, total: None)
            before = 0

            def count(received: int) -> None:
                listen(max(0, min(before + received, total - 1)), total)  # a file that differs is fetched again

            listen(0, total)
            for file in missing:
                self._fetch(file, count)
                before += self.listed[file].size or 0
            listen(total, total)

    def _fetch(self, file: str, count: Callable[[int], None]) -> Path:
        return fetch_file(self._hub, self._snapshot, file, self.listed[file], count)


def download(
    name: str, revision: str | None = None, on_progress: OnProgress | None = None, *, check: bool = False
) -> Path:
    """Downloads the files that a model needs into the shared cache, except those that are already in it.

    The hub is always asked for the commit of the revision.

    Args:
        name: The name of the model, `ORG/NAME`.
        revision: A branch, tag or commit; `None` means the main branch.
        on_progress: Called with the downloaded and the total bytes; not called if all files are cached.
        check: Whether to compare the hashes of files in the cache, and to download files that differ. Otherwise only
            sizes are compared.

    Returns:
        The folder of the snapshot.
    """
    cache.check_revision(revision)
    with library(name, revision) as hub:
        commit = Commit(hub, name, revision)
        commit.fetch(commit.needed, on_progress, check=check)
        cache.record(name, revision, commit.hash, commit.listed)
        return commit.folder


def _scan(hub: Any, repository: Path) -> Any:
    """Scans the cache with huggingface_hub; returns a result that contains only one repository.

    The result is used to remove commits by their hash. A fork can have a commit with the same hash, which must stay.

    Returns `None` if huggingface_hub does not find the repository or considers it damaged.
    """
    scanned = hub.scan_cache_dir(cache.cache_folder())
    for cached in scanned.repos:
        if cached.repo_type == "model" and identity(cached.repo_path) == identity(repository):
            return replace(scanned, repos=frozenset({cached}))
    return None


def _system_files(repository: Path) -> list[Path]:
    """Finds the files that macOS wrote into a repository.

    huggingface_hub considers a repository with such files (`._x`) damaged, and cannot remove its folders.
    """
    return [path for path in repository.rglob("*") if is_system_file(path.name) and not path.is_dir()]


def _freed_bytes(removed: Iterable[cache.Snapshot], kept: Iterable[cache.Snapshot]) -> int:
    """Returns the total size, in bytes, of the files that only removed commits have."""
    shared = {path for snapshot in kept for path in snapshot.sizes()}
    sizes = {path: size for snapshot in removed for path, size in snapshot.sizes().items()}
    return sum(size for path, size in sizes.items() if path not in shared and not is_system_file(path.name))


class Removal:
    """The planned removal of a model, or of one of its revisions, from the shared cache.

    Attributes:
        folder: The folder of the model if all of its commits are removed, otherwise the folder of the removed commit.
        size: The number of bytes that are freed. Files that remaining commits share do not count.
    """

    def __init__(self, name: str, revision: str | None) -> None:
        """Plans the removal. No file of the model is removed yet."""
        self.name, self.revision = name, revision
        snapshot = cache.find_snapshot(name, revision) if revision is not None else None
        removed = [snapshot] if snapshot else list(cache.snapshots(name)) if revision is None else []
        if not removed:
            at = "" if revision is None else f" at revision {revision!r}"
            raise HubError(
                f"{name}: the model is not in the cache{at}", hint="`mlxbert models list` shows the cached models"
            )
        self.commits = [snapshot.commit for snapshot in removed]
        self._repository = cache.repository_folder(name)
        kept = [snapshot for snapshot in cache.snapshots(name) if snapshot.commit not in self.commits]
        with library(name, revision) as hub:
            strategy = None if _system_files(self._repository) else self._plan(hub)
        self.size = _freed_bytes(removed, kept) if strategy is None else int(strategy.expected_freed_size)
        self.folder = removed[0].folder if kept else self._repository

    def execute(self) -> None:
        """Removes the files."""
        with library(self.name, self.revision) as hub:
            for path in _system_files(self._repository):
                path.unlink(missing_ok=True)
            self._plan(hub).execute()
        remaining = [commit for commit in self.commits if cache.find_snapshot(self.name, commit)]
        if remaining:
            raise HubError(f"{self.folder}: cannot be removed", hint="check who owns the folder")

    def _plan(self, hub: Any) -> Any:
        """Returns huggingface_hub's plan of the removal."""
        scanned = _scan(hub, self._repository)
        if scanned is None:
            raise HubError(
                f"{self.name}: huggingface_hub says that {self._repository} is damaged", hint="delete this folder"
            )
        return scanned.delete_revisions(*self.commits)
