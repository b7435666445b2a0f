"""Whether two models agree, and if not, what exactly differs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mlxbert.folders.compare import facts, outputs, tensors
from mlxbert.folders.compare.compared_model import OpenedModel, open_model
from mlxbert.folders.compare.quantized_outputs import judge
from mlxbert.folders.compare.reports import Difference, OutputDifferences, Verification, finite_or_name
from mlxbert.folders.compare.tensors import TensorComparison
from mlxbert.folders.inventory import storage_name
from mlxbert.machine import device as devices
from mlxbert.nn.embedder import Embedder
from mlxbert.options import TOLERANCE
from mlxbert.progress import OnProgress
from mlxbert.weights.find_model import find_model
from mlxbert.weights.model_source import ModelRef, check_source

# How far outputs may be apart if tensors are equal once rounded to a dtype; quantized weights allow no such bound.
TOLERANCES = {"F32": 1e-4, "F16": 2e-2, "BF16": 0.2}
_SHOWN = 3  # names in a sentence
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
    """Compares two models: their facts, parts, tokenizers, the way they make vectors, tensors, and outputs.

    Example:
        >>> bool(mlxbert.verify("builtin", "my-model"))

    Args:
        a: A name on the Hugging Face hub, the folder of a checkpoint, `builtin`, or what
            `mlxbert.folders.compare.compared_model.open_model` returned.
        b: The other model.
        tolerance: How far outputs may be apart if nothing else differs. By default 1e-4, or 2e-2 and 0.2 if tensors are
            equal only once rounded to float16 or bfloat16. If tensors are equal as far as quantized weights can tell,
            `quantized_outputs` judges how much is kept of what the models are used for.
        device: `gpu`, `cpu`, or `auto`: the GPU if there is one. Both compute in float32.
        offline: Make no requests to the hub.
        on_progress: Called with the downloaded and the total bytes during a download.

    Returns:
        The differences, which include parts that cannot be loaded. It is true if the models agree.

    Raises:
        MlxbertError: A model cannot be loaded at all; see `mlxbert.load`.
    """
    for name, source in (("a", a), ("b", b)):
        if not isinstance(source, OpenedModel):
            check_source(source, name)
    if tolerance is not None:
        TOLERANCE.check_number("tolerance", tolerance)
    devices.use(device)
    one, other = (_open(source, offline, on_progress) for source in (a, b))
    compared = tensors.compare(one, other)
    found = [
        *facts.of_config(one, other),
        *facts.of_parts(one, other),
        *facts.of_tokenizers(one, other),
        *facts.of_embedders(one, other),
        *compared.differences,
    ]
    notes = list(_notes(one, other, compared))
    allowed = TOLERANCES.get(compared.coarsest) if tolerance is None else float(tolerance)
    quantized = allowed is None and not found
    if quantized:
        notes.append(f"tensors are equal as far as {_storage_name(one, other, compared.coarsest)} can tell")
    computed, broken = outputs.compare(one, other)
    if len(broken) == 1:
        found += [_no_numbers(letter, problem) for letter, problem in broken.items()]
    notes += _unmeasured(one, other, computed, broken)
    if not found and computed.texts is not None and allowed is not None and not computed.largest <= allowed:
        found.append(_too_far(computed.largest, allowed, _reason(one, other, compared)))
    if quantized and not found and computed.texts is not None:
        stated = isinstance(one.embedder, Embedder) and one.embedder.config.stated
        found += judge(computed, makes_vectors=stated)
    measured = replace(computed, tolerance=allowed)
    return Verification(not found, one.source, other.source, tuple(found), tuple(notes), compared.counts, measured)


def _open(source: _Source, offline: bool, on_progress: OnProgress | None) -> OpenedModel:
    if isinstance(source, OpenedModel):
        return source
    return open_model(str(source), find_model(ModelRef(source, offline=offline), on_progress))


def _storage_name(a: OpenedModel, b: OpenedModel, dtype: str) -> str:
    """The name of the storage whose matrices have this dtype."""
    storages = [model.checkpoint.storage for model in (a, b)]
    return next((storage.name for storage in storages if storage is not None and dtype in storage.dtypes), dtype)


def _notes(a: OpenedModel, b: OpenedModel, compared: TensorComparison) -> Iterator[str]:
    """Remarks that are not differences."""
    one, another = (storage_name(model.checkpoint) for model in (a, b))
    if one != another:
        yield (
            f"A is stored in {one}, B in {another}; of {compared.compared} tensors {compared.equal} are "
            f"equal, {compared.rounded} more once rounded to the same dtype"
        )
    yield from facts.of_idle(a, b)
    for part, problem in a.problems.items():
        if b.problems.get(part) == problem:
            yield f"neither can run {part}: {problem}"
    if a.no_vectors is not None and a.no_vectors == b.no_vectors:
        yield f"neither makes vectors: {a.no_vectors}"
    for letter, model, other in (("A", a, b), ("B", b, a)):
        names = [name for name in model.checkpoint.ignored if name not in other.checkpoint.names]
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            shown = ", ".join(model.checkpoint.names[name] for name in names[:_SHOWN])
            yield f"not used, so not compared: only {letter} has {shown}{more}"


def _unmeasured(a: OpenedModel, b: OpenedModel, found: OutputDifferences, broken: dict[str, str]) -> Iterator[str]:
    """Why outputs are not compared, unless that is a difference."""
    if broken.get("A") == broken.get("B") and broken:
        yield f"outputs are not compared: A and B: {broken['A']}"
    elif len(broken) == 2:
        yield f"outputs are not compared: {'; '.join(f'{letter}: {problem}' for letter, problem in broken.items())}"
    elif not broken and not found.texts:
        yield "hidden states are not compared: the models split every text into different tokens"
    elif not broken and found.last_hidden_state is None:
        sizes = (str(model.config.hidden_size) for model in (a, b))
        yield f"hidden states are not compared: {facts.both(*sizes)} values"


def _no_numbers(letter: str, problem: str) -> Difference:
    given = {"A": None, "B": None, letter: problem}
    return Difference("output", "outputs", given["A"], given["B"], f"outputs: only for {letter}, {problem}")


def _reason(a: OpenedModel, b: OpenedModel, compared: TensorComparison) -> str:
    """Why outputs may be apart if nothing else differs."""
    if not compared.rounded:
        return "and nothing else explains it"
    stored = facts.both(*(storage_name(model.checkpoint) for model in (a, b)))
    return f"as tensors are equal only once rounded to the same dtype: {stored}"


def _too_far(apart: float, allowed: float, why: str) -> Difference:
    message = f"outputs differ by up to {apart:.3g}, more than {allowed:g}, {why}"
    return Difference("output", "outputs", finite_or_name(apart), allowed, message)
