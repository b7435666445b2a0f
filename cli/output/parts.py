"""Files that are whole or not there: the parts of an output, the lock on their folder."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mlxbert.errors import ArgumentError

# Results; a multiple of the window in which inputs are batched, so that a resumed run makes the same batches.
PART = 512
_COUNTED = ("results", "failed", "cut", "tokens", "bytes")


class Parts:
    """The finished parts in a folder; goes through their paths as often as is wanted."""

    def __init__(self, folder: Path, ending: str) -> None:
        self.folder, self.ending, self.count = folder, ending, 0

    def path(self, number: int) -> Path:
        """Where a part lies or will lie."""
        return self.folder / f"part-{number:06}{self.ending}"

    def __iter__(self) -> Iterator[Path]:
        return map(self.path, range(self.count))

    def find(self) -> Iterator[dict[str, int]]:
        """Takes over finished parts as far as they are without a gap; gives what each of them counts."""
        with suppress(FileNotFoundError, ValueError):
            while True:
                path = self.path(self.count)
                counts = json.loads(path.with_suffix(".json").read_bytes())
                if not _is_whole(counts) or path.stat().st_size != counts["bytes"]:
                    return
                self.count += 1
                yield counts
                if counts["results"] < PART:  # the last one of the input
                    return


def _is_whole(counts: object) -> bool:
    """Whether what lies beside a part says all that it has to say."""
    return isinstance(counts, dict) and all(type(counts.get(name)) is int for name in _COUNTED)


def take(lock: IO[bytes], folder: Path) -> None:
    """Locks a file; the lock goes with the process, however that ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gone = os.fstat(lock.fileno()).st_nlink == 0  # a run that held it has just finished, and removed the folder
    except BlockingIOError:
        gone = True
    if gone:
        raise ArgumentError(
            f"{folder}: another run is working on it", hint="wait until it is done, or write to another file"
        )


def keep_names(folder: Path) -> None:
    """Makes names in a folder outlast a power cut, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def complete(path: Path) -> Iterator[IO[bytes]]:
    """A file that has its name only once it is complete and on disk; nothing is left of one that failed."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    keep_names(path.parent)
