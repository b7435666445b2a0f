"""Several processes that share one run, started by `mlx.launch`.

In training each computes a part of every batch; otherwise they take turns. All hold the same weights, make the same
updates and have the same results; the first one alone writes files and reports.
"""

import itertools
import json
import logging
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from mlxbert.errors import DeviceError, MlxbertError
from mlxbert.machine.device import mx
from mlxbert.machine.device_errors import device_errors

R = TypeVar("R")

Arrays = dict[str, mx.array]
_LOG = logging.getLogger("mlxbert")
# Seconds that the processes wait for each other. A process that ends is noticed at once; this is for a machine that is
# suddenly gone. The first process may be busy with a large state and a slow disk.
_PATIENCE = 1800.0
_RESUMES = "the same command resumes from the last saved state"


class LostError(MlxbertError):
    """Another process of the run has ended, or does not answer."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run.

    Attributes:
        rank: The number of this process, from 0.
        size: How many there are.
    """

    rank: int = 0
    size: int = 1

    def sum(self, arrays: Arrays) -> Arrays:
        """The sums of arrays of one dtype over all processes, by name, evaluated, in one message."""
        if self.size == 1:
            return arrays
        names = sorted(arrays)  # a state from disk has them in another order than a new one
        whole = mx.concatenate([arrays[name].reshape(-1) for name in names])
        mx.eval(whole)
        whole = mx.distributed.all_sum(whole)  # on the device that the network between the processes can read from
        with _patience():
            try:
                with device_errors():
                    mx.eval(whole)
            except RuntimeError as problem:
                raise LostError(f"another process of this run was lost ({problem})", hint=_RESUMES) from None
        summed, start = {}, 0
        for name in names:
            array = arrays[name]
            summed[name] = whole[start : start + array.size].reshape(array.shape)
            start += array.size
        return summed

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """A JSON value of one process, in every process."""
        data = json.dumps(value).encode() if self.rank == source else b""
        size = cast(int, self.sum({"": mx.array([len(data)])})[""].item())
        codes = mx.array([*data] if self.rank == source else [0] * size, dtype=mx.int32)
        return json.loads(bytes(cast(list[int], self.sum({"": codes})[""].tolist())))

    def broadcast_arrays(self, arrays: Arrays) -> Arrays:
        """The float32 arrays of the first process, bit by bit; those of the others only say names and shapes."""
        bits = {name: array.view(mx.int32) for name, array in arrays.items()}
        own = bits if self.rank == 0 else {name: mx.zeros_like(array) for name, array in bits.items()}
        return {name: array.view(mx.float32) for name, array in self.sum(own).items()}

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        """What cannot be used on one machine, such as a missing file, ends the run on all of them, with its message."""
        problem: MlxbertError | None = None
        try:
            yield
        except MlxbertError as found:
            problem = found
        if self.size > 1 and not isinstance(problem, LostError):
            said = problem and [f"process {self.rank}: {problem.message}", problem.hint]
            found_there = [self.broadcast(said, source) for source in range(self.size)]
            problem = problem or next((MlxbertError(said[0], hint=said[1]) for said in found_there if said), None)
        if problem is not None:
            raise problem

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Checks that all processes have the same data, model and versions.

        Args:
            facts: JSON values by name, such as hashes.
        """
        here = json.loads(json.dumps(facts))
        there = self.broadcast(here)
        with self.raise_together():
            if names := [name for name in here if here[name] != there.get(name)]:
                raise MlxbertError(
                    f"not the same as in process 0: {', '.join(names)}",
                    hint="every machine needs the same files, packages and kind of device",
                )


class Turns:
    """Batches that processes compute in turn, so that batches, and the bits of what they give, are those of one.

    Args:
        group: The processes.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self._turns = itertools.cycle(range(group.size))

    def is_mine(self) -> bool:
        """Whether this process computes the next batch; asked once for each."""
        return next(self._turns) == self.group.rank

    def all_gather(self, rows: Sequence[Any]) -> list[Any]:
        """The rows of all batches, float32 arrays, in every process.

        Args:
            rows: Those of this process, and `None` for those of the others.
        """
        import numpy as np

        if self.group.size == 1 or not rows:
            return list(rows)
        mine = {number: [*row.shape] for number, row in enumerate(rows) if row is not None}
        shapes: dict[int, list[int]] = {}
        for source in range(self.group.size):
            shapes |= {int(number): shape for number, shape in self.group.broadcast(mine, source).items()}
        ends = np.cumsum([math.prod(shapes[number]) for number in range(len(rows))], dtype=np.int64)
        whole = np.zeros(ends[-1], np.float32)
        for row, end in zip(rows, ends, strict=True):
            if row is not None:
                whole[end - row.size : end] = row.reshape(-1)
        summed = np.array(self.group.sum({"": mx.array(whole)})[""])
        return [part.reshape(shapes[number]) for number, part in enumerate(np.split(summed, ends[:-1]))]


@contextmanager
def _patience() -> Iterator[None]:
    """Ends this process if what is done inside takes too long: MLX cannot be interrupted while it waits."""

    def give_up() -> None:
        _LOG.error("another process of this run has not answered for %.0f s; %s", _PATIENCE, _RESUMES)
        os._exit(1)

    timer = threading.Timer(_PATIENCE, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def join() -> ProcessGroup:
    """The group that this process was started in; a process that was started alone is a group of one."""
    expected = _expected_size()
    if expected == 1:
        return ProcessGroup()
    try:
        group = mx.distributed.init(strict=True)
        rank, size = group.rank(), group.size()
    except RuntimeError as problem:
        raise DeviceError(f"the {expected} processes of this run cannot connect ({problem})") from None
    if size != expected:
        raise DeviceError(
            f"this run was started as {expected} processes, but only {size} could connect",
            hint="check the addresses in the hostfile, and that no earlier run still uses them",
        )
    return ProcessGroup(rank, size)


def _expected_size() -> int:
    """How many processes the launcher says that it started."""
    if "MLX_RANK" not in os.environ:  # alone, or MPI
        return int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    if "MLX_WORLD_SIZE" in os.environ:  # NCCL
        return int(os.environ["MLX_WORLD_SIZE"])
    name = "MLX_IBV_DEVICES" if "MLX_JACCL_COORDINATOR" in os.environ else "MLX_HOSTFILE"  # JACCL; ring
    try:
        # mlx.launch writes an empty list of hosts for a ring of one.
        return len(json.loads(Path(os.environ[name]).read_text().strip() or "[0]"))
    except (KeyError, OSError, ValueError, TypeError) as problem:
        raise DeviceError(f"MLX_RANK is set, but {name} names no list of hosts ({problem!r})") from None
