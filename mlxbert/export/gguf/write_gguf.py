"""`mlxbert.convert_to_gguf`: writes a model as a GGUF file for llama.cpp.

The names of tensors and the metadata are in the other files of this package. The package `gguf` writes the header.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert.durable_files import atomic_write, check_space, remove_empty, to_path, writing
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.export.card import stated_terms
from mlxbert.export.compare.compared_model import OpenedModel, open_model
from mlxbert.export.compare.reports import GgufConversion
from mlxbert.export.gguf.architectures import POOLING_NAMES, architecture_of, metadata
from mlxbert.export.gguf.outputs import check_task, experts_bias_left_out, outputs_of
from mlxbert.export.gguf.tensor_table import BFLOAT16, BLOCK, FLOAT16, FLOAT32, Q8_0, GgufTensor, TensorTable
from mlxbert.export.gguf.vocabulary import VocabularyReader
from mlxbert.lazy_numpy import np
from mlxbert.machine import device as devices
from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Embedder
from mlxbert.other_libraries import install_command, not_one_of
from mlxbert.progress import OnProgress
from mlxbert.weights import build
from mlxbert.weights.families.keymap import pairs
from mlxbert.weights.find_model import find_model
from mlxbert.weights.formats.file_names import GGUF
from mlxbert.weights.model_source import BUILTIN, ModelRef, local_folder
from mlxbert.weights.save import DTYPES, converted

_MAGIC, _ALIGNMENT = b"GGUF", 32
_FILE_TYPES = {FLOAT32: 0, FLOAT16: 1, Q8_0: 7, BFLOAT16: 32}


def convert_to_gguf(
    source: str | Path,
    file: str | Path,
    *,
    task: str | None = None,
    adapter: str | Path | None = None,
    dtype: str | None = None,
    quantize: int | None = None,
    revision: str | None = None,
    offline: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
    on_written: OnProgress | None = None,
) -> GgufConversion:
    """Writes a model as a GGUF file, which llama.cpp and the programs built on it run: ollama, LM Studio and others.

    A model with a classifier gives scores, if llama.cpp computes the classifier. Other models give vectors. What the
    file does not give is listed in the result. Needs the package `gguf`.

    Example:
        >>> mlxbert.convert_to_gguf("BAAI/bge-small-en-v1.5", "bge-small.gguf", dtype="float16")

    Args:
        source: A name on the Hugging Face hub, the folder of a checkpoint, or `builtin`.
        file: The file to write. Its name must end in `.gguf`.
        task: `classify` for the scores of the classifier, or `embed` for vectors; by default the first that llama.cpp
            computes.
        adapter: An adapter that is merged into the weights (see `mlxbert.load`).
        dtype: The dtype of matrices: `float32`, `float16` or `bfloat16`; by default that of the source. Vectors and
            tables of positions and segments are always written in float32.
        quantize: 8 quantizes matrices to 8 bits (Q8_0).
        revision: Branch, tag or commit of a model on the hub; by default the main branch.
        offline: Whether to make no requests to the hub.
        overwrite: Whether to replace an existing GGUF file.
        on_progress: Called during a download with the number of downloaded bytes and the total.
        on_written: Called while weights are written with the number of written bytes and the total.

    Returns:
        A report on the file.

    Raises:
        ArgumentError: An argument is invalid, or the file exists.
        ConfigError: llama.cpp does not run the family, or does not have the model's pooling or classifier.
        TokenizerError: llama.cpp does not have the model's tokenizer.
        MlxbertError: The source cannot be read (see `mlxbert.load`), a number is too large for `dtype`, or the file
            cannot be written.
    """
    check_task(task)
    type_ = _type(dtype, quantize)
    target = _check_target(file, overwrite=overwrite)
    _check_installed()
    devices.use()
    files = find_model(ModelRef(source, adapter, revision, offline), on_progress)
    model = open_model(str(files.path), files)
    on_hub = local_folder(str(source)) is None
    name = str(source) if on_hub or source == BUILTIN else files.own.resolve().name
    plan = _plan(model, _origin(name, model.folder.path, on_hub=on_hub), type_ or _stored_type(model), task)
    header = _header(plan)
    with writing(target), _parents_of(target):
        check_space(target, len(header) + plan.bytes)
        with atomic_write(target) as opened:
            _write(plan, header, opened, on_written)
    return GgufConversion(
        target,
        name,
        model.checkpoint.family_name,
        plan.architecture,
        POOLING_NAMES[plan.pooling],
        plan.type,
        len(plan.tensors),
        plan.left_out,
        target.stat().st_size,
        opened.sha256,
    )


@dataclass(frozen=True)
class _GgufPlan:
    architecture: str  # the architecture of llama.cpp
    pooling: int  # the number of the pooling in llama.cpp
    type: str  # the type of the matrices
    values: Mapping[str, Any]  # the metadata by their whole names
    tensors: tuple[GgufTensor, ...]  # the tensors, in the order of the file
    left_out: tuple[str, ...]  # what llama.cpp does not compute

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)


def _type(dtype: str | None, quantize: int | None) -> str | None:
    """Returns the type of matrices that the arguments ask for."""
    if dtype is not None and dtype not in [*DTYPES]:
        raise not_one_of("dtype", dtype, DTYPES)
    if quantize is None:
        return DTYPES[dtype] if dtype else None
    if type(quantize) is not int or quantize != 8:
        raise ArgumentError(
            f"`quantize` is {quantize!r:.60}, expected 8 bits for a GGUF file",
            hint="llama-quantize, which comes with llama.cpp, makes smaller files from a GGUF file in float16",
        )
    if dtype is not None:
        raise ArgumentError(f"`dtype` is {dtype!r:.60}, but `quantize` is given, too", hint="pass only one of the two")
    return Q8_0


def _check_target(file: str | Path, *, overwrite: bool) -> Path:
    if not isinstance(file, str | Path):
        raise ArgumentError(f"`file` is {file!r:.60}, expected the path of a file to write")
    target = to_path(file, "file")
    if target.suffix.lower() != GGUF:
        raise ArgumentError(f"{target}: the name does not end in {GGUF}", hint=f"name it {target}{GGUF}")
    parent = next(path for path in target.absolute().parents if path.exists())
    if not parent.is_dir():
        raise ArgumentError(f"{target}: cannot be written, because {parent.name} is a file, expected a folder")
    if target.is_dir():
        raise ArgumentError(f"{target}: is a folder, expected a file that does not exist yet")
    if target.exists():
        with writing(target), open(target, "rb") as opened:
            ours = opened.read(len(_MAGIC)) == _MAGIC
        if not ours:
            raise ArgumentError(f"{target}: already exists and is not a GGUF file", hint="choose another name")
        if not overwrite:
            raise ArgumentError(f"{target}: already exists", hint="`overwrite=True` replaces the file")
    return target


def _check_installed() -> None:
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise MlxbertError(
            "a GGUF file cannot be written, because the package gguf is not installed",
            hint=install_command("gguf"),
        ) from None


def _stored_type(model: OpenedModel) -> str:
    """Returns the type of the word embeddings in the source; float16 if they are packed."""
    entry = model.checkpoint.family.encoder[0]
    shapes = build.shapes(model.checkpoint, ())
    plain = next(each.theirs[0] for each in pairs((entry,), model.checkpoint.config, shapes))
    stored = model.checkpoint.tensors[model.checkpoint.names[plain]].dtype
    return stored if stored in _FILE_TYPES else FLOAT16


def _plan(model: OpenedModel, origin: Mapping[str, Any], type_: str, task: str | None) -> _GgufPlan:
    checkpoint = model.checkpoint
    problem = build.first_problem(checkpoint, ())
    if problem is not None:
        raise problem
    architecture, config = architecture_of(model), checkpoint.config
    ours = model.tensors()
    shapes = build.shapes(checkpoint, filter(model.has_loaded, model.parts))
    if isinstance(model.embedder, Embedder):
        later = build.parameters(model.embedder)
        shapes |= {f"embedder.{name}": array.shape for name, array in later.items()}
    table = TensorTable(architecture, config, shapes, ours, type_)
    table.add_encoder()
    outputs = outputs_of(model, architecture, table, task)
    lower_case = isinstance(model.embedder, Embedder) and model.embedder.config.lower_case
    reader = VocabularyReader(model.tokenizer, config.vocab_size, lower_case=lower_case)
    values = metadata(architecture, config) | {"pooling_type": outputs.pooling} | outputs.values
    whole = {
        "general.type": "model",
        **origin,
        "general.file_type": _FILE_TYPES[type_],
        "general.quantization_version": 2,
        **{f"{architecture.name}.{key}": value for key, value in values.items()},
        **reader.read(),
        **outputs.whole_values,
        "tokenizer.ggml.token_type_count": max(config.type_vocab_size, 1),
    }
    left_out = (*outputs.left_out, *reader.notes, *experts_bias_left_out(model))
    return _GgufPlan(architecture.name, outputs.pooling, type_, whole, tuple(table.tensors), left_out)


def _origin(name: str, folder: Path, *, on_hub: bool) -> dict[str, Any]:
    """Returns the model's name, its page on the hub, and the license and the languages that its card states."""
    terms = stated_terms(folder)
    keys = {"license": "license", "license_name": "license.name", "license_link": "license.link"}
    values: dict[str, Any] = {"general.name": name}
    values |= {f"general.{key}": terms[ours] for ours, key in keys.items() if isinstance(terms.get(ours), str)}
    if languages := terms.get("language"):
        values["general.languages"] = languages if isinstance(languages, list) else [languages]
    if on_hub:
        values["general.source.url"] = f"https://huggingface.co/{name}"
    return values


