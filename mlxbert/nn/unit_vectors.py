"""Vectors of length 1 in NumPy arrays: scales vectors to this length, and groups them by their directions.

Shapes: N vectors, W values per vector, K groups.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALLEST_NORM = 1e-12  # as in torch.nn.functional.normalize


def unit_length(vectors: "NDArray[Any]", out: "NDArray[Any] | None" = None) -> "NDArray[Any]":
    """Returns vectors (…, W), W values each, scaled to length 1. A vector of zeros stays as it is.

    Args:
        out: The array for the result, which may be `vectors`; by default a new one.
    """
    import numpy as np

    dtype = np.result_type(vectors, np.float32)  # the squares of smaller types overflow
    lengths = np.sqrt(np.einsum("...w,...w->...", vectors, vectors, dtype=dtype))[..., None]
    scaled: NDArray[Any] = np.divide(vectors, np.maximum(lengths, SMALLEST_NORM), out=out)
    return scaled


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


def spherical_kmeans(vectors: "Floats", centers: "Floats", rounds: int) -> "Floats":
    """Moves each center to the mean direction of the vectors that are nearest to it, until no vector changes its group.

    Args:
        vectors: The vectors, (N, W), of length 1.
        centers: The first centers, (K, W), of length 1. A center without vectors stays where it is.
        rounds: The maximum number of rounds.

    Returns:
        The centers, (K, W).
    """
    import numpy as np

    groups = np.full(len(vectors), -1)
    for _ in range(rounds):
        before, groups = groups, (vectors @ centers.T).argmax(1)
        if (groups == before).all():
            break
        sums = np.zeros_like(centers)
        np.add.at(sums, groups, vectors)
        centers = np.where(sums.any(1, keepdims=True), unit_length(sums), centers)
    return centers
