"""What layers compute on a GPU, as far as a machine without one can tell: which kernel is asked for, and the numbers.

`on_gpu` is told that there is one; MLX then computes what it is asked for with plain operations.
"""

import contextlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from mlxbert.config import Rotary
from mlxbert.goldens.golden_outputs import GOLDENS, load_network, outputs
from mlxbert.machine.device import mx, plain_graphs, scalar
from mlxbert.nn import attention, fused_kernels, gpu_attention, ops
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.attention import SelfAttention
from mlxbert.nn.backend import PositionedQK
from mlxbert.nn.crf import CRF
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.gpu import GpuBackend
from mlxbert.nn.heads import Network
from mlxbert.nn.ops import inference
from mlxbert.weights.families.registry import read_architecture
from mlxbert.weights.formats.config_json import ConfigJson
from tests.helpers.cases import together
from tests.helpers.families import FROZEN, walked, walked_slowly
from tests.helpers.frozen import file_name, frozen_outputs, write_model
from tests.helpers.graphs import Graph, primitives
from tests.helpers.parity import assert_equal
from tests.helpers.rooms import needs

HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # how far the nearest number is away, as a share


@pytest.fixture(autouse=True)
def metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "on_gpu", lambda: True)
    monkeypatch.setattr(gpu_attention, "on_metal", lambda: True)


# --- which kernel ---


@together(
    ("head_size", "queries", "dtype", "mask", "gradient", "fused"),
    [
        *((size, 128, mx.float16, mx.bool_, False, True) for size in (64, 72, 80, 96, 128)),
        *((size, 128, mx.float16, mx.bool_, False, False) for size in (10, 32, 48, 63, 100, 192, 256)),
        *((size, 8, mx.float16, None, False, True) for size in (64, 96, 128, 256)),
        *((size, 8, mx.float16, None, False, False) for size in (32, 72, 80, 192)),
        (64, 9, mx.float32, None, False, True),
        (64, 128, mx.float16, None, True, False),
    ],
)
def test_which_attention_metal_has_a_kernel_for(
    head_size: int, queries: int, dtype: mx.Dtype, mask: mx.Dtype | None, gradient: bool, fused: bool
) -> None:
    assert gpu_attention.is_fused(head_size, queries, dtype, mask, gradient=gradient) == fused


@together("dtype", [mx.float32, mx.float16, mx.bfloat16])
@together("mask", [mx.bool_, mx.float32, mx.float16, mx.bfloat16])
def test_mlx_refuses_the_masks_that_the_table_says_it_refuses(dtype: mx.Dtype, mask: mx.Dtype) -> None:
    q = mx.zeros((1, 1, 9, 64), dtype)
    fused = gpu_attention.is_fused(64, 9, dtype, mask, gradient=False)
    with contextlib.nullcontext() if fused else pytest.raises(ValueError):
        mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, mask=mx.zeros((9, 9), mask))
    assert fused == (mask in (mx.bool_, dtype) or dtype == mx.float32)


@needs("doctor")
def test_doctor_asks_metal_whether_the_table_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxbert.doctor.check import kernels as checks
    from mlxbert.doctor.check.operations import RandomInputs

    def attention(q: mx.array, *arrays: mx.array, scale: float, force_fused: bool) -> mx.array:
        if q.shape[-1] not in {64, 96, 128} | ({72} if q.shape[2] > 8 else set()):  # 80 is missing
            raise ValueError("force_fused=True but no fused kernel is available")
        return q

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", attention)
    for gpu in (True, False):
        monkeypatch.setattr(checks, "on_gpu", lambda gpu=gpu: gpu)
        found = [*checks._fused(RandomInputs(mx.float16))]
        assert len(found) == 14 * gpu and all(one.exact for one in found)
        wrong = [one.name for one in found if one.found.item() != one.expected.item()]
        assert len(wrong) == gpu and all("128 queries, head size 80" in name for name in wrong)


