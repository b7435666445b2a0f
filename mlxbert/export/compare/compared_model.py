"""A model folder that was opened for comparison: the parts that can be loaded, and why other parts cannot."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.loading import embedders_of
from mlxbert.machine.device import mx, nn
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.heads import Network
from mlxbert.nn.token_embedder import TOKEN_LAYERS
from mlxbert.text.tokenizer import Tokenizer, load_tokenizer
from mlxbert.weights.build import build_network, first_problem, parameters, shapes, with_own_decoder
from mlxbert.weights.checkpoint import Checkpoint, open_checkpoint
from mlxbert.weights.families import keymap
from mlxbert.weights.formats.headers import FLOATS, Lazy
from mlxbert.weights.formats.quantized import Storage
from mlxbert.weights.formats.weight_files import open_weights
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.module_layouts import WITH_WEIGHTS
from mlxbert.weights.vector_kinds import KINDS, stated_kinds


@dataclass(frozen=True, eq=False)
class ComparedTensor:
    """A tensor to compare."""

    array: mx.array  # the numbers of the tensor in float32
    stored: str  # the dtype of the tensor in the file
    storage: Storage | None = None  # the quantized storage of the tensor in the file; `None` for plain floats


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model folder with its tokenizer; the network is built when it is first needed."""

    source: str  # the name or path that the caller passed
    folder: ModelFolder
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    # The embedder of dense vectors, or the error that explains why the model makes none.
    embedder: Embedder | MlxbertError
    # The embedders, or errors in their place, of the other kinds of vectors that the model's files state.
    others: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def _built(self) -> tuple[Network, dict[str, str]]:
        return _build(self.checkpoint)

    @cached_property
    def model(self) -> Model:
        """The model in float32, with the parts that can be loaded."""
        network, config = self._built[0], self._built[0].encoder.config
        labels = config.labels
        return Model(
            *(self.source, self.folder.path, config, self.tokenizer, network, labels),
            architecture=self.checkpoint.without_weights(),
            files=self.folder,
            _embedders={**self.others, "dense": self.embedder},
        )

    @property
    def problems(self) -> Mapping[str, str]:
        """Maps each part that cannot be loaded to the reason, which does not contain the path of the folder."""
        return self._built[1]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of all parts in the weights, including those that cannot be loaded."""
        return self.checkpoint.parts

    @property
    def config(self) -> EncoderConfig:
        return self.model.config

    @property
    def vectors(self) -> tuple[str, ...]:
        """The names of the kinds of vectors that the model's files state."""
        stated = isinstance(self.embedder, Embedder) and self.embedder.config.stated
        return (*(["dense"] if stated else []), *self.others)

    def other_vectors(self, *, dense: bool) -> list[str]:
        """Returns the titles of the vectors that an export leaves out; `dense` says whether it gives dense vectors.

        Raises:
            ArgumentError: The model makes only other vectors, so its dense vectors would be those of another model.
        """
        titles = [KINDS[kind].title for kind in self.vectors if not (dense and kind == "dense")]
        if dense and self.others and "dense" not in self.vectors:
            raise ArgumentError(
                f"{self.source} makes {' and '.join(titles)}, and an export with dense vectors would be another model",
                hint="mlxbert runs the model as it is; an export is made of dense vectors and heads",
            )
        return titles

    @property
    def no_vectors(self) -> str | None:
        return None if isinstance(self.embedder, Embedder) else _without_path(self.embedder.message, self.folder.path)

    def has_loaded(self, part: str) -> bool:
        """Whether a part is in the weights and can be loaded."""
        return part in self.parts and part not in self.problems

    def tensors(self) -> Mapping[str, ComparedTensor]:
        """Returns the tensors of all parts that can be loaded and of the layers that follow them to make vectors.

        They are keyed by their names in the network. Each tensor is read on access.
        """
        checkpoint = self.checkpoint
        expected = shapes(checkpoint, filter(self.has_loaded, self.parts))
        table = keymap.pairs(checkpoint.table, checkpoint.config, expected)
        entries = {name: entry for entry in table for name in entry.ours}
        arrays = checkpoint.arrays(mx.float32)
        later: dict[str, mx.array] = {}
        for part, embedder in (("embedder", self.embedder), (TOKEN_LAYERS, self.others.get("tokens"))):
            if isinstance(embedder, nn.Module):
                later_dtype = _stored_after(self.folder)
                later |= {f"{part}.{name}": array for name, array in parameters(embedder).items()}

        def read(name: str) -> ComparedTensor:
            if name in later:
                return ComparedTensor(later[name], later_dtype)
            entry = entries[name]
            coarsest = min(entry.theirs, key=lambda theirs: coarseness(self._stored(theirs)))
            return self._tensor(keymap.load(entry, arrays)[name], coarsest)

        return Lazy([*expected, *later], read)

    def raw(self, names: set[str]) -> dict[str, ComparedTensor]:
        """Returns the named tensors that exist in the files and have a known dtype.

        `names` are plain names (see `Checkpoint.names`), which are also the keys of the result.
        """
        arrays, storage = self.checkpoint.arrays(mx.float32), self.checkpoint.storage
        dtypes = {*FLOATS, *storage.dtypes} if storage else {*FLOATS}
        present = [name for name in names & arrays.keys() if self._stored(name) in dtypes]
        return {name: self._tensor(arrays[name], name) for name in present}

    def _stored(self, plain: str) -> str:
        """Returns the dtype in which the file stores the tensor with this plain name (see `Checkpoint.names`)."""
        return self.checkpoint.tensors[self.checkpoint.names[plain]].dtype

    def _tensor(self, array: mx.array, plain: str) -> ComparedTensor:
        storage, stored = self.checkpoint.storage, self._stored(plain)
        packed = storage is not None and stored in storage.dtypes
        used_storage = storage.of(self.checkpoint.names[plain]) if storage is not None and packed else None
        return ComparedTensor(array.astype(mx.float32), stored, used_storage)


