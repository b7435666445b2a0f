"""Tells whether `mlx.launch` or `mpirun` started this process, without importing MLX."""

import os


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("MLX_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)


def is_launched() -> bool:
    """Whether a launcher started this process."""
    return "MLX_RANK" in os.environ or is_mpi()


def is_mpi() -> bool:
    """Whether `mpirun` started this process."""
    return "OMPI_COMM_WORLD_RANK" in os.environ
