"""Measures which inputs the matrices of a network get for the texts of `mlxbert.text.sample_texts`."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from mlxbert.export.compare.compared_model import OpenedModel
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import Network
from mlxbert.text.sample_texts import sample
from mlxbert.weights.build import build_network
from mlxbert.weights.formats.quantized import quantizable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BATCH = 32  # texts
_LENGTH = 64  # tokens of a text that are used


class LayerInputs:
    """The products XᵀX of the inputs X of each matrix, summed over the sample texts; measured on first use."""

    def __init__(self, model: OpenedModel) -> None:
        self._model = model

    def take(self, name: str) -> "NDArray[np.float32] | None":
        """Returns the summed products for a matrix, (I, I) for I inputs, and forgets them.

        Returns:
            The products; `None` if the matrix was not measured, or its inputs were not finite.
        """
        import numpy as np

        products = self._measured.pop(name, None)
        if products is None or not mx.isfinite(products).all().item():
            return None
        return np.array(products)

    @cached_property
    def _measured(self) -> dict[str, mx.array]:
        model = self._model
        parts = [part for part in model.parts if model.has_loaded(part)]
        network = build_network(model.checkpoint, parts, mx.float32)
        network.encoder.divisible = False  # because the measuring layers keep sums
        layers = _measure(network)
        for batch in _batches(model):
            output = network.encoder(batch)
            outputs = [output.last_hidden_state, *(network.logits(head, output) for head in network.heads)]
            pooled = [] if output.pooler_output is None else [output.pooler_output]
            mx.eval(outputs, pooled, [layer.products for layer in layers.values()])
        return {f"{path}.weight": layer.products for path, layer in layers.items() if layer.products is not None}


class _Measuring(nn.Module):
    """A linear layer that also sums the products XᵀX of its inputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = layer
        self.products: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        rows = x.reshape(-1, x.shape[-1]).astype(mx.float32)
        products = rows.T @ rows
        self.products = products if self.products is None else self.products + products
        return self._layer(x)


def _measure(network: Network) -> Mapping[str, _Measuring]:
    """Replaces the linear layers that can be quantized with measuring layers. Returns the new layers, keyed by path."""
    modules = dict(network.named_modules())
    layers = {}
    for name in quantizable(network):
        path = name.removesuffix(".weight")
        if isinstance(modules[path], nn.Linear):
            parent, _, child = path.rpartition(".")
            layers[path] = modules[parent][child] = _Measuring(modules[path])
    return layers


def _batches(model: OpenedModel) -> list[mx.array]:
    """Returns the token ids of the sample texts in batches, (B, L), each with texts of the same length only."""
    limit = min(_LENGTH, model.tokenizer.max_length)
    by_length: dict[int, list[tuple[int, ...]]] = {}
    for text in sample():
        ids = tuple(model.tokenizer.encode(text, overflow="truncate").ids[:limit])
        by_length.setdefault(len(ids), []).append(ids)
    return [
        mx.array(group[start : start + _BATCH])
        for length, group in sorted(by_length.items()) if length
        for start in range(0, len(group), _BATCH)
    ]  # fmt: skip
