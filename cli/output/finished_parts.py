"""Reads and writes the finished parts of an output file."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxbert.cli.output.output_format import OutputFormat
from mlxbert.durable_files import DamagedError, atomic_write, check_hash, read_record, write_record
from mlxbert.results.result import Failure

PART = 4096  # the maximum number of results of a part; a window of inputs that are batched together has no more


class FinishedParts:
    """The finished parts in a folder; iterating over them yields their paths.

    A small file next to each part holds the counts and the hash of the part. It also holds the JSON value `owner`; a
    part with another owner counts as damaged.
    """

    def __init__(self, folder: Path, format: OutputFormat, owner: object) -> None:
        self.folder, self._format, self._owner = folder, format, owner
        self.counts: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[Path]:
        return map(self._path, range(len(self.counts)))

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:06}{self._format.part_ending}"

    def total(self, name: str) -> int:
        """Returns the sum of one of the counts over all parts."""
        return sum(counts[name] for counts in self.counts)

    def find(self) -> "FinishedParts":
        """Reads the counts of further parts on disk, up to the first part that is missing or damaged."""
        with suppress(OSError, DamagedError):
            while True:
                path = self._path(len(self.counts))
                counts = read_record(path.with_suffix(".json"), self._owner)
                check_hash(path, counts["sha256"])
                self.counts.append(counts)
        return self

    def write(self, results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        path = self._path(len(self.counts))
        with atomic_write(path, durable=False) as file:
            self._format.write_part(file, results, kept)
        counts = {
            "results": len(results),
            "failed": sum(isinstance(result, Failure) for result in results),
            "cut": sum(getattr(result, "truncated", False) for result in results),
            "unknown": sum(getattr(result, "only_unknown", False) for result in results),
            "tokens": sum(map(_tokens, results)),
            "sha256": file.sha256,
        }
        write_record(path.with_suffix(".json"), counts, self._owner, durable=False)
        self.counts.append(counts)


def _tokens(result: Any) -> int:
    """Returns the number of tokens of a result, whose field `tokens` is a number or a list."""
    tokens = getattr(result, "tokens", 0)
    return tokens if isinstance(tokens, int) else len(tokens)
