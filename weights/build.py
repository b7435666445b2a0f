"""Builds networks with their weights, from an opened checkpoint or from a configuration alone."""

from collections.abc import Iterable, Iterator, Mapping, Set as AbstractSet
from dataclasses import replace
from typing import cast

from mlxbert.config import EncoderConfig
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx, nn
from mlxbert.nn.blocks import build_block
from mlxbert.nn.heads import HEADS, Network, is_tied, takes_pooler
from mlxbert.nn.heads.initialize import initialize
from mlxbert.nn.heads.masked_lm import MaskedLMFacts
from mlxbert.nn.positions import Context
from mlxbert.weights import checkpoint_problems
from mlxbert.weights.checkpoint import Checkpoint, network_shapes, part_of
from mlxbert.weights.families import keymap
from mlxbert.weights.families.registry import Architecture
from mlxbert.weights.formats.quantized import Quantization, quantizable, quantize_modules

_DECODES = "masked_lm"
_GROUP = 8 * 2**20  # bytes of weights that are evaluated together


def with_own_decoder(checkpoint: Checkpoint, parts: Iterable[str]) -> Checkpoint:
    """Gives the masked-LM head the matrix or the bias of a decoder that differs from what it is tied to.

    transformers runs what the files have, too, whatever `tie_word_embeddings` says. Nothing is read unless one of the
    `parts` is the head.
    """
    family, names, arrays = checkpoint.family, dict(checkpoint.names), checkpoint.arrays(mx.float32)
    pairs = family.tied.items() if is_tied(parts) else ()
    both = [pair for pair in pairs if {*pair} <= names.keys() and arrays[pair[0]].shape == arrays[pair[1]].shape]
    differ = [a for a, b in both if not mx.array_equal(arrays[a], arrays[b]).item()]
    if not differ:
        return checkpoint
    stem = differ[0].rpartition(".")[0]
    own = f"{stem}.weight" in differ
    biases = {original: copy for copy, original in family.tied.items() if copy.endswith(".bias")}
    for old, new in biases.items():
        if old in names and new not in names:
            names[new] = names.pop(old)
    rest = [entry for entry in family.parts[_DECODES] if entry.ours != (f"heads.{_DECODES}",)]
    table = (keymap.same(f"heads.{_DECODES}{'.decoder' if own else ''}", stem), *rest)
    tied = {copy: original for copy, original in family.tied.items() if not own and copy not in biases.values()}
    family = replace(family, parts={**family.parts, _DECODES: table}, tied=tied | biases)
    facts = replace(cast(MaskedLMFacts, checkpoint.config.heads[_DECODES]), tied=not own)
    config = replace(checkpoint.config, heads={**checkpoint.config.heads, _DECODES: facts})
    return replace(checkpoint, family=family, plain_family=family, config=config, names=names)


def first_problem(checkpoint: Checkpoint, parts: Iterable[str]) -> CheckpointError | None:
    """Checks headers only; returns the error to raise if a network with these parts cannot be built, else `None`."""
    parts = tuple(parts)
    for part in ("encoder", *parts):
        for problem in checkpoint_problems.problems(checkpoint, part, parts):
            return problem.error(checkpoint)
    return None


