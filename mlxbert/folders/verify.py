"""Whether two models agree, and if not, what exactly differs."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mlxbert import device as devices
from mlxbert.errors import ArgumentError
from mlxbert.folders import facts, outputs, tensors
from mlxbert.folders.opened import Side, open_side
from mlxbert.folders.tensors import Comparison, number
from mlxbert.results import Difference, Verification
from mlxbert.weights.source import check_source

# How far outputs of weights may lie apart that are equal once they are stored so; of 8 bits or 4 nobody can say.
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
            tensors are equal only once stored as float16 or bfloat16. Where they are equal only as far as quantized
            weights can tell, that is measured and not judged: such models agree at any distance unless this is given.
        device: `gpu`, `cpu`, or `auto`: the GPU where there is one. Both compute in float32.
        offline: Never ask the hub.
        on_progress: Called with bytes done and bytes in all while files are downloaded.

    Returns:
        What differs; parts that cannot be loaded are among it. It is true if the models agree.

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
    if allowed is None and not found:
        notes.append(
            f"tensors are equal as far as {_named(one, other, compared.coarsest)} can tell; how far the outputs lie "
            "apart is measured, not judged, unless a tolerance is given"
        )
    computed, broken = outputs.compare(one, other)
    if len(broken) == 1:
        found += [_no_numbers(letter, problem) for letter, problem in broken.items()]
    notes += _unmeasured(one, other, computed, broken)
    if not found and computed and allowed is not None and not outputs.largest(computed) <= allowed:
        found.append(_too_far(outputs.largest(computed), allowed, _reason(one, other, compared)))
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


def _named(a: Side, b: Side, dtype: str) -> str:
    """What the storage is called whose matrices have this dtype."""
    storages = [side.checkpoint.storage for side in (a, b)]
    return next((storage.name for storage in storages if storage is not None and storage.dtype == dtype), dtype)


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
    for letter, side, other in (("A", a, b), ("B", b, a)):
        names = [name for name in side.checkpoint.ignored if name not in other.checkpoint.names]
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            shown = ", ".join(side.checkpoint.names[name] for name in names[:_SHOWN])
            yield f"not used, so not compared: only {letter} has {shown}{more}"


def _unmeasured(a: Side, b: Side, found: dict[str, Any], broken: dict[str, str]) -> Iterator[str]:
    """Why outputs are not compared, as far as that is no difference."""
    if broken.get("A") == broken.get("B") and broken:
        yield f"outputs are not compared: of both, {broken['A']}"
    elif len(broken) == 2:
        yield f"outputs are not compared: {'; '.join(f'{side}: {problem}' for side, problem in broken.items())}"
    elif not broken and not found["texts"]:
        yield "hidden states are not compared: the models cut every text into other tokens"
    elif not broken and "last_hidden_state" not in found:
        sizes = (str(side.model.config.hidden_size) for side in (a, b))
        yield f"hidden states are not compared: {facts.both(*sizes)} values"


def _no_numbers(letter: str, problem: str) -> Difference:
    given = {"A": None, "B": None, letter: problem}
    return Difference("output", "outputs", given["A"], given["B"], f"outputs: of {letter} alone, {problem}")


def _reason(a: Side, b: Side, compared: Comparison) -> str:
    """Why outputs may lie apart where nothing else differs."""
    if not compared.rounded:
        return "and nothing else tells why"
    return f"as tensors are equal only once stored alike: {facts.both(_storage(a), _storage(b))}"


def _too_far(apart: float, allowed: float, why: str) -> Difference:
    said = f"outputs differ by up to {apart:.3g}, more than {allowed:g}, {why}"
    return Difference("output", "outputs", number(apart), allowed, said)


def _plain(value: Any) -> Any:
    """Numbers that JSON has no word for become text."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return number(value) if isinstance(value, float) else value
