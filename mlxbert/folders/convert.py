"""A readable checkpoint to a folder that transformers and sentence-transformers open, or to one of quantized weights.

The folder is made beside its place, see `mlxbert.folders.destination`.
"""

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from mlxbert import __version__
from mlxbert import device as devices
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.files import sha256
from mlxbert.folders import card, copies, destination
from mlxbert.folders.destination import MANIFEST, MARK
from mlxbert.folders.verify import verify
from mlxbert.text.tokenizer import load_tokenizer
from mlxbert.weights import save
from mlxbert.weights.checkpoint import Checkpoint, open_checkpoint
from mlxbert.weights.formats.quantized import BITS, GROUP_SIZES, Quantization
from mlxbert.weights.hub.cache import is_commit
from mlxbert.weights.hub.files import CONFIG
from mlxbert.weights.sentence_transformers import transformer_folder
from mlxbert.weights.source import BUILTIN, find_folder, local_folder

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
OnProgress = Callable[[int, int], None]
_LOG = logging.getLogger("mlxbert")


@dataclass(frozen=True)
class Conversion:
    """What was written, and how it differs from what was read.

    Attributes:
        folder: Where it is.
        source: What it was made of: a name of the hub, `builtin`, or the name of a folder without its path.
        revision: The commit of a model of the hub.
        family: What kind of model it is.
        format: Of the weights that were read.
        changed: What is otherwise than in the source, in sentences; empty if nothing is.
        left_out: Names of tensors of the source that were not written: copies, buffers, an optimizer's.
        read: SHA-256 of the files that were read, by name.
        written: SHA-256 of the files that were written, by name; the manifest itself is not listed.
        bytes: Of all files that were written.
        difference: What `verify` measured between source and result.
    """

    folder: Path
    source: str
    revision: str | None
    family: str
    format: str
    changed: tuple[str, ...]
    left_out: tuple[str, ...]
    read: dict[str, str]
    written: dict[str, str]
    bytes: int
    difference: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; this is also what the manifest says."""
        return {
            "mlxbert": __version__,
            "source": self.source,
            "revision": self.revision,
            "bytes": self.bytes,
            "family": self.family,
            "format": self.format,
            "changed": list(self.changed),
            "left_out": list(self.left_out),
            "difference": self.difference,
            "read": self.read,
            "written": self.written,
        }


def parse_size(text: str) -> int:
    """`400MB`, `5GB`, `1GiB` or a number of bytes.

    Raises:
        ArgumentError: It is none of these, or nothing.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*((?:[KMG]i?)?B)?\s*", str(text), re.IGNORECASE)
    size = int(Decimal(found[1]) * _UNITS[(found[2] or "").upper()]) if found else 0
    if size < 1:
        raise ArgumentError(f"max_shard_size is {text!r:.60}, expected a size such as 400MB, 5GB or 1GiB")
    return size


def convert(
    source: str | Path,
    folder: str | Path,
    *,
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int | None = None,
    max_shard_size: str = "5GB",
    revision: str | None = None,
    offline: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
    on_written: OnProgress | None = None,
) -> Conversion:
    """Writes a model as a folder that transformers and sentence-transformers open.

    Configuration, vocabulary, labels, modules and terms go along as they are; the configuration changes only where it
    would not be true any more. Beside them lie a model card and a manifest, `conversion.json`.

    Args:
        source: A name of the Hugging Face hub, the folder of a checkpoint, or `builtin`.
        folder: Where to; it must not be there, or be empty.
        dtype: What to convert the weights to: `float32`, `float16` or `bfloat16`; `None` leaves them as they are.
        quantize: Bits of a number, 4 or 8: matrices are written in MLX's quantized layout, which transformers does not
            open.
        group_size: How many numbers of a row share a scale when quantized: 32, 64 or 128; 64 if `None`.
        max_shard_size: How much data one file of weights holds at most: `400MB`, `5GB`, `1GiB`. Of so many bytes about
            twice are in memory; an ONNX file is there as a whole.
        revision: Branch, tag or commit of a model of the hub; its main branch if `None`.
        offline: Never ask the hub.
        overwrite: Whether a folder that an earlier conversion wrote is replaced.
        on_progress: Called with bytes done and bytes in all while files are downloaded.
        on_written: Called with bytes done and bytes in all of the weights that are written.

    Returns:
        What was written, and how far it lies from the source.

    Raises:
        ArgumentError: An argument outside what is taken, or a folder that is in use.
        MlxbertError: The source cannot be read, see `mlxbert.load`; a number is too large for `dtype`; or the folder
            cannot be written.
    """
    stored, how = _chosen(dtype, quantize, group_size)
    most = parse_size(max_shard_size)
    devices.use()
    found = find_folder(source, revision=revision, offline=offline, on_progress=on_progress)
    target = destination.check_target(folder, found, overwrite)
    checkpoint = open_checkpoint(transformer_folder(found))
    load_tokenizer(checkpoint.folder, checkpoint.config)  # what is wrong with it is said before much is written
    destination.check_apart(target, [*checkpoint.weights.files, checkpoint.config_json.path])
    tensors = save.plan(checkpoint, stored, how)
    destination.check_space(target, sum(tensor.bytes for tensor in tensors))
    name = str(source) if local_folder(str(source)) is None or source == BUILTIN else found.resolve().name
    plan = _Plan(name, found, target, checkpoint, tensors, stored, how)
    with destination.made(target, found, overwrite) as partial:
        conversion = _write(plan, partial, most, on_written)
        destination.move(partial, target)
    return conversion


