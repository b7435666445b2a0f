"""Runs the missing parts of a job with Ray, each part as a task.

Tasks, not actors: an actor of a node that died waits for a free CPU, but a task runs again on any node. A process of
Ray runs many tasks, one after the other, and keeps the model between them. Not Ray Data either: its results would be
lost with the node that computed them, and their parts computed again.
"""

import itertools
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.progress import OnProgress
from mlxbert.scale.callables import require
from mlxbert.scale.job import Job, JobPart, PartWriter

LOCAL = "local"
_OBJECT_STORE = 100 * 2**20  # bytes; only counts of parts are in it
_WAIT = 5.0  # seconds for a connection to the address
_CHECK = 10.0  # seconds without a result after which the nodes are looked at
_WINDOW = 4096  # parts that Ray knows at a time
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to Ray's authors
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # its default, without a warning
}
_WRITERS: dict[tuple[str, str], PartWriter] = {}


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connects to a cluster, or starts Ray in this process's machine; yields the module `ray`, and disconnects.

    Args:
        address: `local`, `auto` for a cluster that this machine belongs to, or `HOST:PORT` of its head.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if address not in (LOCAL, "auto"):
        _check_address(address)
    require("ray", "a job on many machines")
    import ray

    started = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE} if address == LOCAL else {}
    on_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **started)
    except (OSError, RuntimeError, ValueError) as problem:
        reason = str(problem).partition("\n")[0]
        raise MlxbertError(
            f"Ray cannot be used at {address} ({reason})", hint="run the job on a machine of the cluster"
        ) from None
    finally:
        for number, handler in handlers.items() if on_main else ():  # Ray replaces them
            signal.signal(number, handler)
    try:
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raises an error if nothing listens at an address: Ray would try for a minute, and print its log."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ArgumentError(f"`cluster` is {address!r:.60}, expected local, auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), _WAIT).close()
    except (OSError, OverflowError) as problem:
        raise MlxbertError(
            f"Ray cannot be reached at {address} ({problem})",
            hint="start Ray on the machines, and give the address of the head",
        ) from None


def run(job: Job, parts: Sequence[JobPart], address: str, cpus: int | None, on_progress: OnProgress) -> int:
    """Computes parts of a job; returns the number of nodes that computed any.

    Args:
        cpus: The CPUs of a process; by default 1, or all CPUs of the smallest node if models compute on a GPU.
        on_progress: Called with the number of rows that are done, and of all rows.
    """
    if not parts:
        return 0
    nodes, done, total = set[str](), 0, sum(part.rows for part in parts)
    with connected(address) as ray:
        sizes = _sizes(ray)
        cpus = cpus or _default_cpus(job, sizes)
        if max(sizes, default=0) < cpus:
            raise ArgumentError(
                f"`cpus` is {cpus}, but the largest machine of the cluster has {max(sizes, default=0)} CPUs, so that "
                "no part would ever begin"
            )
        on_progress(0, total)
        try:
            for rows, node, failure in _results(ray, job, parts, cpus):
                if failure is not None:
                    raise failure
                nodes.add(node)
                done += rows
                on_progress(done, total)
        except ray.exceptions.RayError as problem:
            raise MlxbertError(
                f"a process of Ray failed: {_cause(problem)}",
                hint="all machines need the same version of mlxbert; finished parts are kept",
            ) from None
    return len(nodes)


def _sizes(ray: Any) -> list[int]:
    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]


def _cause(problem: BaseException) -> str:
    """Returns the line of Ray's message that names the exception, the first one without an indent after a traceback."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    after = [line for before, line in itertools.pairwise(lines) if before[:1] == " " and line[:1] not in ("", " ")]
    return f"{(after or lines)[0]:.300}"


def _default_cpus(job: Job, sizes: Sequence[int]) -> int:
    from mlxbert.machine.device import on_gpu

    return max(min(filter(None, sizes), default=1), 1) if on_gpu() and job.model.device != "cpu" else 1


def _results(ray: Any, job: Job, parts: Sequence[JobPart], cpus: int) -> Iterator[tuple[int, str, MlxbertError | None]]:
    """Yields what `compute_part` returns, in any order."""
    compute = ray.remote(num_cpus=cpus, max_retries=-1)(compute_part)  # of tasks whose process died, not of exceptions
    waiting, running, shared = iter(parts), list[Any](), ray.put(job)
    while True:
        running += [compute.remote(shared, part) for part in itertools.islice(waiting, _WINDOW - len(running))]
        if not running:
            return
        ready, running = ray.wait(running, timeout=_CHECK)
        if not ready and max(_sizes(ray), default=0) < cpus:
            raise MlxbertError(
                f"the cluster has no machine with {cpus} CPUs any more",
                hint="finished parts are kept: the same command resumes when such a machine is there",
            )
        yield from ray.get(ready)


def _writer(job: Job) -> PartWriter:
    """Returns the writer of a job, which this process keeps for further parts."""
    if (job.key, job.output) not in _WRITERS:
        _WRITERS.clear()
        _WRITERS[job.key, job.output] = PartWriter(job)
    return _WRITERS[job.key, job.output]


def compute_part(job: Job, part: JobPart) -> tuple[int, str, MlxbertError | None]:
    """Computes a part in a process of Ray; returns its rows, its node, and the error that must end the job."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    try:
        _writer(job).write(part)
    except MlxbertError as problem:
        return 0, node, problem
    return part.rows, node, None