Call = tuple[int, int, int, mx.Dtype, mx.Dtype | None]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The calls of MLX's attention: head size, queries, keys, their dtype, that of the mask."""
    found: list[Call] = []
    right = mx.fast.scaled_dot_product_attention

    def spy(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | str | None) -> mx.array:
        dtype = mask.dtype if isinstance(mask, mx.array) else None
        found.append((q.shape[-1], q.shape[2], k.shape[2], q.dtype, dtype))
        return right(q, k, v, scale=scale, mask=mask)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", spy)
    return found


def sized(family: str, head_size: int) -> Network:
    """The tiny model of a family with two heads of this size, in float16."""
    config = json.loads((GOLDENS / file_name(family) / "Model.json").read_text(encoding="utf-8"))["config"]
    wanted: dict[str, int] = {
        **dict.fromkeys(("hidden_size", "dim", "n_embd", "pooler_hidden_size"), 2 * head_size),
        **dict.fromkeys(("num_attention_heads", "n_heads", "n_head"), 2),
        **dict.fromkeys(("max_position_embeddings", "max_length", "n_positions"), 700),
        **dict.fromkeys(("local_attention", "sliding_window"), 128),
        "head_dim": head_size,
    }
    changes = {key: value for key, value in wanted.items() if config.get(key) is not None}
    network = Network(read_architecture(ConfigJson(Path("config.json"), config | changes)).config)
    network.set_dtype(mx.float16)
    network.eval()
    return network


@pytest.mark.sampled
@pytest.mark.parametrize("family", walked(FROZEN))
def test_no_family_leaves_the_fused_kernel_unnoticed(family: str, calls: list[Call]) -> None:
    """Nothing is evaluated; (head size, length) → how its layers attend, the own size of the tiny model first."""
    expected = {
        **dict.fromkeys(((10, 128), (10, 512), (32, 128), (48, 128)), "unfused"),
        **dict.fromkeys(((32, 256), (32, 512), (48, 512)), "padded"),
        **dict.fromkeys(((64, 128), (64, 512), (72, 512), (80, 128), (96, 512), (128, 128)), "fused"),
    }
    for (head_size, length), how in expected.items():
        network = sized(family, head_size)
        calls.clear()
        ids, mask = mx.full((2, length), 5), mx.ones((2, length), mx.int32)
        assert network.encoder(ids, mask).last_hidden_state.shape == (2, length, 2 * head_size)
        assert len(calls) == len(network.encoder.config.layer_schedule)
        positions = network.encoder.config.positions
        local = isinstance(positions, Rotary) and any(rotation.window for rotation in positions.rotations)
        # Blocks have three times 64 keys, too few for padding.
        also = {"unfused"} if local and how == "padded" and length == 512 else set()
        ways = {
            ("fused" if size == head_size else "padded")
            if gpu_attention.is_fused(size, queries, dtype, masked, gradient=False)
            else "unfused"
            for size, queries, _, dtype, masked in calls
        }
        assert ways == {how} | also, (head_size, length)


