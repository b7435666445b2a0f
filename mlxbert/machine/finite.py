"""What a model computes has to be finite."""

import math
from typing import Any, TypeVar

from mlxbert.errors import MlxbertError

Values = TypeVar("Values")


def check_finite(values: Values, what: str = "scores") -> Values:
    """Returns numbers, or refuses them if one is NaN or infinite.

    Args:
        values: A list of numbers, or an array of NumPy.
        what: What the numbers are, in the plural.
    """
    if not (all(map(math.isfinite, values)) if isinstance(values, list) else _is_finite(values)):
        raise MlxbertError(
            f"the model computed {what} that are not finite (NaN or infinite)",
            hint="load it with dtype='float32'; weights that are not finite cause this, too",
        )
    return values


def _is_finite(array: Any) -> bool:
    import numpy as np

    return bool(np.isfinite(array).all())
