"""Compares the tensors of two models: two tensors are equal, equal after rounding, transposed, or different.

Rounding means that both tensors are rounded to the coarser of their dtypes. A quantized number equals every number that
quantization maps to it. With 4 bits or fewer, whole rows are compared: the root mean square of a row's errors is at
most one step, but a single number may be off by several steps to compensate for the errors of other numbers.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from mlxbert.export.compare.compared_model import ComparedTensor, OpenedModel, coarseness
from mlxbert.export.compare.facts import both, differ, same_layers
from mlxbert.export.compare.reports import Difference, TensorCounts, finite_or_name
from mlxbert.machine.device import mx
from mlxbert.nn.heads import is_tied
from mlxbert.nn.token_embedder import TOKEN_LAYERS
from mlxbert.weights.checkpoint import part_of
from mlxbert.weights.families import keymap
from mlxbert.weights.formats.headers import FLOATS, Lazy

# The largest rounding error of a dtype, relative to the number: half a unit in the last place.
_HALF_ULPS = {"F16": 2.0**-11, "BF16": 2.0**-8}
_MIN_HALF_ULP = 2.0**-25
_Tensors = Mapping[str, ComparedTensor]


@dataclass
class TensorComparison:
    """The results for the tensors that have been compared so far."""

    compared: int = 0  # the number of compared tensors
    equal: int = 0  # the number of tensors that are equal
    rounded: int = 0  # the number of tensors that are equal only after rounding
    coarsest: str = "F32"  # the coarsest dtype that tensors were rounded to
    # A difference for each tensor that differs or that only one model has.
    differences: list[Difference] = field(default_factory=list)
    with_nan: list[str] = field(default_factory=list)  # the tensors that have NaN in the first model

    @property
    def counts(self) -> TensorCounts:
        """The counts for the report, without tensors that only one model has."""
        different = self.compared - self.equal - self.rounded
        return TensorCounts(self.compared, self.equal, self.rounded, different)


def compare(a: OpenedModel, b: OpenedModel) -> TensorComparison:
    """Compares the tensors of two models.

    Tensors are matched by their names in the network. Tensors of parts that cannot be loaded are matched by their names
    in the files.
    """
    parts = dict.fromkeys((*a.parts, *b.parts))
    not_loaded = [part for part in parts if not (a.has_loaded(part) and b.has_loaded(part))]
    left_out = {*not_loaded}  # a part that one model lacks is already reported
    if not same_layers(a, b):
        left_out.add("embedder")
    if not same_layers(a, b, "tokens"):
        left_out.add(TOKEN_LAYERS)

    def compared(tensors: _Tensors) -> _Tensors:
        return Lazy([name for name in tensors if part_of(name) not in left_out], tensors.__getitem__)

    comparison = TensorComparison()
    _compare(compared(a.tensors()), compared(b.tensors()), comparison)
    if a.checkpoint.family is b.checkpoint.family:
        names = {name for part in not_loaded if part in a.parts and part in b.parts for name in _names(a, part)}
        names |= {*a.checkpoint.ignored} & {*b.checkpoint.ignored}
        tensors_a, tensors_b = (model.raw(names) if names else {} for model in (a, b))
        shared = sorted(tensors_a.keys() & tensors_b.keys())
        _compare({name: tensors_a[name] for name in shared}, {name: tensors_b[name] for name in shared}, comparison)
    return comparison


def _names(model: OpenedModel, part: str) -> Iterator[str]:
    """Yields the plain names that the tensors of a part may have, including copies of tied tensors."""
    family = model.checkpoint.family
    for entry in keymap.expand(family.parts[part], 1):
        yield from (f"{stem}.{suffix}" for stem in entry.theirs for suffix in keymap.SUFFIXES)
    if is_tied([part]):
        yield from family.tied


def _compare(a: _Tensors, b: _Tensors, comparison: TensorComparison) -> None:
    for name in dict.fromkeys((*a, *b)):
        if name not in a or name not in b:
            has = "A" if name in a else "B"
            present = name in a, name in b
            comparison.differences.append(differ("tensor", name, *present, f"{name}: only {has} has it"))
            continue
        comparison.compared += 1
        tensor_a, tensor_b = a[name], b[name]
        comparison.with_nan += [name] if mx.isnan(tensor_a.array).any().item() else []
        if tensor_a.array.shape != tensor_b.array.shape:
            shapes = tensor_a.array.shape, tensor_b.array.shape
            message = f"{name}: " + both(*(" x ".join(map(str, shape)) or "one number" for shape in shapes))
            comparison.differences.append(differ("tensor", name, list(shapes[0]), list(shapes[1]), message))
        elif mx.array_equal(tensor_a.array, tensor_b.array, equal_nan=True).item():
            comparison.equal += 1
        elif alike(tensor_a, tensor_b).all().item():
            comparison.rounded += 1
            comparison.coarsest = min(comparison.coarsest, *_rounded_to(tensor_a, tensor_b), key=coarseness)
        else:
            comparison.differences.append(_explain(name, tensor_a, tensor_b))


def _rounded_to(a: ComparedTensor, b: ComparedTensor) -> tuple[str, str]:
    """Returns the dtypes of two tensors that are equal after rounding.

    A quantized tensor counts as float32 if the tensors are equal even without rounding to its quantization steps.
    """
    expanded_a, expanded_b = _expanded(a), _expanded(b)
    if (a.storage or b.storage) and alike(expanded_a, expanded_b).all().item():
        return expanded_a.stored, expanded_b.stored
    return a.stored, b.stored


def _expanded(tensor: ComparedTensor) -> ComparedTensor:
    """Returns a quantized tensor as if it were stored dequantized, in float32, and any other tensor unchanged."""
    return tensor if tensor.storage is None else ComparedTensor(tensor.array, "F32")


def alike(a: ComparedTensor, b: ComparedTensor) -> mx.array:
    """Returns, for each pair of numbers in two tensors of the same shape, whether they are equal after rounding."""
    left, right = a.array, b.array
    same = mx.logical_or(left == right, mx.logical_and(mx.isnan(left), mx.isnan(right)))
    if a.stored == b.stored and not a.stored.startswith("Q"):  # scales of MLX's layout may be rounded as well
        return same
    if any(tensor.storage is not None and tensor.storage.carries_errors for tensor in (a, b)):
        allowed = _rounding_error(a) + _rounding_error(b)
        near = mx.broadcast_to(_row_means(left - right) <= _row_means(allowed), left.shape)
    elif a.storage or b.storage or {a.stored, b.stored} == {"F16", "BF16"}:
        near = mx.abs(left - right) <= _rounding_error(a) + _rounding_error(b)
    else:
        coarser = FLOATS[min(a.stored, b.stored, key=coarseness)]
        near = left.astype(coarser) == right.astype(coarser)
    finite = mx.logical_and(mx.isfinite(left), mx.isfinite(right))  # a number too large for a dtype becomes inf
    return mx.logical_or(same, mx.logical_and(finite, near))


def _row_means(numbers: mx.array) -> mx.array:
    """Returns the root mean square of each row, (rows, 1)."""
    return mx.sqrt(mx.square(numbers).mean(axis=-1, keepdims=True))


def _rounding_error(tensor: ComparedTensor) -> mx.array:
    """Returns the maximum rounding error of each number, given the storage of the tensor."""
    if tensor.storage is not None:
        return tensor.storage.rounding_error(tensor.array)
    if tensor.stored not in _HALF_ULPS:
        return mx.array(0.0)
    return mx.abs(tensor.array) * _HALF_ULPS[tensor.stored] + _MIN_HALF_ULP


def _explain(name: str, a: ComparedTensor, b: ComparedTensor) -> Difference:
    if _is_transposed(a, b):
        return differ("tensor", name, "as it is", "transposed", f"{name} of B is the transposed tensor of A")
    return _largest_difference(name, a, b)


def _is_transposed(a: ComparedTensor, b: ComparedTensor) -> bool:
    if a.array.ndim != 2 or a.array.shape[0] != a.array.shape[1]:
        return False
    pair = (_transposed(a), b) if a.storage is None else (a, _transposed(b))
    return bool(alike(*pair).all().item())


def _transposed(tensor: ComparedTensor) -> ComparedTensor:
    return replace(_expanded(tensor), array=tensor.array.T)


def _largest_difference(name: str, a: ComparedTensor, b: ComparedTensor) -> Difference:
    """Makes a `Difference` that says how many numbers differ, and where the largest difference is."""
    changed = mx.logical_not(alike(a, b))
    distances = mx.where(changed, mx.abs(a.array - b.array), 0)
    distances = mx.where(mx.isnan(distances), mx.inf, distances)  # NaN differs most
    index = cast(int, distances.argmax().item())
    number_a, number_b = (cast(float, tensor.array.flatten()[index].item()) for tensor in (a, b))
    where = [index // math.prod(distances.shape[axis + 1 :]) % distances.shape[axis] for axis in range(distances.ndim)]
    count = cast(int, changed.sum().item())
    largest = f"by up to {abs(number_a - number_b):.3g} at" if math.isfinite(number_a - number_b) else "most at"
    message = f"{name}: {count:,} of {distances.size:,} numbers differ, {largest} {where}"
    message += f": {both(f'{number_a:.6g}', f'{number_b:.6g}')}"
    return differ("tensor", name, finite_or_name(number_a), finite_or_name(number_b), message)
