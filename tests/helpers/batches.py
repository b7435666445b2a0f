"""Batches as on a GPU, for tests on a machine without one."""

from collections.abc import Iterator, Sequence

import pytest

from mlxbert.machine.mac import GpuSize
from mlxbert.text.batch import BATCH_TOKENS, padded_length, padded_rows, plan


def as_on_a_gpu(patch: pytest.MonkeyPatch, size: GpuSize = "large") -> None:
    """Makes windows and batches like on a GPU of this size (on CUDA, if it is large), but lets the CPU compute them."""
    patch.setattr("mlxbert.text.batch.on_gpu", lambda: True)
    patch.setattr("mlxbert.text.batch.gpu_size", lambda: size)
    patch.setattr("mlxbert.text.batch.batch_cost", lambda: 1 / 8 if size == "large" else 1 / 16)
    patch.setattr("mlxbert.tasks.runner.on_gpu", lambda: True)


def shapes_of(
    lengths: Sequence[int], window: int, batch_tokens: int = BATCH_TOKENS["large"]
) -> Iterator[tuple[int, int]]:
    """Yields the rows and the length of each batch of inputs for a model that takes 512 tokens, window by window."""
    for start in range(0, len(lengths), window):
        padded = [padded_length(tokens, 512) for tokens in lengths[start : start + window]]
        for group in plan(padded, batch_tokens):
            length = max(padded[number] for number in group)
            yield padded_rows(len(group), length, batch_tokens), length
