"""The names of tensors in our networks and in files: one table, which is read in both directions.

A table is a tuple of entries `(our stems, their stems, operation)`: "ours" are the names in our networks, "theirs" the
names in files. A stem is followed by one of `SUFFIXES`, usually `.weight` or `.bias`; `{}` in a stem stands for the
number of a layer. Loading maps their names to ours. Saving uses the same table in reverse, so the two directions
always agree.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from mlxbert.config import EncoderConfig
from mlxbert.machine.device import mx

SUFFIXES = ("weight", "bias", "start", "transitions", "end", "w1", "w2")


@dataclass(frozen=True)
class TensorOperation:
    """A conversion of arrays from a file to our network, and back."""

    name: str
    # (their arrays, the number of our arrays, head size) → our arrays.
    load: Callable[[list[mx.array], int, int], list[mx.array]]
    # (our arrays, the number of their arrays, head size) → their arrays.
    save: Callable[[list[mx.array], int, int], list[mx.array]]


def _keep(arrays: list[mx.array], count: int, head_size: int) -> list[mx.array]:
    return arrays


def _split(arrays: list[mx.array], count: int, head_size: int) -> list[mx.array]:
    return list(mx.split(arrays[0], count, axis=0))


def _join(arrays: list[mx.array], count: int, head_size: int) -> list[mx.array]:
    return [mx.concatenate(arrays, axis=0)]


def _channels_last(arrays: list[mx.array], count: int, head_size: int) -> list[mx.array]:
    return [array.swapaxes(1, 2) if array.ndim == 3 else array for array in arrays]


def _halves(arrays: list[mx.array], count: int, head_size: int) -> list[mx.array]:
    heads = arrays[0].reshape(-1, 3, head_size // 2, 2, *arrays[0].shape[1:])
    parts = [heads[:, 0].swapaxes(1, 2), heads[:, 1].swapaxes(1, 2), heads[:, 2]]
    return [array.reshape(-1, *arrays[0].shape[1:]) for array in parts]


def _pairs(arrays: list[mx.array], count: int, head_size: int) -> list[mx.array]:
    q, k, v = (array.reshape(-1, 2, head_size // 2, *array.shape[1:]) for array in arrays)
    heads = mx.stack([q.swapaxes(1, 2), k.swapaxes(1, 2), v.reshape(q.swapaxes(1, 2).shape)], axis=1)
    return [heads.reshape(-1, *arrays[0].shape[1:])]


SAME = TensorOperation("same", _keep, _keep)
SPLIT = TensorOperation("split", _split, _join)
CHANNELS_LAST = TensorOperation("channels last", _channels_last, _channels_last)
# q, k and v fused head by head, for a rotation of adjacent elements; our rotation pairs the halves of a head.
PAIRS = TensorOperation("pairs", _halves, _pairs)


def difference(first: int, second: int) -> TensorOperation:
    """Returns an operation that replaces a matrix by the difference of two of its rows, in float32.

    The operation cannot be reversed.
    """

    def load(arrays: list[mx.array], count: int, head_size: int) -> list[mx.array]:
        rows = arrays[0][mx.array([first, second])].astype(mx.float32)
        return [rows[:1] - rows[1:]]

    return TensorOperation(f"row {first} - row {second}", load, _keep)


@dataclass(frozen=True)
class TensorName:
    """An entry of a table: our stems, their stems, and the operation from theirs to ours.

    Some operations need the head size.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    operation: TensorOperation = SAME
    head_size: int = 0


Table = tuple[TensorName, ...]


def same(ours: str, theirs: str) -> TensorName:
    """Returns the entry of an array that has different names in our networks and in files, but the same values."""
    return TensorName((ours,), (theirs,))


def channels_last(ours: str, theirs: str) -> TensorName:
    """Returns the entry of a convolution: MLX stores the channels last, torch stores them before the kernel."""
    return TensorName((ours,), (theirs,), CHANNELS_LAST)


def split(ours: tuple[str, ...], theirs: str) -> TensorName:
    """Returns the entry of an array in files that is split on the first axis into several of ours (fused q, k, v)."""
    return TensorName(ours, (theirs,), SPLIT)


def within(ours: str, theirs: str, table: Table) -> Table:
    """Adds a prefix to our names and a prefix to their names in a table.

    A prefix may contain `{}` for the number of the layer.
    """
    return tuple(
        replace(entry, ours=tuple(ours + stem for stem in entry.ours), theirs=tuple(theirs + s for s in entry.theirs))
        for entry in table
    )


def expand(table: Table, layers: int) -> Table:
    """Repeats each entry that contains `{}` once per layer, and replaces the `{}` by 0, 1, …, `layers` - 1."""
    return tuple(
        replace(
            entry,
            ours=tuple(stem.format(number) for stem in entry.ours),
            theirs=tuple(stem.format(number) for stem in entry.theirs),
        )
        for entry in table
        for number in (range(layers) if "{}" in entry.ours[0] else range(1))
    )


def pairs(table: Table, config: EncoderConfig, names: Mapping[str, object]) -> Iterator[TensorName]:
    """Yields each entry of a table once per layer and suffix, with the full names of the tensors.

    An entry is skipped if one of its names in our networks is missing from `names`.
    """
    for entry in expand(table, config.num_stored_layers):
        for suffix in SUFFIXES:
            ours = tuple(f"{stem}.{suffix}" for stem in entry.ours)
            if all(name in names for name in ours):
                theirs = tuple(f"{stem}.{suffix}" for stem in entry.theirs)
                yield replace(entry, ours=ours, theirs=theirs, head_size=config.head_size)


def load(entry: TensorName, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Converts the arrays of an entry from files to our networks. The names in the entry are full names."""
    converted = entry.operation.load([arrays[name] for name in entry.theirs], len(entry.ours), entry.head_size)
    return dict(zip(entry.ours, converted, strict=True))


def save(entry: TensorName, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Converts the arrays of an entry from our networks to files. The names in the entry are full names."""
    converted = entry.operation.save([arrays[name] for name in entry.ours], len(entry.theirs), entry.head_size)
    return dict(zip(entry.theirs, converted, strict=True))
