"""What differs between the tensors of two models: equal, equal once stored alike, exchanged, turned, or different."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from mlxbert.compare.facts import differ, same_layers
from mlxbert.compare.sides import FLOATS, Side, Tensor, coarseness
from mlxbert.device import mx
from mlxbert.results import Difference
from mlxbert.weights import keymap
from mlxbert.weights.stored import Lazy

# How far roundings of one number to float16 and to bfloat16 can lie apart: half a last place of each.
_HALVES = 2.0**-8 + 2.0**-11
_SMALLEST_HALF = 2.0**-25
_BLOCK = 2**20  # numbers
_Tensors = Mapping[str, Tensor]


@dataclass
class Comparison:
    """What came of the tensors: how many were compared, how many are equal at once or once stored alike.

    Attributes:
        coarsest: The coarsest dtype that it took for that.
    """

    compared: int = 0
    equal: int = 0
    rounded: int = 0
    coarsest: str = "F32"
    differences: list[Difference] = field(default_factory=list)

    @property
    def different(self) -> int:
        """How many are neither; tensors that are missing on one side are not compared."""
        return self.compared - self.equal - self.rounded


def compare(a: Side, b: Side) -> Comparison:
    """Compares the tensors of two models by the network's names; those of parts that did not load by their files'."""
    apart = [part for part in dict.fromkeys((*a.parts, *b.parts)) if not (a.has_loaded(part) and b.has_loaded(part))]
    beginnings = [_beginning(part) for part in apart]  # what belongs to a part that one side lacks is told with it
    if not same_layers(a, b):
        beginnings.append("embedder.")

    def compared(tensors: _Tensors) -> _Tensors:
        names = [name for name in tensors if not any(map(name.startswith, beginnings))]
        return Lazy(names, tensors.__getitem__)

    found = Comparison()
    _compare(compared(a.tensors()), compared(b.tensors()), found)
    if a.checkpoint.family is b.checkpoint.family:
        names = {name for part in apart if part in a.parts and part in b.parts for name in _names(a, part)}
        one, other = (side.raw(names) if names else {} for side in (a, b))
        both = sorted(one.keys() & other.keys())
        _compare({name: one[name] for name in both}, {name: other[name] for name in both}, found)
    return found


def _beginning(part: str) -> str:
    return "encoder.pooler." if part == "pooler" else f"heads.{part}."


def _names(side: Side, part: str) -> Iterator[str]:
    """Plain names of the tensors of a part, copies of tied ones among them."""
    family = side.checkpoint.family
    for entry in keymap.expand(family.parts[part], 1):
        yield from (f"{stem}.{suffix}" for stem in entry.theirs for suffix in keymap.SUFFIXES)
    if part == "masked_lm":
        yield from family.tied


def _compare(a: _Tensors, b: _Tensors, found: Comparison) -> None:
    different: list[str] = []
    for name in dict.fromkeys((*a, *b)):
        if name not in a or name not in b:
            has = "A" if name in a else "B"
            there = name in a, name in b
            found.differences.append(differ("tensor", name, *there, f"{name}: only {has} has it"))
            continue
        found.compared += 1
        one, other = a[name], b[name]
        if one.array.shape != other.array.shape:
            shapes = one.array.shape, other.array.shape
            said = f"{name}: shapes {shapes[0]} and {shapes[1]}"
            found.differences.append(differ("tensor", name, list(shapes[0]), list(shapes[1]), said))
        elif all(mx.array_equal(x.array, y.array, equal_nan=True).item() for x, y in _blocks(one, other)):
            found.equal += 1
        elif all(alike(x, y).all().item() for x, y in _blocks(one, other)):
            found.rounded += 1
            found.coarsest = min(found.coarsest, one.stored, other.stored, key=coarseness)
        else:
            different.append(name)
    found.differences += _explained(a, b, different)


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of tensors of one shape, a few at a time: what is computed of them takes little memory."""
    array = tensors[0].array
    if array.ndim == 0:
        yield tensors
        return
    step = max(1, _BLOCK // max(1, math.prod(array.shape[1:])))
    for start in range(0, array.shape[0], step):
        yield tuple(replace(tensor, array=tensor.array[start : start + step]) for tensor in tensors)


def alike(a: Tensor, b: Tensor) -> mx.array:
    """Which numbers of two tensors of one shape are equal once both are stored as the coarser of the two is."""
    one, other = a.array, b.array
    same = mx.logical_or(one == other, mx.logical_and(mx.isnan(one), mx.isnan(other)))
    for side in (a, b):
        if side.quantization is not None:
            return mx.logical_or(same, mx.abs(one - other) <= side.quantization.steps(side.array))
    stored = {a.stored, b.stored}
    if stored == {"F16", "BF16"}:
        near = mx.abs(one - other) <= mx.maximum(mx.abs(one), mx.abs(other)) * _HALVES + _SMALLEST_HALF
        return mx.logical_or(same, near)
    coarser = min(stored, key=coarseness)
    if len(stored) == 1 or coarser not in ("F16", "BF16"):
        return same
    return mx.logical_or(same, one.astype(FLOATS[coarser]) == other.astype(FLOATS[coarser]))


def _explained(a: _Tensors, b: _Tensors, names: list[str]) -> Iterator[Difference]:
    """A difference for each tensor; tensors that changed places have one together."""
    moved = _moved(a, b, names)
    told: set[str] = set()
    for name in names:
        if name in told:
            continue
        other = moved.get(name)
        if other is not None and moved.get(other) == name:
            told.add(other)
            yield differ("tensor", name, name, other, f"{name} and {other} are swapped")
        elif other is not None:
            yield differ("tensor", name, name, other, f"{name} of A is {other} of B")
        elif _is_turned(a[name], b[name]):
            yield differ("tensor", name, "as it is", "transposed", f"{name} of B is that of A transposed")
        else:
            yield _numbers(name, a[name], b[name])


def _moved(a: _Tensors, b: _Tensors, names: list[str]) -> dict[str, str]:
    """Of tensors of A that equal another one of B, which one that is; both differ from their namesakes."""
    if len(names) < 2:
        return {}
    stored = {side[name].stored for side in (a, b) for name in names}
    coarser = min(stored, key=coarseness)
    places = {_fingerprint(b[name], coarser): name for name in names}
    found = {name: places.get(_fingerprint(a[name], coarser)) for name in names}
    # Biases of one number each, zeros say, are alike by chance.
    return {name: other for name, other in found.items() if other is not None and not _is_flat(a[name].array)}


def _is_flat(array: mx.array) -> bool:
    return bool((array.min() == array.max()).item())


def _fingerprint(tensor: Tensor, dtype: str) -> tuple[tuple[int, ...], bytes]:
    import numpy as np

    array = tensor.array.astype(FLOATS.get(dtype, mx.float32)) + 0  # -0 becomes 0
    whole = array.view(mx.uint32 if array.dtype == mx.float32 else mx.uint16)
    return array.shape, hashlib.blake2b(np.array(whole).data).digest()


def _is_turned(a: Tensor, b: Tensor) -> bool:
    if a.array.ndim != 2 or a.array.shape[0] != a.array.shape[1]:
        return False
    return bool(alike(Tensor(a.array.T, a.stored), b).all().item())


def _numbers(name: str, a: Tensor, b: Tensor) -> Difference:
    """How many numbers differ, and where most."""
    changed = mx.logical_not(alike(a, b))
    far = mx.where(changed, mx.abs(a.array - b.array), 0)
    far = mx.where(mx.isnan(far), mx.inf, far)  # what is no number differs most
    place = cast(int, far.argmax().item())
    one, other = (cast(float, tensor.array.flatten()[place].item()) for tensor in (a, b))
    where = [place // math.prod(far.shape[axis + 1 :]) % far.shape[axis] for axis in range(far.ndim)]
    count = cast(int, changed.sum().item())
    said = f"{name}: {count:,} of {far.size:,} numbers differ, by up to {abs(one - other):.3g}"
    return differ("tensor", name, number(one), number(other), f"{said} at {where} ({one:.6g} and {other:.6g})")


def number(value: float) -> float | str:
    """A number as JSON can have it."""
    return value if math.isfinite(value) else str(value)
