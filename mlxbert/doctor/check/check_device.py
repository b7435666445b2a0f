"""`mlxbert doctor --check`: checks whether this device computes correctly.

It first checks the operations and their gradients, and the update of the weights. Then it checks combinations of them:
tiny models of every family, training, and the built-in model. Last, it measures the speed.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlxbert.config import EncoderConfig
from mlxbert.doctor import device_speed
from mlxbert.doctor.check import tiny_classifier
from mlxbert.doctor.check.findings import Finding, summary
from mlxbert.doctor.check.gradients import gradients
from mlxbert.doctor.check.kernels import kernels
from mlxbert.doctor.check.operations import ALLOWED, CheckedOperation, ComputedOperation, kind_of, operations_of
from mlxbert.doctor.check.updates import updates
from mlxbert.doctor.worker import process_memory
from mlxbert.goldens.golden_outputs import (
    BOUNDS,
    GOLDENS,
    arrays,
    difference,
    facts_of,
    golden_models,
    load_network,
    make_cases,
    outputs,
    read_config,
    write_model,
)
from mlxbert.loading import load
from mlxbert.machine import device as devices
from mlxbert.machine.device import dtype_name, mx
from mlxbert.nn import gpu_attention
from mlxbert.tasks.embed import embed
from mlxbert.weights.formats.config_json import read_config as read_config_json
from mlxbert.weights.model_source import builtin_folder

OnStep = Callable[[str, int, int], None]  # called with the current step, the number of finished steps, and the total
_CASE = "pairs"  # the inputs of the models: several lengths, two segments
# The first numbers of a vector, computed on a CPU in float32, and the allowed difference as a share of the largest:
# half precision differs by 0.2 and 1 %.
_TEXT = "The cat sat on the mat."
_VECTOR = (0.1154600, 0.0264329, -0.0272983, 0.0667805, -0.0665263, 0.0151762, 0.0547519, 0.0109963)
_VECTOR_ALLOWED = {"float32": 1e-4, "float16": 8e-3, "bfloat16": 4e-2}
_SIZE = 4096  # of the matrices whose product is timed on a GPU
# Allowed errors of a gradient's length and projections, as a share of its length, or of a ten-thousandth of the longest
# gradient: the gradient of the biases of keys is 0, because a softmax ignores them.
_GRADIENT_ALLOWED, _SHORTEST, _LOSS_ALLOWED = 1e-3, 1e-4, 1e-4


@dataclass(frozen=True)
class _CheckStage:
    title: str  # the title to show next to a progress bar
    run: Callable[[], Iterator[Finding]]  # a function that runs the checks and yields their findings


def check(device: str = "auto", *, quick: bool = False, on_step: OnStep | None = None) -> dict[str, Any]:
    """Checks a device: operations and gradients against float64, models against `transformers`, training, speed.

    Args:
        quick: Whether to check only the operations and gradients that all models use (in few shapes, in float32
            and the default dtype of the device), the update, and the built-in model.
        on_step: Called before each step with its title, the number of finished steps and the total number of
            steps; also called after the last step, with an empty title.

    Returns:
        A dict with these keys:

        - `groups`: for each group, the number of `checks`, `faults` and `consequences`, and `worst`, the worst error as
          a share of the allowed error;
        - `faults`: the wrong results, each with its operation, name, dtype and error, a hint, and whether it affects
          `published_models`;
        - `consequences`: the wrong results that follow from faults, which `follows_from` names;
        - `quick`: the value of the argument `quick`;
        - `speed`: GFLOP/s of a matrix product in the default dtype, GB/s of copying, and the seconds that the
          built-in model takes to embed a few texts, the first and the second time; `None` if measuring them failed or
          the check is quick;
        - `memory`: the peak memory of arrays in bytes;
        - `process_memory`: the memory of the process after the check, in bytes: `resident`, and on a Mac `footprint`;
        - `seconds`: the duration of the check.
    """
    started = time.perf_counter()
    devices.use(device)
    mx.reset_peak_memory()
    findings, speed = list[Finding](), None
    with tempfile.TemporaryDirectory(prefix="mlxbert-check-") as folder:
        steps = [*_steps(Path(folder), quick=quick)]
        total = len(steps) + (not quick)
        for done, step in enumerate(steps):
            if on_step is not None:
                on_step(step.title, done, total)
            findings += step.run()
    if not quick:
        if on_step is not None:
            on_step("speed", total - 1, total)
        try:
            speed = _speed()
        except Exception as problem:
            findings.append(_failed(Finding("speed", "speed", "speed", dtype_name(devices.choose_dtype())), problem))
    if on_step is not None:
        on_step("", total, total)
    return {
        **summary(findings),
        "quick": quick,
        "speed": speed,
        "memory": mx.get_peak_memory(),
        "process_memory": process_memory(),
        "seconds": round(time.perf_counter() - started, 1),
    }


def operations() -> Iterator[CheckedOperation]:
    """Yields everything that is checked on its own: all operations, gradients and updates."""
    yield from kernels()
    yield from gradients()
    yield from updates()


def _steps(folder: Path, *, quick: bool) -> Iterator[_CheckStage]:
    used = _used()
    for operation in operations():
        for dtype in operation.dtypes:
            full = not quick and (dtype_name(dtype) in used or not _compiles_slowly())
            if full or (operation.quick and not quick) or (dtype in operation.quick and dtype_name(dtype) in used):
                yield _CheckStage(operation.name, partial(_operation, operation, dtype, few=not full))
    if not quick:
        yield from _model_steps(folder)
        yield _CheckStage("training", partial(_training, folder))
    for name, allowed in _VECTOR_ALLOWED.items():
        if not quick or name in used:
            yield _CheckStage("built-in model", partial(_built_in, name, allowed))


def _used() -> set[str]:
    """Returns the names of the dtypes that matter most: the default of this device, and float32 for training."""
    return {"float32", dtype_name(devices.choose_dtype())}


def _compiles_slowly() -> bool:
    """Whether compiling a kernel takes about a second, as on CUDA.

    If so, dtypes that are rarely used, such as float16, are checked less. The kernels for float16 have the same source
    as the kernels for bfloat16.
    """
    return devices.on_gpu() and not gpu_attention.on_metal()


def _model_steps(folder: Path) -> Iterator[_CheckStage]:
    """Yields a stage for each family and head.

    BERT comes first, so that it represents its kind of encoder in half precision (see `models_in_half`).
    """
    models = sorted(golden_models(), key=lambda model: model[0] != "bert")
    if not models:
        missing = FileNotFoundError(f"{GOLDENS} has no models; reinstall mlxbert")
        families = Finding("families", "families", "all", "float32")
        yield _CheckStage("families", lambda: iter([_failed(families, missing)]))
    half = {*models_in_half(models)}
    for family, head in models:
        allowed = _used() if _compiles_slowly() else BOUNDS
        dtypes = [name for name in BOUNDS if name in allowed] if (family, head) in half else ["float32"]
        yield _CheckStage(family, partial(_models, family, head, folder, dtypes))


def models_in_half(models: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yields the family and head of each model that is also checked in half precision: one for each kind of encoder.

    This is enough, because families of the same kind and their heads differ only in ways that do not depend on the
    dtype.
    """
    seen = set()
    for family, head in models:
        try:
            kind = kind_of(read_config(family, head))
        except Exception:  # a damaged model, which the check in float32 reports
            continue
        if kind not in seen:
            seen.add(kind)
            yield family, head


