"""Draws the progress of an index update: how much is done, how long the rest will take, and which file is read."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlxbert.cli.views import console, progress, rich
from mlxbert.search import update_events
from mlxbert.search.update_events import Event, Scanned
from mlxbert.search.views.search import near

_MIN_BAR, _MAX_BAR, _BAR_SHARE = 6, 40, 6  # columns of a bar: a sixth of the terminal's
_OTHER_COLUMNS = 4 + len("1:02:03") + 4  # the percentage, the remaining time, and the gaps
_MIN_NAME = 8  # columns for the name of a file


class UpdateEstimate:
    """Estimates how much of an update is done, from the time that reading and embedding have taken so far.

    The files that are still to be read are assumed to give as many chunks per byte as those that were read.

    Attributes:
        total: The size in bytes of the files to read.
        files: The number of files read so far.
        doing: The path of the file that is being read; empty while chunks are embedded.
    """

    def __init__(self, total: int) -> None:
        self.total, self.files, self.doing = total, 0, ""
        self._read = self._chunks = self._embedded = self._at_measurement = 0
        self._size = 0  # of the file that is being read
        self._reading = self._embedding = self._seconds_per_chunk = self._share = 0.0
        self._last = time.monotonic()

    def add(self, event: Event) -> None:
        """Adds an event. The time since the previous event counts as reading or as embedding."""
        now = time.monotonic()
        match event:
            case update_events.FileStarted():
                self._end_file()  # one that failed or vanished has no other event that says so
                self.doing, self._size = event.path, event.size
            case update_events.FileRead():
                self._end_file()
                self.files, self._reading = self.files + 1, self._reading + now - self._last
                self._chunks += event.chunks
            case update_events.IndexUpdated():
                self._end_file()
            case _:  # a file is written before the event of its last chunk
                self._embedding += now - self._last
                if isinstance(event, update_events.Embedded):
                    self._count_embedded(event.chunks)
        self._last = now

    def _end_file(self) -> None:
        self.doing, self._read, self._size = "", self._read + self._size, 0

    def _count_embedded(self, embedded: int) -> None:
        """Measures the rate after whole windows, because the results of a window all arrive at its end."""
        from mlxbert.text.batch import WINDOW

        self._embedded = embedded
        if embedded >= self._chunks or embedded - self._at_measurement >= WINDOW:
            self._at_measurement, self._seconds_per_chunk = embedded, self._embedding / embedded

    def left(self, total: float | None = None) -> float | None:
        """Returns the remaining seconds; `None` if they are unknown or the work is overdue.

        Args:
            total: Not used; columns of a bar pass it.
        """
        rest = self._rest()
        seconds = None if rest is None else rest - (time.monotonic() - self._last)
        return seconds if seconds is not None and seconds > 0 else None

    def _rest(self) -> float | None:
        """Returns the seconds that remained at the last event; `None` before the first files are embedded."""
        if not self._read or (self._chunks and not self._at_measurement):
            return None
        unread = max(self.total - self._read, 0)
        chunks = self._chunks * (1 + unread / self._read) - self._embedded
        return unread * self._reading / self._read + chunks * self._seconds_per_chunk

    @property
    def share(self) -> float:
        """The share of the whole work that is done, from 0 to 1; it never falls, even if the estimate does."""
        rest, spent = self._rest(), self._reading + self._embedding
        if rest is not None and spent + rest > 0:
            self._share = max(self._share, spent / (spent + rest))
        return self._share


@contextmanager
def index_update(scanned: Scanned) -> Iterator[Callable[[Event], None]]:
    """Shows a bar in a terminal; yields a function that takes the events of an update after `scanned`."""
    if not console.may_draw():
        yield lambda event: None
        return
    estimate, width = UpdateEstimate(scanned.size), console.stderr().width
    columns = max(_MIN_BAR, min(_MAX_BAR, width // _BAR_SHARE))
    texts = [rich.TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("files", "doing")]
    with progress.drawing(texts[0], last=texts[1], bar_width=columns) as bar:
        task = bar.add_task("", total=1.0, pace=estimate, files="", doing="")

        def update(event: Event) -> None:
            estimate.add(event)
            files = f"{estimate.files:,} of {console.counted(scanned.changed, 'file')}"
            room = console.stderr().width - columns - _OTHER_COLUMNS - len(files)
            doing = console.end_of(near(estimate.doing), max(room, _MIN_NAME)) if estimate.doing else "embedding"
            bar.update(task, completed=estimate.share, files=files, doing=doing)

        yield update
