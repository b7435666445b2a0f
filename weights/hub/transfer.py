"""One file of the hub into the shared cache; an interrupted transfer goes on where it stopped.

huggingface_hub's own `hf_hub_download` names files after headers that it does not check, and since its version 2 it
throws away what it has of a file when it is interrupted. The cache is its own: `blobs/ETAG` holds a file, and
`snapshots/COMMIT/FILE` links to it.
"""

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert.errors import HubError
from mlxbert.files import sha256
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.guard import problem_of

_SHA256 = re.compile(r"[0-9a-f]{64}")  # the ETags of large files
TIMEOUT = 10.0  # seconds; the timeout of huggingface_hub for other requests


def _counter(count: Callable[[int], None]) -> type:
    """A progress bar class that draws nothing and counts bytes."""
    from huggingface_hub.utils.tqdm import tqdm

    class Counter(tqdm):
        monitor_interval = 0  # no monitor thread

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"disable": True})
            self.update(options.get("initial") or 0)

        def update(self, n: float | None = 1) -> None:
            count(int(n or 0))

    return Counter


def fetch_file(hub: Any, name: str, commit: str, file: str, count: Callable[[int], None] = lambda count: None) -> Path:
    """Downloads a file into the cache, unless it is there.

    Args:
        hub: The module huggingface_hub.
        name: `ORG/NAME`.
        commit: The commit hash.
        file: The path of the file in the repository, which does not leave its folder.
        count: Called with numbers of bytes as they arrive, and with the number of those that an earlier run left.

    Returns:
        The path in the snapshot of the commit.

    Raises:
        HubError: What the hub says of the file cannot be used.
    """
    repository = cache.repository_folder(name)
    path = repository / "snapshots" / commit / file
    if path.is_file():
        return path
    url = hub.hf_hub_url(name, file, revision=commit)
    found = hub.get_hf_file_metadata(url, timeout=TIMEOUT, retry_on_errors=True)
    why = problem_of(found)
    if why is None and found.commit_hash != commit:
        why = f"the hub returned the commit {found.commit_hash}, expected {commit}"
    if why is not None:
        raise HubError(
            f"{name}: {file}: {why}; the file was not written", hint="check HF_ENDPOINT, the proxy and the firewall"
        )
    blob = repository / "blobs" / found.etag
    for folder in (blob.parent, path.parent):
        folder.mkdir(parents=True, exist_ok=True)
    if blob.is_file():
        count(blob.stat().st_size)
    else:
        _receive(hub, url, blob, found.size, count)
    _link(blob, path)
    return path


def _receive(hub: Any, url: str, blob: Path, size: int | None, count: Callable[[int], None]) -> None:
    partial = blob.with_name(f"{blob.name}.incomplete")
    with partial.open("ab") as out:
        with suppress(OSError):  # some network drives have no locks
            fcntl.flock(out, fcntl.LOCK_EX)  # until another process has received the file
        if blob.is_file():
            partial.unlink(missing_ok=True)
            return
        start = out.seek(0, os.SEEK_END)  # now: another process may have left more than there was to open
        if size is None or start > size:
            out.truncate(start := 0)
        try:
            _get(hub, url, out, start, size, _counter(count))
            out.flush()
            _check(partial, size, blob.name if start else "")
        except OSError as problem:
            if problem.errno is None:  # not as announced: nothing to go on from
                out.truncate(0)
            raise
        os.replace(partial, blob)


def _check(partial: Path, size: int | None, etag: str) -> None:
    """Refuses what is not the file, as huggingface_hub does; it counts only the bytes that it receives itself.

    The hash is that of an earlier run's bytes with these; other programs leave files with holes.

    Raises:
        OSError: The size differs, or the hash where the ETag is one.
    """
    received = partial.stat().st_size
    if size is not None and received != size:
        raise OSError(f"{partial.name}: received {received} bytes, expected {size}")
    if _SHA256.fullmatch(etag) and sha256(partial) != etag:
        raise OSError(f"{partial.name}: the file has another hash than the hub says")


def _get(hub: Any, url: str, out: BinaryIO, start: int, size: int | None, counter: type) -> None:
    options = {"headers": hub.utils.build_hf_headers(), "expected_size": size, "tqdm_class": counter}
    hub.file_download.http_get(url, out, resume_size=start, **options)


def _link(blob: Path, path: Path) -> None:
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except FileExistsError:  # another process was faster, or the file of an old link is gone
        if not path.is_file():
            path.unlink()
            _link(blob, path)
    except OSError:  # a file system without links
        os.replace(blob, path)
