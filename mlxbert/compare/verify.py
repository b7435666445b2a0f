"""Whether two models agree, and if not, what exactly differs."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mlxbert import device as devices
from mlxbert.compare import facts, outputs, tensors
from mlxbert.compare.sides import Side, open_side
from mlxbert.compare.tensors import Comparison, number
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.results import Difference, Verification
from mlxbert.weights.source import check_source

# How far outputs of weights may lie apart that are equal once they are stored so; of quantized ones nobody can say.
TOLERANCES = {"F32": 1e-4, "F16": 2e-2, "BF16": 0.2}
_SHOWN = 3  # names in a sentence


def verify(
    a: str | Path,
    b: str | Path,
    *,
    tolerance: float | None = None,
    device: str = "auto",
    offline: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Compares two models: their facts, parts, tokenizers, ways to vectors, tensors, and what they compute.

    Args:
        a: A name of the Hugging Face hub, the folder of a checkpoint, or `builtin`.
        b: The other one.
        tolerance: How far outputs may lie apart where nothing else differs; if `None`, 1e-4, or 2e-2 and 0.2 where
            tensors are equal only once stored as float16 or bfloat16, and any distance where they are quantized.
        device: `gpu`, `cpu`, or `auto`: the GPU where there is one. Both compute in float32.
        offline: Never ask the hub.
        on_progress: Called with bytes done and bytes in all while files are downloaded.

    Returns:
        What differs; parts that cannot be loaded are among it.

    Raises:
        MlxbertError: A model cannot be loaded at all; see `mlxbert.load`.
    """
    for name, source in (("a", a), ("b", b)):
        check_source(source, name)
    if tolerance is not None and not (isinstance(tolerance, int | float) and 0 <= tolerance < math.inf):
        raise ArgumentError(f"tolerance is {tolerance!r:.60}, expected a number of at least 0")
    devices.use(device)
    one, other = (open_side(str(source), offline=offline, on_progress=on_progress) for source in (a, b))
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
    computed = _outputs(one, other, notes)
    if not found and computed and allowed is not None and not outputs.largest(computed) <= allowed:
        found.append(_too_far(outputs.largest(computed), allowed))
    return Verification(
        agree=not found,
        a=str(a),
        b=str(b),
        differences=tuple(found),
        notes=tuple(notes),
        tensors={name: getattr(compared, name) for name in ("compared", "equal", "rounded", "different")},
        outputs=_plain(computed) | {"tolerance": allowed},
    )


def _storage(side: Side) -> str:
    checkpoint = side.checkpoint
    used = [name for plain, name in checkpoint.names.items() if plain not in checkpoint.ignored]
    if checkpoint.storage is not None:
        return checkpoint.storage.name
    return ", ".join(sorted({checkpoint.tensors[name].dtype for name in used}))


def _notes(a: Side, b: Side, compared: Comparison) -> Iterator[str]:
    """What is worth knowing and no difference."""
    if _storage(a) != _storage(b):
        yield (
            f"A is stored as {_storage(a)}, B as {_storage(b)}; of {compared.compared} tensors {compared.equal} are "
            f"equal, {compared.rounded} more once stored alike"
        )
    yield from facts.of_idle(a, b)
    for part, problem in a.problems.items():
        if b.problems.get(part) == problem:
            yield f"{part} can be run with neither: {problem}"
    if a.no_vectors is not None and a.no_vectors == b.no_vectors:
        yield f"neither makes vectors: {a.no_vectors}"
    unused = dict.fromkeys(side.checkpoint.names[name] for side in (a, b) for name in side.checkpoint.ignored)
    if unused:
        more = f" and {len(unused) - _SHOWN} more" if len(unused) > _SHOWN else ""
        yield f"not used, so not compared: {', '.join(list(unused)[:_SHOWN])}{more}"


def _outputs(a: Side, b: Side, notes: list[str]) -> dict[str, Any]:
    """What came of the outputs; why they cannot be compared goes to the notes."""
    try:
        found = outputs.compare(a, b)
    except MlxbertError as problem:
        notes.append(f"outputs are not compared: {problem.message}")
        return {}
    if not found["texts"]:
        notes.append("hidden states are not compared: the models cut every text into other tokens")
    elif "last_hidden_state" not in found:
        sizes = [side.model.config.hidden_size for side in (a, b)]
        notes.append(f"hidden states are not compared: they have {sizes[0]} and {sizes[1]} values")
    return found


def _too_far(apart: float, allowed: float) -> Difference:
    said = f"outputs differ by up to {apart:.3g}, more than {allowed:g}, and nothing else tells why"
    return Difference("output", "outputs", number(apart), allowed, said)


def _plain(value: Any) -> Any:
    """Numbers that JSON has no word for become text."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return number(value) if isinstance(value, float) else value
