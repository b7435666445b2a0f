"""Weights in MLX's quantized layout, and in the 8-bit layout of the built-in model.

In MLX's layout, the numbers of each group in a row share a scale and an offset. A matrix `x.weight` (out, in) is stored
as three tensors: `x.weight` holds 32-bit words; `x.scales` and `x.biases` are (out, in / group). `config.json` states
the bits and the group size under `quantization`, as in mlx-lm. Callers see the name, dtype and shape of the original
matrix. Layout: https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html

In the 8-bit layout, a matrix W is stored as int8 numbers Q and one float32 scale s per row, so that W ≈ s * Q. Vectors
stay float16. The layout is used on disk only: weights are expanded when they are loaded. `x.weight_scale` holds the
scales of `x.weight`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mlxbert.errors import CheckpointError
from mlxbert.machine.device import mx, nn
from mlxbert.weights.formats import rounding
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.formats.headers import FLOATS, TensorInfo
from mlxbert.weights.formats.static_table import StaticTable

if TYPE_CHECKING:
    from mlxbert.weights.formats.rounding import Floats

STORAGE_KEY, STORAGE = "mlxbert.storage", "int8-per-row"
_SUFFIX = "_scale"
_ROUNDED_STEP = 1e-4  # of a step: the float32 rounding error of a quotient of up to 127


@dataclass(frozen=True)
class Int8Rows:
    """The format as a class with the same methods as `Quantization`."""

    name: str = "8 bits with a scale per row"  # for messages
    dtype: str = "I8"
    carries_errors: bool = False

    def of(self, name: str) -> "Int8Rows":
        """Returns how the matrix `name` is packed: this object, because all matrices are packed in the same way."""
        return self

    @property
    def dtypes(self) -> set[str]:
        """The dtype names that packed tensors can have."""
        return {self.dtype}

    def unpacked(self, folder: Path, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Returns the header entries except the scales; raises `CheckpointError` if packed tensors are invalid."""
        for name, info in tensors.items():
            if info.dtype != self.dtype:
                continue
            scale = tensors.get(name + _SUFFIX)
            if len(info.shape) != 2:
                raise CheckpointError(f"{folder}: the 8-bit tensor {name!r} has shape {info.shape}, expected a matrix")
            if scale is None or scale.shape != info.shape[:1] or scale.dtype not in FLOATS:
                raise CheckpointError(
                    f"{folder}: the scales {name + _SUFFIX!r} of the 8-bit tensor {name!r} are "
                    f"{'missing' if scale is None else f'{scale.dtype} {scale.shape}'}, expected floats of shape "
                    f"{info.shape[:1]}"
                )
        scales = {name + _SUFFIX for name, info in tensors.items() if info.dtype == self.dtype}
        return {name: info for name, info in tensors.items() if name not in scales}

    def expand(self, arrays: Mapping[str, mx.array], name: str, dtype: mx.Dtype) -> mx.array:
        """Returns the expanded matrix, which is computed lazily."""
        matrix = arrays[name].astype(mx.float32) * arrays[name + _SUFFIX][:, None]
        return matrix.astype(dtype)  # rounded once, not twice

    def rounding_error(self, array: mx.array) -> mx.array:
        """Returns the maximum rounding error of each number, which is half of its row's scale."""
        return mx.broadcast_to(_scale(array) * (0.5 + _ROUNDED_STEP), array.shape)


