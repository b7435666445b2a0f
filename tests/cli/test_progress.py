"""Bars: they fit the terminal, count what is done and not what was read ahead, and say what an interrupt keeps."""

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from mlxbert.cli.inputs import open_input
from mlxbert.cli.shared_options import InputOptions
from mlxbert.cli.views import progress
from tests.helpers.program import _TerminalStream
from tests.helpers.rooms import needs

if TYPE_CHECKING:
    from mlxbert.search.update_events import Event

NAME = "google-bert/bert-base-uncased"  # of the README
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """stderr as a terminal of some width."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
        self._bytes = io.BytesIO()
        stream = _TerminalStream(self._bytes, encoding="utf-8", newline="", write_through=True)
        monkeypatch.setattr(sys, "stderr", stream)
        for name, value in (("COLUMNS", str(columns)), ("TERM", "xterm-256color"), ("NO_COLOR", "1")):
            monkeypatch.setenv(name, value)

    @property
    def lines(self) -> list[str]:
        """Everything that was drawn, without colours and movements."""
        return [line.rstrip() for line in re.split(r"[\r\n]+", CODES.sub("", self._bytes.getvalue().decode()))]


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_a_download_has_its_name_its_share_and_its_time_at_any_width(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    screen = Screen(monkeypatch, columns)
    with progress.download(NAME) as update:
        update(0, 440_473_133)
        update(220_236_566, 440_473_133)
        drawn_while_running = list(screen.lines)
    with progress.download(NAME) as update:
        update(220_236_566, 440_473_133)
    assert all(len(line) <= columns for line in screen.lines)
    assert NAME in " ".join(drawn_while_running) and "440.5 MB" in " ".join(drawn_while_running)
    assert any(re.search(r" 50% +220\.2/440\.5 MB", line) for line in screen.lines)


@pytest.mark.parametrize("columns", [1, 10, 20, 40, 50, 80, 120])
def test_a_bar_of_results_fits_and_a_narrow_one_is_the_share_alone(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    screen = Screen(monkeypatch, columns)
    with progress.records(12_100_000, shown=True, before=(0, 12_345)) as update:
        update(6_050_000, 12_345)
    drawn = "".join(screen.lines)
    assert all(len(line) <= columns for line in screen.lines)
    assert columns < 4 or "50%" in drawn
    assert columns >= 50 or "━" not in drawn
    assert columns < 50 or re.search(r" 50% of 12\.1 MB, 12,345 done, 0/s", drawn)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed, to be set."""
    now = [1000.0]
    monkeypatch.setattr("mlxbert.cli.views.progress.time.monotonic", lambda: now[0])
    return now


def test_the_time_left_is_that_of_whole_windows(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    """The first results of a window come when most of it is computed, and the others at once."""
    screen, pace, start = Screen(monkeypatch, 100), progress.RemainingTime(), clock[0]
    monkeypatch.setattr(progress, "RemainingTime", lambda: pace)
    with progress.records(10 * 512, shown=True) as update:
        for done in range(1, 3 * 512):
            clock[0] += 0.1 if done % 512 < 13 else 98.7 / 11 if done % 512 > 500 else 0
            update(done, done)
            left = pace.left(10 * 512)
            assert left is None if done < 512 else left == pytest.approx(10 * 100 - (clock[0] - start), abs=5)
    assert any(re.search(r"/s +1\d:\d\d$", line) for line in screen.lines)


def _update(files: int, seconds: tuple[float, float], clock: list[float]) -> "Iterator[Event]":
    """The events of an update: files of 1,000 bytes and 10 chunks, of which 20 are embedded together."""
    from mlxbert.search.update_events import Embedded, FileIndexed, FileRead, FileStarted

    for number in range(files):
        yield FileStarted(f"/docs/a long folder/manual {number}.pdf", 1000)
        clock[0] += seconds[0]
        yield FileRead(f"/docs/a long folder/manual {number}.pdf", 1000, 10)
        if number % 2:
            clock[0] += 20 * seconds[1]
            yield FileIndexed("", 1, 10)
            yield from (Embedded(10 * (number - 1) + count) for count in range(1, 21))


@needs("search")
def test_reading_and_embedding_have_their_weights(clock: list[float]) -> None:
    from mlxbert.search import views
    from mlxbert.search.update_events import FileRead, FileStarted

    estimate, shares, start = views.UpdateEstimate(10_000), [0.0], clock[0]
    whole = 10 * 4.0 + 100 * 0.5
    for event in _update(10, (4.0, 0.5), clock):
        estimate.add(event)
        shares.append(estimate.share)
        if clock[0] - start > 18 and isinstance(event, FileStarted | FileRead):
            assert estimate.left() == pytest.approx(whole - (clock[0] - start))
            assert estimate.share == pytest.approx((clock[0] - start) / whole)
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0) and len({*shares}) > 10
    assert estimate.left() is None and estimate.files == 10


