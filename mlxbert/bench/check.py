"""`mlxbert doctor --check`: whether this device computes what it should, kernel by kernel and family by family."""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlxbert.bench.kernels import ALLOWED, Computed, as_float64, kernels
from mlxbert.bench.reference import (
    BOUNDS,
    GOLDENS,
    arrays,
    difference,
    golden_models,
    load_network,
    make_cases,
    outputs,
    write_model,
)
from mlxbert.machine import device as devices
from mlxbert.machine.device import dtype_name, mx, nn, scalar
from mlxbert.model import load
from mlxbert.tasks.embed import embed
from mlxbert.training.optimizer import AdamW

_CASE = "pairs"  # of the inputs of the models: several lengths, two segments
# The losses of five updates, and the first numbers of a vector, computed on a CPU in float32.
_UPDATES = 5
_LOSSES = (1.7005625, 1.4592434, 1.2750337, 1.1534265, 1.0619030)
_TEXT = "The cat sat on the mat."
_VECTOR = (0.1154600, 0.0264329, -0.0272983, 0.0667805, -0.0665263, 0.0151762, 0.0547519, 0.0109963)
_VECTOR_ALLOWED = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}
_SIZE = 4096  # of the matrices whose product is timed on a GPU


@dataclass(frozen=True)
class Finding:
    """Something that was checked.

    Attributes:
        group: What it belongs to: `products`, `attention`, …, `families`, `training`, `built-in model`.
        name: The kernel with its shape, or the family and its head.
        dtype: The dtype of the computation.
        error: The largest difference as a share of the largest expected value, or of 1; `None` where there is no
            result, or one that is not finite.
        allowed: What is allowed.
        problem: What MLX said instead of a result.
    """

    group: str
    name: str
    dtype: str
    error: float | None
    allowed: float
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the result is right."""
        return self.error is not None and self.error <= self.allowed


def check(device: str = "auto") -> dict[str, Any]:
    """Checks a device: kernels next to float64, models next to `transformers`, training, speed.

    Args:
        device: See `mlxbert.load`.

    Returns:
        `groups`: for each the number of `checks`, of `faults`, and the worst error as a share of what is allowed;
        `faults`: what is wrong, with name, dtype, error, and a hint; `speed`: GFLOP/s of a product in the dtype that is
        used, GB/s of copying, seconds of a first and a second pass, `None` where that failed; `memory`: peak bytes;
        `seconds`.
    """
    begun = time.perf_counter()
    devices.use(device)
    mx.reset_peak_memory()
    findings = [*_findings()]
    try:
        speed: dict[str, Any] | None = _speed()
    except Exception as problem:
        speed = None
        findings.append(_failed("speed", "speed", dtype_name(devices.choose_dtype()), problem))
    return {
        "groups": _groups(findings),
        "faults": [{**asdict(one), "hint": _hint(one)} for one in findings if not one.ok],
        "speed": speed,
        "memory": mx.get_peak_memory(),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def _hint(one: Finding) -> str:
    """What may avoid a fault."""
    if one.dtype == "float32" and devices.on_gpu() and devices.tf32():
        return "MLX_ENABLE_TF32=0 keeps float32 products from being rounded"
    ways = ["--dtype float32"] * (one.dtype in ("float16", "bfloat16")) + ["--device cpu"] * devices.on_gpu()
    return f"{' or '.join(ways)} may avoid it" if ways else "please report it"


def _groups(findings: list[Finding]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for group in dict.fromkeys(one.group for one in findings):
        own = [one for one in findings if one.group == group]
        errors = [one.error / one.allowed for one in own if one.error is not None and one.allowed]
        worst = max((error for error in errors if math.isfinite(error)), default=0.0)
        found[group] = {"checks": len(own), "faults": sum(not one.ok for one in own), "worst": round(worst, 3)}
    return found


def _findings() -> Iterator[Finding]:
    for group, name, make in kernels():
        try:
            for computed in make():
                allowed = 0.0 if computed.exact else ALLOWED[computed.dtype] * computed.factor
                yield _compared(group, computed.kernel, computed.dtype, allowed, partial(_error, computed))
        except Exception as problem:  # whatever a device does, the others are checked
            yield _failed(group, f"the rest of {group}", name, problem)
    with tempfile.TemporaryDirectory(prefix="mlxbert-check-") as folder:
        models = [*golden_models()]
        if not models:
            yield _failed(
                "families", "all", "float32", FileNotFoundError(f"{GOLDENS} has no models: reinstall mlxbert")
            )
        for family, head in models:
            for dtype, allowed in BOUNDS.items():
                yield _compared("families", f"{family}, {head}", dtype, allowed, partial(
                    _model_error, family, head, Path(folder), dtype
                ))  # fmt: skip
        yield _compared("training", f"losses of {_UPDATES} updates", "float32", 1e-4, lambda: _error_of(
            losses(write_model("bert", "ForSequenceClassification", Path(folder))), _LOSSES
        ))  # fmt: skip
    for dtype, allowed in _VECTOR_ALLOWED.items():
        yield _compared("built-in model", "a vector", dtype, allowed, partial(
            _vector_error, dtype
        ))  # fmt: skip


def _compared(group: str, name: str, dtype: str, allowed: float, error: Callable[[], float]) -> Finding:
    try:
        found = error()
        finite = math.isfinite(found)
        return Finding(
            group, name, dtype, found if finite else None, allowed,
            None if finite else "the result is not finite, or has another shape",
        )  # fmt: skip
    except Exception as problem:
        return _failed(group, name, dtype, problem)


def _failed(group: str, name: str, dtype: str, problem: Exception) -> Finding:
    return Finding(group, name, dtype, None, 0.0, f"{type(problem).__name__}: {problem}"[:500])


def _error(computed: Computed) -> float:
    found = as_float64(computed.found)
    return difference(found, np.asarray(computed.expected, np.float64))


def _error_of(found: Sequence[float], expected: Sequence[float]) -> float:
    return difference(np.array(found), np.array(expected))


def _vector_error(dtype: str) -> float:
    return _error_of(vector(dtype), _VECTOR)


def _model_error(family: str, head: str, folder: Path, dtype: str) -> float:
    network = load_network(write_model(family, head, folder), dtype)
    config = network.encoder.config
    case = make_cases(config.vocab_size, config.max_length, config.pad_token_id, config.type_vocab_size or 1)[_CASE]
    found, start = outputs(network, case), f"{head}/{_CASE}/"
    frozen = arrays(GOLDENS / family / "outputs.safetensors")
    expected = {name.removeprefix(start): np.array(value) for name, value in frozen.items() if name.startswith(start)}
    return max(difference(found[name], value) for name, value in expected.items())


def losses(folder: Path) -> tuple[float, ...]:
    """The losses of some updates of a tiny classifier, without dropout."""
    network = load_network(folder)
    network.eval()
    config = network.encoder.config
    case = make_cases(config.vocab_size, config.max_length, config.pad_token_id, config.type_vocab_size)["padding"]
    ids, mask = (mx.array(values) for values in (case.input_ids, case.real))
    targets = mx.arange(len(case.input_ids)) % 4

    def loss(parameters: dict[str, mx.array]) -> mx.array:
        network.update(nn.utils.tree_unflatten([*parameters.items()]))
        encoded = network.encoder(ids, mask)
        logits = network.logits("sequence_classifier", encoded)
        return nn.losses.cross_entropy(logits, targets).mean()

    parameters = dict(nn.utils.tree_flatten(network.parameters()))
    optimizer, found = AdamW.new(parameters), list[float]()
    rates, decays = dict.fromkeys(parameters, 1e-3), dict.fromkeys(parameters, 0.01)
    for _ in range(_UPDATES):
        value, gradients = mx.value_and_grad(loss)(parameters)
        found.append(scalar(value))
        optimizer, parameters = optimizer.update(parameters, gradients, 1.0, rates, decays)
    return tuple(found)


def vector(dtype: str) -> tuple[float, ...]:
    """The first numbers of the built-in model's vector of a text."""
    model = load("builtin", dtype=dtype, device="gpu" if devices.on_gpu() else "cpu")
    return tuple(float(value) for value in embed(model, [_TEXT])[0][:8])


def _speed() -> dict[str, Any]:
    dtype = devices.choose_dtype()
    gpu = devices.on_gpu()
    gflops = devices.measure_gflops(_SIZE if gpu else 1024, dtype=dtype)
    block = mx.zeros((2**28 if gpu else 2**26,), mx.float16)
    seconds = min(_seconds(lambda: mx.eval(block + 1)) for _ in range(3))
    model = load("builtin", device="gpu" if gpu else "cpu")
    first, second = (_seconds(lambda: embed(model, [_TEXT] * 16)) for _ in range(2))
    return {
        "dtype": dtype_name(dtype), "gflops": round(gflops, 1),
        "copy_gb_per_s": round(2 * block.nbytes / seconds / 1e9, 1),
        "first_pass_seconds": round(first, 4), "second_pass_seconds": round(second, 4),
    }  # fmt: skip


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
