"""BERT encoders on Apple's MLX: embeddings, fill-mask, classification, fine-tuning, and the numbers of `transformers`.

```python
import mlxbert

model = mlxbert.load("builtin")
print(mlxbert.fill_mask(model, "Tokyo is the largest city in [MASK].").masks[0].fills[0].token)
```

Importing the package loads nothing else; each name is imported on first use.
"""

import functools
import importlib
import re
import sys
from types import FunctionType

_homes: dict[str, str] = {}  # the module of each name; read when the first name is used


def _read_homes() -> dict[str, str]:
    if not _homes:
        from pathlib import Path

        stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
        for module, names in re.findall(r"^(?:# )?from (\S+) import (\([^)]*\)|.*)$", stub, re.MULTILINE):
            _homes.update(dict.fromkeys(re.findall(r"\b(\w+) as \1\b", names), module))
    return _homes


def __getattr__(name: str) -> object:
    homes = _read_homes()
    if name == "__all__":
        return sorted(homes)
    if name not in homes:
        from importlib.util import find_spec

        from mlxbert.other_libraries import instead_of

        # For `from mlxbert import name`, Python looks for a submodule next, and replaces the message of this error.
        instead, importing = instead_of(name, tuple(homes)), sys._getframe(1).f_code.co_name == "_handle_fromlist"
        if instead and importing and find_spec(f"mlxbert.{name}") is None:
            raise ImportError(f"cannot import name {name!r} from 'mlxbert'{instead}", name=name)
        raise AttributeError(f"module 'mlxbert' has no attribute {name!r}{instead}")
    return _public(getattr(importlib.import_module(homes[name]), name))


@functools.cache
def _public(value: object) -> object:
    """Wraps a function so that it checks the names of its keyword arguments; returns other values unchanged."""
    from mlxbert.other_libraries import checks_names

    return checks_names(value) if isinstance(value, FunctionType) else value


def __dir__() -> list[str]:
    return sorted(_read_homes())
