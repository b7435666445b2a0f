"""The kinds of vectors that a model folder makes. A new kind is an entry of `KINDS`, and its own file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from mlxbert.config import EncoderConfig
from mlxbert.errors import CheckpointError, MlxbertError
from mlxbert.nn.sparse_embedder import HEAD
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.sentence_transformers import makes_dense, read_embedder
from mlxbert.weights.sparse_folder import ReadTokenizer, makes_sparse, read_sparse
from mlxbert.weights.token_vectors import makes_tokens, read_token_embedder

Kind = Literal["dense", "sparse", "tokens"]


@dataclass(frozen=True)
class VectorKind:
    """A kind of vectors."""

    task: str  # the task with which `mlxbert.load` loads exactly what vectors of this kind need
    stated: Callable[[ModelFolder], bool]  # whether the files of a folder say that its model makes these vectors
    # Reads the embedder of a folder; raises `MlxbertError` if the model cannot make these vectors.
    read: Callable[[ModelFolder, EncoderConfig, ReadTokenizer], object]
    head: Callable[[ModelFolder], str | None]  # returns the head that the vectors need, or `None`
    title: str  # the name of the vectors for users
    function: str  # the function of the library that computes them
    assumed: bool = False  # whether a model can make these vectors although its modules are for other vectors


# In order of preference: of the kinds that a folder states, the first one is used if nothing else is asked for.
KINDS: Mapping[str, VectorKind] = {
    "dense": VectorKind(
        task="embed", stated=makes_dense, head=lambda folder: None, title="dense vectors", function="embed",
        read=lambda folder, config, _: read_embedder(folder, config.hidden_size),
    ),
    "sparse": VectorKind(
        task="embed-sparse", stated=makes_sparse, read=read_sparse, title="sparse vectors", function="embed_sparse",
        head=lambda folder: HEAD if folder.layout == "sparse" or not makes_sparse(folder) else None, assumed=True,
    ),
    "tokens": VectorKind(
        task="embed-tokens", stated=makes_tokens, head=lambda folder: None, title="token vectors",
        function="embed_tokens", read=lambda folder, config, _: read_token_embedder(folder, config.hidden_size),
    ),
}  # fmt: skip
TASKS = {kind.task: name for name, kind in KINDS.items()}


def stated_kinds(folder: ModelFolder) -> tuple[str, ...]:
    """Returns the kinds of vectors that the files of a folder state; `dense` if they state nothing."""
    return tuple(name for name, kind in KINDS.items() if kind.stated(folder)) or ("dense",)


def needed_heads(task: str, folder: ModelFolder) -> list[str]:
    """Returns the heads to load for vectors. For the task `embed`, these are the heads of all kinds that are stated."""
    names = stated_kinds(folder) if task == KINDS["dense"].task else (TASKS[task],)
    return [head for name in names if (head := KINDS[name].head(folder)) is not None]


def read_embedders(folder: ModelFolder, config: EncoderConfig, read_tokenizer: ReadTokenizer) -> dict[str, object]:
    """Reads the embedder of each kind before the files can change; in its place, the error to raise on first use."""
    embedders: dict[str, object] = {}
    for name, kind in KINDS.items():
        try:
            check_kind(name, folder)
            embedders[name] = kind.read(folder, config, read_tokenizer)
        except MlxbertError as problem:
            # Its frames hold the model that is being loaded, and would keep it in memory until garbage is collected.
            problem.__context__ = None
            embedders[name] = problem.with_traceback(None)
    return embedders


def check_kind(name: str, folder: ModelFolder) -> None:
    """Raises `CheckpointError` if the modules of a folder are for other kinds of vectors than the named kind."""
    kind, stated = KINDS[name], stated_kinds(folder)
    if folder.layout in KINDS and name not in stated and not kind.assumed:
        titles = " and ".join(KINDS[other].title for other in stated)
        calls = "; ".join(
            f"mlxbert.{KINDS[other].function}(model, texts) makes {KINDS[other].title}" for other in stated
        )
        raise CheckpointError(
            f"{folder.path}: the model makes {titles}, not {kind.title}",
            hint=f"choose a model that makes {kind.title}; {calls}",
        )
