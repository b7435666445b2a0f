"""Several processes that share one run of training, started by `mlx.launch --backend ring`.

Each process computes a part of every batch. All hold the same weights, make the same updates and get the same results;
only the first process writes files and reports.
"""

import itertools
import json
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mlxbert.errors import DeviceError, MlxbertError
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import mx
from mlxbert.machine.device_errors import device_errors

Arrays = dict[str, mx.array]
_LOG = logging.getLogger("mlxbert")
# Seconds that the processes wait for each other. A process that ends is noticed at once; the timeout is for a machine
# that vanishes. It is long because the first process may be writing a large state to a slow disk.
_TIMEOUT = 1800.0
_RESUMES = "the same command resumes from the last saved state"


class LostError(MlxbertError):
    """Another process of the run has ended or does not respond."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run."""

    rank: int = 0  # the number of this process, from 0
    size: int = 1  # the number of processes

    def sum(self, arrays: Arrays) -> Arrays:
        """Sums each array, by name, over all processes; all arrays have the same dtype. The sums are evaluated."""
        if self.size == 1:
            return arrays
        names = sorted(arrays)  # a state from disk and a new one have different orders
        flat = mx.concatenate([arrays[name].reshape(-1) for name in names])
        mx.eval(flat)
        flat = mx.distributed.all_sum(flat)  # on the device that the network between the processes can read from
        with _timeout():
            try:
                with device_errors():
                    mx.eval(flat)
            except RuntimeError as problem:
                raise LostError(f"another process of this run was lost ({problem})", hint=_RESUMES) from None
        summed, start = {}, 0
        for name in names:
            array = arrays[name]
            summed[name] = flat[start : start + array.size].reshape(array.shape)
            start += array.size
        return summed

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Sends a JSON value of one process to every process."""
        data = json.dumps(value).encode() if self.rank == source else b""
        size = cast(int, self.sum({"": mx.array([len(data)])})[""].item())
        codes = mx.array([*data] if self.rank == source else [0] * size, dtype=mx.int32)
        return json.loads(bytes(cast(list[int], self.sum({"": codes})[""].tolist())))

    def broadcast_arrays(self, arrays: Arrays) -> Arrays:
        """Sends the first process's float32 arrays to all processes, bit for bit.

        Other processes pass arrays of the same names and shapes, whose values do not matter.
        """
        bits = {name: array.view(mx.int32) for name, array in arrays.items()}
        terms = bits if self.rank == 0 else {name: mx.zeros_like(array) for name, array in bits.items()}
        return {name: array.view(mx.float32) for name, array in self.sum(terms).items()}

    def shared(self, items: Sequence[Any], compute: Callable[[Sequence[Any]], Sequence[Any]]) -> list[Any]:
        """Computes a float32 array for each item; each process computes a part of them, and gets all."""
        own = compute(items[self.rank :: self.size])
        if self.size == 1:
            return [*own]
        shapes: list[Sequence[int]] = [()] * len(items)
        for rank in range(self.size):
            shapes[rank :: self.size] = self.broadcast([row.shape for row in own], rank)
        ends = np.cumsum([0, *map(math.prod, shapes)])
        flat = np.zeros(ends[-1], np.float32)
        for row, start in zip(own, ends[self.rank :: self.size], strict=False):
            flat[start : start + row.size] = row.reshape(-1)
        summed = np.array(self.sum({"": mx.array(flat)})[""])
        places = zip(itertools.pairwise(ends), shapes, strict=True)
        return [summed[start:end].reshape(shape) for (start, end), shape in places]

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        """Raises an error of one process, such as a missing file, in all processes, so that the whole run ends."""
        problem: MlxbertError | None = None
        try:
            yield
        except MlxbertError as error:
            problem = error
        if self.size > 1 and not isinstance(problem, LostError):
            report = problem and [f"process {self.rank}: {problem.message}", problem.hint]
            reports = [self.broadcast(report, source) for source in range(self.size)]
            problem = problem or next((MlxbertError(report[0], hint=report[1]) for report in reports if report), None)
        if problem is not None:
            raise problem

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Checks that all processes have the same data, model and versions."""
        own = json.loads(json.dumps(facts))
        expected = self.broadcast(own)
        with self.raise_together():
            if names := [name for name in own if own[name] != expected.get(name)]:
                raise MlxbertError(
                    f"this process and process 0 differ in {', '.join(names)}",
                    hint="every machine needs the same files, packages and kind of device",
                )


@contextmanager
def _timeout() -> Iterator[None]:
    """Ends this process if the block takes too long, because MLX cannot be interrupted while it waits."""

    def give_up() -> None:
        _LOG.error("another process of this run has not responded for %.0f s; %s", _TIMEOUT, _RESUMES)
        os._exit(1)

    timer = threading.Timer(_TIMEOUT, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def join() -> ProcessGroup:
    """Joins the group that this process was started in; a process that was started alone is a group of one."""
    expected = _expected_size()
    if expected == 1:
        return ProcessGroup()
    try:
        group = mx.distributed.init(strict=True, backend="ring")
        rank, size = group.rank(), group.size()
    except RuntimeError as problem:
        raise DeviceError(f"the {expected} processes of this run cannot connect to each other ({problem})") from None
    if size != expected:
        raise DeviceError(
            f"this run was started with {expected} processes, but only {size} could connect",
            hint="check the addresses in the hostfile, and that no earlier run still uses these addresses",
        )
    return ProcessGroup(rank, size)


def _expected_size() -> int:
    """The number of processes that the launcher says it started."""
    if "MLX_RANK" not in os.environ:
        return 1
    try:
        # mlx.launch writes an empty list of hosts for a ring of one.
        return len(json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text().strip() or "[0]"))
    except (KeyError, OSError, ValueError, TypeError) as problem:
        raise DeviceError(
            f"MLX_RANK is set, but MLX_HOSTFILE does not name a file with a list of hosts ({problem!r})",
            hint="start the processes with mlx.launch --backend ring",
        ) from None
