"""Several processes that share one run, started by `mlx.launch`: each computes a part of every batch.

All processes hold the same weights and make the same updates; the first one alone writes files and reports.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mlxbert.device import mx
from mlxbert.errors import DeviceError

Arrays = dict[str, mx.array]


@dataclass(frozen=True)
class Group:
    """The processes of a run.

    Attributes:
        rank: The number of this process, from 0.
        size: How many there are.
    """

    rank: int = 0
    size: int = 1

    def sum(self, arrays: Arrays) -> Arrays:
        """The sums of float32 arrays over all processes, in one message."""
        if self.size == 1:
            return arrays
        whole = mx.concatenate([array.reshape(-1) for array in arrays.values()])
        whole = mx.distributed.all_sum(whole, stream=mx.cpu)
        summed, start = {}, 0
        for name, array in arrays.items():
            summed[name] = whole[start : start + array.size].reshape(array.shape)
            start += array.size
        return summed

    def broadcast(self, value: Any) -> Any:
        """A JSON value of the first process, in every process."""
        data = json.dumps(value).encode() if self.rank == 0 else b""
        size = cast(int, self.sum({"size": mx.array([float(len(data))])})["size"].item())
        codes = mx.array([*data] if self.rank == 0 else [0] * int(size), dtype=mx.float32)
        return json.loads(bytes(int(code) for code in cast(list[float], self.sum({"codes": codes})["codes"].tolist())))

    def from_first(self, arrays: Arrays) -> Arrays:
        """The arrays of the first process; those of the others only say names and shapes."""
        return self.sum(arrays if self.rank == 0 else {name: mx.zeros_like(array) for name, array in arrays.items()})


def join() -> Group:
    """The group that this process was started in; a process that was started alone is a group of one.

    Raises:
        DeviceError: The processes did not find each other: MLX would then train each alone, without a word.
    """
    expected = _expected_size()
    if expected == 1:
        return Group()
    try:
        group = mx.distributed.init(strict=True)
        rank, size = group.rank(), group.size()
    except RuntimeError as problem:
        raise DeviceError(f"the {expected} processes of this run cannot connect ({problem})") from None
    if size != expected:
        raise DeviceError(
            f"this run was started as {expected} processes, {size} found each other",
            hint="check the addresses in the hostfile, and that no earlier run still uses them",
        )
    return Group(rank, size)


def _expected_size() -> int:
    """How many processes the launcher says that it started."""
    if "MLX_RANK" not in os.environ:
        return int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    if "MLX_WORLD_SIZE" in os.environ:  # NCCL
        return int(os.environ["MLX_WORLD_SIZE"])
    try:
        return len(json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text()))
    except (KeyError, OSError, ValueError) as problem:
        raise DeviceError(f"MLX_RANK is set, but MLX_HOSTFILE names no list of hosts ({problem!r})") from None
