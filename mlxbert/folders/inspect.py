"""`mlxbert.inspect`: describes a model from its configuration and the headers of its weights."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert import memory_estimate
from mlxbert.config import EncoderConfig
from mlxbert.errors import MlxbertError
from mlxbert.folders import inventory
from mlxbert.folders.inspection import (
    AdapterFacts,
    EmbeddingFacts,
    Fit,
    Inspection,
    LengthLimits,
    ModuleFacts,
    NoEmbedding,
    PartFacts,
    SkippedEntries,
    TokenizerFacts,
    TokenVectorFacts,
    WeightFacts,
)
from mlxbert.frozen_dict import FrozenDict, frozen
from mlxbert.labels.labels import VECTOR_CLASSIFIER
from mlxbert.machine import device as devices
from mlxbert.machine.device import nn
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.heads import TASKS, missing_parts, task_parts, titles
from mlxbert.progress import OnProgress
from mlxbert.text.batch import default_batch_tokens
from mlxbert.weights.adapters.task_adapters import own_adapters
from mlxbert.weights.checkpoint import Checkpoint, open_checkpoint
from mlxbert.weights.find_model import find_model
from mlxbert.weights.formats.weight_files import open_weights
from mlxbert.weights.model_folder import PROJECTION, ModelFolder
from mlxbert.weights.model_source import BUILTIN, ModelRef
from mlxbert.weights.sentence_transformers import read_embedder
from mlxbert.weights.token_vectors import read_token_embedder
from mlxbert.weights.tokenizers.tokenizer_files import TokenizerFiles, read_tokenizer
from mlxbert.weights.vector_kinds import KINDS, check_kind, stated_kinds

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def inspect(
    source: str | Path | Model = BUILTIN,
    *,
    revision: str | None = None,
    offline: bool = False,
    on_progress: OnProgress | None = None,
) -> Inspection:
    """Describes a model from its configuration and the headers of its weights.

    The weights are read only to look for NaN, and only if they are on this machine.
    For a model on the hub, only the headers of safetensors files are downloaded.

    Example:
        >>> about = mlxbert.inspect("builtin")
        >>> about.family, about.tasks, dict(about.parameters)["total"]

    Args:
        source: A name on the Hugging Face hub, the folder of a checkpoint, `builtin`, or a loaded model.
        revision: Branch, tag or commit of a model on the hub; by default the main branch.
        offline: Whether to make no requests to the hub.
        on_progress: Called during a download with the number of downloaded bytes and the total.

    Raises:
        MlxbertError: The folder holds no checkpoint that mlxbert can read, or its encoder cannot be loaded.
    """
    if isinstance(source, Model):
        folder = replace(source.files)  # reads the files again
    else:
        folder = find_model(ModelRef(source, revision=revision, offline=offline), on_progress, headers_only=True)
    return _inspected(folder, scan=True)


def inspect_headers(ref: ModelRef) -> Inspection:
    """Describes a model as `inspect` does, but does not read its weights."""
    return _inspected(find_model(ref, headers_only=True), scan=False)


def _inspected(folder: ModelFolder, *, scan: bool) -> Inspection:
    checkpoint = open_checkpoint(folder)
    config, files = checkpoint.config, read_tokenizer(folder)
    embedder, embedding = _embedding(folder, config, files)
    modules = () if isinstance(embedding, NoEmbedding) else embedding.modules
    limits = LengthLimits(config.max_length, files.max_length, embedder.config.max_length if embedder else None)
    max_length = _max_length(config, files)
    parts, tokenizer = FrozenDict(inventory.parts(checkpoint)), _tokenizer(config, files)
    sizes = _sizes(checkpoint, modules)
    lacking = _lacking(config, parts, tokenizer, embedding)
    token_vectors = _token_vectors(folder, config, files)
    return Inspection(
        folder=folder.path,
        family=checkpoint.family_name,
        because=_because(checkpoint),
        architectures=frozen(checkpoint.config_json.values.get("architectures")),
        config=config,
        max_length=max_length,
        limited_by=tuple(name for name in ("config", "tokenizer") if getattr(limits, name) == max_length),
        limits=limits,
        parts=parts,
        unused=tuple(
            tensor for tensor in inventory.unused(checkpoint) if token_vectors is None or tensor.name != PROJECTION
        ),
        skipped=SkippedEntries(len(checkpoint.weights.skipped), next(iter(checkpoint.weights.skipped), None)),
        **sizes,
        fit=fit(config, sizes["parameters"]["total"], sizes["memory"], max_length),
        weights=_weights(folder, checkpoint, modules, scan=scan),
        tokenizer=tokenizer,
        embedding=embedding,
        token_vectors=token_vectors,
        adapter=_adapter(folder, checkpoint),
        adapters=own_adapters(checkpoint.config_json),
        labels=frozen(_labels(checkpoint)),
        tasks=(*(task for task in TASKS if task not in lacking), *_other_vectors(folder, parts, token_vectors)),
        lacking=lacking,
        tensors=inventory.tensors(checkpoint),
    )


def _adapter(folder: ModelFolder, checkpoint: Checkpoint) -> AdapterFacts | None:
    adapter = checkpoint.adapter
    if folder.adapter is None or adapter is None:
        return None
    size = sum(file.stat().st_size for file in adapter.weights.files)
    return AdapterFacts(folder.adapter, folder.path, len(adapter.updates), len(adapter.replaced), size)


def _labels(checkpoint: Checkpoint) -> Any:
    """Returns the labels in `config.json`, by number.

    If `config.json` describes a vector classifier, they are the labels of this classifier; otherwise, `id2label`.
    """
    classifier = checkpoint.config_json.get(VECTOR_CLASSIFIER)
    names = classifier.get("labels") if isinstance(classifier, dict) else None
    if isinstance(names, list):
        return {str(number): name for number, name in enumerate(names)}
    return checkpoint.config_json.values.get("id2label")


def _because(checkpoint: Checkpoint) -> str:
    file, model_type = checkpoint.config_json.path.name, checkpoint.config_json.get("model_type")
    if model_type in checkpoint.family.class_prefixes:
        return f"{file} says model_type {model_type!r}"
    return f"{file} names {checkpoint.family.code}, the configuration class of its authors"


def _max_length(config: EncoderConfig, files: TokenizerFiles) -> int:
    return min(config.max_length, files.max_length or config.max_length)


def _sizes(checkpoint: Checkpoint, modules: Iterable[ModuleFacts]) -> dict[str, FrozenDict[int]]:
    """Returns the number of parameters of each part, and the memory that all parameters take in each dtype.

    The parameters of modules are always counted in float32, the dtype in which modules compute.
    """
    counts = inventory.parameters(checkpoint)
    module_counts = {module.folder: module.parameters for module in modules if module.parameters}
    model, after = sum(counts.values()), sum(module_counts.values())
    return {
        "parameters": FrozenDict(counts | module_counts | {"total": model + after}),
        "memory": FrozenDict({dtype: size * model + 4 * after for dtype, size in _BYTES.items()}),
    }


def _tokenizer(config: EncoderConfig, files: TokenizerFiles) -> TokenizerFacts:
    return TokenizerFacts(
        kind=type(files.tokenizer.model).__name__,
        vocab_size=files.tokenizer.get_vocab_size(),
        word_embeddings=config.vocab_size,
        special=FrozenDict(files.special),
        lower_case=files.lower_cases,
        model_max_length=files.max_length,
    )


def _embedding(
    folder: ModelFolder, config: EncoderConfig, files: TokenizerFiles
) -> tuple[Embedder | None, EmbeddingFacts | NoEmbedding]:
    try:
        check_kind("dense", folder)
        embedder = read_embedder(folder, config.hidden_size, with_weights=False)
    except MlxbertError as problem:  # the model may still have other uses
        return None, NoEmbedding(problem.message)
    settings = embedder.config
    max_length = _limited(settings.max_length, config, files)
    return embedder, EmbeddingFacts(
        **vars(settings) | {"prompts": FrozenDict(settings.prompts), "max_length": max_length},
        size=embedder.size,
        unit=embedder.unit,
        modules=tuple(_modules(folder, embedder)),
    )


def _token_vectors(
    folder: ModelFolder, config: EncoderConfig, files: TokenizerFiles
) -> TokenVectorFacts | NoEmbedding | None:
    """Describes token vectors; returns `None` if the files of the model do not state them."""
    if "tokens" not in stated_kinds(folder):
        return None
    try:
        embedder = read_token_embedder(folder, config.hidden_size, with_weights=False)
    except MlxbertError as problem:  # the model may still have other uses
        return NoEmbedding(problem.message)
    settings = embedder.config
    query, text = (_limited(side.limit, config, files) for side in (settings.query, settings.document))
    return TokenVectorFacts(embedder.size, settings.similarity, query, text)


def _limited(limit: int | None, config: EncoderConfig, files: TokenizerFiles) -> int:
    """Returns the maximum input length for vectors whose settings state a limit, or none.

    A stated limit takes precedence over the limit of the tokenizer, as in `Tokenizer.adapted`.
    """
    return _max_length(config, files) if limit is None else min(limit, config.max_length)


def _other_vectors(
    folder: ModelFolder, parts: Mapping[str, PartFacts], token_vectors: TokenVectorFacts | NoEmbedding | None
) -> Iterator[str]:
    """Yields the tasks of the other kinds of vectors that the model's files state and its weights can make."""
    left_out = ("dense", "tokens") if isinstance(token_vectors, NoEmbedding) else ("dense",)
    for kind in (KINDS[name] for name in stated_kinds(folder) if name not in left_out):
        head = kind.head(folder)
        if head is None or (head in parts and parts[head].problem is None):
            yield kind.task


