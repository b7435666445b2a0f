"""Models that transformers does not have, in torch: what their authors' code computes, with its names of tensors.

They have the interface of transformers' models as far as tests use it; facts have the names that transformers uses.
"""

from typing import Any

import transformers

from tests.helpers.authors import flash, jina_bert, neobert


def class_of(name: str) -> Any:
    """A class of transformers, or one of ours."""
    return next(getattr(place, name) for place in (flash, jina_bert, neobert, transformers) if hasattr(place, name))
