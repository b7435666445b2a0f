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
_absent: dict[str, str] = {}  # and of each name of a room that was taken out


def _read_homes() -> dict[str, str]:
    if not _homes:
        from pathlib import Path

        here = Path(__file__)
        stub = here.with_suffix(".pyi").read_text(encoding="utf-8")
        there = {path.stem for path in here.parent.iterdir()}
        for module, names in re.findall(r"^(?:# )?from (\S+) import (\([^)]*\)|.*)$", stub, re.MULTILINE):
            found = dict.fromkeys(re.findall(r"\b(\w+) as \1\b", names), module)
            (_homes if not found or module.split(".")[1] in there else _absent).update(found)
    return _homes


def __getattr__(name: str) -> object:
    homes = _read_homes()
    if name == "__all__":
        return sorted(homes)
    if name in _absent:
        raise AttributeError(f"this installation of mlxbert has no {name!r}, because {_absent[name]} is missing")
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
