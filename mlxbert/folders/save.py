"""`mlxbert.save`: writes a model in memory as a folder for mlxbert, transformers and sentence-transformers."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from mlxbert.durable_files import check_space, sha256
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.folders import atomic_folder, copied_files
from mlxbert.folders.atomic_folder import SAVED
from mlxbert.frozen_dict import FrozenDict
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder, EmbeddingConfig, parse_poolings
from mlxbert.nn.heads import OWN_LAYERS, has_own
from mlxbert.other_libraries import not_one_of
from mlxbert.version import __version__
from mlxbert.weights import save as weights
from mlxbert.weights.formats.config_json import GLINER
from mlxbert.weights.hub.needed_files import MODULES, TEMPLATE
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.rerankers import activation, gives_probabilities, has_decoder_classifier
from mlxbert.weights.sentence_transformers import read_embedder
from mlxbert.weights.tokenizers.tokenizer_files import TOKENIZER_JSON, read_tokenizer
from mlxbert.weights.vector_kinds import read_embedders
from mlxbert.weights.write_sentence_transformers import write_embedder


def save(
    model: Model,
    folder: str | Path,
    *,
    dtype: str | None = None,
    max_shard_size: str = "5GB",
    overwrite: bool = False,
) -> Path:
    """Writes a model as a folder that mlxbert, transformers and sentence-transformers open.

    The weights are written as they are in memory; heads that were not loaded are not written. The vocabulary, modules
    and licenses are copied from the folder that the model was loaded from; so is the model card, if the heads are the
    same. The folder appears only when it is complete.

    Example:
        >>> mlxbert.save(mlxbert.load(), "my-model")

    Args:
        model: A model from `load` or `new_model`.
        folder: The folder to write, new or empty.
        dtype: The dtype of the weights: `float32`, `float16` or `bfloat16`; by default the dtype in memory.
        max_shard_size: The maximum size of a weight file: `400MB`, `5GB`, `1GiB`.
        overwrite: Whether to replace a folder that `save` or `convert` wrote.

    Returns:
        The path of the folder.

    Raises:
        ArgumentError: An argument is invalid, or the folder is in use.
        CheckpointError: A weight is too large for `dtype`, is quantized, or does not have the shape that the
            configuration implies; or the source's files changed after the model was loaded.
        MlxbertError: The folder cannot be written.
    """
    if not isinstance(model, Model):
        raise ArgumentError(f"`model` is {model!r:.60}, expected the result of mlxbert.load")
    if dtype is not None and dtype not in [*weights.DTYPES]:
        raise not_one_of("dtype", dtype, weights.DTYPES)
    shard_limit = weights.parse_size(max_shard_size)
    model.check_thread()
    source, architecture = model.files, model.architecture
    target = atomic_folder.check_target(folder, source.path, overwrite)
    tensors = weights.plan_network(architecture, model.network, weights.DTYPES[dtype] if dtype else None)
    atomic_folder.check_link_targets(target, [path for path in source.path.rglob("*") if path.is_file()])
    check_space(target, sum(tensor.bytes for tensor in tensors))
    with atomic_folder.unfinished_folder(target, source.path, overwrite) as partial:
        # A new model shares only the vocabulary with that folder, not its modules; nor does a classifier that was made
        # from a decoder.
        from_decoder = has_decoder_classifier(architecture)
        same = architecture.parts is not None and not from_decoder
        inner = copied_files.place_of_encoder(source if same else None, own=has_own_head(model))
        _copy(model, partial, inner, dtype, modules=same)
        keys = activation(probabilities=gives_probabilities(source)) if from_decoder else {}
        write_checkpoint(model, partial / inner, tensors, dtype, shard_limit, keys)
        seal(model, partial, modules=same)
        atomic_folder.move(partial, target)
    return target


def write_checkpoint(
    model: Model,
    inner: Path,
    tensors: list[weights.TensorToWrite],
    dtype: str | None,
    shard_limit: int,
    keys: Mapping[str, object] = FrozenDict(),
) -> None:
    """Writes the weights and the configuration into a folder that already holds the vocabulary and modules."""
    weights.write_weights(tensors, inner, shard_limit)
    changed = _changes(model, tensors, dtype)
    if model.files.described_by is not None and GLINER in model.architecture.config_json.values:
        (inner / TOKENIZER_JSON).write_text(model.tokenizer.files.tokenizer.to_str(), encoding="utf-8")
    if model.tokenizer.prompt is not None and has_decoder_classifier(model.architecture):
        (inner / TEMPLATE).write_text(model.tokenizer.prompt.template(), encoding="utf-8")
        if (pad := model.tokenizer.token_id(model.tokenizer.special.get("pad", ""))) is not None:
            changed["pad_token_id"] = pad  # transformers needs it to find the last token
    weights.write_config(model.architecture, inner, changed | dict(keys))


def seal(model: Model, partial: Path, *, modules: bool) -> None:
    """Checks a complete folder, and writes the manifest of its files."""
    _check_files(model, ModelFolder(partial), modules=modules)
    hashes = {path.relative_to(partial).as_posix(): sha256(path) for path in atomic_folder.written_files(partial)}
    names = {Path(name).name for name in hashes}
    notes = [layers.note for layers in OWN_LAYERS if layers.file in names]
    saved = {"mlxbert": __version__, "source": model.source, "written": hashes}
    saved |= {"note": ". ".join(notes)} if notes else {}
    weights.write_json(partial / SAVED, saved)


def has_own_head(model: Model) -> bool:
    """Whether the model has a head that does not exist in transformers."""
    return has_own(model.network.heads, model.network.encoder.config.labels)


def embedder_of_head(model: Model) -> Embedder:
    """Returns an embedder that pools like the model's vector classifier.

    A model with such a classifier is saved with the modules of sentence-transformers, and these are written from an
    embedder.
    """
    labels = model.network.encoder.config.labels
    if not has_own_head(model):  # a static model, whose files also make vectors
        return read_embedder(model.files, model.config.hidden_size)
    assert labels is not None and labels.head_pooling is not None
    return Embedder(EmbeddingConfig(parse_poolings(labels.head_pooling)), model.config.hidden_size)


def _copy(model: Model, partial: Path, inner: str, dtype: str | None, *, modules: bool) -> None:
    source = model.files
    (partial / inner).mkdir(parents=True, exist_ok=True)
    if not modules:
        copied_files.copy_vocabulary(source, partial / inner)
    else:
        # The model card describes the original heads.
        parts = model.architecture.parts or ()
        same_heads = {*model.network.heads} == {*parts} - {"pooler"} and source.adapter is None
        for path in copied_files.card_of(source.path) if same_heads else ():
            shutil.copyfile(path, partial / path.name)
        for _ in copied_files.copy_files(source, partial, inner):
            pass
        for _ in copied_files.write_modules(source, partial, weights.DTYPES[dtype] if dtype else None):
            pass
    copied_files.write_casing(model.tokenizer.files, partial / inner)
    if has_own_head(model) and not (partial / MODULES).is_file():
        static = model.config.is_static
        write_embedder(embedder_of_head(model), partial, model.tokenizer.max_length, inner, static=static)


def _check_files(model: Model, saved: ModelFolder, *, modules: bool) -> None:
    """Raises `CheckpointError` if the copied tokenizer or pooling differs from the one in memory.

    This happens if the files of the source changed after the model was loaded.
    """
    try:
        same = read_tokenizer(saved).tokenizer.to_str() == model.tokenizer.files.tokenizer.to_str()
        if modules and model.files.modules[1:]:
            found = read_embedders(saved, model.config, read_tokenizer)
            same = same and all(
                _settings(found[kind]) == _settings(model.embedders.get(kind)) for kind in model.vectors
            )
    except MlxbertError:
        same = False
    if not same:
        raise CheckpointError(
            f"{model.files.path}: the files have changed since the model was loaded", hint="load the model again"
        )


def _settings(embedder: object) -> object:
    return getattr(embedder, "config", None)


def _changes(model: Model, tensors: list[weights.TensorToWrite], dtype: str | None) -> dict[str, object]:
    """Returns the changed keys of `config.json`, including the dtype if it was requested or is already a key."""
    stored = weights.NAMES[tensors[0].dtype]
    values = model.architecture.config_json.values
    dtype_name = dtype or (stored if values.get("dtype") or values.get("torch_dtype") else None)
    changed = weights.config_changes(model.architecture, weights.DTYPES[dtype_name] if dtype_name else None)
    return changed | weights.network_changes(model.architecture, model.network)
