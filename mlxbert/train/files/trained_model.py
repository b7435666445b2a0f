"""Writes a trained model as a folder for mlxbert, transformers and sentence-transformers."""

from collections.abc import Callable, Mapping
from pathlib import Path

from mlxbert.folders import copied_files
from mlxbert.folders.atomic_folder import MARKER
from mlxbert.folders.save import embedder_of_head, has_own_head, seal, write_checkpoint
from mlxbert.frozen_dict import FrozenDict
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.sparse_embedder import SparseEmbedder
from mlxbert.nn.token_embedder import TokenEmbedder
from mlxbert.train.files.token_vector_modules import write_sparse, write_token_embedder
from mlxbert.weights import save as weights
from mlxbert.weights.write_sentence_transformers import write_embedder

WriteWeights = Callable[[Path], None]


def write_trained(
    model: Model,
    partial: Path,
    describe: Callable[[Path], Mapping[str, str]],
    keys: Mapping[str, object] = FrozenDict(),
    embedder: Embedder | SparseEmbedder | TokenEmbedder | None = None,
    adapter: WriteWeights | None = None,
) -> None:
    """Writes a trained model into a folder that is moved into place later.

    Args:
        partial: The folder to write, which must be empty.
        describe: Called with the folder once it can be loaded. It returns the content of more files by name,
            such as the model card and the record of the training.
        keys: More keys for `config.json`; the value `None` removes a key.
        embedder: How the model makes vectors, if it was trained for them; otherwise no modules are written.
        adapter: A function that writes an adapter into the folder; it is called instead of writing all weights.
    """
    inner = copied_files.place_of_encoder(None, own=has_own_head(model))
    (partial / MARKER).touch()
    (partial / inner).mkdir(exist_ok=True)
    copied_files.copy_vocabulary(model.files, partial / inner)
    copied_files.copy_licenses(model.files, partial)
    copied_files.write_casing(model.tokenizer.files, partial / inner)
    if adapter is None:
        tensors = weights.plan_network(model.architecture, model.network)
        write_checkpoint(model, partial / inner, tensors, None, weights.parse_size("5GB"), keys)
        static = model.config.is_static
        if isinstance(embedder, SparseEmbedder):
            limit = embedder.config.max_length or model.tokenizer.max_length
            write_sparse(embedder, partial, limit, model.config.vocab_size)
        elif isinstance(embedder, TokenEmbedder):
            write_token_embedder(embedder, partial, inner)
        elif embedder is not None or inner or static:
            embedder = embedder or embedder_of_head(model)
            limit = embedder.config.max_length or model.tokenizer.max_length
            write_embedder(embedder, partial, limit, inner, static=static)
    else:
        adapter(partial)
        changed = weights.config_changes(model.architecture, None)
        changed |= weights.network_changes(model.architecture, model.network)
        weights.write_config(model.architecture, partial, changed | dict(keys))
    for name, content in describe(partial).items():
        (partial / name).write_text(content, encoding="utf-8")
    seal(model, partial, modules=False)
