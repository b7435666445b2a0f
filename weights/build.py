"""From an opened checkpoint to the network with its weights, and back to names."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mlxbert.config import EncoderConfig
from mlxbert.device import mx, nn
from mlxbert.errors import CheckpointError
from mlxbert.nn.blocks import build_block
from mlxbert.nn.heads import HEADS, Network
from mlxbert.nn.positions import Context
from mlxbert.weights import keymap, validate
from mlxbert.weights.checkpoint import Checkpoint
from mlxbert.weights.families.family import Family
from mlxbert.weights.formats.quantized import Quantization, quantizable, quantize_modules


def check_tied(checkpoint: Checkpoint) -> None:
    """Refuses copies that differ from what they are tied to; the copy itself is not used.

    Raises:
        CheckpointError: One does.
    """
    arrays = checkpoint.arrays(mx.float32)
    for copy, original in checkpoint.family.tied.items():
        if copy in arrays and original in arrays and not mx.array_equal(arrays[copy], arrays[original]).item():
            raise validate.untied_problem(copy, original).error(checkpoint)


def first_problem(checkpoint: Checkpoint, parts: Iterable[str]) -> CheckpointError | None:
    """Why a network with these parts cannot be built, as far as headers tell."""
    parts = tuple(parts)
    arrays = shapes(checkpoint, parts)
    for part in ("encoder", *parts):
        for problem in validate.problems(checkpoint, part, parts, arrays):
            return problem.error(checkpoint)
    return None


def shapes(checkpoint: Checkpoint, parts: Iterable[str]) -> dict[str, mx.array]:
    """The parameters of a network with these parts; random and lazy, only names and shapes count."""
    return parameters(empty(checkpoint, parts))


def parameters(network: nn.Module) -> dict[str, mx.array]:
    """The parameters of a network by their whole names."""
    return dict(nn.utils.tree_flatten(network.parameters()))


def empty(checkpoint: Checkpoint, parts: Iterable[str]) -> Network:
    """A network with these parts; its parameters are random and lazy."""
    parts = tuple(parts)
    config = replace(checkpoint.config, pooler="pooler" in parts)
    return Network(config, [part for part in parts if part in HEADS])


def build_network(
    checkpoint: Checkpoint, parts: Iterable[str], dtype: mx.Dtype, *, packed: bool = False, streamed: bool = False
) -> Network:
    """The network with its weights in place and read from disk.

    Args:
        checkpoint: The opened folder.
        parts: Which optional parts to build; each must be in the weights.
        dtype: What to compute in.
        packed: Whether quantized weights stay so and are computed with as they are, which saves memory; they are
            expanded to `dtype` otherwise.
        streamed: Whether each layer is read anew whenever it computes, and let go: slow, and small.

    Raises:
        CheckpointError: A tensor is missing, has another shape or dtype than expected, or is tied and differs.
    """
    parts = tuple(parts)
    problem = first_problem(checkpoint, parts)
    if problem is not None:
        raise problem
    if "masked_lm" in parts:
        check_tied(checkpoint)
    network = empty(checkpoint, parts)
    if streamed:
        layers = range(len(network.encoder.layers))
        network.encoder["layers"] = [_StreamedLayer(checkpoint, number, dtype) for number in layers]
    _fill(network, checkpoint, dtype, packed=packed)
    mx.eval(network.parameters())
    return network


class _StreamedLayer(nn.Module):
    """A layer without parameters of its own: it reads them when it computes."""

    def __init__(self, checkpoint: Checkpoint, number: int, dtype: mx.Dtype) -> None:
        super().__init__()
        self._checkpoint, self._number, self._dtype = checkpoint, number, dtype

    def __call__(self, x: mx.array, context: Context) -> tuple[mx.array, mx.array | None]:
        """See the layers of `mlxbert.nn.blocks`."""
        layer = build_block(self._checkpoint.config, self._number)
        _fill(layer, self._checkpoint, self._dtype, within=f"encoder.layers.{self._number}.")
        found: tuple[mx.array, mx.array | None] = layer(x, context)
        mx.eval(found)
        return found


def _fill(
    module: nn.Module, checkpoint: Checkpoint, dtype: mx.Dtype, *, within: str = "", packed: bool = False
) -> None:
    """Puts weights in their places, lazy; `within` is what stands before the module's own names in the network."""
    quantization = checkpoint.storage if packed and isinstance(checkpoint.storage, Quantization) else None
    wanted = {within + name for name in parameters(module)}
    arrays = checkpoint.arrays(dtype)
    kept: set[str] = quantizable(module) if quantization else set()
    loaded: dict[str, mx.array] = {}
    for entry in keymap.pairs(checkpoint.table, checkpoint.config.num_stored_layers, dict.fromkeys(wanted)):
        if quantization is not None and _is_packed(checkpoint, entry, kept):
            loaded |= _packed(checkpoint, entry, quantization, dtype)
        else:
            kept -= {*entry.ours}
            loaded |= {name: array.astype(dtype) for name, array in keymap.load(entry, arrays).items()}
    if quantization is not None:
        quantize_modules(module, quantization, kept)
    module.load_weights([(name.removeprefix(within), array) for name, array in loaded.items()])
    module.eval()


def _is_packed(checkpoint: Checkpoint, entry: keymap.Entry, kept: set[str]) -> bool:
    assert checkpoint.storage is not None
    dtypes = {checkpoint.tensors[checkpoint.names[name]].dtype for name in entry.theirs}
    return kept.issuperset(entry.ours) and dtypes == {checkpoint.storage.dtype}


def _packed(checkpoint: Checkpoint, entry: keymap.Entry, how: Quantization, dtype: mx.Dtype) -> dict[str, mx.array]:
    """The tensors of quantized modules: rows of a quantized matrix are cut and joined as those of a plain one."""
    stored = checkpoint.weights.arrays()
    parts = {name: how.parts(stored, checkpoint.names[name], dtype) for name in entry.theirs}
    loaded: dict[str, mx.array] = {}
    for suffix in how.SUFFIXES:
        found = keymap.load(entry, {name: part[suffix] for name, part in parts.items()})
        loaded |= {name.removesuffix(".weight") + suffix: array for name, array in found.items()}
    return loaded


def to_theirs(family: Family, config: EncoderConfig, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Our tensors under the family's names: the way back of `build_network`.

    The prefix is written when a head lies beside the encoder, as the family's own files have it.
    """
    table = family.encoder + tuple(entry for part in family.parts.values() for entry in part)
    prefix = family.prefixes[0] if any(name.startswith("heads.") for name in arrays) else ""
    theirs: dict[str, mx.array] = {}
    for entry in keymap.pairs(table, config.num_stored_layers, arrays):
        inside = prefix if entry.ours[0].startswith("encoder.") else ""
        theirs |= {inside + name: array for name, array in keymap.save(entry, arrays).items()}
    return theirs
