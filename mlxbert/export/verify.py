"""`mlxbert.verify`: checks whether two models agree, and finds their differences."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.durable_files import from_json
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.export.compare import facts, outputs, tensors
from mlxbert.export.compare.compared_model import OpenedModel, open_model
from mlxbert.export.compare.outputs import judge
from mlxbert.export.compare.reports import Difference, OutputDifferences, TensorCounts, Verification, finite_or_name
from mlxbert.export.compare.tensors import TensorComparison
from mlxbert.folders.atomic_folder import MANIFEST
from mlxbert.folders.inventory import storage_name
from mlxbert.loading import embedder_of
from mlxbert.machine import device as devices
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.heads import HEADS
from mlxbert.option_declarations import TOLERANCE
from mlxbert.paths import open_regular
from mlxbert.progress import OnProgress
from mlxbert.text.tokenizer import load_tokenizer
from mlxbert.weights.families.registry import read_architecture
from mlxbert.weights.find_model import find_model
from mlxbert.weights.formats.file_names import ONNX
from mlxbert.weights.hub.needed_files import leaves_folder
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef, check_source, local_folder

if TYPE_CHECKING:
    from mlxbert.export.onnx.onnx_export import OnnxExport

# Allowed differences of outputs if tensors are equal once rounded to a dtype; there is no bound for quantized weights.
TOLERANCES = {"F32": 1e-4, "F16": 2e-2, "BF16": 0.2}
_MAX_NAMES = 3  # in a sentence
_Source = str | Path | OpenedModel


def verify(
    a: _Source,
    b: _Source,
    *,
    tolerance: float | None = None,
    device: str = "auto",
    offline: bool = False,
    on_progress: OnProgress | None = None,
) -> Verification:
    """Compares two models: their facts, parts, tokenizers, settings for vectors, tensors, and outputs.

    Example:
        >>> bool(mlxbert.verify("builtin", "my-model"))

    Args:
        a: A name on the Hugging Face hub, the folder of a checkpoint, `builtin`, or a result of
            `mlxbert.export.compare.compared_model.open_model`.
        b: The other model, or a folder that `mlxbert.convert` wrote with `to="onnx"`. What is compared then is the
            tokenizer, the settings for vectors, and the outputs of the file in onnxruntime.
        tolerance: The allowed difference of outputs if nothing else differs. By default it is 1e-4; if tensors are
            equal only after rounding, it is 2e-2 for float16 and 0.2 for bfloat16. If tensors are equal only up to
            quantization, `mlxbert.export.compare.outputs` judges instead whether the models still give
            the same results.
        device: `gpu`, `cpu`, or `auto` for the GPU if there is one. Both devices compute in float32.
        offline: Whether to make no requests to the hub.
        on_progress: Called during a download with the number of downloaded bytes and the total.

    Returns:
        A report on the differences, including parts that cannot be loaded. It is true if the models agree.

    Raises:
        MlxbertError: A model cannot be loaded at all (see `mlxbert.load`).
    """
    for name, source in (("a", a), ("b", b)):
        if not isinstance(source, OpenedModel):
            check_source(source, name)
    if tolerance is not None:
        tolerance = TOLERANCE.check_number("tolerance", tolerance)
    devices.use(device)
    if (exported := _exported_file(a, b)) is not None:
        from mlxbert.export.onnx.onnx_export import OnnxExport, choose_task, task_of

        model = _open(a, offline, on_progress)
        try:
            export = OnnxExport(model, choose_task(model, task_of(exported)))
        except ArgumentError as problem:
            raise CheckpointError(f"{b}: was not made from {a} ({problem.message})") from None
        return verify_export(export, Path(str(b)), exported, tolerance)
    model_a, model_b = (_open(source, offline, on_progress) for source in (a, b))
    compared = tensors.compare(model_a, model_b)
    differences = [
        *facts.config_differences(model_a, model_b),
        *facts.part_differences(model_a, model_b),
        *facts.tokenizer_differences(model_a, model_b),
        *facts.embedder_differences(model_a, model_b),
        *facts.other_vector_differences(model_a, model_b),
        *compared.differences,
    ]
    notes = list(_notes(model_a, model_b, compared))
    allowed = TOLERANCES.get(compared.coarsest) if tolerance is None else float(tolerance)
    quantized = allowed is None and not differences
    if quantized:
        notes.append(f"tensors are equal up to the precision of {_storage_name(model_a, model_b, compared.coarsest)}")
    measured, broken = outputs.compare(model_a, model_b)
    if len(broken) == 1:
        differences += [_no_numbers(letter, problem) for letter, problem in broken.items()]
    notes += _unmeasured(model_a, model_b, measured, broken)
    if not differences and measured.texts is not None and allowed is not None and not measured.largest <= allowed:
        differences.append(_too_far(measured.largest, allowed, _reason(model_a, model_b, compared)))
    if quantized and not differences and measured.texts is not None:
        stated = isinstance(model_a.embedder, Embedder) and model_a.embedder.config.stated
        differences += judge(measured, makes_vectors=stated)
    names, result = (model_a.source, model_b.source), replace(measured, tolerance=allowed)
    return Verification(not differences, *names, tuple(differences), tuple(notes), compared.counts, result)


def _exported_file(a: _Source, b: _Source) -> Path | None:
    """Returns the file in ONNX if `b` is the folder of one; raises `ArgumentError` if `a` is."""
    folders = [None if isinstance(each, OpenedModel) else local_folder(str(each)) for each in (a, b)]
    first, second = (None if folder is None else exported_file(folder) for folder in folders)
    if first is not None:
        raise ArgumentError(
            f"{a}: holds a file in ONNX, expected a model that mlxbert runs",
            hint=f"give the source first, then {a}",
        )
    return second


def exported_file(folder: Path) -> Path | None:
    """Returns the ONNX file of a folder that `convert` wrote; `None` for any other folder."""
    try:
        with open(folder / MANIFEST, encoding="utf-8", opener=open_regular) as file:
            manifest = from_json(file.read())
    except (OSError, ValueError, MlxbertError):
        return None
    written = manifest.get("written") if isinstance(manifest, dict) else None
    names = [name for name in written if name.endswith(ONNX)] if isinstance(written, dict) else []
    names = [name for name in names if not leaves_folder(name)]
    return folder / min(names, key=len) if names else None


def verify_export(export: "OnnxExport", folder: Path, file: Path, tolerance: float | None = None) -> Verification:
    """Compares a model with the file in ONNX that was written from it."""
    model, allowed = export.model, TOLERANCES["F32"] if tolerance is None else float(tolerance)
    files = ModelFolder(folder)
    config, tokenizer = read_architecture(files.config_json).config, load_tokenizer(files, model.config)
    result = replace(model, source=str(folder), folder=files, tokenizer=tokenizer)
    differences = [*facts.encoder_differences(model.config, config), *facts.tokenizer_differences(model, result)]
    if export.head is None:
        result = replace(result, embedder=embedder_of(files, model.config, tokenizer))
        differences += facts.embedder_differences(model, result)
    elif HEADS[export.head].labelled:
        ours, theirs = (None if each is None else each.names for each in (model.config.labels, config.labels))
        differences += [facts.differ("config", "labels", ours, theirs)] if ours != theirs else []
    measured = replace(export.compare(file), tolerance=allowed)
    if not measured.largest <= allowed:
        differences.append(_too_far(measured.largest, allowed, "in onnxruntime"))
    counts, notes = TensorCounts(0, 0, 0, 0), (f"B is a file in ONNX for {export.task}: only its outputs are compared",)
    return Verification(not differences, model.source, str(folder), tuple(differences), notes, counts, measured)


def _open(source: _Source, offline: bool, on_progress: OnProgress | None) -> OpenedModel:
    if isinstance(source, OpenedModel):
        return source
    return open_model(str(source), find_model(ModelRef(source, offline=offline), on_progress))


def _storage_name(a: OpenedModel, b: OpenedModel, dtype: str) -> str:
    """Returns the name of the quantization that uses this dtype in one of the models, or else the dtype itself."""
    storages = [model.checkpoint.storage for model in (a, b)]
    return next((storage.name for storage in storages if storage is not None and dtype in storage.dtypes), dtype)


def _notes(a: OpenedModel, b: OpenedModel, compared: TensorComparison) -> Iterator[str]:
    storage_a, storage_b = (storage_name(model.checkpoint) for model in (a, b))
    if storage_a != storage_b:
        yield (
            f"A is stored in {storage_a} and B in {storage_b}; {compared.equal} of {compared.compared} tensors are "
            f"equal, and {compared.rounded} more are equal after rounding to the same dtype"
        )
    if compared.with_nan:
        yield f"A has NaN in the weights {_listed(compared.with_nan)}"
    yield from facts.idle_differences(a, b)
    for part, problem in a.problems.items():
        if b.problems.get(part) == problem:
            yield f"neither model can run {part} ({problem})"
    if a.no_vectors is not None and a.no_vectors == b.no_vectors and not (a.others and b.others):
        yield f"neither model makes vectors ({a.no_vectors})"
    for letter, model, other in (("A", a, b), ("B", b, a)):
        names = [
            model.checkpoint.names[name] for name in model.checkpoint.ignored if name not in other.checkpoint.names
        ]
        if names:
            yield f"only {letter} has {_listed(names)}, which are neither used nor compared"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


def _unmeasured(a: OpenedModel, b: OpenedModel, measured: OutputDifferences, broken: dict[str, str]) -> Iterator[str]:
    """Yields a note if outputs could not be compared.

    If only one of the models failed to compute outputs, there is no note, because this counts as a difference.
    """
    if broken.get("A") == broken.get("B") and broken:
        yield f"outputs of A and B are not compared, because {broken['A']}"
    elif len(broken) == 2:
        yield f"outputs are not compared: {'; '.join(f'{letter}: {problem}' for letter, problem in broken.items())}"
    elif not broken and not measured.texts:
        yield "hidden states are not compared, because the models split every text into different tokens"
    elif not broken and measured.last_hidden_state is None:
        sizes = (str(model.config.hidden_size) for model in (a, b))
        yield f"hidden states are not compared, because their sizes differ ({facts.both(*sizes)})"


def _no_numbers(letter: str, problem: str) -> Difference:
    problems = {"A": None, "B": None, letter: problem}
    return Difference(
        "output", "outputs", problems["A"], problems["B"], f"outputs: only {letter} fails, because {problem}"
    )


def _reason(a: OpenedModel, b: OpenedModel, compared: TensorComparison) -> str:
    """Explains differing outputs, as the end of a sentence."""
    if not compared.rounded:
        return "and nothing else explains it"
    stored = facts.both(*(storage_name(model.checkpoint) for model in (a, b)))
    return f"because tensors are equal only after rounding to the same dtype ({stored})"


def _too_far(apart: float, allowed: float, why: str) -> Difference:
    message = f"outputs differ by up to {apart:.3g}, more than {allowed:g}, {why}"
    return Difference("output", "outputs", finite_or_name(apart), allowed, message)
