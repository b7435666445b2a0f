"""Groups vectors of length 1 by their directions.

Shapes: N vectors, W values per vector, K groups.
"""

from typing import TYPE_CHECKING

from mlxbert.nn.unit_length import unit_length

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