def open_model(source: str, folder: ModelFolder) -> OpenedModel:
    """Opens a model folder; the network is built later."""
    checkpoint = open_checkpoint(folder)
    checkpoint = with_own_decoder(checkpoint, checkpoint.parts)
    tokenizer = load_tokenizer(folder, checkpoint.config)
    found: dict[str, Any] = embedders_of(folder, checkpoint.config, tokenizer)
    others = {kind: found[kind] for kind in stated_kinds(folder) if kind != "dense"}
    return OpenedModel(source, folder, checkpoint, tokenizer, found["dense"], others)


def _stored_after(folder: ModelFolder) -> str:
    """Returns the coarsest dtype that the files of the layers after the pooling contain; `F32` if there are none."""
    modules = [module for module in folder.modules[1:] if module.kind in WITH_WEIGHTS]
    dtypes = {info.dtype for module in modules for info in open_weights(module.folder).tensors.values()}
    return min(dtypes & FLOATS.keys(), key=coarseness, default="F32")


def coarseness(dtype: str) -> int:
    """Returns the rank of a dtype. Ranks rise from the coarsest dtype to the finest: Q4, Q8, I8, BF16, F16, F32."""
    return int(dtype[1:]) if dtype.startswith("Q") else {"I8": 8, "BF16": 32, "F16": 33}.get(dtype, 34)


def _build(checkpoint: Checkpoint) -> tuple[Network, dict[str, str]]:
    """Builds the network from all parts of the checkpoint that can be loaded.

    Returns:
        The network, and a dict that maps the name of each other part to the reason why it cannot be loaded.
    """
    parts: list[str] = []
    problems: dict[str, str] = {}
    for part in sorted(checkpoint.parts, key=lambda part: part != "pooler"):  # heads may need the pooler
        problem = first_problem(checkpoint, (*parts, part))
        if problem is None:
            parts.append(part)
        else:
            problems[part] = _without_path(problem.message, checkpoint.folder)
    return build_network(checkpoint, parts, mx.float32, streamed=True), problems


def _without_path(message: str, folder: Path) -> str:
    """Removes the path of the folder from a message, so that the messages about two copies of a model are equal."""
    return message.removeprefix(f"{folder}: ").replace(f"{folder}/", "")
