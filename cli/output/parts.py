"""The finished parts of an output."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Results; a multiple of the window of inputs that are batched together: a resumed run makes the same batches.
PART = 512
_COUNTED = ("results", "failed", "cut", "unknown", "tokens", "bytes")


class Parts:
    """The finished parts in a folder; an iterable of their paths."""

    def __init__(self, folder: Path, ending: str) -> None:
        self.folder, self.ending, self.count = folder, ending, 0

    def path(self, number: int) -> Path:
        """The path of a part, whether it exists or not."""
        return self.folder / f"part-{number:06}{self.ending}"

    def __iter__(self) -> Iterator[Path]:
        return map(self.path, range(self.count))

    def find(self) -> Iterator[dict[str, int]]:
        """Counts finished parts up to the first gap; yields the counts of each."""
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
    """Whether the counts of a part are complete."""
    return isinstance(counts, dict) and all(type(counts.get(name)) is int for name in _COUNTED)
