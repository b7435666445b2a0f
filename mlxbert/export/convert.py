"""`mlxbert.convert`: converts a checkpoint for transformers and sentence-transformers, to ONNX, or to fewer bits.

The folder is written under a temporary name and then renamed (see `mlxbert.folders.atomic_folder`).
"""

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.durable_files import check_space, sha256
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.export import card
from mlxbert.export.compare.compared_model import OpenedModel, open_model
from mlxbert.export.compare.outputs import more_bits
from mlxbert.export.compare.reports import Conversion, Verification
from mlxbert.export.verify import verify, verify_export
from mlxbert.folders import atomic_folder, copied_files
from mlxbert.folders.atomic_folder import MANIFEST, written_files
from mlxbert.folders.copied_files import is_own
from mlxbert.frozen_dict import FrozenDict
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine import device as devices
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import HEADS, Network, has_own
from mlxbert.other_libraries import not_one_of
from mlxbert.progress import OnProgress
from mlxbert.tasks.training_record import RECORD
from mlxbert.text.sample_texts import sample
from mlxbert.weights import save
from mlxbert.weights.build import build_network
from mlxbert.weights.find_model import find_model
from mlxbert.weights.formats.file_names import ONNX
from mlxbert.weights.formats.quantized import BITS, GROUP_SIZES, Quantization, quantizable
from mlxbert.weights.hub.cache import is_commit
from mlxbert.weights.model_source import BUILTIN, ModelRef, local_folder

if TYPE_CHECKING:
    from mlxbert.export.onnx.onnx_export import OnnxExport


_BATCH = 32  # texts
_LENGTH = 64  # tokens of a text that are used


class LayerInputs:
    """The products XᵀX of the inputs X of each matrix, summed over the sample texts; measured on first use."""

    def __init__(self, model: OpenedModel) -> None:
        self._model = model

    def take(self, name: str) -> "NDArray[np.float32] | None":
        """Returns the summed products for a matrix, (I, I) for I inputs, and forgets them.

        Returns:
            The products; `None` if the matrix was not measured, or its inputs were not finite.
        """
        products = self._measured.pop(name, None)
        if products is None or not mx.isfinite(products).all().item():
            return None
        return np.array(products)

    @cached_property
    def _measured(self) -> dict[str, mx.array]:
        model = self._model
        parts = [part for part in model.parts if model.has_loaded(part)]
        network = build_network(model.checkpoint, parts, mx.float32)
        network.encoder.divisible = False  # because the measuring layers keep sums
        layers = _measure(network)
        for batch in _batches(model):
            output = network.encoder(batch)
            outputs = [output.last_hidden_state, *(network.logits(head, output) for head in network.heads)]
            pooled = [] if output.pooler_output is None else [output.pooler_output]
            mx.eval(outputs, pooled, [layer.products for layer in layers.values()])
        return {f"{path}.weight": layer.products for path, layer in layers.items() if layer.products is not None}


