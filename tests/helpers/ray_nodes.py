"""Nodes of Ray on this machine, which can be killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from mlxbert.scale.run_with_ray import QUIET


class Nodes:
    """A cluster of two nodes on this machine: the head, and a worker that can be killed."""

    def __init__(self, cpus: int, of_worker: int) -> None:
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": cpus, "include_dashboard": False}
        )  # fmt: skip
        self._worker: Any = self._cluster.add_node(num_cpus=of_worker)
        self.address: str = self._cluster.address

    def kill(self) -> None:
        self._cluster.remove_node(self._worker, allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()


@contextmanager
def two_nodes(cpus: int, of_worker: int | None = None) -> Iterator[Nodes]:
    """Starts two nodes with this number of CPUs, or another one of the worker; ends them after the block."""
    os.environ.update(QUIET)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        nodes = Nodes(cpus, of_worker or cpus)
    try:
        yield nodes
    finally:
        nodes.stop()
