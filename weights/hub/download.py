"""Downloads models from the Hugging Face hub into the shared cache, and removes models from it.

huggingface_hub asks the hub and transfers the files: it knows tokens, mirrors, proxies, time-outs and Xet. But it
believes the hub: it compares no hash, and names a file in the cache after a header, so that the ETag
`/…/site-packages/evil.pth` makes it write this file, which Python runs at startup; and a header that was asked for
before may be another one with the download. So each file takes three steps:

1. The list of the files is checked: the commit, and the name and the hash of each file.
2. `hf_hub_download` writes the file into a new folder (`local_dir`), where its path depends only on its checked name.
   (The ETag is in the middle of the name of an unfinished file, `….ETAG….incomplete`. With a separator it leads
   nowhere, because no file can have made a folder `….` there.)
3. The file is compared with its size and hash, and moved to the place in the cache that has this hash as its name.

Files are fetched one after another in the thread of the caller, so that an interrupt takes effect at once:
`snapshot_download` would first finish the files in progress. A commit is recorded when all of its files are correct;
the files of a commit without a record are compared again before they are used.

A hub can still send its list without an end, or any answer so slowly that no time-out of huggingface_hub
(HF_HUB_ETAG_TIMEOUT, HF_HUB_DOWNLOAD_TIMEOUT: the longest time without data) applies. An interrupt ends both.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mlxbert.durable_files import check_space, identity, sha256
from mlxbert.errors import HubError
from mlxbert.mac_files import is_system_file
from mlxbert.progress import OnProgress
from mlxbert.weights.formats.file_names import holds_weights
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.cache import AnnouncedFile, is_commit, is_hash, is_size, mismatch
from mlxbert.weights.hub.errors import NO_HUB, NO_SPACE, first_line, library, not_hub_error
from mlxbert.weights.hub.needed_files import leaves_folder, needed_files, parse_json

if TYPE_CHECKING:  # the formats of weights import MLX, which a download does not need
    from mlxbert.weights.formats.headers import Header

_LOG = logging.getLogger("mlxbert")
_UNFINISHED = ".mlxbert-"  # the beginning of the names of folders that a killed process may leave in the cache
# The `errno` of an error that a lie causes: about a size or an ETag.
_ERRNO_OF_A_LIE = (None, errno.ENOENT, errno.ENAMETOOLONG)


def describe(hub: Any, name: str, revision: str | None) -> tuple[Any, dict[str, AnnouncedFile]]:
    """Asks the hub for a model; returns its `ModelInfo`, and all files with their announced sizes and hashes."""
    timeout = hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
    info = hub.HfApi().model_info(name, revision=revision, files_metadata=True, timeout=timeout)
    expected = revision if is_commit(revision) else "40 hexadecimal digits"
    if not is_commit(info.sha) or (is_commit(revision) and info.sha != revision):
        raise HubError(f"{name}: the hub returned the commit {info.sha!r:.60}, expected {expected}")
    listed = {}
    for entry in info.siblings or []:
        file, hash = entry.rfilename, entry.lfs.sha256 if entry.lfs else entry.blob_id
        if not isinstance(file, str) or leaves_folder(file):
            raise HubError(
                f"{name}: the repository lists the file {file!r:.60} outside its folder, so nothing was written",
                hint="do not trust this repository",
            )
        listed[file] = AnnouncedFile(entry.size if is_size(entry.size) else None, hash if is_hash(hash) else None)
    return info, listed


class _Commit:
    """A commit of a model on the hub, and the files that the model needs."""

    def __init__(self, hub: Any, name: str, revision: str | None) -> None:
        """Asks the hub for the commit of the revision, and downloads the small files that name the needed ones."""
        info, self.listed = describe(hub, name, revision)
        self.hash: str = info.sha
        self._repository = cache.repository_folder(name)
        self.folder = self._repository / "snapshots" / self.hash
        self._snapshot = cache.Snapshot(name, self.hash, self.folder)
        self._hub, self._name = hub, name
        self._recorded = self._snapshot.listing() is not None
        self.needed = needed_files(name, self.listed, self._read, self.has)

    def has(self, file: str, *, content: bool = False) -> bool:
        """Whether a file is in the cache with the expected size and, if `content` is set, the expected hash."""
        expected = self._snapshot.expected(file, self.listed)
        return mismatch(self.folder / file, expected, content=content) is None

    def _read(self, file: str) -> Any:
        if not self.has(file, content=True):
            self._fetch(file, lambda received: None)
        return parse_json(self._name, self.folder / file)

    def fetch(self, files: Iterable[str], on_progress: OnProgress | None, *, check: bool = False) -> None:
        """Downloads the files that are not in the cache and, if `check` is set, the files whose hash differs."""
        missing = [file for file in files if not self.has(file, content=check or not self._recorded)]
        if not missing:
            return
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

    def _fetch(self, file: str, count: Callable[[int], None]) -> None:
        """Downloads a file unless the cache has its content, and makes it a file of the commit.

        The lock is that of huggingface_hub. Without locks, as on some volumes, each process still has its own folder.
        """
        announced, path = self._announced(file), self.folder / file
        blob = self._repository / "blobs" / (announced.hash or self.hash)
        lock = self._repository.parent / ".locks" / self._repository.name / f"{blob.name}.lock"
        for folder in (lock.parent, blob.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with lock.open("ab") as locked:
            with suppress(OSError):
                fcntl.flock(locked, fcntl.LOCK_EX)
            if announced.hash is None or mismatch(blob, announced) is not None:
                if path.is_file():
                    why = mismatch(path, announced) or "has an unknown hash"
                    _LOG.warning("%s: %s in the cache %s, so the file is fetched again", self._name, file, why)
                blob = self._transfer(file, announced, count)
            _link(blob, path, moves=getattr(self._hub.constants, "HF_HUB_DISABLE_SYMLINKS", False))

    def _announced(self, file: str) -> AnnouncedFile:
        """Returns the size and the hash of a file; asks for those that a mirror does not list."""
        size, hash = self.listed[file]
        if size is None or hash is None:
            found = self._hub.get_hf_file_metadata(self._hub.hf_hub_url(self._name, file, revision=self.hash))
            size = found.size if size is None and is_size(found.size) else size
            hash = found.etag if hash is None and is_hash(found.etag) else hash
        if size is None:
            raise HubError(f"{self._name}: the hub sends no size of {file}", hint=NO_HUB)
        if hash is None:
            _LOG.warning("%s: the hub sends no hash of %s, so only its size is checked", self._name, file)
        return AnnouncedFile(size, hash)

    def _transfer(self, file: str, announced: AnnouncedFile, count: Callable[[int], None]) -> Path:
        """Downloads a file, a second time if it is not what was announced; returns its place among the blobs."""
        wrong: str | None = None
        for _ in range(2):
            if wrong:
                _LOG.warning("%s: %s %s, so the file is fetched again", self._name, file, wrong)
            with TemporaryDirectory(dir=self._repository, prefix=_UNFINISHED) as folder:
                options = {"local_dir": folder, "cache_dir": folder, "tqdm_class": _Bar(announced, count)}
                try:
                    path = Path(self._hub.hf_hub_download(self._name, file, revision=self.hash, **options))
                    wrong = mismatch(path, announced)
                except OSError as problem:
                    if problem.errno not in _ERRNO_OF_A_LIE or type(problem) not in (OSError, FileNotFoundError):
                        raise
                    wrong = f"did not arrive as announced ({first_line(problem)})"
                if wrong is None:
                    return path.replace(self._repository / "blobs" / (announced.hash or sha256(path)))
        raise HubError(f"{self._name}: {file} {wrong}", hint=NO_HUB)

    def header(self, file: str) -> "Header":
        """Fetches the header of weights in safetensors, and not more of the file than arrives together with it.

        huggingface_hub's `parse_safetensors_file_metadata` fetches 100 kB of every file, including weights, and the
        whole file from a server that cannot send a part; and does not tell whether the file is complete.
        """
        from mlxbert.weights.formats.safetensors import parse_header

        url, headers = self._hub.hf_hub_url(self._name, file, revision=self.hash), self._hub.utils.build_hf_headers()
        options = {"headers": headers, "timeout": self._hub.constants.HF_HUB_DOWNLOAD_TIMEOUT}
        with self._hub.get_session().stream("GET", url, **options) as answer:
            self._hub.utils.hf_raise_for_status(answer)
            if answer.headers.get("content-type", "").startswith("text/html"):
                raise not_hub_error(self._name, f"the answer for {file} is a web page")
            pieces, data = answer.iter_bytes(), bytearray()

            def read(count: int) -> bytes:
                while len(data) < count and (piece := next(pieces, b"")):
                    data.extend(piece)
                if len(data) < count:
                    raise HubError(
                        f"{self._name}: {file} ended after {len(data):,} of {count:,} bytes", hint="try again"
                    )
                first = bytes(data[:count])
                del data[:count]
                return first

            return parse_header(Path(self._name) / file, self.listed[file].size or 0, read)


def _link(blob: Path, path: Path, *, moves: bool) -> None:
    """Makes a file of a commit a link to a blob; or moves the blob, if asked to or on a volume without links."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=blob.parents[1], prefix=_UNFINISHED) as folder:
        link = Path(folder) / path.name
        if not moves:
            try:
                link.symlink_to(os.path.relpath(blob, path.parent))
            except OSError:
                moves = True
        os.replace(blob if moves else link, path)


