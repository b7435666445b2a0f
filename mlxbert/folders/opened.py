"""One of two models that are compared: all of it that can be loaded, and why the rest cannot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlxbert.config import EncoderConfig
from mlxbert.device import mx
from mlxbert.errors import CheckpointError, MlxbertError
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.heads import Network
from mlxbert.text.tokenizer import Tokenizer, load_tokenizer
from mlxbert.weights import keymap
from mlxbert.weights.build import build_network, first_problem, parameters, shapes
from mlxbert.weights.checkpoint import Checkpoint, open_checkpoint
from mlxbert.weights.formats.files import open_weights
from mlxbert.weights.formats.headers import FLOATS, Lazy, Storage
from mlxbert.weights.sentence_transformers import (
    SETTINGS,
    WITH_WEIGHTS,
    read_embedder,
    read_modules,
    read_settings,
    transformer_folder,
)
from mlxbert.weights.source import find_folder
from mlxbert.weights.tokenizers.files import TokenizerFiles, read_tokenizer


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor in float32, the dtype that its file has it in, and how it is stored there, if not as plain floats."""

    array: mx.array
    stored: str
    storage: Storage | None = None


@dataclass(frozen=True, eq=False)
class Side:
    """A model that is compared.

    Attributes:
        checkpoint: Its opened folder.
        files: Its tokenizer as the files have it.
        model: The parts that could be loaded, computing in float32.
        problems: Why the other parts could not, without the folder.
        embedder: How it makes vectors, or why it makes none.
    """

    checkpoint: Checkpoint
    files: TokenizerFiles
    model: Model
    problems: dict[str, str]
    embedder: Embedder | MlxbertError

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that the weights hold, loaded or not."""
        return self.checkpoint.parts

    @property
    def config(self) -> EncoderConfig:
        """The facts."""
        return self.model.config

    @property
    def no_vectors(self) -> str | None:
        """Why it makes no vectors, if so."""
        return None if isinstance(self.embedder, Embedder) else _placeless(self.embedder.message, self.model.folder)

    @property
    def similarity(self) -> str:
        """What its authors compare vectors with."""
        name = read_settings(self.model.folder / SETTINGS).values.get("similarity_fn_name")
        return name if isinstance(name, str) else "cosine"  # as sentence-transformers takes it

    def has_loaded(self, part: str) -> bool:
        """Whether a part is there and could be loaded."""
        return part in self.parts and part not in self.problems

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the loaded parts and of the layers behind the pooling, by the network's names; lazy."""
        checkpoint = self.checkpoint
        ours = shapes(checkpoint, [part for part in self.parts if self.has_loaded(part)])
        table = keymap.pairs(checkpoint.table, checkpoint.config.num_stored_layers, ours)
        entries = {name: entry for entry in table for name in entry.ours}
        arrays = checkpoint.arrays(mx.float32)
        behind: dict[str, mx.array] = {}
        if isinstance(self.embedder, Embedder):
            behind_stored = _stored_behind(self.model.folder)
            behind = {f"embedder.{name}": array for name, array in parameters(self.embedder).items()}

        def read(name: str) -> Tensor:
            if name in behind:
                return Tensor(behind[name], behind_stored)
            entry = entries[name]
            dtypes = {checkpoint.tensors[checkpoint.names[theirs]].dtype for theirs in entry.theirs}
            return self._tensor(keymap.load(entry, arrays)[name], min(dtypes, key=coarseness))

        return Lazy([*ours, *behind], read)

    def raw(self, names: set[str]) -> dict[str, Tensor]:
        """Tensors of the files by their plain names, those that are there and hold numbers."""
        arrays, infos = self.checkpoint.arrays(mx.float32), self.checkpoint.tensors
        dtypes = {name: infos[self.checkpoint.names[name]].dtype for name in names & arrays.keys()}
        storage = self.checkpoint.storage
        known = {*FLOATS, storage.dtype} if storage else {*FLOATS}
        return {name: self._tensor(arrays[name], dtype) for name, dtype in dtypes.items() if dtype in known}

    def _tensor(self, array: mx.array, stored: str) -> Tensor:
        storage = self.checkpoint.storage
        packed = storage if storage is not None and stored == storage.dtype else None
        return Tensor(array.astype(mx.float32), stored, packed)


def _stored_behind(folder: Path) -> str:
    """The coarsest dtype of the layers behind the pooling."""
    modules = [module for module in read_modules(folder)[1:] if module.kind in WITH_WEIGHTS]
    dtypes = {info.dtype for module in modules for info in open_weights(module.folder).tensors.values()}
    return min(dtypes & FLOATS.keys(), key=coarseness, default="F32")


def coarseness(dtype: str) -> int:
    """The place of a dtype among those of files, the coarsest first: Q4, Q8, I8, BF16, F16, F32."""
    return int(dtype[1:]) if dtype.startswith("Q") else {"I8": 8, "BF16": 32, "F16": 33}.get(dtype, 34)


def open_side(source: str, *, offline: bool, on_progress: Callable[[int, int], None] | None) -> Side:
    """Loads what can be loaded of a model.

    Raises:
        MlxbertError: Its encoder or its tokenizer cannot be loaded; see `mlxbert.load`.
    """
    folder = find_folder(source, offline=offline, on_progress=on_progress)
    checkpoint = open_checkpoint(transformer_folder(folder))
    files, tokenizer = read_tokenizer(checkpoint.folder), load_tokenizer(checkpoint.folder, checkpoint.config)
    network, problems = _build(checkpoint)
    config = network.encoder.config
    embedder = _embedder(folder, config, tokenizer)
    model = Model(source, folder, config, tokenizer, network, config.heads.labels, _embedder=embedder)
    return Side(checkpoint, files, model, problems, embedder)


def _build(checkpoint: Checkpoint) -> tuple[Network, dict[str, str]]:
    """The network of the parts that can be built, and why the others cannot."""
    parts: list[str] = []
    problems: dict[str, str] = {}
    for part in sorted(checkpoint.parts, key=lambda part: part != "pooler"):  # heads may need the pooler
        problem = first_problem(checkpoint, (*parts, part))
        if problem is None:
            parts.append(part)
        else:
            problems[part] = _without_folder(problem, checkpoint)
    try:
        return build_network(checkpoint, parts, mx.float32, streamed=True), problems
    except CheckpointError as problem:
        if "masked_lm" not in parts:
            raise
        rest = [part for part in parts if part != "masked_lm"]
        network = build_network(
            checkpoint, rest, mx.float32, streamed=True
        )  # raises where the masked-word head is not to blame
        return network, problems | {"masked_lm": _without_folder(problem, checkpoint)}


def _without_folder(problem: MlxbertError, checkpoint: Checkpoint) -> str:
    return _placeless(problem.message, checkpoint.folder)


def _placeless(message: str, folder: Path) -> str:
    """What is wrong, without where: two copies have the same problem."""
    return message.removeprefix(f"{folder}: ").replace(f"{folder}/", "")


def _embedder(folder: Path, config: EncoderConfig, tokenizer: Tokenizer) -> Embedder | MlxbertError:
    try:
        embedder = read_embedder(folder, config.hidden_size)
        tokenizer.adapted(max_length=embedder.config.max_length, lower_case=embedder.config.lower_case)
    except MlxbertError as problem:
        return problem
    return embedder
