"""The outputs of batches since the last finished part: written every few seconds, so that little is computed twice.

Texts of similar length share a batch, so nearly all batches of a window have to be computed before its first texts have
all theirs: finished results alone would keep next to nothing of it.
"""

import base64
import json
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxbert.files import DamagedError, read_record, write_record

SECONDS = 10.0  # between two files
_MOST = 2**28  # characters that are kept: a text of any length is one result


class UnfinishedPart:
    """What is kept of the batches after a part; files of another owner, a JSON value, count as damaged."""

    def __init__(self, folder: Path, owner: object) -> None:
        self._folder, self._owner = folder, owner
        self.begin(0)

    def begin(self, part: int) -> None:
        """Begins with the batches after that many parts, with those that an interrupted run has kept."""
        self._part, self._files, self._size = part, 0, 0
        self._new: list[tuple[str, Sequence[Any]]] = []
        self._written = time.monotonic()
        self._stored = self._found()
        self._used: list[tuple[str, Sequence[Any]]] = []  # of the file that is being used

    def __len__(self) -> int:
        """How many files there are."""
        return len([*self._folder.glob(f"batches-{self._part:06}-*.json")])

    def remember(self, key: str, compute: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The outputs of the next batch: those that are kept under its key, or else computed ones, which are kept."""
        stored = next(self._stored, None)
        if stored is not None and stored[0] == key:
            outputs: Sequence[Any] = stored[1]
            self._used.append((key, outputs))
            return outputs
        if stored is not None:  # from here on other batches were made: what is left of the files is of no use
            self._stored, self._files, self._new = iter(()), self._files - 1, self._used
            for path in self._folder.glob(f"batches-{self._part:06}-*.json"):
                if path >= self._path(self._files):
                    path.unlink(missing_ok=True)
        outputs = compute()
        if self._size < _MOST:
            self._new.append((key, outputs))
        if time.monotonic() - self._written >= SECONDS:
            self.write()
        return outputs

    def write(self) -> None:
        """Writes the batches since the last file."""
        if self._new:
            content = json.dumps(self._new, default=_encoded)
            write_record(self._path(self._files), {"batches": content}, self._owner, durable=False)
            self._files, self._size = self._files + 1, self._size + len(content)
        self._new, self._written = [], time.monotonic()

    def remove(self) -> None:
        """Removes all files."""
        for path in self._folder.glob("batches-*"):
            path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"batches-{self._part:06}-{number:06}.json"

    def _found(self) -> Iterator[Any]:
        """The batches in the files up to the first that is missing or damaged."""
        with suppress(OSError, DamagedError):
            while True:
                content = read_record(self._path(self._files), self._owner)["batches"]
                self._files, self._size, self._used = self._files + 1, self._size + len(content), []
                yield from json.loads(content, object_hook=_decoded)


def _encoded(value: Any) -> Any:
    """Arrays and spans as JSON, to the bit."""
    from mlxbert.text.answer_spans import Spans

    if isinstance(value, Spans):
        return {"count": value.count, "spans": value.best, "no_answer": value.no_answer}
    data = base64.b64encode(value.tobytes()).decode()
    if isinstance(value, array):
        return {"array": value.typecode, "data": data}
    return {"dtype": value.dtype.str, "shape": value.shape, "data": data}


def _decoded(value: dict[str, Any]) -> Any:
    if "spans" in value:
        from mlxbert.text.answer_spans import Candidate, Spans

        spans = Spans(value["count"])
        spans.add([Candidate(*span) for span in value["spans"]], value["no_answer"])
        return spans
    if "array" in value:
        return array(value["array"], base64.b64decode(value["data"]))
    import numpy as np

    return np.frombuffer(base64.b64decode(value["data"]), value["dtype"]).reshape(value["shape"]).copy()