@contextmanager
def _parents_of(target: Path) -> Iterator[None]:
    """Makes the folders above a file; if the block fails, removes those that it made."""
    missing = [folder for folder in target.parents if not folder.exists()]  # the innermost first
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            remove_empty(folder)
        raise


def _header(plan: _GgufPlan) -> bytes:
    """Returns what stands in the file before the tensors: the metadata, and the names, shapes and types of tensors."""
    from gguf import GGMLQuantizationType, GGUFWriter

    header: Any = GGUFWriter(None, plan.architecture)
    for key, value in plan.values.items():
        _add(header, key, value)
    for tensor in plan.tensors:
        kind = GGMLQuantizationType[tensor.type]
        header.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.bytes, kind)
    folder = Path(tempfile.gettempdir())
    with writing(folder), tempfile.NamedTemporaryFile(dir=folder) as file:  # the package opens files by their names
        header.write_header_to_file(Path(file.name))
        header.write_kv_data_to_file()
        header.write_ti_data_to_file()
        header.close()
        return file.read()


def _write(plan: _GgufPlan, header: bytes, file: BinaryIO, on_written: OnProgress | None) -> None:
    """Writes the header, then one tensor at a time, so that only one tensor is in memory."""
    file.write(header)
    place = done = len(header)
    for tensor in plan.tensors:
        file.write(b"\0" * (-place % _ALIGNMENT))
        data = np.ascontiguousarray(_packed(tensor))
        assert data.nbytes == tensor.bytes, tensor.name
        file.write(data.tobytes())
        place += -place % _ALIGNMENT + data.nbytes
        done += data.nbytes
        mx.clear_cache()
        if on_written is not None:
            on_written(done, len(header) + plan.bytes)
    file.write(b"\0" * (-place % _ALIGNMENT))


