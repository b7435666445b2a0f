"""BERT encoders on Apple's MLX: embeddings, fill-mask, classification, fine-tuning, and the numbers of `transformers`.

```python
import mlxbert

model = mlxbert.load("builtin")
print(mlxbert.fill_mask(model, "Tokyo is the largest city in [MASK].").masks[0].fills[0].token)
```

Importing the package does nothing; what is used is imported when it is used.
"""

import ast
import importlib
from pathlib import Path

_HOMES = {
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlxbert' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
