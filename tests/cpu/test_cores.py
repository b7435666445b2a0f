"""Jobs on the cores of a Linux CPU."""

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from mlxbert.cpu import cores
from mlxbert.cpu.cores import as_cores_get_free
from tests.helpers.rooms import needs

if TYPE_CHECKING:
    from mlxbert.train.loop.adamw import Arrays

WORKERS = 3


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "training_workers", lambda: [cores._worker(number) for number in range(WORKERS)])


@pytest.mark.usefixtures("workers")
def test_a_core_that_is_done_takes_the_next_job() -> None:
    held, done = threading.Event(), list[int]()

    def job(number: int) -> int:
        if number == 0:
            assert held.wait(10)
        done.append(number)
        return number

    def release() -> None:
        end = time.monotonic() + 9
        while len(done) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.05)
        held.set()

    found = as_cores_get_free([functools.partial(job, number) for number in range(9)])
    threading.Thread(target=release).start()
    assert next(found) == 0
    # What waited for the first one: no more results than two for three cores, and two that could be computed.
    assert sorted(done[: done.index(0)]) == [1, 2, 3, 4]
    assert [*found] == [*range(1, 9)]


def test_without_workers_jobs_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "training_workers", list)
    assert [*as_cores_get_free([threading.current_thread] * 3)] == [threading.main_thread()] * 3


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("close", [False, True])
def test_jobs_that_nobody_waits_for_are_dropped(close: bool) -> None:
    def job(number: int) -> int:
        if number == 1 and not close:
            raise ValueError("one")
        ran.append(number)
        return number

    ran: list[int] = []
    found = as_cores_get_free([functools.partial(job, number) for number in range(40)])
    assert next(found) == 0
    if close:
        found.close()  # type: ignore[attr-defined]
    else:
        with pytest.raises(ValueError, match="one"):
            next(found)
    assert [*as_cores_get_free([lambda: 1] * 20)] == [1] * 20  # the workers are free
    assert len(ran) < 12


@pytest.mark.usefixtures("workers")
def test_an_interrupt_while_jobs_are_submitted_leaves_no_worker_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(worker: ThreadPoolExecutor, work: Callable[[], None]) -> "Future[None]":
        if worker is cores._worker(1):
            raise KeyboardInterrupt
        return submit(worker, work)

    submit = ThreadPoolExecutor.submit
    with monkeypatch.context() as patched:
        patched.setattr(ThreadPoolExecutor, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(as_cores_get_free([lambda: 1] * 40))
    assert cores._worker(0).submit(lambda: 1).result(timeout=10) == 1


@needs("train")
@pytest.mark.usefixtures("workers")
def test_sums_have_the_same_bits_whichever_core_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.train.runs import digest, make_run

    def found(slow: int) -> dict[str, list[float]]:
        def fulfil(job: "Callable[[], Arrays]", result: "Future[Arrays]") -> None:
            time.sleep(0.005 if threading.current_thread().name.startswith(f"mlxbert-core-{slow}") else 0)
            usual(job, result)

        with monkeypatch.context() as patched:
            patched.setattr(cores, "_fulfil", fulfil)
            run = make_run(epochs=1, streams=5, evaluate=None)
            list(run.events())
            return digest(run)

    usual = cores._fulfil
    assert found(0) == found(2)
