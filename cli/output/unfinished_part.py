"""Every few seconds, saves the outputs of the batches since the last finished part.

An interrupted run then loses little work. Saving only the results of complete texts would save next to nothing: many
texts are computed together as a window, and texts of similar length share a batch, so that nearly all batches of a
window must be computed before the results of its first texts are complete.
"""

import base64
import json
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlxbert.durable_files import DamagedError, read_record, write_record

SECONDS = 10.0  # between two files
_LIMIT = 2**28  # characters to keep: a single result may be a text of any length


class UnfinishedPart:
    """The saved batches of the part that is not finished yet.

    `owner` is a JSON value that is stored in each file; files with another owner count as damaged.
    """

    def __init__(self, folder: Path, owner: object) -> None:
        self._folder, self._owner = folder, owner
        self.begin(0)

    def begin(self, part: int) -> None:
        """Begins the part after the first `part` parts; its batches that an interrupted run saved are reused."""
        self._part, self._files, self._size = part, 0, 0
        self._new: list[tuple[str, Sequence[Any]]] = []
        self._written = time.monotonic()
        self._stored = self._read()
        self._used: list[tuple[str, Sequence[Any]]] = []  # reused batches of the file that is being read

    def __len__(self) -> int:
        """Returns the number of files with saved batches."""
        return len([*self._folder.glob(f"batches-{self._part:06}-*.json")])

    def remember(self, key: str, compute: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Returns the outputs of the next batch. If none are saved under its key, computes them, to be saved later."""
        stored = next(self._stored, None)
        if stored is not None and stored[0] == key:
            outputs: Sequence[Any] = stored[1]
            self._used.append((key, outputs))
            return outputs
        if stored is not None:  # the batches differ from here on: the rest of the files is useless
            self._stored, self._files, self._new = iter(()), self._files - 1, self._used
            for path in self._folder.glob(f"batches-{self._part:06}-*.json"):
                if path >= self._path(self._files):
                    path.unlink(missing_ok=True)
        outputs = compute()
        if self._size < _LIMIT:
            self._new.append((key, outputs))
        if time.monotonic() - self._written >= SECONDS:
            self.write()
        return outputs

    def write(self) -> None:
        """Saves the batches that are not saved yet in a new file."""
        if self._new:
            content = json.dumps(self._new, default=_encoded)
            write_record(self._path(self._files), {"batches": content}, self._owner, durable=False)
            self._files, self._size = self._files + 1, self._size + len(content)
        self._new, self._written = [], time.monotonic()

    def remove(self) -> None:
        """Removes all files with saved batches."""
        for path in self._folder.glob("batches-*"):
            path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"batches-{self._part:06}-{number:06}.json"

    def _read(self) -> Iterator[Any]:
        """Yields the saved batches, up to the first file that is missing or damaged."""
        with suppress(OSError, DamagedError):
            while True:
                content = read_record(self._path(self._files), self._owner)["batches"]
                self._files, self._size, self._used = self._files + 1, self._size + len(content), []
                yield from json.loads(content, object_hook=_decoded)


def _encoded(value: Any) -> Any:
    """Converts an array or spans to values that JSON can express, without any loss."""
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