class _Bar:
    """Takes the place of a bar of tqdm: counts the bytes of a file before they are written, and stops at its size."""

    def __init__(self, announced: AnnouncedFile, count: Callable[[int], None]) -> None:
        self._size, self._count, self._received = announced.size or 0, count, 0

    def __call__(self, **options: Any) -> "_Bar":
        return self

    def update(self, more: int = 1) -> None:
        """Counts bytes. A negative number means that bytes will be fetched again."""
        self._received += more
        if self._received > self._size:
            raise OSError(f"more than {self._size:,} bytes")
        self._count(self._received)

    def _nothing(self, *values: Any, **options: Any) -> None:
        pass

    __enter__ = __call__
    __exit__ = close = update_transfer = set_postfix_str = set_transfer_postfix_str = _nothing


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
        commit = _Commit(hub, name, revision)
        commit.fetch(commit.needed, on_progress, check=check)
        cache.record(name, revision, commit.hash, commit.listed)
        return commit.folder


def fetch_headers(
    name: str, revision: str | None = None, on_progress: OnProgress | None = None
) -> "tuple[Path, dict[Path, Header]]":
    """Downloads the small files of a model into the cache, and fetches the headers of weights that are not cached.

    The revision is not recorded in the cache, because the model would then appear to be complete.

    Returns:
        The folder of the snapshot, and the headers by the path that each file would have in the cache.
    """
    cache.check_revision(revision)
    with library(name, revision) as hub:
        commit = _Commit(hub, name, revision)
        absent = [file for file in commit.needed if holds_weights(file) and not commit.has(file)]
        for file in absent:
            if not file.endswith(".safetensors"):
                raise HubError(
                    f"{name}: {file} is not in the cache, but only safetensors can be inspected without a download",
                    hint=f"run `{cache.loading(name, revision)}`, then inspect the model",
                )
        commit.fetch((file for file in commit.needed if not holds_weights(file)), on_progress)
        return commit.folder, {commit.folder / file: commit.header(file) for file in absent}