def _modules(folder: ModelFolder, embedder: Embedder) -> Iterator[ModuleFacts]:
    for module, layer in zip(folder.modules[2:], embedder.layers, strict=True):
        arrays = dict(nn.utils.tree_flatten(layer.parameters()))
        shapes = FrozenDict({name: array.shape for name, array in arrays.items()})
        count = sum(array.size for array in arrays.values())
        yield ModuleFacts(module.kind, module.folder.relative_to(folder.path).as_posix(), shapes, count)


def _weights(folder: ModelFolder, checkpoint: Checkpoint, modules: Iterable[ModuleFacts], *, scan: bool) -> WeightFacts:
    headers = dict(checkpoint.weights.headers)
    for module in modules:
        if module.parameters:
            headers |= open_weights(folder.path / module.folder, elsewhere=folder.headers).headers
    here = folder.headers.keys().isdisjoint(headers)
    return WeightFacts(
        format=checkpoint.weights.format,
        storage=inventory.storage_name(checkpoint),
        bytes=sum(header.size for header in headers.values()),
        files=FrozenDict({path.relative_to(folder.path).as_posix(): header.size for path, header in headers.items()}),
        here=here,
        with_nan=inventory.with_nan(checkpoint) if here and scan else (),
    )


def _lacking(
    config: EncoderConfig,
    parts: FrozenDict[PartFacts],
    tokenizer: TokenizerFacts,
    embedding: EmbeddingFacts | NoEmbedding,
) -> FrozenDict[str]:
    """Maps each task that the model cannot be used for to the reason."""
    reasons = {}
    for task in TASKS:
        absent = missing_parts(task, config, parts)
        problems = [parts[part].problem for part in task_parts(task, config) if part in parts]
        problems += [embedding.problem] if TASKS[task] is None and isinstance(embedding, NoEmbedding) else []
        if tokenizer.vocab_size > tokenizer.word_embeddings:
            reasons[task] = (
                f"the tokenizer has {tokenizer.vocab_size} tokens, but the model has {tokenizer.word_embeddings} "
                "word embeddings: they do not belong together"
            )
        elif absent:
            reasons[task] = f"the weights have no {titles(absent)}"
        elif any(problems):
            reasons[task] = "; ".join(filter(None, problems))
    return FrozenDict(reasons)


def fit(config: EncoderConfig, parameters: int, weights: Mapping[str, int], max_length: int) -> Fit:
    """Estimates how much memory a model needs on the current device, and whether the device has enough.

    Args:
        parameters: The number of parameters of the network.
        weights: The size of the weights in bytes, by dtype.
    """
    chosen = devices.choose_dtype(wide_range=config.wide_range)
    available, dtype = devices.available_memory(), devices.dtype_name(chosen)

    def fits(needed: int) -> bool | None:
        return None if available is None else needed <= available

    batch, longest = memory_estimate.of_batch(config, chosen), memory_estimate.of_text(config, max_length, chosen)
    finetuning = memory_estimate.of_training(config, parameters)
    return Fit(
        device="gpu" if devices.on_gpu() else "cpu",
        dtype=dtype,
        available=available,
        free=devices.unused_memory(),
        weights=weights[dtype],
        batch_tokens=default_batch_tokens(),
        batch=batch,
        fits=fits(weights[dtype] + batch),
        longest_tokens=max_length,
        longest=longest,
        longest_fits=fits(weights[dtype] + longest),
        finetuning=finetuning,
        finetuning_fits=fits(finetuning),
    )
