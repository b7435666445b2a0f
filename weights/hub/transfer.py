"""One file of the hub into the shared cache, checked against its hash; an interrupted transfer is resumed.

huggingface_hub's own `hf_hub_download` names files after headers that it does not check, compares no hashes, and since
its version 2 it throws away what it has of a file when it is interrupted. The cache is its own: `blobs/ETAG` holds a
file, and `snapshots/COMMIT/FILE` links to it.
"""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from mlxbert.errors import HubError
from mlxbert.files import check_space
from mlxbert.paths import file_to_write, open_regular, replace_file
from mlxbert.weights.hub import cache, wire
from mlxbert.weights.hub.errors import BrokenError, no_hub
from mlxbert.weights.hub.guard import problem_of
from mlxbert.weights.hub.hashes import Known, is_hash, mismatch

_LOG = logging.getLogger("mlxbert")
_PARTIAL, _NO_SUCH_RANGE = 206, 416  # statuses
NO_SPACE = "set HF_HOME to a folder on a disk with free space; the cache is in it"
_LOCKINGS = 100  # some network drives number a file anew each time
_HINT = "check HF_ENDPOINT, the proxy and the firewall"


def fetch_file(
    hub: Any,
    name: str,
    commit: str,
    file: str,
    count: Callable[[int], None] = lambda count: None,
    listed: Known = Known(),  # noqa: B008 - it cannot be changed
) -> Path:
    """Downloads a file into the cache, unless it is there with the hash that the hub says; returns its path there.

    `count` is called with numbers of bytes as they arrive, and with that of those that an earlier run left. The hash in
    `listed` is used if the hub sends none with the file.
    """
    repository, what = cache.repository_folder(name), f"{name}: {file}"
    url = hub.hf_hub_url(name, file, revision=commit)
    etag, known = _ask(hub, what, url, commit, listed)
    path = repository / "snapshots" / commit / file
    blob = repository / "blobs" / etag
    for folder in (blob.parent, path.parent):
        folder.mkdir(parents=True, exist_ok=True)
    held = blob if blob.is_file() else path  # a file system without links has no blobs
    wrong = mismatch(held, known)
    if wrong is None:
        count(held.stat().st_size)
    else:
        if held.is_file():
            _LOG.warning("%s %s; it is thrown away and fetched again", what, wrong)
            held.unlink(missing_ok=True)  # another process may have thrown it away
        _receive(hub, what, url, blob, known, count)
        held = blob
    if held is blob:
        _link(blob, path)
    return path


def _ask(hub: Any, what: str, url: str, commit: str, listed: Known) -> tuple[str, Known]:
    found = wire.persist(what, lambda: hub.get_hf_file_metadata(url, timeout=wire.TIMEOUT))
    if found.commit_hash is None:
        raise no_hub(what, f"{'://'.join(urlsplit(found.location)[:2])} answers without a commit")
    why = problem_of(found)
    if why is None and found.commit_hash != commit:
        why = f"the hub returned the commit {found.commit_hash}, expected {commit}"
    size = listed.size if found.size is None else found.size
    if why is None and size is None:
        why = "the hub returned no size, expected a number of bytes"
    if why is not None:
        raise HubError(f"{what}: {why}; the file was not written", hint=_HINT)
    known = Known(size, found.etag if is_hash(found.etag) else listed.hash)
    if known.hash is None:
        _LOG.warning("%s: the hub sends no hash of this file, so only its size is checked", what)
    return found.etag, known


def _receive(hub: Any, what: str, url: str, blob: Path, known: Known, count: Callable[[int], None]) -> None:
    """Receives a file, twice if it does not fit the first time."""
    partial = blob.with_name(f"{blob.name}.incomplete")
    with _locked(partial) as out:
        if blob.is_file():  # another process has received it
            return
        transfer = _Transfer(hub, what, url, out, known.size or 0, count)
        check_space(partial, transfer.size - transfer.start(), hint=NO_SPACE)
        for again in (True, False):
            wire.persist(what, transfer.attempt, lambda: transfer.furthest)
            out.flush()
            wrong = mismatch(partial, known)
            if wrong is None:
                return replace_file(partial, blob)
            if out.tell() > transfer.size:
                wrong = f"has more bytes than the {transfer.size:,} that the hub announces"
            transfer.drop()
            transfer.furthest = 0
            if again:
                _LOG.warning("%s %s; it is thrown away and fetched again", what, wrong)
        raise HubError(f"{what} {wrong}; it was fetched twice and not kept", hint=_HINT)


@contextmanager
def _locked(partial: Path) -> Iterator[BinaryIO]:
    """A file to append to, once no other process writes it; an empty one does not remain."""
    for more in reversed(range(_LOCKINGS)):
        with open(partial, "ab", opener=open_regular) as out:
            with suppress(OSError):  # some network drives have no locks
                fcntl.flock(out, fcntl.LOCK_EX)
            same = partial.exists() and os.path.samestat(os.fstat(out.fileno()), partial.stat())
            if more and not same:
                continue  # the process that held the lock has renamed or removed it
            try:
                yield out
            finally:
                out.flush()
                if not os.fstat(out.fileno()).st_size:
                    partial.unlink(missing_ok=True)
            return


class _Transfer:
    """The transfer of one file of `size` bytes over several connections.

    `furthest` are the most bytes that were there so far: connections that begin anew do not add to them.
    """

    def __init__(self, hub: Any, what: str, url: str, out: BinaryIO, size: int, count: Callable[[int], None]) -> None:
        self._hub, self._what, self._url, self._out, self._count = hub, what, url, out, count
        self.size = size
        if self.start() > size:
            self.drop()
        self.furthest = self.start()
        count(self.furthest)

    def start(self) -> int:
        """How many bytes are there: another process may have left more than there was to open."""
        return self._out.seek(0, os.SEEK_END)

    def drop(self) -> None:
        self._count(-self.start())
        self._out.truncate(0)

    def attempt(self) -> None:
        """Receives the rest over one connection, and at most one byte more."""
        start = self.start()
        if start >= self.size:
            return
        headers = {"Range": f"bytes={start}-"} if start else {}
        try:
            with wire.get(self._what, self._hub, self._url, headers) as answer:
                if start and answer.status_code != _PARTIAL:
                    self.drop()
                for piece in wire.pieces(self._what, answer, self.size - self.start() + 1):
                    self._out.write(piece)
                    self._count(len(piece))
        except self._hub.errors.HfHubHTTPError as problem:
            if problem.response.status_code != _NO_SUCH_RANGE or not start:
                raise
            self.drop()
        finally:
            self.furthest = max(self.furthest, self.start())
        if self.start() < self.size:
            raise BrokenError(self._what, f"received {self.start():,} bytes, expected {self.size:,}")


def _link(blob: Path, path: Path) -> None:
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except FileExistsError:  # another process was faster, or the file of an old link is gone or another one
        if not file_to_write(path).is_file() or not path.samefile(blob):
            path.unlink(missing_ok=True)
            _link(blob, path)
    except OSError:  # a file system without links
        replace_file(blob, path)