def shapes(checkpoint: Checkpoint, parts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of a network with these parts, by mlxbert's names."""
    built = {"encoder", *parts}
    return {name: shape for name, shape in network_shapes(checkpoint.config).items() if part_of(name) in built}


def parameters(network: nn.Module) -> dict[str, mx.array]:
    """Returns the parameters of a network by their full names."""
    return dict(nn.utils.tree_flatten(network.parameters()))


def empty(checkpoint: Checkpoint, parts: Iterable[str]) -> Network:
    """Returns a network with these parts. Its parameters are random and not computed until they are used."""
    parts = tuple(parts)
    config = replace(checkpoint.config, pooler="pooler" in parts)
    return Network(config, [part for part in parts if part in HEADS])


NewHeads = Mapping[str, Labels | None]


def build_network(
    checkpoint: Checkpoint,
    parts: Iterable[str],
    dtype: mx.Dtype,
    *,
    new_heads: NewHeads | None = None,
    seed: int = 0,
    packed: bool = False,
    streamed: bool = False,
) -> Network:
    """Builds a network and loads its weights from disk.

    Args:
        parts: The optional parts to build; the weights must hold each of them.
        new_heads: Maps each head to add, with fresh weights, to its labels, or to `None` if it has no labels. If the
            heads need a pooler, it is loaded from the weights; it is fresh if the weights hold none.
        packed: Whether quantized weights stay quantized in memory, which saves space. Otherwise they are expanded to
            `dtype`.
        streamed: Whether each layer is read from disk every time it runs, and is then freed. This is slow, but saves
            memory.
    """
    parts, new_heads = tuple(parts), {} if new_heads is None else new_heads
    config = _with_new_heads(checkpoint, parts, new_heads)
    if config.pooler and "pooler" not in parts and "pooler" in checkpoint.parts:
        parts = ("pooler", *parts)
    if (problem := first_problem(checkpoint, parts)) is not None:
        raise problem
    network = Network(config, [*(part for part in parts if part in HEADS), *new_heads])
    fresh = {name for name in parameters(network) if _is_fresh(name, parts, new_heads)}
    initialize(network, config, fresh, seed, dtype)
    if streamed:
        layers = range(len(network.encoder.layers))
        network.encoder.divisible = False  # each part would read all layers
        network.encoder["layers"] = [_StreamedLayer(checkpoint, number, dtype) for number in layers]
    _load_weights(network, checkpoint, dtype, packed=packed, fresh=fresh)
    mx.eval(network.parameters())
    mx.clear_cache()  # a GPU keeps freed buffers, but passes have other sizes than weights in the dtype of the files
    return network


def new_network(architecture: Architecture, heads: NewHeads, dtype: mx.Dtype = mx.float32, seed: int = 0) -> Network:
    """Builds the network that a configuration describes; all of its weights are fresh.

    A network without heads has a pooler if the family's class without a head has one in transformers.

    Args:
        heads: Maps each head to its labels, or to `None` if it has no labels.
    """
    bare = not heads and architecture.family.pooled and "pooler" in architecture.family.parts
    config = _with_new_heads(architecture, ("pooler",) if bare else (), heads)
    network = Network(config, heads)
    initialize(network, config, parameters(network), seed, dtype)
    network.eval()
    _evaluated({name: array} for name, array in parameters(network).items())
    return network


def _with_new_heads(architecture: Architecture, parts: tuple[str, ...], new_heads: NewHeads) -> EncoderConfig:
    """Checks the new heads and their labels; returns the configuration of a network with these parts and heads."""
    config = architecture.config
    labels = config.labels
    if not isinstance(new_heads, Mapping):
        raise ArgumentError(
            f"`new_heads` is {new_heads!r:.60}, expected a dict that maps names of heads to Labels or None"
        )
    for head, head_labels in new_heads.items():
        if head not in architecture.family.parts or head not in HEADS:
            names = ", ".join(part for part in architecture.family.parts if part in HEADS)
            raise ArgumentError(
                f"new head is {head!r:.60}, expected a head of {architecture.family_name} models ({names})"
            )
        if head in parts:
            raise ArgumentError(
                f"new head {head!r} cannot be added, because the checkpoint already has a head of this name"
            )
        if not (isinstance(head_labels, Labels) if HEADS[head].labelled else head_labels is None):
            expected = "mlxbert.Labels" if HEADS[head].labelled else "None, because this head has no labels"
            raise ArgumentError(f"labels of the new head {head!r} are {head_labels!r:.60}, expected {expected}")
        if head_labels is not None:
            _check_labels(head, head_labels)
            labels = head_labels
    collision = architecture.family.colliding((*parts, *new_heads))
    if collision is not None:
        raise ArgumentError(
            "heads {!r} and {!r} cannot be combined, because their tensors have the same names in files".format(
                *collision
            )
        )
    distinct: set[Labels | None] = {head_labels for head_labels in new_heads.values() if head_labels is not None}
    distinct |= {config.labels for part in parts if part in HEADS and HEADS[part].labelled and distinct}
    if len(distinct) > 1:
        raise ArgumentError("the heads have different labels, but config.json can hold only one set of labels")
    config = replace(config, labels=labels)
    return replace(config, pooler="pooler" in parts or any(takes_pooler(head, config) for head in new_heads))


def _check_labels(head: str, labels: Labels) -> None:
    """Rejects labels that do not fit a new head."""
    labels.check()
    for other, spec in HEADS.items():
        if spec.own is not None and spec.own.used(labels) and other != head:
            raise ArgumentError(f"labels of the new head {head!r} have {spec.own.option}, which is for {other!r} only")


def _is_fresh(name: str, parts: tuple[str, ...], new_heads: NewHeads) -> bool:
    """Whether a parameter of the network gets fresh weights instead of loaded ones."""
    root, part = name.split(".")[:2]
    return part in new_heads if root == "heads" else part == "pooler" and "pooler" not in parts


class _StreamedLayer(nn.Module):
    """A layer that keeps no parameters: it reads them from disk every time it runs."""

    def __init__(self, checkpoint: Checkpoint, number: int, dtype: mx.Dtype) -> None:
        super().__init__()
        self._checkpoint, self._number, self._dtype = checkpoint, number, dtype

    def __call__(self, x: mx.array, context: Context) -> tuple[mx.array, mx.array | None]:
        """Reads and runs the layer; takes and returns the same values as a layer of `mlxbert.nn.blocks`."""
        layer = build_block(self._checkpoint.config, self._number)
        _load_weights(layer, self._checkpoint, self._dtype, within=f"encoder.layers.{self._number}.")
        outputs: tuple[mx.array, mx.array | None] = layer(x, context)
        mx.eval(outputs)
        return outputs


def _load_weights(
    module: nn.Module,
    checkpoint: Checkpoint,
    dtype: mx.Dtype,
    *,
    within: str = "",
    packed: bool = False,
    fresh: AbstractSet[str] = frozenset(),
) -> None:
    """Loads the weights of a module.

    Args:
        module: The network, or a layer of it.
        within: The prefix that the names of the module's parameters have in the network.
        packed: Whether quantized weights stay quantized in memory.
        fresh: The names of parameters that keep their current weights.
    """
    quantization = checkpoint.storage if packed and isinstance(checkpoint.storage, Quantization) else None
    names = {within + name for name in parameters(module)} - fresh
    arrays = checkpoint.arrays(dtype)
    suited: set[str] = quantizable(module) - fresh if quantization else set()
    quantized: dict[str, Quantization] = {}

    def read() -> Iterator[dict[str, mx.array]]:
        for entry in keymap.pairs(checkpoint.table, checkpoint.config, dict.fromkeys(names)):
            how = _packing(checkpoint, quantization, entry) if suited.issuperset(entry.ours) else None
            if how is not None:
                quantized.update(dict.fromkeys(entry.ours, how))
                yield _packed(checkpoint, entry, how, dtype)
            else:
                yield {name: array.astype(dtype) for name, array in keymap.load(entry, arrays).items()}

    loaded = _evaluated(read())
    if quantization is not None:
        quantize_modules(module, quantized)
    kept = {name: array for name, array in parameters(module).items() if within + name in fresh}
    module.load_weights([*((name.removeprefix(within), array) for name, array in loaded.items()), *kept.items()])
    module.eval()


def _evaluated(entries: Iterable[dict[str, mx.array]]) -> dict[str, mx.array]:
    """Evaluates the arrays of each entry, a group of entries at a time; returns all of them.

    One evaluation of all arrays would allocate what is read and what is computed from it before it frees anything:
    three times the weights, if float32 becomes float16.
    """
    evaluated: dict[str, mx.array] = {}
    group: list[mx.array] = []
    for arrays in entries:
        evaluated |= arrays
        group += arrays.values()
        if sum(array.nbytes for array in group) >= _GROUP:
            mx.eval(group)
            group.clear()
    mx.eval(group)
    return evaluated


def _packing(checkpoint: Checkpoint, storage: Quantization | None, entry: keymap.TensorName) -> Quantization | None:
    """Returns how the matrices of a table entry are quantized.

    Returns `None` if they must be expanded, or are not all quantized in the same way.
    """
    if storage is None or entry.operation not in (keymap.SAME, keymap.SPLIT):
        return None
    if checkpoint.adapter is not None and not checkpoint.adapter.updates.keys().isdisjoint(entry.theirs):
        return None  # merged matrices are no longer in that layout
    names = [checkpoint.names[name] for name in entry.theirs]
    how = storage.of(names[0])
    alike = all(checkpoint.tensors[name].dtype == how.dtype and storage.of(name) == how for name in names)
    return how if alike else None


def _packed(
    checkpoint: Checkpoint, entry: keymap.TensorName, how: Quantization, dtype: mx.Dtype
) -> dict[str, mx.array]:
    """Reads the quantized matrices of a table entry without expanding them; returns their tensors by our names.

    If the entry splits or joins matrices, the rows of words, scales and offsets are split or joined in the same way.
    """
    stored = checkpoint.weights.arrays()
    parts = {name: how.parts(stored, checkpoint.names[name], dtype) for name in entry.theirs}
    loaded: dict[str, mx.array] = {}
    for suffix in how.SUFFIXES:
        matrices = keymap.load(entry, {name: part[suffix] for name, part in parts.items()})
        loaded |= {name.removesuffix(".weight") + suffix: array for name, array in matrices.items()}
    return loaded