@needs("search")
def test_files_without_new_chunks_or_that_cannot_be_read_are_done(clock: list[float]) -> None:
    from mlxbert.search import views
    from mlxbert.search.update_events import FileFailed, FileRead, FileStarted, IndexUpdated

    estimate = views.UpdateEstimate(4000)
    for event in (FileStarted("/a", 1000), FileRead("/a", 1000, 0)):
        estimate.add(event)
        clock[0] += 2.0
    assert (estimate.share, estimate.doing) == (0.25, "") and estimate.left() == pytest.approx(4.0)
    for name in ("/b", "/c", "/d"):
        estimate.add(FileStarted(name, 1000))
    estimate.add(FileFailed("/d", "no such file"))
    estimate.add(IndexUpdated(1, 0, 0, 0, 1, {}, {}, 1.0))
    assert estimate.share == pytest.approx(1.0) and estimate.left() is None


@needs("search")
@pytest.mark.parametrize("columns", [50, 80, 120])
def test_an_update_says_which_file_is_read(monkeypatch: pytest.MonkeyPatch, clock: list[float], columns: int) -> None:
    from mlxbert.search import views
    from mlxbert.search.update_events import FileStarted, Scanned

    screen = Screen(monkeypatch, columns)
    with views.index_update(Scanned(10, 10, 10_000, 0, {})) as show:
        for event in _update(6, (4.0, 0.5), clock):
            show(event)
        show(FileStarted("/docs/a long folder/and \x1b[5A.pdf", 1000))
    assert all(len(line) <= columns for line in screen.lines)
    assert any(re.search(r" 60% 6 of 10 files 00:36 .*and ␛\[5A\.pdf$", line) for line in screen.lines), screen.lines


def test_steps_say_what_is_done_and_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, 80)
    with progress.steps() as update:
        update("gradient of attention weights", 30, 60)
    drawn = "".join(screen.lines)
    assert "50%" in drawn and "30/60" in drawn and "gradient of attention weights" in drawn
    assert all(len(line) <= 80 for line in screen.lines)
    monkeypatch.setattr("mlxbert.cli.views.console.may_draw", lambda: False)
    with progress.steps() as update:
        update("nothing is drawn", 1, 2)
    assert not any("nothing is drawn" in line for line in screen.lines)


def test_an_interrupted_download_says_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, 80)
    for done in (0, 300, 1000):  # nothing has come, a part, everything
        with pytest.raises(KeyboardInterrupt), progress.download(NAME) as update:
            update(0, 1000)
            update(done, 1000)
            raise KeyboardInterrupt
    (said,) = [line for line in screen.lines if "interrupted" in line]
    assert "300 bytes of 1.0 kB" in said


def test_what_is_read_ahead_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("four\n" * 1000)
    with mock.patch("sys.stdin", None):
        source = open_input((), InputOptions(input=[str(tmp_path / "in.txt")]), "text")
    items = source.items()
    for _ in range(700):
        next(items)
    finished = [source.finished for _ in source.with_results(range(700))]
    assert (finished[0], finished[99], finished[699]) == (5, 500, 3500)