def _operation(operation: CheckedOperation, dtype: mx.Dtype, *, few: bool) -> Iterator[Finding]:
    """Evaluates all checks of an operation together, so that the program waits for a GPU only once.

    If this fails, each check is evaluated again on its own, so that one failure does not hide the others.
    """
    name, computations = dtype_name(dtype), list[ComputedOperation]()
    failed: Exception | None = None
    try:
        for computed in operation.check(dtype, few=few):
            computations.append(computed)
    except Exception as problem:
        failed = problem
    try:
        mx.eval([computed.found for computed in computations])
    except Exception as problem:
        failed = failed or problem
    rest = Finding(operation.group, operation.name, f"the rest of {operation.name}", name, uses=operation.uses)
    findings = []
    for computed in computations:
        allowed = 0.0 if computed.exact else ALLOWED[name] * computed.factor
        checked = replace(rest, name=computed.name, allowed=allowed, odd=computed.odd)
        findings.append(_compared(checked, computed.error))
    yield from findings
    if failed is not None and all(finding.problem is None for finding in findings):
        yield _failed(rest, failed)


def _models(family: str, head: str, folder: Path, names: Sequence[str]) -> Iterator[Finding]:
    """Compares a tiny model with `transformers` in the named dtypes.

    The widths of the model are not multiples of 8, so that kernels must also handle incomplete blocks.
    """
    uses = _operations_of(lambda: read_config(family, head))
    title = f"{family}, {head}"
    for dtype in names:
        checked = Finding("families", title, title, dtype, allowed=BOUNDS[dtype], uses=uses, odd=True)
        yield _compared(checked, partial(_model_error, family, head, folder, dtype))


def _operations_of(read: Callable[[], EncoderConfig]) -> frozenset[str]:
    """Returns the operations that a model uses.

    If the model cannot be read, returns an empty set; the check of the model then reports the error.
    """
    try:
        return operations_of(read())
    except Exception:
        return frozenset()


