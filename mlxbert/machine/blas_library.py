"""What is known about the library that computes MLX's matrix products on a CPU."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Blas:
    """The library that computes MLX's matrix products on a CPU."""

    name: str  # accelerate, scipy-openblas32 with its version, openblas, mkl, reference, or the requested path
    path: str | None = None  # of the file that was loaded
    hint: str | None = None  # how to get a faster library, if that is possible
    set_threads: Callable[[int], None] | None = None  # sets the number of threads, if the library can
    sgemm: Callable[..., None] | None = None  # its `cblas_sgemm`, if mlxbert calls the library itself
