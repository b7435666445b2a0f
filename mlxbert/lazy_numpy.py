"""NumPy, imported at its first use: importing it takes a tenth of a second, and many commands do not need it."""

from typing import TYPE_CHECKING, Any

__all__ = ["NDArray", "np"]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:

    class _NumPy:
        """Stands for the module, and keeps what was asked of it."""

        def __getattr__(self, name: str) -> Any:
            import numpy

            value = getattr(numpy, name)
            setattr(self, name, value)
            return value

    np, NDArray = _NumPy(), Any