def _training(folder: Path) -> Iterator[Finding]:
    """Trains a tiny classifier for a few updates, and compares gradients and losses with torch in float64."""
    checked = Finding("training", "training", "training", "float32", uses=tiny_classifier.operations())
    try:
        first_gradients, losses = tiny_classifier.trained(folder)
    except Exception as problem:
        yield _failed(checked, problem)
        return
    reference = tiny_classifier.golden()
    longest = max(parameter["projections"][0] for parameter in reference["parameters"].values())
    weight = float(np.array(first_gradients.weight))
    for number, (name, parameter) in enumerate(reference["parameters"].items()):
        expected = np.array(parameter["projections"])
        scale = max(expected[0], _SHORTEST * longest)

        def error(
            number: int = number, ours: str = parameter["ours"], expected: Any = expected, scale: float = scale
        ) -> float:
            gradient = np.array(first_gradients.arrays[ours], np.float64) / weight
            return float(np.abs(np.array(tiny_classifier.project(gradient, number)) - expected).max() / scale)

        yield _compared(replace(checked, name=f"gradient of {name}", allowed=_GRADIENT_ALLOWED), error)
    named = replace(checked, name=f"losses of {tiny_classifier.UPDATES} updates", allowed=_LOSS_ALLOWED)
    yield _compared(named, partial(_error_of, losses, reference["losses"]))


def _built_in(dtype: str, allowed: float) -> Iterator[Finding]:
    """Checks a vector that the built-in model makes."""
    uses = _operations_of(lambda: facts_of(read_config_json(builtin_folder())))
    checked = Finding("built-in model", "built-in model", "a vector", dtype, allowed=allowed, uses=uses)
    yield _compared(checked, partial(_vector_error, dtype))


def _compared(checked: Finding, error: Callable[[], float]) -> Finding:
    """Returns the finding with its error, or with the reason why there is none."""
    try:
        value = error()
    except Exception as problem:
        return _failed(checked, problem)
    if np.isfinite(value):
        return replace(checked, error=value)
    return replace(checked, problem="the result is not finite, or has the wrong shape")


def _failed(checked: Finding, problem: Exception) -> Finding:
    return replace(checked, allowed=0.0, problem=f"{type(problem).__name__}: {problem}"[:500])


def _error_of(values: Sequence[float], expected: Sequence[float]) -> float:
    """Returns the largest difference as a share of the largest expected value; infinite if a value is not finite."""
    largest = float(np.abs(np.array(values) - np.array(expected)).max())
    return largest / float(np.abs(np.array(expected)).max()) if np.isfinite(largest) else float("inf")


def _vector_error(dtype: str) -> float:
    return _error_of(vector(dtype), _VECTOR)


def _model_error(family: str, head: str, folder: Path, dtype: str) -> float:
    network = load_network(write_model(family, head, folder), dtype)
    config = network.encoder.config
    case = make_cases(config.vocab_size, config.max_length, config.pad_token_id, config.type_vocab_size or 1)[_CASE]
    ours, start = outputs(network, case), f"{head}/{_CASE}/"
    golden = arrays(GOLDENS / family / "outputs.safetensors")
    expected = {name.removeprefix(start): np.array(value) for name, value in golden.items() if name.startswith(start)}
    return max(difference(ours[name], value) for name, value in expected.items())


def vector(dtype: str) -> tuple[float, ...]:
    """Returns the first 8 numbers of the vector that the built-in model computes for `_TEXT` in a dtype."""
    model = load("builtin", dtype=dtype, device="gpu" if devices.on_gpu() else "cpu")
    return tuple(float(value) for value in embed(model, [_TEXT])[0][:8])


def _speed() -> dict[str, Any]:
    dtype = devices.choose_dtype()
    on_gpu = devices.on_gpu()
    gflops = device_speed.measure_gflops(_SIZE if on_gpu else 1024, dtype=dtype)
    block = _copy_source()
    seconds = min(_seconds(lambda: mx.eval(block + 1)) for _ in range(3))
    model = load("builtin", device="gpu" if on_gpu else "cpu")
    first, second = (_seconds(lambda: embed(model, [_TEXT] * 16)) for _ in range(2))
    return {
        "dtype": dtype_name(dtype), "gflops": round(gflops, 1),
        "copy_gb_per_s": round(2 * block.nbytes / seconds / 1e9, 1),
        "first_pass_seconds": round(first, 4), "second_pass_seconds": round(second, 4),
    }  # fmt: skip


def _copy_source() -> mx.array:
    """Returns an array for timing copies: 512 MiB of float16 on a GPU, or 128 MiB of float32 on a CPU."""
    return mx.zeros((2**28,), mx.float16) if devices.on_gpu() else mx.zeros((2**25,), mx.float32)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
