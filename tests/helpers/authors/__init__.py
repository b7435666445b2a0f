"""Models that transformers lacks, in torch: the same computation and tensor names as in their authors' code.

Their interface is the part of transformers' interface that tests use. Facts have the names that transformers uses.
"""

from typing import Any

import transformers

from tests.helpers.authors import flash, jina_bert, neobert


def class_of(name: str) -> Any:
    return next(getattr(place, name) for place in (flash, jina_bert, neobert, transformers) if hasattr(place, name))
