"""The vectors of many texts, of length 1: computed by a model, or given.

Shapes: N texts, W values per vector.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from mlxbert.errors import ArgumentError, InputError
from mlxbert.model import Model
from mlxbert.nn.unit_length import unit_length
from mlxbert.progress import OnProgress, progress
from mlxbert.tasks.argument_checks import check_inputs, check_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

_LOG = logging.getLogger("mlxbert")


def checked_texts(texts: object) -> list[str]:
    """Returns the texts as a list; raises an error if they are not a series of texts."""
    listed = list(check_inputs(texts, "texts", "a list of texts"))
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError(f"text {index} is of type {type(text).__name__}, expected a text")
    return listed


def unit_vectors(
    model: Model | None,
    texts: Sequence[str],
    vectors: Any = None,
    *,
    batch_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> "Vectors":
    """Returns the vectors of texts, (N, W), scaled to length 1.

    Args:
        model: The model that computes the vectors; not used if `vectors` are given.
        vectors: The vectors, (N, W); `None` to compute them.
        batch_tokens: The number of tokens per batch.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Raises:
        ArgumentError: There is no model, or `vectors` are not one vector per text.
        InputError: A vector has a value that is not finite, or a text is unusable.
    """
    import numpy as np

    if vectors is None:
        check_model(model)
        from mlxbert.tasks.embed import EmbedTask, stacked
        from mlxbert.tasks.options import EmbedOptions
        from mlxbert.text.usage import Usage

        usage = Usage()
        task = EmbedTask(cast(Model, model), EmbedOptions(batch_tokens=batch_tokens), usage=usage)
        with progress(on_progress, "texts") as update:
            rows = stacked(task, texts, "raise", update)
        if usage.truncated:
            _LOG.warning(
                "%s of %s texts are longer than %s tokens, so only their beginnings are compared; all of a text counts "
                "with vectors= that were made with overflow='window'",
                *(f"{number:,}" for number in (usage.truncated, len(texts), task.tokenizer.max_length)),
            )
    else:
        try:
            with np.errstate(over="ignore"):  # infinite numbers are refused below
                rows = np.array(vectors, np.float32)
        except (ValueError, TypeError):
            raise ArgumentError(f"vectors is {type(vectors).__name__}, expected numbers (N, W)") from None
        if rows.ndim != 2 or len(rows) != len(texts):
            raise ArgumentError(
                f"vectors has the shape {rows.shape}, expected one vector for each of {len(texts):,} texts"
            )
    if not np.isfinite(rows).all():
        place = int(np.flatnonzero(~np.isfinite(rows).all(1))[0])
        raise InputError(f"the vector of text {place} has a value that is not finite")
    rows /= np.maximum(np.abs(rows).max(axis=1, keepdims=True, initial=0), np.finfo(np.float32).tiny)
    return unit_length(rows, out=rows)
