"""Linear layers with a low-rank adapter, and their insertion into a network (see `mlxbert.nn.lora`).

The weights of a layer do not change and keep their names; `lora_a`, `lora_b` and, for DoRA, `magnitude` are stored next
to them. Layers whose weights form a single matrix in transformers share A, because that matrix has one A, and one B for
all rows.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mlxbert.machine.device import mx, nn
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.lora import row_norms, scale_of
from mlxbert.nn.ops import backend

PARAMETERS = ("lora_a", "lora_b", "magnitude")


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """How layers are adapted."""

    rank: int  # the rank r of the update
    alpha: float  # the update is multiplied by alpha / r
    dropout: float = 0.0  # the dropout rate for the input of A
    rslora: bool = False  # whether the update is multiplied by alpha / √r instead (rsLoRA)
    # Whether the norm of each row of the adapted matrix is learned separately from its direction (DoRA).
    dora: bool = False

    @property
    def scale(self) -> float:
        return scale_of(self.rank, self.alpha, rslora=self.rslora)


class LoraLinear(nn.Module):
    """A linear layer with an adapter; the parameters of the layer itself, plain or quantized, are not trained.

    `key` determines the initial values of A. `shared` is the layer whose A is shared; `None` if this layer has its own.
    """

    def __init__(
        self,
        base: nn.Linear | nn.QuantizedLinear,
        settings: LoraSettings,
        key: mx.array,
        shared: "LoraLinear | None" = None,
    ) -> None:
        super().__init__()
        for name in base:
            self[name] = base[name]
        self.freeze()
        self.scale = settings.scale
        self.dropout = KeyedDropout(settings.dropout)
        self._packing = (base.group_size, base.bits, base.mode) if isinstance(base, nn.QuantizedLinear) else None
        weight = self._weight()
        if shared is None:
            bound = 1 / math.sqrt(weight.shape[1])  # Kaiming's uniform with a = √5, as torch initializes linear layers
            self.lora_a = mx.random.uniform(-bound, bound, (settings.rank, weight.shape[1]), key=key)
        # A function, not the layer itself, which would become a child module with parameters.
        self._down: Callable[[], mx.array] = (lambda: self["lora_a"]) if shared is None else shared._down
        self.lora_b = mx.zeros((weight.shape[0], settings.rank))
        if settings.dora:
            self.magnitude = row_norms(weight)  # B is 0

    def _weight(self) -> mx.array:
        """The weights of the base layer, (O, I)."""
        if self._packing is None:
            return self["weight"]
        group_size, bits, mode = self._packing
        return mx.dequantize(
            self["weight"], self["scales"], self.get("biases"), group_size=group_size, bits=bits, mode=mode
        )

    def _product(self, x: mx.array) -> mx.array:
        """`x` times the weights of the base layer, without the bias."""
        if self._packing is None:
            return x @ self["weight"].T
        group_size, bits, mode = self._packing
        return mx.quantized_matmul(
            x, self["weight"], self["scales"], self.get("biases"), group_size=group_size, bits=bits, mode=mode
        )

    def __call__(self, x: mx.array) -> mx.array:
        """(…, I) → (…, O)."""
        product, dropped = backend().staged(self._product(x)), self.dropout(x)
        update = backend().scaled((dropped @ self._down().T) @ self.lora_b.T, self.scale)
        y = product + self["bias"] if "bias" in self else product
        if "magnitude" not in self:
            return y + update
        # With dropout, both terms of the adapted matrix see the same input.
        seen = self._product(dropped) if self.dropout.drops else product
        factor = self._factor().astype(x.dtype)
        return y + (factor - 1) * seen + factor * update

    def _factor(self) -> mx.array:
        """The factor that gives each row its learned norm, float32 (O,); no gradient flows through the current norm."""
        rows = self._weight().astype(mx.float32) + self.scale * (self.lora_b @ self._down()).astype(mx.float32)
        return self.magnitude.astype(mx.float32) / mx.stop_gradient(row_norms(rows))


def adapt(network: nn.Module, groups: Iterable[Sequence[str]], settings: LoraSettings, seed: int = 0) -> set[str]:
    """Adapts the linear layers with these paths in place, and returns the names of the new parameters.

    The layers of a group share A, whose initial values the seed and the paths determine.
    """
    modules = dict(network.named_modules())
    names: set[str] = set()
    for group in groups:
        first: LoraLinear | None = None
        for path in group:
            parent, _, name = path.rpartition(".")
            key = mx.random.key(zlib.crc32(f"{seed} {path}.lora_a".encode()))
            adapted = LoraLinear(modules[path], settings, key, first)
            modules[parent][name] = adapted
            first = first or adapted
            names |= {f"{path}.{parameter}" for parameter in PARAMETERS if parameter in adapted}
    network.train(network.training)  # new modules are in training mode
    return names