class _Measuring(nn.Module):
    """A linear layer that also sums the products XᵀX of its inputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = layer
        self.products: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        rows = x.reshape(-1, x.shape[-1]).astype(mx.float32)
        products = rows.T @ rows
        self.products = products if self.products is None else self.products + products
        return self._layer(x)


def _measure(network: Network) -> Mapping[str, _Measuring]:
    """Replaces the linear layers that can be quantized with measuring layers. Returns the new layers, keyed by path."""
    modules = dict(network.named_modules())
    layers = {}
    for name in quantizable(network):
        path = name.removesuffix(".weight")
        if isinstance(modules[path], nn.Linear):
            parent, _, child = path.rpartition(".")
            layers[path] = modules[parent][child] = _Measuring(modules[path])
    return layers


def _batches(model: OpenedModel) -> list[mx.array]:
    """Returns the token ids of the sample texts in batches, (B, L), each with texts of the same length only."""
    limit = min(_LENGTH, model.tokenizer.max_length)
    by_length: dict[int, list[tuple[int, ...]]] = {}
    for text in sample():
        ids = tuple(model.tokenizer.encode(text, overflow="truncate").ids[:limit])
        by_length.setdefault(len(ids), []).append(ids)
    return [
        mx.array(group[start : start + _BATCH])
        for length, group in sorted(by_length.items()) if length
        for start in range(0, len(group), _BATCH)
    ]  # fmt: skip


_SHARD_SIZE = "5GB"
_LOG = logging.getLogger("mlxbert")


def convert(
    source: str | Path,
    folder: str | Path,
    *,
    to: str = "safetensors",
    task: str | None = None,
    adapter: str | Path | None = None,
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int | None = None,
    max_shard_size: str = _SHARD_SIZE,
    revision: str | None = None,
    offline: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
    on_written: OnProgress | None = None,
) -> Conversion:
    """Writes a model as a folder that transformers and sentence-transformers open.

    The configuration, vocabulary, labels, modules and licenses are copied. The configuration is changed only where it
    would otherwise be wrong. A model card and a manifest, `conversion.json`, are added.

    Example:
        >>> mlxbert.convert("google-bert/bert-base-uncased", "my-model", dtype="float16")

    With `to="onnx"`, the folder holds `onnx/model.onnx` in place of the weights, for onnxruntime and the programs that
    use it. The file does one task and computes in float32; its inputs may have any number of rows, and up to as many
    tokens as the model takes. The packages of `mlxbert[onnx]` are needed.

    Args:
        source: A name on the Hugging Face hub, the folder of a checkpoint, or `builtin`.
        folder: The folder to write, new or empty.
        to: `safetensors` or `onnx`.
        task: The task of a file in ONNX: `classify` (also for rerankers), `tag`, `answer`, `embed`, `fill-mask`,
            `next-sentence` or `replaced`. By default it is the first of these that the model can do, where `embed`
            counts only for embedding models and for models without heads.
        adapter: An adapter that is merged into the weights (see `mlxbert.load`).
        dtype: The dtype of the weights: `float32`, `float16` or `bfloat16`; by default unchanged.
        quantize: The number of bits per weight, 4 or 8. Matrices are then written in MLX's quantized layout, which
            transformers cannot open. With 4 bits, rounding takes into account which inputs each layer gets for short
            texts. A warning is logged if too little accuracy is kept (see `Verification`).
        group_size: The number of weights in a row that share a scale when quantized: 32, 64 (the default) or 128.
        max_shard_size: The maximum size of a weight file: `400MB`, `5GB`, `1GiB`. Writing takes about twice as much
            memory. Quantization to 4 bits also needs memory for the whole model in float32, and for a square matrix
            per layer.
        revision: Branch, tag or commit of a model on the hub; by default the main branch.
        offline: Whether to make no requests to the hub.
        overwrite: Whether to replace a folder that an earlier conversion wrote.
        on_progress: Called during a download with the number of downloaded bytes and the total.
        on_written: Called while weights are written with the number of written bytes and the total.

    Returns:
        A report on the written files and on the differences between the result and the source.

    Raises:
        ArgumentError: An argument is invalid, or the folder is in use.
        MlxbertError: The source cannot be read (see `mlxbert.load`), a number is too large for `dtype`, or the folder
            cannot be written.
    """
    stored, quantization = _options(dtype, quantize, group_size)
    _check_export(to, task, {"dtype": dtype, "quantize": quantize, "max_shard_size": max_shard_size})
    shard_limit = save.parse_size(max_shard_size)
    devices.use()
    ref = ModelRef(source, adapter, revision, offline)
    target = atomic_folder.check_target(folder, local_folder(str(source)), overwrite)  # before a download
    files = find_model(ref, on_progress)
    for source_folder in (files.path, files.adapter):
        if source_folder is not None:
            atomic_folder.check_location(target, source_folder)
    opened = open_model(str(files.path), files)  # a bad tokenizer is refused before writing
    checkpoint = opened.checkpoint
    atomic_folder.check_link_targets(target, [*checkpoint.weights.files, checkpoint.config_json.path])
    if to == "onnx" and checkpoint.config.is_static:
        raise ArgumentError(
            f"`to` is 'onnx', but {source} is a static model, which has no layers to export",
            hint="omit `to=`, or use `to='safetensors'`",
        )
    export = _export(opened, task) if to == "onnx" else None
    tensors = save.plan(checkpoint, "F32" if export else stored, quantization, LayerInputs(opened).take)
    check_space(target, sum(tensor.bytes for tensor in tensors))
    name = str(source) if local_folder(str(source)) is None or source == BUILTIN else files.own.resolve().name
    plan = _ConversionPlan(name, opened, target, [] if export else tensors, stored, quantization, export)
    with atomic_folder.unfinished_folder(target, files.path, overwrite) as partial:
        conversion = _write(plan, partial, shard_limit, on_written)
        atomic_folder.move(partial, target)
    return conversion


@dataclass(frozen=True)
class _ConversionPlan:
    name: str  # the name of the source
    source: OpenedModel
    target: Path  # the folder to write
    tensors: list[save.TensorToWrite]
    dtype: str | None  # the dtype of the weights, one of `FLOATS`; `None` to leave it unchanged
    quantization: Quantization | None  # the quantization of the weights, if any
    export: "OnnxExport | None"  # the file in ONNX that is written in place of the tensors, if any


def _write(plan: _ConversionPlan, partial: Path, shard_limit: int, on_written: OnProgress | None) -> Conversion:
    """Writes the folder; `config.json` is written last, because programs take a folder with this file for a model."""
    folder, checkpoint = plan.source.folder, plan.source.checkpoint
    own = plan.export is None and folder.has_modules and has_own(checkpoint.parts, checkpoint.config.labels)
    embeds = folder.has_modules and (plan.export is None or plan.export.head is None)
    inner = copied_files.place_of_encoder(folder if plan.export is None or embeds else None, own=own)
    read = [*checkpoint.weights.files, checkpoint.config_json.path]
    read += copied_files.copy_files(folder, partial, inner, vectors=embeds or not folder.has_modules)
    # An adapter makes another model of its base: what is known of the training is in its own folder.
    described = folder.path if folder.adapter is None else folder.adapter
    copied = [*copied_files.card_of(described), *([] if plan.export else copy_record(described, partial))]
    read += copied if folder.adapter is None else []
    (partial / inner).mkdir(parents=True, exist_ok=True)
    if plan.export is not None:
        plan.export.write(partial / inner / ONNX)
        files = 0
    else:
        files = save.write_weights(plan.tensors, partial / inner, shard_limit, on_written)
        checkpoint.weights.release()
    modules = list(copied_files.write_modules(folder, partial, plan.dtype)) if embeds or plan.export is None else []
    casing = copied_files.write_casing(plan.source.tokenizer.files, partial / inner)
    with loadable_view(partial) as view:
        changed = save.config_changes(checkpoint, plan.dtype, plan.quantization)
        changed |= {} if plan.export is None else plan.export.config_changes()
        config = save.write_config(checkpoint, view / inner, changed)
        sentences = (
            *_changes(plan, files, changed),
            *(change for _, change in modules if change),
            *([casing] if casing else []),
        )
        difference = _check_result(plan, view, view / inner / ONNX)
        opener = "onnx" if plan.export is not None else "mlx" if plan.quantization is not None else None
        note = card.describe(plan.name, sentences, opener)
        classifies = any(part in HEADS and HEADS[part].labelled for part in checkpoint.parts)
        library = opener or card.library_of(own=own, embeds=embeds and not classifies)
        base = None if folder.adapter is None else folder.path
        card.write(described, partial, plan.target.name, note, library, opener, base)
        shutil.move(view / inner / config, partial / inner / config)  # not a rename if the view is on another volume
    return _write_manifest(plan, partial, [*read, *(path for path, _ in modules)], sentences, difference)


def _write_manifest(
    plan: _ConversionPlan, partial: Path, read: list[Path], sentences: tuple[str, ...], difference: Verification
) -> Conversion:
    folder, checkpoint = plan.source.folder, plan.source.checkpoint
    written = atomic_folder.written_files(partial)
    conversion = Conversion(
        folder=plan.target,
        source=plan.name,
        revision=folder.path.name if is_commit(folder.path.name) else None,
        family=checkpoint.family_name,
        format=checkpoint.weights.format,
        changed=sentences,
        left_out=plan.export.left_out if plan.export else tuple(save.left_out(checkpoint, plan.tensors)),
        read=_hashes(folder.path, read),
        written=_hashes(partial, written),
        bytes=sum(path.stat().st_size for path in written),
        difference=difference,
    )
    manifest = json.dumps(conversion.to_dict(), indent=2, ensure_ascii=False) + "\n"
    (partial / MANIFEST).write_text(manifest, encoding="utf-8")
    return conversion


def _export(source: OpenedModel, task: str | None) -> "OnnxExport":
    from mlxbert.export.onnx.onnx_export import OnnxExport, choose_task

    return OnnxExport(source, choose_task(source, task))


def _check_export(to: str, task: str | None, others: dict[str, object]) -> None:
    """Checks the arguments of an export; `others` are arguments that have no meaning for it."""
    if to not in ("safetensors", "onnx"):
        raise not_one_of("to", to, ["safetensors", "onnx"])
    if to != "onnx" and task is not None:
        raise ArgumentError(f"`task` is {task!r:.60}, but only ONNX files are made for a task", hint="add `to='onnx'`")
    given = [name for name, value in others.items() if value not in (None, _SHARD_SIZE)]
    if to == "onnx" and given:
        raise ArgumentError(
            f"`{given[0]}` is {others[given[0]]!r:.60}, but a file in ONNX has float32 weights, which are not split"
        )


def _options(dtype: str | None, quantize: int | None, group_size: int | None) -> tuple[str | None, Quantization | None]:
    if dtype is not None and dtype not in [*save.DTYPES]:
        raise not_one_of("dtype", dtype, save.DTYPES)
    if quantize is not None and (type(quantize) is not int or quantize not in BITS):
        raise ArgumentError(f"`quantize` is {quantize!r:.60}, expected 4 or 8 bits")
    if group_size is not None and quantize is None:
        raise ArgumentError(
            f"`group_size` is {group_size!r:.60}, but `quantize` is not given", hint="add `quantize=4` or `quantize=8`"
        )
    if group_size is not None and (type(group_size) is not int or group_size not in GROUP_SIZES):
        raise not_one_of("group_size", group_size, GROUP_SIZES)
    return save.DTYPES[dtype] if dtype else None, Quantization(quantize, group_size or 64) if quantize else None


def _changes(plan: _ConversionPlan, files: int, config: dict[str, Any]) -> Iterator[str]:
    if plan.export is not None:
        yield from plan.export.changes()
    else:
        yield from card.changes(plan.source.checkpoint, plan.tensors, files, config, plan.quantization)


def _check_result(plan: _ConversionPlan, result: Path, exported: Path) -> Verification:
    """Compares the result with the source; raises `CheckpointError` if the result is a different model."""
    verification = verify(plan.source, result) if plan.export is None else verify_export(plan.export, result, exported)
    source = plan.source.folder.path
    comparable = verification.outputs.texts is not None
    differences = verification.differences
    exact = plan.export is not None or not comparable
    problems = [difference.text for difference in differences if difference.kind != "output" or exact]
    if problems:
        raise CheckpointError(f"{source}: the result would be a different model ({problems[0]})")
    for difference in differences:
        advice = f"; {more_bits(plan.quantization)}" if plan.quantization is not None else ""
        _LOG.warning("%s: the outputs of the result differ: %s%s", source, difference.text, advice)
    for note in verification.notes:
        if "NaN" in note or not comparable:
            _LOG.warning("%s: %s", source, note)
    return replace(verification, b=str(plan.target))


def _hashes(folder: Path, paths: list[Path]) -> FrozenDict[str]:
    return FrozenDict({path.relative_to(folder).as_posix(): sha256(path) for path in paths})


@contextmanager
def loadable_view(partial: Path) -> Iterator[Path]:
    """Makes a temporary folder with links to the files that were written so far.

    Once the caller adds a configuration to it, it can be loaded like a finished model. A configuration in `partial`
    itself would make that folder look finished to other programs. If the volume has no symbolic links (exFAT, some
    network volumes), the links are made in the system's temporary folder.
    """
    files = written_files(partial)
    with tempfile.TemporaryDirectory(dir=partial if _has_links(partial) else None, prefix=".") as name:
        view = Path(name)
        for path in files:
            link = view / path.relative_to(partial)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        yield view


def _has_links(folder: Path) -> bool:
    link = folder / ".link"
    try:
        link.symlink_to(folder)
    except OSError:
        return False
    link.unlink()
    return True


def copy_record(source: Path, folder: Path) -> list[Path]:
    """Copies the file of a training's record, which `evaluate` reads; returns a list with its path, if any."""
    if (path := source / RECORD).is_file() and is_own(path, source):
        shutil.copyfile(path, folder / RECORD)
        return [path]
    return []
