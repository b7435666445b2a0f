"""AdamW (arXiv:1711.05101) with bias correction, as in torch: its state, and the clipping of gradients.

Parameters are flat dictionaries of float32 arrays, keyed by their full names.
"""

from dataclasses import dataclass, field, replace

from mlxbert.machine.device import mx

BETAS, EPS = (0.9, 0.999), 1e-8
Arrays = dict[str, mx.array]
Scalar = float | mx.array


@dataclass(frozen=True)
class AdamW:
    """The state of the optimizer."""

    # The decayed sums of gradients: every update multiplies them by the first beta, then adds the gradients. They are
    # the first moment of Adam divided by (1 - beta), which saves a pass over the numbers.
    means: Arrays
    # The decayed sums of squared gradients, with the second beta. They are the second moment divided by (1 - beta).
    squares: Arrays
    # The parameters after the last update, if nothing else uses their memory or the memory of the moments; otherwise
    # `None`. On a Linux CPU, an update of these parameters may overwrite them and the moments.
    own: Arrays | None = field(default=None, repr=False)

    @classmethod
    def new(cls, parameters: Arrays) -> "AdamW":
        """Returns the state before the first update."""
        zeros = {name: mx.zeros_like(array) for name, array in parameters.items()}
        return cls(zeros, dict(zeros))

    def shared(self) -> "AdamW":
        """Returns the state without `own`, so that the next update overwrites neither parameters nor moments."""
        return replace(self, own=None)


def clipping(length: Scalar, max_norm: float | None) -> Scalar:
    """Returns the factor that clips gradients from norm `length` to `max_norm`; 1 if `max_norm` is 0 or `None`."""
    if not max_norm:
        return 1.0
    factor = max_norm / (length + 1e-6)
    return mx.minimum(factor, 1.0) if isinstance(factor, mx.array) else min(factor, 1.0)
