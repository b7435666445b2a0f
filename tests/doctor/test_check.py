"""`doctor --check`: it names the operation of a fault that is planted in the product, and nothing else."""

import dataclasses
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.cli.shared_options import ComputingOptions
from mlxbert.config import EncoderConfig
from mlxbert.doctor.check import (
    check_device as module,
    gradients as checked_gradients,
    kernels as checked_kernels,
    tiny_classifier,
)
from mlxbert.doctor.check.check_device import check
from mlxbert.doctor.check.findings import Finding, summary
from mlxbert.doctor.check.gradients import gradients
from mlxbert.doctor.check.kernels import kernels
from mlxbert.doctor.check.operations import (
    ALLOWED,
    DTYPES,
    CheckedOperation,
    ComputedOperation,
    RandomInputs,
    as_float64,
)
from mlxbert.doctor.commands import doctor as machine
from mlxbert.errors import MlxbertError
from mlxbert.goldens import golden_outputs
from mlxbert.machine.device import dtype_name, mx
from mlxbert.nn import dropout, gpu_attention, ops
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.backend import Backend, PositionedQK
from mlxbert.train.loop.optimizer_steps import CpuStep, DeviceStep
from mlxbert.weights.families.mpnet import MPNET
from mlxbert.weights.families.registry import FAMILIES
from mlxbert.weights.formats.config_json import ConfigJson
from tests.helpers.graphs import forget_compiled
from tests.helpers.measured import measured
from tests.helpers.program import call, terminal

Arrays = list[mx.array]


def with_gradient(right: Callable[..., mx.array], pulled: Callable[[Arrays, mx.array], Arrays]) -> Any:
    """Gives a function another gradient: `pulled` takes its inputs and the cotangent."""
    function: Any = mx.custom_function(right)
    function.vjp(lambda given, cotangent, output: tuple(pulled([*given], cotangent)))
    return function


def normed(x: mx.array, weight: mx.array, bias: mx.array, eps: float) -> mx.array:
    return mx.fast.layer_norm(x, weight, bias, eps)


def norm_with(monkeypatch: pytest.MonkeyPatch, gradient: Callable[[Arrays, mx.array, float], Arrays]) -> None:
    """Gives layer norms another gradient, in training."""
    right = ops.LayerNorm.__call__

    def wrong(self: ops.LayerNorm, x: mx.array) -> Any:
        if ops.evaluating() or "bias" not in self:
            return right(self, x)
        eps = self.eps
        function = with_gradient(
            lambda x, weight, bias: normed(x, weight, bias, eps), lambda given, up: gradient(given, up, eps)
        )
        return function(x, self.weight, self.bias)

    monkeypatch.setattr(ops.LayerNorm, "__call__", wrong)


def wrong_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    norm_with(monkeypatch, lambda given, up, eps: mx.vjp(partial(normed, eps=1e-12), given, [up])[1])


def ignored_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last columns of widths that 4 does not divide are not in the means."""

    def gradient(given: Arrays, up: mx.array, eps: float) -> Arrays:
        (x, weight, _), width = given, up.shape[-1]
        _, others = mx.vjp(partial(normed, eps=eps), given, [up])
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = mx.rsqrt(mx.square(centred).mean(axis=-1, keepdims=True) + eps)
        seen = (mx.arange(width) < width // 4 * 4).astype(x.dtype)
        pulled, at = up * weight, centred * scale
        means = [(part * seen).sum(axis=-1, keepdims=True) / width for part in (pulled, pulled * at)]
        return [scale * (pulled - means[0] - at * means[1]), *others[1:]]

    norm_with(monkeypatch, gradient)


def swapped_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (CpuStep, DeviceStep):

        def step(*given: Any, right: Any = kind.__call__) -> Any:
            numbers, changed, made, counters = right(*given)
            return numbers, changed, dataclasses.replace(made, means=made.squares, squares=made.means), counters

        monkeypatch.setattr(kind, "__call__", step)


def dropped_bias_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops.Linear.__call__

    def wrong(self: ops.Linear, x: mx.array) -> mx.array:
        if ops.evaluating() or "bias" not in self:
            return right(self, x)
        return x @ self.weight.T + mx.stop_gradient(self.bias)

    monkeypatch.setattr(ops.Linear, "__call__", wrong)


def inverted_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu_attention.attention

    def wrong(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any, *, gradient: bool) -> mx.array:
        inverted = isinstance(mask, mx.array) and mask.dtype == mx.bool_
        return right(q, k, v, scale, ~mask if inverted else mask, gradient=gradient)

    monkeypatch.setattr(gpu_attention, "attention", wrong)


def rounded_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32: the inputs of float32 products have 10 bits after the first."""

    def to_10_bits(x: mx.array) -> mx.array:
        return mx.view(mx.bitwise_and(mx.view(x, mx.int32) + 0x1000, ~0x1FFF), mx.float32)

    rounded = with_gradient(to_10_bits, lambda given, up: [up])

    def short(x: Any) -> Any:
        return rounded(x) if isinstance(x, mx.array) and x.dtype == mx.float32 else x

    for owner, name, count in (
        (mx.array, "__matmul__", 2), (mx, "matmul", 2), (mx, "gather_mm", 2),
        (mx.fast, "scaled_dot_product_attention", 3),
    ):  # fmt: skip
        right = getattr(owner, name)

        def wrong(*given: Any, right: Any = right, count: int = count, **named: Any) -> Any:
            return right(*map(short, given[:count]), *given[count:], **named)

        monkeypatch.setattr(owner, name, wrong)
    addmm = mx.addmm
    monkeypatch.setattr(mx, "addmm", lambda c, a, b, *more, **named: addmm(c, short(a), short(b), *more, **named))


