"""The finished parts of an output."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