@pytest.mark.parametrize(
    ("apple", "fused", "dtype", "trains", "asked"),
    [
        (True, False, mx.float16, True, False),
        (True, True, mx.float16, True, True),
        (False, False, mx.float16, True, True),  # cuDNN
        (False, False, mx.float32, True, False),
        (False, False, mx.float16, False, True),
    ],
)
def test_attention_with_a_gradient_is_asked_of_mlx_where_that_has_a_kernel(
    apple: bool, fused: bool, dtype: mx.Dtype, trains: bool, asked: bool, calls: list[Call],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """And without one of MLX for other GPUs, whose head size is not padded, either."""
    monkeypatch.setattr(gpu_attention, "on_metal", lambda: apple)
    monkeypatch.setenv("MLX_SDPA_VJP_FALLBACK", "0" if fused else "1")
    network = sized("bert", 32)
    network.set_dtype(dtype)
    network.train(trains)
    for module in network.modules():
        if isinstance(module, SelfAttention):
            module.dropout.rate = 0.0
    assert network.encoder(mx.full((2, 512), 5)).last_hidden_state.shape == (2, 512, 64)
    assert {size for size, *_ in calls} == ({32} if asked else set())


def test_local_layers_attend_in_blocks_from_eight_windows_on(calls: list[Call]) -> None:
    for length, keys in ((511, {511}), (512, {512, 192}), (700, {700, 192})):
        calls.clear()
        sized("modernbert", 64).encoder(mx.full((2, length), 5), mx.ones((2, length), mx.int32))
        assert {call[2] for call in calls} == keys


@pytest.mark.parametrize(
    ("family", "dtype"),
    walked_slowly(
        pytest.param(family, dtype, marks=() if dtype == "float32" or family == "bert" else pytest.mark.slow)
        for family in FROZEN
        for dtype in ("float32", "float16", "bfloat16")
    ),
)
def test_padding_and_blocks_give_the_same(
    family: str, dtype: str, calls: list[Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All outputs of a model of each family, padded from a head size of 10 to 16."""
    monkeypatch.setattr(gpu_attention, "PADDED_FROM", 1)
    monkeypatch.setattr(gpu_attention, "_HEAD_SIZES", (16,))
    monkeypatch.setattr(gpu_attention, "BLOCKS_FROM", 1)
    monkeypatch.setattr("mlxbert.nn.gpu_attention._SMALLEST_BLOCK", 1)
    network = load_network(write_model(family, "Model", tmp_path), dtype)
    for name, case in FROZEN[family].cases.items():
        assert_equal(outputs(network, case), frozen_outputs(family, "Model", name), dtype)
    assert {size for size, *_ in calls} == {16}
    assert any(keys > queries for _, queries, keys, *_ in calls) == family.startswith(("modernbert", "gemma3"))


@pytest.mark.parametrize("length", [9, 1024, 1025, 1032, 2049, 3080, 5000])
def test_no_part_of_a_long_text_with_slopes_has_few_queries(length: int, calls: list[Call]) -> None:
    """Few queries to many keys take another kernel of Metal's, see `tests/helpers/graphs.py`."""
    q = mx.zeros((1, 2, length, 16))
    given = PositionedQK(q, q, slopes=mx.array([0.5, 0.25]))
    assert ops.backend().attention(given, q, 0.25, KeyedDropout(None)).shape == q.shape
    queries = [count for _, count, *_ in calls]
    assert sum(queries) == length and min(queries) > 8 and max(queries) <= 1024


# --- numbers ---


@needs("doctor")
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16], ids=str)
@pytest.mark.parametrize(
    ("apple", "width", "trains", "parts"),
    [
        (False, 30, True, True),  # CUDA reads past the end of these rows
        (False, 17, True, True),
        (False, 32, True, False),
        (False, 30, False, False),  # forward it is right
        (True, 30, True, False),
    ],
)
def test_norms_are_computed_from_their_parts_where_cuda_differentiates_them_wrongly(
    apple: bool, width: int, trains: bool, parts: bool, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxbert.doctor.check.operations import as_float64

    monkeypatch.setattr(gpu_attention, "on_metal", lambda: apple)
    asked, right = [], mx.fast.layer_norm

    def spy(x: mx.array, *given: Any) -> mx.array:
        asked.append(x.shape)
        return right(x, *given)

    monkeypatch.setattr(mx.fast, "layer_norm", spy)
    rng = np.random.default_rng(width)
    layer = ops.LayerNorm(width, eps=0.01)
    layer.weight, layer.bias, x, up = (
        mx.array(rng.standard_normal(shape, np.float32)).astype(dtype)
        for shape in (width, width, (5, width), (5, width))
    )
    with contextlib.nullcontext() if trains else inference():
        (found,), (gradient,) = mx.vjp(layer, [x], [up])
    assert bool(asked) != parts
    a, w, b, u = map(as_float64, (x, layer.weight, layer.bias, up))
    centred = a - a.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.01)
    normed, pulled = centred * scale, u * w
    slope = scale * (pulled - pulled.mean(-1, keepdims=True) - normed * (pulled * normed).mean(-1, keepdims=True))
    allowed = 1e-5 if dtype == mx.float32 else 1e-2
    assert np.abs(as_float64(found) - (normed * w + b)).max() <= allowed
    assert np.abs(as_float64(gradient) - slope).max() <= allowed


@needs("doctor")
@pytest.mark.parametrize("name", sorted({*ACTIVATIONS}))
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_rounds_the_result_only(name: str, dtype: str) -> None:
    """GELU was 7e-4 off near -3, where it is 4e-3. Values and derivatives next to float32's."""
    from mlxbert.doctor.check.operations import as_float64

    x = mx.array(np.linspace(-9, 9, 4099, dtype=np.float32)).astype(getattr(mx, dtype))
    wide = x.astype(mx.float32)

    def derivative(at: mx.array) -> NDArray[np.float64]:
        return as_float64(mx.grad(lambda given: ops.backend().activate(name, given).astype(mx.float32).sum())(at))

    found, expected = as_float64(ops.backend().activate(name, x)), as_float64(ops.backend().activate(name, wide))
    assert (np.abs(found - expected) <= HALVES[dtype] * np.abs(expected) + 3e-8).all()
    slopes = derivative(wide)
    assert (np.abs(derivative(x) - slopes) <= HALVES[dtype] * np.abs(slopes) + 3e-8).all()


def test_activations_are_one_kernel() -> None:
    x = mx.zeros(4, mx.float16)
    mx.eval(x)
    for name in ("gelu", "silu", "quick_gelu", "tanh", "sigmoid"):
        with inference():
            (found,) = primitives([ops.backend().activate(name, x)])
        assert found.startswith("Compiled")


@pytest.mark.parametrize("name", ["softmax", "log_sum_exp"])
def test_sums_over_a_vocabulary_are_one_kernel_and_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: mx.array) -> mx.array:
        found: mx.array = getattr(ops.backend(), name)(x)
        return found

    x = mx.random.normal((4, 100), key=mx.random.key(1)) * 5
    mx.eval(x)
    up = mx.random.normal(function(x).shape, key=mx.random.key(2))

    def value_and_gradient() -> tuple[mx.array, mx.array]:
        _, (gradient,) = mx.vjp(function, [x], [up])
        return function(x), gradient

    fused = value_and_gradient()
    assert sum(primitives([function(x)]).values()) == 1
    monkeypatch.setattr(ops, "on_gpu", lambda: False)
    for one, other in zip(fused, value_and_gradient(), strict=True):
        assert np.abs(np.array(one - other)).max() < 4e-6


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 3, 5, 10), (1, 2, 16, 32)])
def test_the_gradient_of_distances_scatters_nothing(shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    products = mx.random.normal(shape, key=mx.random.key(1)).astype(dtype)
    batch, heads, length, row = shape
    up = mx.random.normal((batch, heads, length, length), key=mx.random.key(2)).astype(dtype)

    def view(x: mx.array) -> mx.array:
        return mx.as_strided(x, up.shape, (heads * length * row, length * row, row - 1, 1), offset=length - 1)

    (value,), (gradient,) = mx.vjp(attention._shifted, [products], [up])
    (expected,), (scattered,) = mx.vjp(view, [products], [up])
    assert any("Scatter" in name for name in primitives([scattered]))
    assert not any("Scatter" in name for name in primitives([gradient]))
    assert mx.array_equal(value, expected).item() and mx.array_equal(gradient, scattered).item()


def test_a_crf_scans_on_the_cpu_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of the loop, and the numbers are those of the default stream."""
    crf, words = CRF(("O", "B-X", "I-X")), 7
    emissions = mx.random.normal((2, words, 3), key=mx.random.key(1))
    tags, mask = mx.zeros((2, words), mx.int32), mx.arange(words) < mx.array([[words], [3]])

    def loss(given: mx.array) -> mx.array:
        return crf.loss(given, tags, mask)

    with monkeypatch.context() as patch:
        patch.setattr(ops, "on_gpu", lambda: False)
        value, gradient = mx.value_and_grad(loss)(emissions)
    other, used, right = mx.new_stream(mx.cpu), list[bool](), mx.logsumexp
    monkeypatch.setattr(mx, "cpu", other)

    def spy(x: mx.array, axis: int) -> mx.array:
        used.append(mx.default_stream(mx.default_device()) == other)
        return right(x, axis=axis)

    monkeypatch.setattr(mx, "logsumexp", spy)
    found = mx.value_and_grad(loss)(emissions)
    assert used == [True] * (words - 1) + [False]
    assert mx.array_equal(found[0], value).item() and mx.array_equal(found[1], gradient).item()


@pytest.mark.parametrize("other", [GpuBackend().step_by_step, plain_graphs])
def test_blocks_on_the_cpu_of_two_threads_do_not_overlap(other: Callable[[], Any]) -> None:
    """MLX has one default device for all threads. Blocks that overlap can restore it in the wrong order."""
    both = threading.Barrier(2)

    def meets(block: Callable[[], Any]) -> bool:
        with block(), block(), contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)
            return True
        return False

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(meets, (GpuBackend().step_by_step, other))] == [False, False]


ALLOWED = {mx.float32: 2e-6, mx.float16: 4e-3, mx.bfloat16: 3e-2}
DTYPES = pytest.mark.parametrize("dtype", ALLOWED, ids=str)
F64 = NDArray[np.float64]
dense, softmax, dropped, times, tanh = (  # custom functions of MLX have no types
    cast(Callable[..., mx.array], getattr(fused_kernels, name))
    for name in ("dense", "softmax", "dropped", "times", "tanh")
)


def as_float64(array: mx.array) -> F64:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def draw(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape, np.float32)).astype(dtype)


def assert_near(found: Any, expected: F64, dtype: mx.Dtype) -> None:
    assert found.dtype == dtype and found.shape == expected.shape
    assert np.abs(as_float64(found) - expected).max() <= ALLOWED[dtype] * max(1, np.abs(expected).max())


def derivatives(function: Callable[..., mx.array], inputs: list[Any], up: mx.array) -> list[mx.array]:
    return mx.vjp(function, inputs, [up])[1]


@DTYPES
@pytest.mark.parametrize("biases", [0, 1])
def test_a_dense_layer(biases: int, dtype: mx.Dtype) -> None:
    x, weight, up = draw(2, 5, 8, dtype=dtype), draw(7, 8, seed=1, dtype=dtype), draw(2, 5, 7, seed=2, dtype=dtype)
    bias = [draw(7, seed=3, dtype=dtype)] * biases
    a, w, u = as_float64(x), as_float64(weight), as_float64(up)
    assert_near(dense(x, weight, bias), a @ w.T + (as_float64(bias[0]) if bias else 0), dtype)
    of_x, of_weight, *of_bias = derivatives(lambda x, w, *b: dense(x, w, [*b]), [x, weight, *bias], up)
    assert_near(of_x, u @ w, dtype)
    assert_near(of_weight, np.einsum("blo,bli->oi", u, a), dtype)
    assert len(of_bias) == biases
    for one in of_bias:
        assert_near(one, u.sum((0, 1)), dtype)


def test_the_gradient_of_a_matrix_has_its_dtype_and_its_order_in_memory() -> None:
    """A transposed view would be read against it by the update."""
    x, weight = draw(6, 8, dtype=mx.bfloat16), draw(7, 8, seed=1)
    mx.eval(x, weight)
    of_x, of_weight = derivatives(lambda x, w: dense(x, w, []), [x, weight], mx.ones((6, 7)))
    assert (of_x.dtype, of_weight.dtype) == (mx.bfloat16, mx.float32)
    graph = Graph([mx.grad(lambda w: dense(x.astype(mx.float32), w, []).sum())(weight)])
    assert graph.nodes[-1].name == "Matmul"


def test_the_gradient_of_a_bias_is_not_summed_in_half_precision() -> None:
    """A GPU's sum rounds each of its steps: of 1,024 rows it is three times as far off as the rounded sum."""
    for dtype in (mx.float16, mx.bfloat16):
        x, weight, bias = draw(6, 8, dtype=dtype), draw(7, 8, seed=1, dtype=dtype), draw(7, seed=2, dtype=dtype)
        mx.eval(x, weight, bias)
        gradient = mx.grad(lambda b, x=x, weight=weight: dense(x, weight, [b]).sum())(bias)
        assert "Sum" not in {node.name for node in Graph([gradient]).nodes}


@DTYPES
@pytest.mark.parametrize("masked", [False, True])
def test_a_softmax(masked: bool, dtype: mx.Dtype) -> None:
    scores, up = draw(2, 3, 5, dtype=dtype), draw(2, 3, 5, seed=1, dtype=dtype)
    seen = np.array([[[True] * 5], [[True, True, True, False, False]]])
    masks = [mx.array(seen)] if masked else []
    wide = np.where(seen, as_float64(scores), -np.inf) if masked else as_float64(scores)
    shares = np.exp(wide - wide.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    u = as_float64(up)
    assert_near(softmax(scores, masks), shares, dtype)
    [found] = derivatives(lambda x: softmax(x, masks), [scores], up)
    assert_near(found, shares * (u - (u * shares).sum(-1, keepdims=True)), dtype)


def test_a_row_that_is_masked_as_a_whole_has_no_gradient() -> None:
    scores, up, mask = draw(2, 5), draw(2, 5, seed=1), mx.array([[True] * 5, [False] * 5])
    [found] = derivatives(lambda x: softmax(x, [mask]), [scores], up)
    [expected] = derivatives(lambda x: mx.softmax(mx.where(mask, x, mx.finfo(mx.float32).min), axis=-1), [scores], up)
    assert_near(found, as_float64(expected), mx.float32)
    assert not as_float64(found)[1].any() and as_float64(found)[0].all()


@DTYPES
def test_dropout(dtype: mx.Dtype) -> None:
    x, up = draw(40, 30, dtype=dtype), draw(40, 30, seed=1, dtype=dtype)
    words = mx.random.randint(0, 2**16, (40, 30), mx.uint16, key=mx.random.key(1))
    numbers = fused_kernels.number(2**14, mx.uint16), fused_kernels.number(4 / 3)
    kept = (np.array(words) >= 2**14) * (4 / 3)
    assert 0.6 < (kept > 0).mean() < 0.9
    assert_near(dropped(x, words, *numbers), as_float64(x) * kept, dtype)
    [found] = derivatives(lambda x: dropped(x, words, *numbers), [x], up)
    assert_near(found, as_float64(up) * kept, dtype)


@DTYPES
def test_products_with_scalars_casts_and_activations(dtype: mx.Dtype) -> None:
    x, up, wide = draw(4, 6, dtype=dtype), draw(4, 6, seed=1, dtype=dtype), draw(4, 6)
    a, u, number = as_float64(x), as_float64(up), fused_kernels.number(0.3)
    cases: list[tuple[Callable[..., mx.array], mx.array, F64, F64]] = [
        (lambda x: times(x, number), x, a * 0.3, u * 0.3),
        (tanh, x, np.tanh(a), u / np.cosh(a) ** 2),
        (fused_kernels.activation(lambda x: x * x * x), x, a**3, 3 * a**2 * u),
    ]
    for function, given, value, slope in cases:
        assert_near(function(given), value, dtype)
        assert_near(derivatives(function, [given], up)[0], slope, dtype)
    assert mx.array_equal(fused_kernels.cast(dtype)(wide), wide.astype(dtype)).item()
    assert_near(derivatives(fused_kernels.cast(dtype), [wide], up)[0], u, mx.float32)


def test_what_is_next_to_a_kernel_is_not_fused_with_it() -> None:
    scale = fused_kernels.one_kernel(lambda x: mx.exp(x) * x)

    def step(x: mx.array) -> mx.array:
        return mx.sin(mx.cos(scale(mx.tan(mx.tanh(x)))))

    x = draw(5)
    mx.eval(x)
    names = [node.name for node in Graph([mx.compile(step)(x)]).nodes if node.name != "Depends"]
    assert names == ["Compiled"] * 3


def test_a_number_is_no_part_of_a_kernel() -> None:
    """It is an argument: what differs between models and runs does not make other kernels."""

    def product(x: mx.array, make: Callable[[float], Any]) -> Graph:
        return Graph([mx.compile(lambda x: mx.exp(x * make(0.3)))(x)])

    x = draw(5)
    mx.eval(x)
    number, constant = (product(x, make).nodes for make in (fused_kernels.number, mx.array))
    assert {node.name for node in number} == {"Compiled", "Reshape", "Slice"} and len(constant) == 1
    assert scalar(fused_kernels.number(0.25)) == 0.25
