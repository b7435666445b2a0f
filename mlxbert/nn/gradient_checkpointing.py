"""Gradient checkpointing (arXiv:1604.06174): a layer's arrays are computed again for its gradients instead of kept."""

from dataclasses import replace

from mlxbert.machine.device import mx
from mlxbert.nn import dropout
from mlxbert.nn.blocks import PostNormBlock, PreNormBlock
from mlxbert.nn.ops import backend
from mlxbert.nn.positions import Context

Arrays = dict[str, mx.array]


def checkpointed(
    layer: PostNormBlock | PreNormBlock, x: mx.array, context: Context, key: mx.array | None
) -> tuple[mx.array, mx.array | None]:
    """Runs `layer(x, context)` with dropout masks from `key`; keeps only the inputs and outputs for the gradients.

    All arrays that need gradients, and the random key, are arguments of the function that is computed twice: gradients
    do not flow into arrays of a closure, and the second call must draw the same masks as the first.
    """
    learned = _learned(context)
    trainable = layer.trainable_parameters()

    def run(parameters: Arrays, x: mx.array, learned: Arrays, key: mx.array) -> list[mx.array]:
        layer.update(parameters)
        try:
            with dropout.seeded(mx.stop_gradient(key)), backend().unstaged():  # stages would keep their arrays
                y, weights = layer(x, _with_learned(context, learned))
        finally:
            layer.update(trainable)
        return [y] if weights is None else [y, weights]

    y, *weights = mx.checkpoint(run)(trainable, x, learned, mx.zeros(2, dtype=mx.uint32) if key is None else key)
    return y, weights[0] if weights else None


def _learned(context: Context) -> Arrays:
    """The arrays of a context that were computed from parameters."""
    arrays = {} if context.bias is None else {"bias": context.bias}
    return arrays if context.distances is None else {**arrays, "distances": context.distances.vectors}


def _with_learned(context: Context, learned: Arrays) -> Context:
    distances = context.distances
    if distances is not None:
        distances = distances._replace(vectors=learned["distances"])
    return replace(context, bias=learned.get("bias"), distances=distances)
