"""A model: tokenizer, network and labels, loaded from a folder."""

import importlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from mlxbert.config import EncoderConfig
from mlxbert.errors import CheckpointError, MissingHeadError, MlxbertError, ThreadError
from mlxbert.labels.labels import Labels
from mlxbert.machine import device as devices
from mlxbert.machine.device import dtype_name, mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.heads import HEADS, TASKS, Network, missing_parts, titles
from mlxbert.nn.sparse_embedder import SparseEmbedder
from mlxbert.nn.token_embedder import TokenEmbedder
from mlxbert.nn.vector_settings import VectorSettings
from mlxbert.results.short_repr import Brief
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.adapters.task_adapters import own_adapters
from mlxbert.weights.build import parameters
from mlxbert.weights.families.registry import Architecture
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.vector_kinds import KINDS, stated_kinds

_Embedder = TypeVar("_Embedder")

if TYPE_CHECKING:
    import mlxbert as functions
else:

    class _Method:
        """Makes a function of the package a method of `Model`; the function is imported at its first use.

        The model becomes the first argument of the function.
        """

        def __init__(self, name: str) -> None:
            self._name = name

        def __get__(self, model: Any, owner: Any = None) -> Any:
            function = getattr(importlib.import_module("mlxbert"), self._name)
            return function if model is None else MethodType(function, model)

    functions = type("_Functions", (), {"__getattr__": lambda self, name: _Method(name)})()


@dataclass
class _OwnerThread:
    """The thread that may use a model."""

    thread: threading.Thread = field(default_factory=threading.current_thread)


