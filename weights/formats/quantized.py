"""Weights in MLX's quantized layout: each group of numbers in a row shares a scale and an offset.

A matrix `x.weight` (out, in) is stored as `x.weight` of 32-bit words and `x.scales` and `x.biases` of
(out, in / group). `config.json` states bits and group size under `quantization`, as mlx-lm writes it. Readers see the
unpacked matrix.
Layout: https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from mlxbert.errors import CheckpointError
from mlxbert.machine.device import mx, nn
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.formats.headers import FLOATS, TensorInfo
from mlxbert.weights.formats.int8_rows import Int8Rows

KEY, THEIR_KEY = "quantization", "quantization_config"
BITS, GROUP_SIZES = (4, 8), (32, 64, 128)  # for writing; 2, 3 and 6 bits are read as well
_READ_BITS = (2, 3, 4, 6, 8)
_WORD = 32  # bits
_ROUNDED, _SMALLEST = 2.0**-7, 1e-7  # scales and offsets may be bfloat16; MLX has a minimum scale
_WEIGHT, _SCALES, _BIASES = ".weight", ".scales", ".biases"


@dataclass(frozen=True)
class Quantization:
    """The parameters of quantized weights: bits per number, and how many numbers of a row share a scale."""

    bits: int
    group_size: int = 64

    SUFFIXES: ClassVar[tuple[str, str, str]] = (_WEIGHT, _SCALES, _BIASES)

    @property
    def dtype(self) -> str:
        """The dtype name of a quantized tensor."""
        return f"Q{self.bits}"

    @property
    def name(self) -> str:
        """The name of the layout, for messages."""
        return f"{self.bits} bits in groups of {self.group_size}"

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape can be quantized with these parameters."""
        return len(shape) == 2 and shape[1] % self.group_size == 0 and shape[1] > 0

    def pack(self, name: str, array: mx.array) -> dict[str, mx.array]:
        """Quantizes the matrix `name` into its three tensors, with scales in its dtype."""
        stem = name.removesuffix(_WEIGHT)
        packed = mx.quantize(array, group_size=self.group_size, bits=self.bits)
        return {stem + suffix: part for suffix, part in zip(self.SUFFIXES, packed, strict=True)}

    def unpacked(self, folder: Path, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """The tensors with the unpacked shapes of quantized matrices, without scales and offsets.

        Raises:
            CheckpointError: One of the three tensors of a matrix is missing, or their shapes do not match.
        """
        found = dict(tensors)
        for scales in [name for name in tensors if name.endswith(_SCALES)]:
            stem = scales.removesuffix(_SCALES)
            if stem + _WEIGHT not in tensors or stem + _BIASES not in tensors:
                raise CheckpointError(
                    f"{folder}: found {scales!r} without both {stem + _WEIGHT!r} and {stem + _BIASES!r}"
                )
            del found[scales], found[stem + _BIASES]
            weight, *groups = (tensors[stem + suffix] for suffix in self.SUFFIXES)
            shape = (*weight.shape[:-1], weight.shape[-1] * _WORD // self.bits) if weight.shape else ()
            grouped = (*shape[:-1], shape[-1] // self.group_size) if shape else ()
            right = weight.dtype == "U32" and self.fits(shape)
            if not right or any(part.shape != grouped or part.dtype not in FLOATS for part in groups):
                kinds = ", ".join(f"{part.dtype} {part.shape}" for part in (weight, *groups))
                raise CheckpointError(
                    f"{folder}: {stem + _WEIGHT!r}, its scales and biases are {kinds}, expected a matrix of "
                    f"{self.name}, as config.json says"
                )
            found[stem + _WEIGHT] = replace(weight, dtype=self.dtype, shape=shape)
        return found

    def rounding_error(self, array: mx.array) -> mx.array:
        """The largest rounding error of each number of a matrix (rows, width), from the range of its group.

        MLX shifts the ends of a group's range so that 0 is exactly representable: a number past an end is off by up to
        one step, any other by up to half a step.
        """
        groups = array.reshape(array.shape[0], -1, self.group_size)
        ends = groups.max(axis=-1, keepdims=True), groups.min(axis=-1, keepdims=True)
        rounded = mx.maximum(mx.abs(ends[0]), mx.abs(ends[1])) * _ROUNDED
        step = (ends[0] - ends[1]) / (2**self.bits - 1) + rounded + _SMALLEST
        return mx.broadcast_to(step, groups.shape).reshape(array.shape)

    def parts(self, arrays: Mapping[str, mx.array], name: str, dtype: mx.Dtype) -> dict[str, mx.array]:
        """The three stored tensors of the matrix `name`, by suffix; scales and offsets in `dtype`."""
        stem = name.removesuffix(_WEIGHT)
        return {_WEIGHT: arrays[name]} | {suffix: arrays[stem + suffix].astype(dtype) for suffix in (_SCALES, _BIASES)}

    def expand(self, arrays: Mapping[str, mx.array], name: str, dtype: mx.Dtype) -> mx.array:
        """Computes the matrix `name` from its three stored tensors, lazily."""
        packed, scales, biases = self.parts(arrays, name, mx.float32).values()
        wide = mx.dequantize(packed, scales, biases, group_size=self.group_size, bits=self.bits)
        return wide.astype(dtype)  # rounded once, not twice


Storage = Quantization | Int8Rows  # packed layouts, in which several stored tensors represent one matrix


def read_quantization(config: ConfigJson) -> Quantization | None:
    """Reads the parameters of weights quantized by MLX from `config.json`; `None` if it has none.

    Raises:
        ConfigError: The weights are quantized in another way.
    """
    settings = config.nested(KEY)
    config.only(
        THEIR_KEY,
        settings.values or None,
        "mlxbert reads only weights quantized by MLX",
        hint="use the model in float32, float16 or bfloat16",
    )
    if not settings.values:
        return None
    settings.only("mode", "affine", "mlxbert reads only the mode 'affine'")
    for key, value in settings.values.items():
        if key not in ("bits", "group_size", "mode"):
            raise settings.refuse(key, f"only bits, group_size and mode, the same for all layers; found {value!r:.60}")
    bits = settings.integer("bits")
    if bits not in _READ_BITS:
        raise settings.refuse("bits", f"one of {', '.join(map(str, _READ_BITS))}")
    size = settings.integer("group_size", default=64)
    if size not in GROUP_SIZES:
        raise settings.refuse("group_size", f"one of {', '.join(map(str, GROUP_SIZES))}")
    return Quantization(bits, size)


def quantizable(network: nn.Module) -> set[str]:
    """Our names of the matrices to quantize, where their sizes allow it.

    These matrices take most of the time and the space: the word embeddings, the linear layers of the encoder, and the
    transform layers of the heads. Position and segment embeddings are small, and so are the output layers of the heads:
    there a class is a row, and an error in it shifts all scores of the class. Of experts neither the router is, where
    an error chooses another one, nor are their matrices.
    """
    return {
        f"{path}{_WEIGHT}"
        for path, module in network.named_modules()
        if path == "encoder.embeddings.word"
        or (isinstance(module, nn.Linear) and (path.startswith("encoder.") or ".transform." in path))
        if not path.endswith(".router")
    }


def quantize_modules(network: nn.Module, how: Quantization, names: Iterable[str]) -> None:
    """Replaces the modules that hold these matrices with modules that compute with quantized weights."""
    paths = {name.removesuffix(_WEIGHT) for name in names}
    nn.quantize(network, how.group_size, how.bits, class_predicate=lambda path, _: path in paths)