@dataclass(frozen=True)
class _Plan:
    """What is written of what, and where to.

    Attributes:
        name: Of the source.
        source: Its folder.
        target: The folder that is made.
        checkpoint: The opened source.
        tensors: What is written of it.
        dtype: Of the weights, one of `FLOATS`, if they are converted.
        how: They are quantized, if so.
    """

    name: str
    source: Path
    target: Path
    checkpoint: Checkpoint
    tensors: list[save.Tensor]
    dtype: str | None
    how: Quantization | None


def _write(plan: _Plan, partial: Path, most: int, on_written: OnProgress | None) -> Conversion:
    """Fills the folder; what makes a model of it, its configuration, comes there when all has been measured."""
    checkpoint = plan.checkpoint
    inner = checkpoint.folder.relative_to(plan.source)
    read = [*checkpoint.weights.files, checkpoint.config_json.path]
    read += copies.copy_files(plan.source, checkpoint, partial)
    read += card.read_from(plan.source)
    (partial / inner).mkdir(parents=True, exist_ok=True)
    files = save.write_weights(checkpoint, plan.tensors, partial / inner, most, on_written)
    checkpoint.weights.release()
    modules = list(copies.write_modules(plan.source, partial, plan.dtype))
    cased = copies.write_case(checkpoint, partial / inner)
    with destination.measurable(partial) as view:
        changed = copies.write_config(checkpoint, view / inner, plan.dtype, plan.how)
        difference = _measured(plan.source, view)
        config = (view / inner / CONFIG).read_bytes()
    sentences = (
        *card.changes(checkpoint, plan.tensors, files, changed, plan.how),
        *(said for _, said in modules if said),
        *([cased] if cased else []),
    )
    note = card.describe(plan.name, sentences, plan.how)
    card.write(plan.source, partial, plan.target.name, note, quantized=plan.how is not None)
    (partial / inner / CONFIG).write_bytes(config)
    conversion = Conversion(
        folder=plan.target,
        source=plan.name,
        revision=plan.source.name if is_commit(plan.source.name) else None,
        family=checkpoint.family_name,
        format=checkpoint.weights.format,
        changed=sentences,
        left_out=tuple(save.left_out(checkpoint, plan.tensors)),
        read=_hashes(plan.source, [*read, *(path for path, _ in modules)]),
        written=_hashes(partial, sorted(path for path in partial.rglob("*") if path.is_file())),
        bytes=sum(path.stat().st_size for path in partial.rglob("*") if path.is_file()),
        difference=difference,
    )
    manifest = json.dumps(conversion.to_dict(), indent=2, ensure_ascii=False) + "\n"
    (partial / MANIFEST).write_text(manifest, encoding="utf-8")
    return conversion


def _chosen(dtype: str | None, quantize: int | None, group_size: int | None) -> tuple[str | None, Quantization | None]:
    if dtype is not None and dtype not in [*save.DTYPES]:
        raise ArgumentError(f"dtype is {dtype!r:.60}, expected one of {', '.join(save.DTYPES)}")
    if quantize is not None and (type(quantize) is not int or quantize not in BITS):
        raise ArgumentError(f"quantize is {quantize!r:.60}, expected 4 or 8 bits")
    if group_size is not None and quantize is None:
        raise ArgumentError(f"group_size is {group_size!r:.60} without quantize", hint="quantize to 4 or 8 bits, too")
    if group_size is not None and (type(group_size) is not int or group_size not in GROUP_SIZES):
        raise ArgumentError(f"group_size is {group_size!r:.60}, expected one of {', '.join(map(str, GROUP_SIZES))}")
    return save.DTYPES[dtype] if dtype else None, Quantization(quantize, group_size or 64) if quantize else None


def _measured(source: Path, result: Path) -> dict[str, Any]:
    """How far the result lies from the source, on the texts that `verify` has.

    Raises:
        CheckpointError: It is another model, not the same one less precisely.
    """
    found = verify(source, result)
    computed = "texts" in found.outputs
    wrong = [difference.text for difference in found.differences if difference.kind != "output" or not computed]
    if wrong:
        raise CheckpointError(f"{source}: what was written would be another model: {wrong[0]}")
    for difference in found.differences:
        _LOG.warning("%s: the result computes something else: %s", source, difference.text)
    if not computed:
        _LOG.warning("%s: computes no numbers, nor does the result: how far they lie apart is not known", source)
    values = found.to_dict()
    return {key: values[key] for key in ("agree", "differences", "notes", "tensors", "outputs")}


def _hashes(folder: Path, paths: list[Path]) -> dict[str, str]:
    """SHA-256 of files, by their names in the folder; not of the mark."""
    return {path.relative_to(folder).as_posix(): sha256(path) for path in paths if path.name != MARK}