def miscompiled_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of matrices of 1,024 rows and more are wrong from the 1,025th column on, as in mlx#3586."""
    right = mx.array.__matmul__

    def wrong(a: mx.array, b: mx.array) -> mx.array:
        found = right(a, b)
        if found.ndim != 2 or len(found) < 1024:
            return found
        return mx.where(mx.arange(found.shape[-1]) < 1024, found, -found)

    monkeypatch.setattr(mx.array, "__matmul__", wrong)


def a_percent_off(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops.backend().activate

    def wrong(self: Backend, name: str, x: mx.array) -> Any:
        if name != "gelu":
            return right(name, x)
        off = with_gradient(
            lambda x: right(name, x), lambda given, up: [1.01 * mx.vjp(lambda x: right(name, x), given, [up])[1][0]]
        )
        return off(x)

    monkeypatch.setattr(type(ops.backend()), "activate", wrong)


def shifted_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops.backend().mixture

    def wrong(self: Backend, tokens: mx.array, up: mx.array, *more: Any) -> mx.array:
        return right(tokens, mx.concatenate([up[:1], mx.roll(up[1:2], 1, 1), up[2:]]), *more)

    monkeypatch.setattr(type(ops.backend()), "mixture", wrong)


def same_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropout, "next_key", lambda: mx.random.split(dropout._source.key)[1])


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    **dict.fromkeys((wrong_epsilon, ignored_tail), "gradient of layer norm"),
    swapped_moments: "update", dropped_bias_gradient: "gradient of linear layers",
    inverted_mask: "attention", **dict.fromkeys((rounded_products, miscompiled_products), "products"),
    a_percent_off: "gradient of gelu", shifted_expert: "mixture of experts", same_masks: "dropout",
}  # fmt: skip