class Removal:
    """The planned removal of a model, or of one of its revisions, from the shared cache."""

    def __init__(self, name: str, revision: str | None) -> None:
        """Plans the removal. No file of the model is removed yet."""
        self.name, self.revision = name, revision
        cached = [*cache.snapshots(name)]
        snapshot = None if revision is None else cache.find_snapshot(name, revision)
        removed = cached if revision is None else [snapshot] if snapshot else []
        if not removed:
            at = "" if revision is None else f" at revision {revision!r}"
            raise HubError(
                f"{name}: the model is not in the cache{at}", hint="`mlxbert models list` shows the cached models"
            )
        self.commits = [snapshot.commit for snapshot in removed]
        self._repository = cache.repository_folder(name)
        kept = [snapshot for snapshot in cached if snapshot.commit not in self.commits]
        shared = {path for snapshot in kept for path in snapshot.sizes()}
        freed = {path: size for snapshot in removed for path, size in snapshot.sizes().items() if path not in shared}
        self.size = sum(size for path, size in freed.items() if not is_system_file(path.name))  # bytes
        # The folder of the model if all of its commits are removed, otherwise the folder of the removed commit.
        self.folder = removed[0].folder if kept else self._repository

    def execute(self) -> None:
        """Removes the files."""
        for path in self._repository.rglob("*"):
            if is_system_file(path.name) and not path.is_dir():
                path.unlink(missing_ok=True)  # huggingface_hub considers a repository with `._x` of macOS damaged
        with library(self.name, self.revision, local=True) as hub:
            scanned = hub.scan_cache_dir(cache.cache_folder())
            found = [
                cached for cached in scanned.repos
                if cached.repo_type == "model" and identity(cached.repo_path) == identity(self._repository)
            ]  # fmt: skip
            if found:  # without the other repositories: a fork can have a commit of the same hash, which must stay
                replace(scanned, repos=frozenset(found)).delete_revisions(*self.commits).execute()
        if any(cache.find_snapshot(self.name, commit) for commit in self.commits):
            raise HubError(f"{self.folder}: cannot be removed", hint="check who owns the folder, or delete it yourself")