def pack(arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Packs matrices as int8 with one scale per row, and all other arrays as float16."""
    packed = {}
    for name, array in arrays.items():
        if array.ndim != 2:
            packed[name] = array.astype(mx.float16)
            continue
        matrix = array.astype(mx.float32)
        scale = _scale(matrix)
        packed[name] = mx.round(matrix / scale).astype(mx.int8)
        packed[name + _SUFFIX] = scale[:, 0]
    return packed


def _scale(array: mx.array) -> mx.array:
    """Returns the scale of each row, (rows, 1)."""
    return mx.maximum(mx.abs(array).max(axis=1, keepdims=True), 1e-12) / 127


KEY, THEIR_KEY = "quantization", "quantization_config"
BITS, GROUP_SIZES = (4, 8), (32, 64, 128)  # for writing; 2, 3 and 6 bits are read as well
_READ_BITS = (2, 3, 4, 6, 8)
_FITTED_BITS = (4,)  # bits per number for which the rounding method matters
_WORD = 32  # bits
_KEYS = ("bits", "group_size", "mode")
_ROUNDED, _SMALLEST = 2.0**-7, 1e-7  # scales and offsets may be bfloat16; MLX has a minimum scale
_WEIGHT, _SCALES, _BIASES = ".weight", ".scales", ".biases"


@dataclass(frozen=True)
class Quantization:
    """The parameters of quantized weights."""

    bits: int  # the number of bits per number
    group_size: int = 64  # how many numbers of a row share a scale
    # The matrices with other parameters. Each pair consists of the matrix's name in the file, without `.weight`, and
    # its parameters, or `None` if the matrix is stored as plain floats.
    layers: tuple[tuple[str, "Quantization | None"], ...] = ()

    SUFFIXES: ClassVar[tuple[str, str, str]] = (_WEIGHT, _SCALES, _BIASES)

    def of(self, name: str) -> "Quantization":
        """Returns how the matrix `name` is quantized, which `layers` may state for each matrix separately."""
        return dict(self.layers).get(name.removesuffix(_WEIGHT)) or replace(self, layers=())

    @property
    def dtype(self) -> str:
        """The name of the dtype of a matrix that is quantized with these parameters, such as `Q4`."""
        return f"Q{self.bits}"

    @property
    def dtypes(self) -> set[str]:
        """The dtype names that quantized tensors can have."""
        return {self.dtype, *(how.dtype for _, how in self.layers if how is not None)}

    @property
    def carries_errors(self) -> bool:
        """Whether the rounding error of a number may exceed one step.

        With few bits, a number is rounded so that it compensates for the errors of other numbers in its row.
        """
        return self.bits <= max(_FITTED_BITS)

    @property
    def name(self) -> str:
        others = f"; {len(self.layers)} matrices differ" if self.layers else ""
        return f"{self.bits} bits in groups of {self.group_size}{others}"

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape can be quantized with these parameters."""
        return len(shape) == 2 and shape[1] % self.group_size == 0 and shape[1] > 0

    def pack(self, name: str, array: mx.array, products: "Floats | None" = None) -> dict[str, mx.array]:
        """Quantizes a matrix into three tensors; the scales keep the dtype of the matrix.

        Args:
            products: The sum of `x xᵀ` over the inputs `x` of the matrix; `None` if unknown.
        """
        stem = name.removesuffix(_WEIGHT)
        if self.bits in _FITTED_BITS and mx.isfinite(array).all().item():
            packed = rounding.quantized(array, self.bits, self.group_size, products)
        else:
            packed = mx.quantize(array, group_size=self.group_size, bits=self.bits)
        return {stem + suffix: part for suffix, part in zip(self.SUFFIXES, packed, strict=True)}

    def unpacked(self, folder: Path, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Returns the header entries except scales and offsets; a quantized matrix has its original shape there.

        Raises `CheckpointError` if the tensors contradict each other or `config.json`.
        """
        unpacked = dict(tensors)
        for stem, layer in self.layers:
            if stem + _WEIGHT not in tensors or (stem + _SCALES in tensors) != (layer is not None):
                stated = "plain floats" if layer is None else layer.name
                actual = "is stored as plain floats" if stem + _WEIGHT in tensors else "is missing"
                actual = "has scales" if stem + _SCALES in tensors else actual
                raise CheckpointError(
                    f"{folder}: tensor {stem + _WEIGHT!r} {actual}, expected {stated}, as config.json says"
                )
        for scales in [name for name in tensors if name.endswith(_SCALES)]:
            stem = scales.removesuffix(_SCALES)
            how = self.of(stem)
            if stem + _WEIGHT not in tensors or stem + _BIASES not in tensors:
                raise CheckpointError(
                    f"{folder}: {stem + _WEIGHT!r} or {stem + _BIASES!r}, which belongs to {scales!r}, is missing"
                )
            del unpacked[scales], unpacked[stem + _BIASES]
            weight, *groups = (tensors[stem + suffix] for suffix in self.SUFFIXES)
            shape = (*weight.shape[:-1], weight.shape[-1] * _WORD // how.bits) if weight.shape else ()
            grouped = (*shape[:-1], shape[-1] // how.group_size) if shape else ()
            fits = weight.dtype == "U32" and how.fits(shape)
            if not fits or any(part.shape != grouped or part.dtype not in FLOATS for part in groups):
                kinds = ", ".join(f"{part.dtype} {part.shape}" for part in (weight, *groups))
                raise CheckpointError(
                    f"{folder}: the weight, scales and biases of {stem!r} are {kinds}, expected a matrix of "
                    f"{how.name}, as config.json says"
                )
            unpacked[stem + _WEIGHT] = replace(weight, dtype=how.dtype, shape=shape)
        return unpacked

    def rounding_error(self, array: mx.array) -> mx.array:
        """Returns the maximum rounding error of each number in a matrix (rows, width), given the range of its group.

        MLX shifts the ends of a group's range so that 0 is exactly representable. Therefore the error is
        up to one step for a number beyond the shifted range, and up to half a step for any other number.
        """
        groups = array.reshape(array.shape[0], -1, self.group_size)
        ends = groups.max(axis=-1, keepdims=True), groups.min(axis=-1, keepdims=True)
        rounded = mx.maximum(mx.abs(ends[0]), mx.abs(ends[1])) * _ROUNDED
        step = (ends[0] - ends[1]) / (2**self.bits - 1) + rounded + _SMALLEST
        return mx.broadcast_to(step, groups.shape).reshape(array.shape)

    def parts(self, arrays: Mapping[str, mx.array], name: str, dtype: mx.Dtype) -> dict[str, mx.array]:
        """Returns the three stored tensors of the matrix `name`, by suffix; casts the scales and offsets to `dtype`."""
        stem = name.removesuffix(_WEIGHT)
        return {_WEIGHT: arrays[name]} | {suffix: arrays[stem + suffix].astype(dtype) for suffix in (_SCALES, _BIASES)}

    def expand(self, arrays: Mapping[str, mx.array], name: str, dtype: mx.Dtype) -> mx.array:
        """Expands the matrix `name` from its three stored tensors, lazily."""
        how = self.of(name)
        packed, scales, biases = how.parts(arrays, name, mx.float32).values()
        matrix = mx.dequantize(packed, scales, biases, group_size=how.group_size, bits=how.bits)
        return matrix.astype(dtype)  # rounded once, not twice


Storage = Quantization | Int8Rows | StaticTable  # packed layouts, in which several stored tensors represent one matrix


def read_quantization(config: ConfigJson) -> Quantization | None:
    """Reads the parameters of quantized weights from `config.json`; returns `None` if MLX did not quantize them."""
    settings = config.nested(KEY)
    config.only(
        THEIR_KEY,
        settings.values or None,
        "mlxbert reads only weights quantized by MLX",
        hint="use the model in float32, float16 or bfloat16",
    )
    if not settings.values:
        return None
    layers: list[tuple[str, Quantization | None]] = []
    for key, value in settings.values.items():
        if key in _KEYS:
            continue
        if value is not False and not isinstance(value, dict):
            raise settings.refuse(key, "false, or an object with bits, group_size and mode")
        layers.append((key, _read_parameters(settings.nested(key)) if value else None))
    return replace(_read_parameters(settings), layers=tuple(layers))


def _read_parameters(settings: ConfigJson) -> Quantization:
    settings.only("mode", "affine", "mlxbert reads only the mode 'affine'")
    bits = settings.integer("bits")
    if bits not in _READ_BITS:
        raise settings.refuse("bits", f"one of {', '.join(map(str, _READ_BITS))}")
    size = settings.integer("group_size", default=64)
    if size not in GROUP_SIZES:
        raise settings.refuse("group_size", f"one of {', '.join(map(str, GROUP_SIZES))}")
    return Quantization(bits, size)


def quantizable(network: nn.Module) -> set[str]:
    """Returns our names of the matrices that should be quantized. Whether their sizes allow this is not checked.

    These matrices take most of the time and the space: the word embeddings, the linear layers of the encoder, and the
    transform layers of the heads. Position and segment embeddings are left out because they are small. So are the
    output layers of the heads, where an error in a row would also shift all scores of a class. In models with experts,
    the router is left out, because an error would select another expert, and so are the matrices of the experts.
    """
    return {
        f"{path}{_WEIGHT}"
        for path, module in network.named_modules()
        if path == "encoder.embeddings.word"
        or (isinstance(module, nn.Linear) and (path.startswith("encoder.") or ".transform." in path))
        if not path.endswith(".router")
    }


def quantize_modules(network: nn.Module, quantizations: Mapping[str, Quantization]) -> None:
    """Replaces modules by modules that compute with quantized weights.

    The keys of `quantizations` are the names of the matrices to quantize.
    """

    def chosen(path: str, _: nn.Module) -> bool | dict[str, int]:
        how = quantizations.get(path + _WEIGHT)
        return how is not None and {"group_size": how.group_size, "bits": how.bits}

    nn.quantize(network, class_predicate=chosen)