def make_cheap(monkeypatch: pytest.MonkeyPatch, *, large: bool = False) -> None:
    """Leaves out of a check what takes a CPU long."""
    monkeypatch.setattr(module, "_speed", dict)
    for place in (checked_kernels, checked_gradients):
        monkeypatch.setattr(place, "HEADS", 1)
    if not large:
        monkeypatch.setattr(checked_kernels, "_LARGE", ())


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named_by_its_operation(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    make_cheap(monkeypatch, large=plant is miscompiled_products)
    models = [*golden_outputs.golden_models()]
    monkeypatch.setattr(module, "golden_models", lambda: models[::3])
    found = check("cpu")
    assert {one["operation"] for one in found["faults"]} == {PLANTED[plant]}
    assert all(one["follows_from"] for one in found["consequences"])
    assert any(one["published_models"] for one in found["faults"]) is (plant is not ignored_tail)
    if plant is ignored_tail:
        assert {one["name"].split(" of ")[2].split(",")[0] for one in found["faults"]} == {"17", "30"}
        assert not found["consequences"]
        assert all("no published model" in one["hint"] for one in found["faults"])


@pytest.mark.slow
def test_a_quick_check_names_a_gradient_that_is_1_percent_off(monkeypatch: pytest.MonkeyPatch) -> None:
    a_percent_off(monkeypatch)
    steps: list[tuple[str, int, int]] = []
    found = check("cpu", quick=True, on_step=lambda *step: steps.append(step))
    assert [(one["operation"], one["dtype"]) for one in found["faults"]] == [("gradient of gelu", "float32")]
    assert found["consequences"] == [] and found["speed"] is None and found["quick"]
    assert [done for _, done, _ in steps] == [*range(len(steps))] and {total for *_, total in steps} == {len(steps) - 1}


def misses(one: ComputedOperation, dtype: mx.Dtype, factor: float = 1.0) -> bool:
    """Whether a result that is multiplied by a factor is a fault."""
    found = mx.array(as_float64(one.found) * factor, mx.float32)
    return dataclasses.replace(one, found=found).error() > one.factor * ALLOWED[dtype_name(dtype)]


def of_name(name: str) -> CheckedOperation:
    return next(one for one in module.operations() if one.name == name)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("name", ["attention", "attention weights"])
def test_attention_2_percent_off_is_a_fault_in_each_dtype(
    name: str, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cheap(monkeypatch)
    checks = [*of_name(name).check(dtype, few=True)]
    assert checks and all(misses(one, dtype, 1.02) and not misses(one, dtype) for one in checks)


@pytest.mark.weekly
@pytest.mark.slow
def test_any_result_that_is_2_percent_off_is_a_fault() -> None:
    checks = [(one, dtype) for operation in module.operations() for dtype in operation.dtypes
              for one in operation.check(dtype) if not one.exact]  # fmt: skip
    passed = {(one.name, dtype_name(dtype)) for one, dtype in checks if not misses(one, dtype, 1.02)}
    assert passed == {  # shares of bits, which are drawn, and what a CPU sums in half precision
        ("share that dropout keeps", "float32"), ("dropout masks of two places", "float32"),
        ("product of (40, 512) and 8-bit weights", "bfloat16"),
        ("gradient of product of (40, 512) and 8-bit weights", "bfloat16"),
    }  # fmt: skip


def on_gpu(patch: pytest.MonkeyPatch) -> None:
    """Takes the paths of GPUs; MLX computes what it is asked for with plain operations, not compiled."""
    for name, loaded in [*sys.modules.items()]:
        if name.partition(".")[0] == "mlxbert" and "on_gpu" in vars(loaded):
            patch.setattr(loaded, "on_gpu", lambda: True)


@pytest.fixture
def gpu_kind(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A device that seems to be a GPU: `metal`, `metal, fused` or `cuda`."""
    on_gpu(monkeypatch)
    kind: str = request.param
    monkeypatch.setattr(gpu_attention, "on_metal", lambda: kind.startswith("metal"))
    monkeypatch.setenv("MLX_SDPA_VJP_FALLBACK", "0" if "fused" in kind else "1")
    monkeypatch.setenv("MLX_ENABLE_TF32", "0")
    return kind


@pytest.mark.parametrize("gpu_kind", ["metal"], indirect=True)
def test_a_gpu_multiplies_large_matrices_in_half_precision_too(gpu_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {(1024, 2048, 2048), (2048, 768, 3072)} <= {*checked_kernels._LARGE}
    monkeypatch.setattr(checked_kernels, "_LARGE", ((3, 2, 5),))
    monkeypatch.setattr(checked_kernels, "_SHAPES", ())
    for dtype in DTYPES:
        assert {one.expected.shape for one in of_name("products").check(dtype)} >= {(3, 5), (3, 2), (2, 5)}
    monkeypatch.setattr(checked_kernels, "on_gpu", lambda: False)
    assert [dtype for dtype in DTYPES for one in of_name("products").check(dtype) if one.expected.shape == (3, 5)] == [
        mx.float32
    ]


IN_TRAINING = "gradient of attention in training"


@pytest.mark.parametrize("gpu_kind", ["metal", "metal, fused", "cuda"], indirect=True)
def test_gradients_of_attention_are_checked_as_a_gpu_takes_them(gpu_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes = {one.name: one.dtypes for one in gradients()}.get(IN_TRAINING, ())
    assert dtypes == {"metal": DTYPES, "metal, fused": (), "cuda": (mx.float32,)}[gpu_kind]
    dtypes = dtypes[-1:]
    right = ops.backend().attention
    make_cheap(monkeypatch)
    checked = [(one, dtype) for dtype in dtypes for one in of_name(IN_TRAINING).check(dtype, few=True)]
    assert not [one.name for one, dtype in checked if misses(one, dtype)]

    def wrong(self: Backend, given: PositionedQK, v: mx.array, scale: float, dropout: dropout.KeyedDropout) -> Any:
        def attend(q: mx.array, v: mx.array) -> mx.array:
            return right(dataclasses.replace(given, q=q), v, scale, dropout)

        off = with_gradient(attend, lambda given, up: [1.02 * one for one in mx.vjp(attend, given, [up])[1]])
        return off(given.q, v)

    monkeypatch.setattr(type(ops.backend()), "attention", wrong)
    for dtype in dtypes:
        found = {one.name for one in of_name(IN_TRAINING).check(dtype) if misses(one, dtype)}
        for length in (5, 8, 128):
            for kind in ("no mask", "a boolean mask"):
                name = f"{IN_TRAINING}, head size 64, length {length}, {kind}"
                assert {f"{name}: queries", f"{name}: values"} <= found


@pytest.mark.parametrize("gpu_kind", ["metal", "metal, fused", "cuda"], indirect=True)
def test_a_hint_belongs_to_what_it_may_mend(gpu_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def hint(operation: str, *uses: str, odd: bool = False) -> str:
        one = Finding("group", operation, operation, "float32", 1.0, 1e-5, uses=frozenset(uses), odd=odd)
        found: str = summary([one])["faults"][0]["hint"]
        return found

    of_attention = hint("gradient of attention", "attention", "products")
    assert ("MLX_SDPA_VJP_FALLBACK=1" in of_attention) is (gpu_kind == "metal, fused")
    assert "--device cpu" in hint("products")
    assert hint("gradient of layer norm", "layer norm", odd=True).startswith("please report this fault")
    monkeypatch.setenv("MLX_ENABLE_TF32", "1")
    for operation in ("products", "quantized products", "linear layers"):
        assert "MLX_ENABLE_TF32=0" in hint(operation, *(["products"] if operation == "linear layers" else []))
    for operation in ("dropout", "rows of a table", "rotation"):
        assert "TF32" not in hint(operation) and "--device cpu" in hint(operation)


def test_training_and_the_built_in_model_follow_from_what_they_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tiny_classifier, "trained", lambda folder: 1 / 0)
    monkeypatch.setattr(module, "_vector_error", lambda dtype: 1.0)
    models = [*module._training(tmp_path), *module._built_in("float32", 1e-4)]

    def faults(operation: str) -> set[str]:
        wrong = Finding("group", operation, operation, "float32", 1.0, 1e-5)
        return {one["operation"] for one in summary([wrong, *models])["faults"]}

    for other in ("largest values", "quantized products", "attention in one kernel", "mixture of experts", "rotation",
                  "RMS norm", "dropout", "gradient of rotation", "attention to neighbors", "silu"):  # fmt: skip
        assert faults(other) == {other, "training", "built-in model"}
    for shared in ("products", "linear layers", "activated layers", "gelu", "layer norm", "attention", "tanh"):
        assert faults(shared) == {shared}
    for trained in ("gradient of gelu", "gradient of layer norm", IN_TRAINING, "cross entropy", "update"):
        assert faults(trained) == {trained, "built-in model"}


@pytest.mark.weekly
@pytest.mark.slow
def test_planted_faults_of_an_operation_and_of_a_family_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: mx.array) -> mx.array:
        return x * mx.sigmoid(1.72 * x)  # 1.702

    def read(found: ConfigJson) -> EncoderConfig:
        return dataclasses.replace(right(found), layer_norm_eps=0.012)  # 0.01

    right = MPNET.facts
    make_cheap(monkeypatch)
    monkeypatch.setitem(ACTIVATIONS, "quick_gelu", wrong)
    monkeypatch.setitem(FAMILIES, "mpnet", dataclasses.replace(MPNET, facts=read))
    found = check("cpu")
    assert {one["operation"].split(",")[0] for one in found["faults"]} == {"quick_gelu", "mpnet"}
    assert {one["operation"] for one in found["consequences"]} == {"gradient of quick_gelu"}
    assert all(one["hint"] and one["published_models"] for one in found["faults"])


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What any check finds: a fault of attention and a family that follows from it."""
    group = {"checks": 3, "faults": 1, "consequences": 0, "worst": 12.5}
    fault: dict[str, Any] = {
        "group": "attention", "operation": "attention", "name": "attention, head size 32", "dtype": "float16",
        "error": 0.05, "allowed": 0.004, "problem": None, "published_models": True, "hint": "--dtype float32",
    }  # fmt: skip
    follows = {**fault, "group": "families", "operation": "bert, Model", "follows_from": ["attention"]}
    speed = {"dtype": "float32", "gflops": 1.0, "copy_gb_per_s": 1.0, "first_pass_seconds": 1, "second_pass_seconds": 1}
    found = {"faults": [fault], "consequences": [follows], "quick": False, "speed": speed, "memory": 10**9}
    found["groups"] = dict.fromkeys(("attention", "families", "training", "built-in model"), group)
    found |= {"process_memory": {"resident": 33_000_000}, "seconds": 20.0}
    monkeypatch.setattr(module, "check", lambda device, *, quick, on_step: {**found, "quick": quick})
    monkeypatch.setattr("mlxbert.doctor.device_speed.measure_gflops", lambda: 100.0)
    monkeypatch.setattr("mlxbert.doctor.mac_state.power_state", lambda: {"thermal_pressure": "moderate"})
    return found


def test_a_fault_is_shown_with_its_workaround_and_ends_with_status_1(found: dict[str, Any]) -> None:
    assert "check" not in call("doctor").lines[0]
    outcome = call("doctor", "--check")
    assert outcome.status == 1 and outcome.lines[0]["check"] == found and "all is well" not in outcome.err
    assert "error: 1 of 12 checks failed, which caused 1 other failure" in outcome.err
    outcome, shown = terminal("doctor", "--check")
    assert outcome.status == 1
    for piece in ("attention, head size 32", "--dtype float32", "5.0e-02", "published models", "bert, Model"):
        assert piece in shown
    found["faults"], found["consequences"] = [], []
    outcome = call("doctor", "--check")
    assert outcome.status == 0 and ("all is well" in outcome.err) == (not outcome.lines[0]["problems"])


@pytest.mark.parametrize("words", [["--check"], ["--quick"], ["--check", "--quick"]], ids="".join)
def test_a_check_says_which_one_it_was_and_what_was_checked(found: dict[str, Any], words: list[str]) -> None:
    quick = "--quick" in words
    outcome = call("doctor", *words)
    assert outcome.status == 1 and outcome.lines[0]["check"]["quick"] is quick
    found["faults"][0]["published_models"] = False
    if quick:
        del found["groups"]["families"], found["groups"]["training"]
    _, shown = terminal("doctor", *words)
    assert ("quick check in 20 s" in shown) == quick and ("full check in 20 s" in shown) == (not quick)
    assert "built-in model" in shown and ("training" in shown, "families" in shown) == (not quick, not quick)
    assert "no published model" in shown


@pytest.mark.usefixtures("small_products")
def test_the_facts_are_there_when_a_check_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(device: str, *, quick: bool, on_step: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "check", interrupted)
    monkeypatch.setattr("mlxbert.doctor.mac_state.power_state", dict)
    outcome, shown = terminal("doctor", "--check")
    assert outcome.status == 130 and "GFLOP/s" in shown and "package mlx" in shown


def test_a_report_to_paste_names_nobody(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found["faults"][0] |= {"error": None, "problem": f"OSError: {Path.home()}/x and '{tmp_path}/a|b' are missing"}
    asked, broken = list[str | None](), list[str]()

    def measure(model: ComputingOptions, against: str | None, rounds: int) -> dict[str, Any]:
        asked.append(against)
        if against or broken:
            raise MlxbertError(broken[0] if broken else f"torch of {Path.home()} finds no GPU")
        return measured(f"{Path.home()}/model", peer=False)

    monkeypatch.setattr(machine, "_measure", measure)
    monkeypatch.setattr(machine, "_version", lambda name: "1")
    outcome = call("doctor", "--report")
    assert outcome.status == 1 and asked == ["torch", None]
    for place in (str(Path.home()), str(tmp_path), sys.prefix, sys.executable, platform.node(), platform.release()):
        assert place not in outcome.out
    rows = [line for line in outcome.out.split("\n") if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3, 5, 6}  # tables of two, four and five columns
    for piece in (
        "| chip |", f"| {platform.system()} {platform.machine()}", "| dtype |", "| MLX |", "GFLOP/s", "| attention |",
        "OSError", "bert, Model", "12 times", "| thermal pressure | moderate |", "| process | resident 33.0 MB |",
        "| one text of 512 tokens | 500 ms |", "| not compared with torch | torch of …",
        "thermal pressure nominal → heavy",
    ):  # fmt: skip
        assert piece in outcome.out
    call("doctor", "--report", "--json").fails(2, "--report", "--check --json")
    del asked[:]
    assert "| quick check | " in call("doctor", "--report", "--quick").out and not asked
    broken.append("no memory")
    assert "| not measured | no memory |" in call("doctor", "--report").out


def test_what_fails_does_not_hide_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **named: Any) -> Any:
        raise RuntimeError("[METAL] no such kernel")

    monkeypatch.setattr(mx, "quantize", broken)
    monkeypatch.setattr(module, "golden_models", lambda: [])
    monkeypatch.setattr(module, "_speed", broken)
    monkeypatch.setattr(module, "_vector_error", lambda dtype: 0.0)
    kept = [one for one in kernels() if one.group in ("quantized", "dropout")]
    monkeypatch.setattr(module, "operations", lambda: iter(kept))
    found = check("cpu")
    assert {fault["group"] for fault in found["faults"]} == {"quantized", "families", "speed"}
    assert found["speed"] is None
    assert all("no such kernel" in one["problem"] for one in found["faults"] if one["group"] != "families")
    assert found["groups"]["dropout"] == {"checks": 5, "faults": 0, "consequences": 0, "worst": 0.408}
    assert found["groups"]["training"]["faults"] == 0


def test_a_kernel_that_fails_when_it_is_computed_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All results of an operation are computed at once; what is wrong is found among them."""

    def made(inputs: RandomInputs) -> Iterator[ComputedOperation]:
        yield ComputedOperation("right", mx.array(1.0), np.array(1.0))
        yield ComputedOperation("infinite", mx.array(1.0) / 0, np.array(1.0))
        yield ComputedOperation("of another shape", mx.zeros(2), np.array(1.0))

    def stopped(inputs: RandomInputs) -> Iterator[ComputedOperation]:
        yield ComputedOperation("right", mx.array(1.0), np.array(1.0))
        raise RuntimeError("out of memory")

    def ok(make: Callable[[RandomInputs], Iterator[ComputedOperation]]) -> dict[str, bool]:
        return {one.name: one.ok for one in module._operation(CheckedOperation("x", "y", make), mx.float32, few=False)}

    assert ok(made) == {"right": True, "infinite": False, "of another shape": False}
    assert ok(stopped) == {"right": True, "the rest of x": False}


@pytest.fixture
def goldens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of models that takes the place of that of the package; other things are not checked."""
    for place in (module, golden_outputs):
        monkeypatch.setattr(place, "GOLDENS", tmp_path)
    monkeypatch.setattr(module, "operations", lambda: iter(()))
    monkeypatch.setattr(module, "_vector_error", lambda dtype: 0.0)
    monkeypatch.setattr(module, "_speed", dict)
    return tmp_path


def test_missing_and_damaged_models_are_faults_and_others_are_checked(goldens: Path, tmp_path: Path) -> None:
    (fault,) = check("cpu")["faults"]
    assert fault["group"] == "families" and str(goldens) in str(fault["problem"])
    shutil.copytree(Path(golden_outputs.__file__).parents[1] / "goldens" / "bert", goldens / "bert")
    shutil.copytree(goldens / "bert", goldens / "other")
    (goldens / "other" / "Model.json").write_text("{")
    (goldens / "other" / "outputs.safetensors").unlink()
    steps = [step for step in module._steps(tmp_path / "made", quick=False) if step.title != "built-in model"]
    found = {(one.name, one.dtype): one.ok for step in steps for one in step.run()}
    assert any(found.values()) and all(ok != name.startswith("other") for (name, _), ok in found.items())


def test_what_follows_from_a_fault_is_none_of_its_own() -> None:
    def found(operation: str, dtype: str, *uses: str, odd: bool = False, ok: bool = False) -> Finding:
        error = 0.0 if ok else 1.0
        return Finding("group", operation, operation, dtype, error, 1e-5, uses=frozenset(uses), odd=odd)

    made = summary([
        found("a", "float16"), found("gradient of a", "float16", "a"), found("model", "float16", "a", odd=True),
        found("model", "float32", "a", odd=True),  # half precision does not explain it
        found("b", "float32", odd=True),
        found("training", "float32", "b"),  # nor a width that it does not have
        found("family", "float32", "b", odd=True), found("c", "float32", ok=True),
        found("model of c", "float32", "c"),  # nor what is right
    ])  # fmt: skip
    faults = [(one["operation"], one["dtype"]) for one in made["faults"]]
    assert faults == [(name, dtype) for name, dtype in (
        ("a", "float16"), ("model", "float32"), ("b", "float32"), ("training", "float32"), ("model of c", "float32")
    )]  # fmt: skip
    follow = {one["operation"]: (one["follows_from"], one["published_models"]) for one in made["consequences"]}
    assert follow == {"gradient of a": (["a"], True), "model": (["a"], True), "family": (["b"], False)}
    assert made["groups"]["group"] == {"checks": 9, "faults": 5, "consequences": 3, "worst": 1e5}


class Made:
    """What a GPU has to make before a check is done, which takes CUDA a second or two each."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.plans = set[Any]()  # shapes of attention in half precision that cuDNN computes, with what is masked
        self.fused = set[Any]()  # activations and rotations, each with the dtypes of its arrays
        self.gathers = set[Any]()  # dtypes of tables and indices, of rows and of elements along an axis
        attend, elements = mx.fast.scaled_dot_product_attention, mx.take_along_axis
        rows, make = mx.array.__getitem__, mx.compile

        def attention(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None) -> Any:
            if q.dtype != mx.float32 and q.shape[-1] % 8 == 0:
                self.plans.add((q.shape, k.shape, q.dtype, (mask.dtype, mask.shape) if mask is not None else None))
            return attend(q, k, v, scale=scale, mask=mask)

        def along_axis(array: mx.array, indices: mx.array, axis: int) -> Any:
            self.gathers.add(("axis", array.dtype, indices.dtype))
            return elements(array, indices, axis=axis)

        def of_rows(array: mx.array, index: Any) -> Any:
            if isinstance(index, mx.array):
                self.gathers.add(("rows", array.dtype, index.dtype))
            return rows(array, index)

        def compiled(function: Callable[..., Any], **options: Any) -> Any:
            fused = make(function, **options)

            def run(*given: Any) -> Any:
                if options.get("shapeless") and all(isinstance(one, mx.array) for one in given):
                    self.fused.add((id(fused), *(one.dtype for one in given)))
                return fused(*given)

            return run

        on_gpu(patch)
        patch.setattr(mx.fast, "scaled_dot_product_attention", attention)
        patch.setattr(mx, "take_along_axis", along_axis)
        patch.setattr(mx.array, "__getitem__", of_rows)
        patch.setattr(mx, "compile", compiled)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Counts, on a device that seems to be CUDA."""
    make_cheap(monkeypatch)  # in half precision half a minute more
    monkeypatch.setattr(module, "_vector_error", lambda dtype: 0.0)  # loads a model, for a GPU
    forget_compiled()
    mx.disable_compile()
    try:
        yield Made(monkeypatch)
    finally:
        mx.enable_compile()
        forget_compiled()


@pytest.mark.slow
@pytest.mark.parametrize("quick", [False, True])
def test_a_check_asks_a_gpu_for_few_kernels_and_a_quick_one_for_fewer(quick: bool, made: Made) -> None:
    """Before shapes and dtypes were chosen, there were 56 plans, 24 fused functions and 11 gathers."""
    found = module.check("auto", quick=quick)
    assert not found["faults"] and not found["consequences"]
    counts = [len(every) for every in (made.plans, made.fused, made.gathers)]
    if quick:
        assert all(count <= most for count, most in zip(counts, (4, 4, 2), strict=True))
        return
    assert 15 <= counts[0] <= 20
    assert 4 <= counts[1] <= 8  # two of them the update's; a step of training traces its own
    assert 5 <= counts[2] <= 9
    dtypes = {str(dtype) for _, dtype, _ in made.gathers}
    assert {"mlx.core.float32", "mlx.core.float16", "mlx.core.bfloat16"} <= dtypes