@dataclass(frozen=True, eq=False)
class Model(Brief):
    """A loaded model (see `load`). Its methods are shortcuts: `model.embed(texts)` calls `mlxbert.embed(model, texts)`.

    Attributes:
        source: The name or path that the model was loaded from.
        folder: The folder with its files; with an adapter, the adapter's folder.
        config: The configuration of the encoder and its heads.
        tokenizer: Converts text to token ids.
        network: The network, a differentiable `mlx.nn.Module` that can be used on its own.
        labels: The classes of a classification head; `None` if the model has no such head.
        device: The device that its tasks run on.
        architecture: The family and the configuration file, which `save` needs.
        files: The opened folder of the model.
    """

    source: str
    folder: Path
    config: EncoderConfig = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    network: Network = field(repr=False)
    labels: Labels | None = None
    device: mx.Device = field(default_factory=mx.default_device)
    architecture: Architecture = field(kw_only=True, repr=False)
    files: ModelFolder = field(kw_only=True, repr=False)
    _owner: _OwnerThread = field(
        default_factory=_OwnerThread, repr=False
    )  # copies by `replace` share it, as they share weights
    # By kind of vectors: its embedder, or the error to raise on its first use.
    _embedders: Mapping[str, object] = field(default_factory=dict, repr=False)
    # Loads the model with another of its own adapters; `None` if the weights exist only in memory.
    _load_with_adapter: Callable[[str], "Model"] | None = field(default=None, repr=False)
    _loaded: Mapping[str, mx.array | None] = field(default_factory=dict, repr=False)  # only vectors: they are small
    _with_adapters: dict[str, "Model"] = field(default_factory=dict, repr=False)  # by prompt (see `for_prompt`)

    # Written by scripts/signatures.py.
    answer = functions.answer
    attention = functions.attention
    classify = functions.classify
    cluster = functions.cluster
    dedupe = functions.dedupe
    embed = functions.embed
    embed_sparse = functions.embed_sparse
    embed_stream = functions.embed_stream
    embed_tokens = functions.embed_tokens
    embed_words = functions.embed_words
    explain = functions.explain
    fill_mask = functions.fill_mask
    mine = functions.mine
    next_sentence = functions.next_sentence
    paraphrase_mining = functions.paraphrase_mining
    project = functions.project
    replaced = functions.replaced
    rerank = functions.rerank
    senses = functions.senses
    similarity = functions.similarity
    similarity_matrix = functions.similarity_matrix
    similarity_pairs = functions.similarity_pairs
    tag = functions.tag
    tokenize = functions.tokenize
    # Written by hand.
    save = functions.save
    verify_vectors = functions.verify_vectors

    @property
    def dtype(self) -> str:
        """What the model computes in: `float32`, `float16` or `bfloat16`."""
        word = self.network.encoder.embeddings.word
        return dtype_name((word.scales if "scales" in word else word.weight).dtype)

    @property
    def embedder(self) -> Embedder:
        """Turns hidden states into the dense vector of a text; read from the model's sentence-transformers files.

        Raises:
            MlxbertError: The files cannot be used, or the model was loaded for another task.
        """
        return self._embedder_of("dense", Embedder)

    @property
    def sparse_embedder(self) -> SparseEmbedder:
        """Turns hidden states into the sparse vector of a text.

        Raises:
            MlxbertError: The files cannot be used, the model has no masked-LM head although its vectors need one, or
                the model was loaded for another task.
        """
        embedder = self._embedder_of("sparse", SparseEmbedder)
        if (head := embedder.documents.head) is not None and head not in self.network.heads:
            if head in (self.architecture.parts or ()):
                raise self._not_loaded("sparse")
            check_parts(self.source, HEADS[head].task or "", self.config, self._parts)
        return embedder

    @property
    def token_embedder(self) -> TokenEmbedder:
        """Turns hidden states into token vectors; read from the files of a model for late interaction.

        Raises:
            MlxbertError: The model makes no token vectors, its files cannot be used, or it was loaded for another
                task.
        """
        return self._embedder_of("tokens", TokenEmbedder)

    @property
    def embedders(self) -> Mapping[str, object]:
        """The embedder of each kind of vectors or, in its place, the error to raise on its first use."""
        return self._embedders

    @cached_property
    def vectors(self) -> tuple[str, ...]:
        """The kinds of vectors that the model's files state: `dense`, `sparse`, `tokens`; without any, `dense`."""
        return stated_kinds(self.files)

    @property
    def vector_settings(self) -> VectorSettings:
        """The settings of the first kind of vectors in `vectors`: prompts, limits, and how to compare vectors."""
        return (self.sparse_embedder if self.vectors[0] == "sparse" else self.embedder).config

    def _embedder_of(self, kind: str, cls: type[_Embedder]) -> _Embedder:
        embedder = self._embedders.get(kind)
        if isinstance(embedder, cls):
            return embedder
        raise embedder if isinstance(embedder, MlxbertError) else self._not_loaded(kind)

    def _not_loaded(self, kind: str) -> CheckpointError:
        return CheckpointError(
            f"{self.source}: the model was loaded for another task",
            hint=f"load the model with `task={KINDS[kind].task!r}` or without a task",
        )

    @cached_property
    def embed_tokenizer(self) -> Tokenizer:
        """The tokenizer for `embed`: embedding models may set their own maximum length and lowercasing."""
        return embedding_tokenizer(self.tokenizer, self.embedder.config)

    @cached_property
    def sparse_tokenizer(self) -> Tokenizer:
        """The tokenizer for `embed_sparse`, like `embed_tokenizer`."""
        return embedding_tokenizer(self.tokenizer, self.sparse_embedder.config)

    def for_prompt(self, name: str | None, text: str) -> "Model":
        """Returns the model for texts with a prompt: this model, or this model with its own adapter for the prompt.

        Each model with an adapter is loaded once and kept.

        Args:
            name: The name of the prompt; `None` if only its text is known.
            text: The text of the prompt, used to look up the name if `name` is `None`.
        """
        if self._load_with_adapter is None or self.files.adapter is not None:
            return self
        adapters = own_adapters(self.architecture.config_json)
        if adapters and not self._as_loaded():  # adapters belong to the weights in the folder
            devices.hint_once(f"{self.source}: the weights have changed, so prompts do not select an adapter")
            return self
        if name is None and text:
            name = next((task for task in adapters if self.embedder.config.prompts.get(task) == text), None)
        if name not in adapters or name == self.files.own_adapter:
            return self
        if name not in self._with_adapters:
            loaded = self._load_with_adapter(name)
            self._with_adapters[name] = replace(loaded, source=self.source, _owner=self._owner)
        return self._with_adapters[name]

    def _as_loaded(self) -> bool:
        """Whether the parameters are still the loaded arrays; `mlx.optimizers` replaces each array that it updates."""
        current = parameters(self.network)
        return current.keys() == self._loaded.keys() and all(
            array is None or array is current[name] for name, array in self._loaded.items()
        )

    def require(self, task: str) -> None:
        """Checks that the model can do a task, and selects its device.

        Raises:
            CheckpointError: A part that the task needs is missing.
            ThreadError: See `check_thread`.
        """
        self.check_thread()
        check_parts(self.source, task, self.config, self._parts)
        mx.set_default_device(self.device)  # another model may have been loaded since

    def check_thread(self) -> None:
        """Raises an error on any thread but the owner: the thread that loaded the model, or adopted it later.

        Raises:
            ThreadError: The calling thread is not the owner; MLX's streams and unevaluated arrays belong to one thread.
                Or this process is a fork of the one that loaded the model.
        """
        devices.check_not_forked()
        if threading.current_thread() is not self._owner.thread:
            raise ThreadError(
                "the model belongs to another thread, which loaded or adopted it",
                hint="send the inputs to the other thread through a queue, or call model.adopt() on this thread after "
                "the other thread has finished with the model",
            )

    def adopt(self) -> None:
        """Makes the calling thread the owner, instead of the former one.

        The former owner must not be using the model during this call, and cannot use it after the call.

        Raises:
            ThreadError: The former owner has changed weights that are not evaluated yet.
        """
        try:
            with device_errors():
                mx.eval(self.network.parameters())
        except RuntimeError as problem:
            if "Stream" not in str(problem):  # there is no such stream on this thread
                raise
            raise ThreadError(
                "the model cannot move to this thread, because some of the weights are not evaluated yet",
                hint="call mx.eval(model.network.parameters()) on the thread that computed the weights",
            ) from None
        devices.clear_when_thread_ends()
        self._owner.thread = threading.current_thread()

    @property
    def _parts(self) -> tuple[str, ...]:
        return (*self.network.heads, *(("pooler",) if self.config.pooler else ()))


def check_parts(source: str, task: str, config: EncoderConfig, parts: tuple[str, ...], reason: str = "") -> None:
    """Raises an error if a checkpoint lacks parts that a task needs; `reason` is added to the message."""
    missing = missing_parts(task, config, parts)
    if missing:
        tasks = [name for name in TASKS if not missing_parts(name, config, parts)]
        raise MissingHeadError(
            f"{source}: this checkpoint has no {titles(missing)}{reason}",
            hint=f"{HEADS[TASKS[task] or ''].hint}; this checkpoint can be used for {', '.join(tasks)}",
        )


def embedding_tokenizer(tokenizer: Tokenizer, settings: VectorSettings) -> Tokenizer:
    """Returns the tokenizer with the maximum length and the lowercasing that an embedder requires."""
    return tokenizer.adapted(max_length=settings.max_length, lower_case=settings.lower_case)
