"""What differs between the tensors of two models: equal, equal once stored alike, exchanged, turned, or different.

Tensors are stored alike when both are rounded to the coarser of their dtypes; a storage that is no plain float, MLX's
quantized one say, may stand for any number that it could have been made of.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from mlxbert.device import mx
from mlxbert.folders.facts import both, differ, same_layers
from mlxbert.folders.opened import Side, Tensor, coarseness
from mlxbert.results import Difference
from mlxbert.weights import keymap
from mlxbert.weights.formats.headers import FLOATS, Lazy

# How far a number lies from what was rounded to it at most: half a last place, relative to the number.
_HALVES = {"F16": 2.0**-11, "BF16": 2.0**-8}
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
    """Compares the tensors of two models by the network's names; those that it does not hold by their files'."""
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
        names |= {*a.checkpoint.ignored} & {*b.checkpoint.ignored}
        one, other = (side.raw(names) if names else {} for side in (a, b))
        shared = sorted(one.keys() & other.keys())
        _compare({name: one[name] for name in shared}, {name: other[name] for name in shared}, found)
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
            said = f"{name}: " + both(*(" x ".join(map(str, shape)) or "one number" for shape in shapes))
            found.differences.append(differ("tensor", name, list(shapes[0]), list(shapes[1]), said))
        elif all(mx.array_equal(x.array, y.array, equal_nan=True).item() for x, y in _blocks(one, other)):
            found.equal += 1
        elif all(alike(x, y).all().item() for x, y in _blocks(one, other)):
            found.rounded += 1
            found.coarsest = min(found.coarsest, *_taken(one, other), key=coarseness)
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


def _taken(a: Tensor, b: Tensor) -> tuple[str, str]:
    """The dtypes that it took to find two tensors alike: float32 for a storage that only had to be expanded."""
    one, other = _expanded(a), _expanded(b)
    if (a.storage or b.storage) and all(alike(x, y).all().item() for x, y in _blocks(one, other)):
        return one.stored, other.stored
    return a.stored, b.stored


def _expanded(tensor: Tensor) -> Tensor:
    """The tensor as if its numbers were stored as they are."""
    return tensor if tensor.storage is None else Tensor(tensor.array, "F32")


def alike(a: Tensor, b: Tensor) -> mx.array:
    """Which numbers of two tensors of one shape are equal once both are stored as the coarser of the two is."""
    one, other = a.array, b.array
    same = mx.logical_or(one == other, mx.logical_and(mx.isnan(one), mx.isnan(other)))
    if a.stored == b.stored and not a.stored.startswith("Q"):  # scales of MLX's layout may be rounded, too
        return same
    if a.storage or b.storage or {a.stored, b.stored} == {"F16", "BF16"}:
        near = mx.abs(one - other) <= _off(a) + _off(b)
    else:
        coarser = FLOATS[min(a.stored, b.stored, key=coarseness)]
        near = one.astype(coarser) == other.astype(coarser)
    finite = mx.logical_and(mx.isfinite(one), mx.isfinite(other))  # a dtype that is too small makes inf of a number
    return mx.logical_or(same, mx.logical_and(finite, near))


def _off(tensor: Tensor) -> mx.array:
    """How far each number may lie from what was stored as it."""
    if tensor.storage is not None:
        return tensor.storage.rounding_error(tensor.array)
    return mx.abs(tensor.array) * _HALVES[tensor.stored] + _SMALLEST_HALF if tensor.stored in _HALVES else mx.array(0.0)


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
    stored = {_expanded(side[name]).stored for side in (a, b) for name in names}
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
    turned = (_turned(a), b) if a.storage is None else (a, _turned(b))
    return bool(alike(*turned).all().item())


def _turned(tensor: Tensor) -> Tensor:
    return replace(_expanded(tensor), array=tensor.array.T)


def _numbers(name: str, a: Tensor, b: Tensor) -> Difference:
    """How many numbers differ, and where most."""
    changed = mx.logical_not(alike(a, b))
    far = mx.where(changed, mx.abs(a.array - b.array), 0)
    far = mx.where(mx.isnan(far), mx.inf, far)  # what is no number differs most
    place = cast(int, far.argmax().item())
    one, other = (cast(float, tensor.array.flatten()[place].item()) for tensor in (a, b))
    where = [place // math.prod(far.shape[axis + 1 :]) % far.shape[axis] for axis in range(far.ndim)]
    count = cast(int, changed.sum().item())
    most = f"by up to {abs(one - other):.3g} at" if math.isfinite(one - other) else "most at"
    said = f"{name}: {count:,} of {far.size:,} numbers differ, {most} {where}"
    return differ("tensor", name, number(one), number(other), f"{said}: {both(f'{one:.6g}', f'{other:.6g}')}")


def number(value: float) -> float | str:
    """A number as JSON can have it."""
    return value if math.isfinite(value) else str(value)
