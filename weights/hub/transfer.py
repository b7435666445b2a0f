"""Transfers one file from the hub into the shared cache, and keeps it only if it matches the hub's announcement.

huggingface_hub does the transfer. It compares no hash, and compares the size only at the end. It resumes a transfer if
the connection breaks, but a later run starts again. Files in Xet are transferred by another library, which `guard`
cannot limit; their sizes and hashes are compared, too.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlxbert.errors import HubError
from mlxbert.weights.hub.cache import Snapshot
from mlxbert.weights.hub.errors import NO_HUB
from mlxbert.weights.hub.file_hashes import AnnouncedFile, is_hash, mismatch
from mlxbert.weights.hub.guard import AnswerLimits, limited

_LOG = logging.getLogger("mlxbert")
UNCOMPRESSED = {"Accept-Encoding": "identity"}  # sizes and ranges refer to the file
_TOKEN = 2**16  # bytes of the answers to requests for tokens of Xet


def fetch_file(hub: Any, snapshot: Snapshot, file: str, listed: AnnouncedFile, count: Callable[[int], None]) -> Path:
    """Downloads a file into the cache, unless the cache has it with the right hash; returns its path in the cache.

    Args:
        hub: The module huggingface_hub.
        snapshot: The commit; its folder need not exist yet.
        file: The path of the file in the repository.
        listed: The size and the hash that the hub's list states for the file.
        count: Called with the number of bytes of the file that have arrived so far.
    """
    what, wrong = f"{snapshot.name}: {file}", ""
    for _ in range(2):
        if wrong:
            _LOG.warning("%s %s, so the file is fetched again", what, wrong)
        transfer = _Transfer(what, snapshot.commit, listed, count)
        try:
            with limited(hub, transfer.limits):
                options = {"revision": snapshot.commit, "headers": UNCOMPRESSED, "tqdm_class": transfer}
                path = Path(hub.hf_hub_download(snapshot.name, file, **options))
            wrong = mismatch(path, transfer.expected or snapshot.expected(file, {file: listed})) or ""
            if not wrong:
                return path
            _discard(snapshot, path)
        except OSError as problem:
            if type(problem) is not OSError or problem.errno is not None:
                raise
            wrong = str(problem)  # raised by `_Transfer`
    raise HubError(f"{what} {wrong}, so the file was not kept", hint=NO_HUB)


def _discard(snapshot: Snapshot, path: Path) -> None:
    """Removes a file and its blob. If the file is a link to a target outside the cache, the target is kept."""
    blob = Path(os.readlink(path)).name if path.is_symlink() else ""
    path.unlink(missing_ok=True)  # another process may have removed it
    if blob:
        (snapshot.folder.parents[1] / "blobs" / blob).unlink(missing_ok=True)


class _Transfer:
    """Acts as huggingface_hub's progress bar, and stops the transfer of a file whose metadata or size is wrong.

    Attributes:
        expected: The size and the hash that the file must have; `None` until the hub has been asked.
        limits: The limits for the hub's answers.
    """

    def __init__(self, what: str, commit: str, listed: AnnouncedFile, count: Callable[[int], None]) -> None:
        self._what, self._commit, self._listed, self._count = what, commit, listed, count
        self._received = 0
        self.expected: AnnouncedFile | None = None
        self.limits = AnswerLimits(what, _TOKEN, self._check_metadata)

    def _check_metadata(self, metadata: Any) -> None:
        """Compares the metadata of the file with its entry in the hub's list."""
        size, hash = self._listed
        announced = AnnouncedFile(metadata.size, metadata.etag if is_hash(metadata.etag) else None)
        self.expected = AnnouncedFile(announced.size if size is None else size, hash or announced.hash)
        why = None
        if metadata.commit_hash != self._commit:
            why = f"returned the commit {metadata.commit_hash}, expected {self._commit}"
        elif self.expected.size is None:
            why = "returned no size, expected a number of bytes"
        elif announced.size not in (None, self.expected.size):
            why = f"announces {announced.size:,} bytes, but lists {size:,}"
        elif announced.hash not in (None, self.expected.hash):
            why = f"announces the hash {announced.hash}, but lists {hash}"
        if why is not None:
            raise HubError(f"{self._what}: the hub {why}, so the file was not written", hint=NO_HUB)
        if self.expected.hash is None:
            _LOG.warning("%s: the hub sends no hash of this file, so only its size is checked", self._what)
        self.limits.max_bytes = _TOKEN + 2 * self._size()  # after a broken connection the transfer may restart once

    def _size(self) -> int:
        return (self.expected or self._listed).size or 0

    def __call__(self, **options: Any) -> "_Transfer":
        """Returns this object in place of a new bar; huggingface_hub calls it like tqdm's constructor."""
        return self

    def __enter__(self) -> "_Transfer":
        return self

    def __exit__(self, kind: object, *problem: object) -> None:
        if kind is None and self._received < self._size():
            raise OSError(f"has {self._received:,} bytes, expected {self._size():,}")

    def update(self, more: int = 1) -> None:
        """Counts bytes before they are written. A negative number means that bytes will be fetched again."""
        self._received += more
        if self._received > self._size():
            raise OSError(f"has more bytes than the {self._size():,} that the hub announces")
        self._count(self._received)

    def close(self, *values: Any, **options: Any) -> None:
        """Does nothing. Xet calls this method of a progress bar, and a few others; only `update` is needed here."""

    update_transfer = set_postfix_str = set_transfer_postfix_str = close