def _add(header: Any, key: str, value: Any) -> None:
    """Adds a value under its type in the format: counts are unsigned."""
    if isinstance(value, bool):
        header.add_bool(key, value)
    elif isinstance(value, int):
        header.add_uint32(key, value)
    elif isinstance(value, float):
        header.add_float32(key, value)
    elif isinstance(value, str):
        header.add_string(key, value)
    else:
        assert isinstance(value, Iterable)
        header.add_array(key, value)


def _check_scales(source: str, numbers: "np.ndarray") -> None:
    """Raises `CheckpointError` for a matrix that Q8_0 cannot hold: the scale of each block is a float16.

    A block of numbers below 4e-6 becomes zeros, as small numbers do in float16. That is an error if they are more than
    a ten-thousandth of the largest number in the matrix, because such blocks matter.
    """
    hint = "`dtype='float32'` writes the numbers unchanged"
    largest = np.abs(numbers.reshape(-1, BLOCK)).max(axis=1)
    if not np.isfinite(largest).all():
        raise CheckpointError(f"{source} holds numbers that are not finite, which Q8_0 cannot hold")
    with np.errstate(over="ignore"):
        scales = (largest / 127).astype(np.float16)
    if np.isinf(scales).any():
        raise CheckpointError(f"{source} holds {largest.max():g}, more than Q8_0 can hold", hint=hint)
    lost = largest[scales == 0].max(initial=0.0)
    if lost > 1e-4 * largest.max():
        raise CheckpointError(f"{source} holds {lost:g}, which would be 0 in Q8_0", hint=hint)


def _packed(tensor: GgufTensor) -> "np.ndarray":
    """Returns the bytes of a tensor in its type; raises `CheckpointError` if a number is too large for the type."""
    from gguf import GGMLQuantizationType, quants

    if tensor.type == Q8_0:
        numbers = np.array(tensor.read())
        _check_scales(tensor.source, numbers)
        return quants.quantize(numbers, GGMLQuantizationType.Q8_0)
    array = converted(tensor.source, tensor.read(), tensor.type)
    return np.array(array.view(mx.uint16) if tensor.type == BFLOAT16 else array)
