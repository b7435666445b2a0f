"""Memory of a Mac that a fake system describes: limits, batches, what training keeps, what fits."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mlxbert import config as facts, inspect, load, loading, memory_estimate
from mlxbert.config import Absolute, Alibi, Disentangled, Dropout, EncoderConfig, PreNorm, Rotary, Rotation
from mlxbert.folders.inspect import fit
from mlxbert.folders.inspection import Fit
from mlxbert.machine import device, mac
from mlxbert.machine.device import mx, nn
from mlxbert.memory_estimate import TEXT, TEXTS
from mlxbert.nn import ops
from mlxbert.nn.heads import Network
from mlxbert.nn.ops import inference
from mlxbert.text.batch import BATCH_TOKENS, default_batch_tokens
from mlxbert.weights.find_model import find_model
from mlxbert.weights.model_source import ModelRef
from tests.helpers.cases import together
from tests.helpers.program import call, terminal
from tests.helpers.rooms import needs
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config

GIB = 2**30
MACS = {  # chip, memory, recommended working set, tokens of a batch
    "M1, 8 GB": ("Apple M1", 8 * GIB, 5726623744, 4096),
    "M4, 16 GB": ("Apple M4", 16 * GIB, 11453251584, 4096),
    "M2 Pro": ("Apple M2 Pro", 16 * GIB, 11453251584, 8192),
    "M4 Max": ("Apple M4 Max", 64 * GIB, 51539607552, 16384),
    "M3 Ultra": ("Apple M3 Ultra", 256 * GIB, 206158430208, 16384),
    "A18 Pro": ("Apple A18 Pro", 8 * GIB, 5726623744, 4096),
    "virtual": ("Apple Paravirtual device", 7 * GIB, 4 * GIB, 4096),
}
H100 = "NVIDIA H100 80GB HBM3", 80 * GIB
Limits = dict[str, int]
Become = Callable[..., None]
DROPOUT = Dropout(embeddings=0.1, attention=0.1, attention_output=0.1, feed_forward=0.1)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """The limits that MLX is given."""
    found: Limits = {}
    for name in ("memory", "cache"):
        monkeypatch.setattr(mx, f"set_{name}_limit", lambda limit, name=name: found.update({name: limit}))
    monkeypatch.setattr(mx, "get_memory_limit", lambda: found.get("memory", 2 * GIB))
    return found


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> Become:
    """Makes this machine one with a GPU: a Mac, or one with CUDA."""

    def made(chip: str, memory: int, recommended: int | None = None) -> None:
        metal = recommended is not None
        more = {"memory_size": memory, "max_recommended_working_set_size": recommended}
        info = {"device_name": chip, **(more if metal else {"total_memory": memory, "free_memory": memory - GIB})}
        described = mac.Mac(chip=chip, macos="26.2", python="arm64", translated=False, virtual=False, wheel=None)
        monkeypatch.setattr(sys, "platform", "darwin" if metal else "linux")
        monkeypatch.setattr(mac, "read_mac", lambda: described if metal else None)
        monkeypatch.setattr(mac, "unused_memory", lambda: memory - GIB)
        monkeypatch.setattr(mx, "get_active_memory", lambda: 0)
        monkeypatch.setattr(mx, "get_cache_memory", lambda: 0)
        monkeypatch.setattr(mx, "is_available", lambda kind: True)
        monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
        monkeypatch.setattr(mx, "device_info", lambda kind=None: info)
        compute_on(monkeypatch, mx.DeviceType.gpu)

    return made


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings that are logged."""
    found: list[str] = []
    monkeypatch.setattr(device, "hint_once", found.append)
    return found


def compute_on(monkeypatch: pytest.MonkeyPatch, kind: mx.DeviceType) -> None:
    monkeypatch.setattr(mx, "set_default_device", lambda chosen: None)
    monkeypatch.setattr(mx, "default_device", lambda: SimpleNamespace(type=kind))


@needs("doctor")
@pytest.mark.usefixtures("small_products")
@pytest.mark.parametrize(("chip", "memory", "recommended", "tokens"), MACS.values(), ids=MACS)
def test_limits_and_batches_are_those_of_the_mac(
    become: Become, limits: Limits, chip: str, memory: int, recommended: int, tokens: int
) -> None:
    from mlxbert.doctor.commands import doctor as machine

    become(chip, memory, recommended)
    device.use()
    assert limits == {"memory": recommended, "cache": GIB}
    assert default_batch_tokens() == tokens
    report = machine._report("auto")
    assert report["memory_limit_gib"] == report["memory_gib"] == round(recommended / GIB, 1)
    assert report["memory_free_gib"] == round(min(recommended, memory - GIB) / GIB, 1)
    assert report["cache_limit_gib"] == 1 and report["batch_tokens"] == tokens


def test_cuda_keeps_its_limits_and_batches(become: Become, limits: Limits) -> None:
    assert mac.gpu_size("Apple M2 Pro", 8 * GIB) == mac.gpu_size("Apple A18 Pro", 16 * GIB) == "small"
    become(*H100)
    device.use()
    device.fit_cache()
    assert limits == {"cache": GIB} and default_batch_tokens() == 16384
    assert device.available_memory() == 80 * GIB and device.unused_memory() == 79 * GIB
    assert [device.choose_dtype(training=training) for training in (False, True)] == [mx.bfloat16] * 2


@needs("doctor")
@pytest.mark.usefixtures("small_products")
def test_a_cpu_keeps_its_limits_and_batches(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    from mlxbert.doctor.commands import doctor as machine

    monkeypatch.setattr(mx, "is_available", lambda kind: kind == mx.cpu)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    compute_on(monkeypatch, mx.DeviceType.cpu)
    device.use()
    device.fit_cache()
    device.reset_cache()
    assert limits == {} and default_batch_tokens() == 2048
    report = machine._report("cpu")
    assert report["cache_limit_gib"] is None and report["memory_limit_gib"] == 2 and report["batch_tokens"] == 2048


def test_a_mac_trains_in_float32_and_its_cpu_has_the_batches_of_a_cpu(
    become: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(*MACS["M4 Max"][:3])
    assert [device.choose_dtype(training=training) for training in (False, True)] == [mx.float16, mx.float32]
    assert device.choose_dtype("bfloat16", training=True) == mx.bfloat16
    compute_on(monkeypatch, mx.DeviceType.cpu)
    assert default_batch_tokens() == 2048


@needs("train")
@pytest.mark.parametrize(("recommended", "bound"), [(50 * GIB, 3 * GIB), (4 * GIB, 2 * GIB), (GIB, 0)])
def test_training_keeps_what_an_update_took_and_inference_a_gibibyte(
    monkeypatch: pytest.MonkeyPatch, limits: Limits, recommended: int, bound: int
) -> None:
    from tests.train.runs import make_run, steps

    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "is_available", lambda kind: True)
    monkeypatch.setattr(mx, "device_info", lambda kind=None: {"max_recommended_working_set_size": recommended})
    monkeypatch.setattr(mx, "get_peak_memory", lambda: 3 * GIB)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 2 * GIB)
    for end in (steps, lambda events: events.close()):  # at the end, and interrupted
        events: Iterator[Any] = make_run().events()
        assert "cache" not in limits
        next(events)
        assert limits["cache"] == bound
        end(events)
        assert limits.pop("cache") == GIB


def _config(**changes: Any) -> EncoderConfig:
    sizes = {"hidden_size": 64, "embedding_size": 64, "num_attention_heads": 2, "intermediate_size": 256}
    return tiny_config(**sizes, layer_schedule=tuple(range(3)), **{"dropout": DROPOUT} | changes)


_PRE = {"block": PreNorm(), "gated": True, "dropout": Dropout(attention=0.0)}
CONFIGS = {
    "BERT": _config(positions=Absolute(TEXT)),
    "ModernBERT": _config(positions=Rotary(TEXT, (Rotation(1e4),) * 3), **_PRE),
    "DeBERTa": _config(positions=Disentangled(TEXT, None, TEXT, 0, True, True, True, True)),
}


def _network(config: EncoderConfig) -> Network:
    network = Network(config, ())
    network.eval()
    mx.eval(network.parameters())
    return network


def _peak(compute: Callable[[], Any]) -> int:
    """The bytes that a computation takes at its peak."""
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(compute())
    return mx.get_peak_memory() - before


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_estimates_are_near_what_is_measured(config: EncoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the graph of a GPU, in one stream."""
    network = _network(config)
    parameters = sum(array.size for array in dict(nn.utils.tree_flatten(network.parameters())).values())
    found = fit(config, parameters, {"float32": 4 * parameters}, TEXT)
    monkeypatch.setattr(ops, "on_gpu", lambda: True)
    monkeypatch.setattr("mlxbert.cpu.cores.cpu_streams", lambda batch: [])
    some, more = (mx.zeros((tokens // TEXT, TEXT), mx.int32) for tokens in (found.batch_tokens, TEXTS * TEXT))
    inferring = _peak(lambda: network(some).last_hidden_state)
    assert 0.6 * found.batch < inferring < 1.1 * found.batch
    network.train()
    step = nn.value_and_grad(network, lambda network: network(more).last_hidden_state.sum())
    training = _peak(lambda: step(network)) + 12 * parameters  # the weights, and two moments
    assert 0.6 * found.finetuning < training < 1.1 * found.finetuning


LONG = 2048
LONG_CONFIGS = {
    "windows": _config(positions=Rotary(LONG, (Rotation(1e4), *[Rotation(1e4, window=64)] * 2)), **_PRE),
    "shared keys": _config(positions=Rotary(LONG, (Rotation(1e4, causal=True),) * 3), num_key_value_heads=1, **_PRE),
    "ALiBi": _config(positions=Alibi(LONG), gated=True),
    "bias": _config(positions=facts.RelativeBias(Absolute(LONG))),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, scores are not computed in blocks")
@pytest.mark.parametrize("config", LONG_CONFIGS.values(), ids=LONG_CONFIGS)
def test_a_long_text_takes_less_than_estimated_and_more_than_a_third_of_it(config: EncoderConfig) -> None:
    network, ids = _network(config), mx.zeros((1, LONG), mx.int32)
    with inference():
        measured = _peak(lambda: network.encoder(ids).last_hidden_state)
    assert measured < memory_estimate.of_text(config, LONG, mx.float32) < 3 * measured


def test_hidden_states_that_nobody_asked_for_take_no_memory() -> None:
    length = LONG // 4

    def peak(layers: int) -> int:
        network = _network(replace(_config(positions=Absolute(length)), layer_schedule=tuple(range(layers))))
        with inference():
            return _peak(lambda: network.encoder(mx.zeros((1, length), mx.int32)).last_hidden_state)

    assert peak(12) < peak(2) + 2 * length * 64 * 4


def test_inspect_says_what_the_longest_text_takes(tmp_path: Path) -> None:
    positions = {"max_position_embeddings": 8192}
    tensors = tensors_of(random_network(tiny_config(positions=Absolute(8192))))
    folder = save(tmp_path / "long", tensors, CONFIG | positions, settings={"model_max_length": 4096})
    about = call("inspect", str(folder)).lines[0]
    assert about["fit"]["longest_tokens"] == 4096 and about["fit"]["longest_fits"] is True
    _, shown = terminal("inspect", str(folder), COLUMNS="200")
    assert ("4,096 tokens" in shown) == (about["fit"]["longest"] > about["fit"]["batch"])


def test_a_long_text_in_one_kernel_takes_no_scores(become: Become) -> None:
    def taken(**changes: Any) -> float:
        """Bytes, as a share of three arrays of the scores of both heads."""
        return memory_estimate.of_text(_config(**changes), 8192, mx.float16) / (3 * 2 * 8192 * 8192 * 2)

    rotary = Rotary(8192, (Rotation(1e4),) * 3)
    for one in (MACS["M4 Max"][:3], H100):
        become(*one)
        assert taken(positions=rotary, own_head_size=128) < 0.1
        assert taken(positions=rotary, own_head_size=256) > 1
        assert 1 / 8 < taken(positions=Alibi(8192), own_head_size=64) < 1 / 4


LARGE = tiny_config(
    hidden_size=1024, embedding_size=1024, num_attention_heads=16, intermediate_size=4096, vocab_size=30522,
    layer_schedule=tuple(range(24)), positions=Absolute(512),
)  # fmt: skip


def _large(parameters: int = 335_000_000) -> Fit:
    return fit(LARGE, parameters, {"float16": 2 * parameters, "bfloat16": 2 * parameters}, 512)


def test_a_large_model_runs_on_a_small_mac_and_is_trained_on_a_larger_one(become: Become) -> None:
    become(*MACS["M1, 8 GB"][:3])
    small = _large()
    assert (small.device, small.dtype, small.available) == ("gpu", "float16", MACS["M1, 8 GB"][2])
    assert small.weights == 670_000_000 and small.batch_tokens == 4096
    assert small.fits and small.finetuning_fits is False
    become(*MACS["M4 Max"][:3])
    assert _large().finetuning_fits and _large().batch == 4 * small.batch
    assert _large(1001).finetuning - _large(1).finetuning == 16 * 1000
    become(*H100)  # with a copy in half precision
    assert _large(1001).finetuning - _large(1).finetuning == 18 * 1000


def test_inspect_says_what_fits_and_what_takes_less_and_what_other_programs_hold(
    become: Become, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    become("Apple M1", 8 * GIB, GIB)
    found = call("inspect", "builtin").lines[0]
    about = found["fit"]
    assert about["weights"] == found["memory"]["float16"] and about["available"] == GIB
    assert (about["fits"], about["finetuning_fits"]) == (True, False)
    _, shown = terminal("inspect", "builtin", COLUMNS="200")
    assert "--lora" in shown and "--checkpointing" in shown
    become(*MACS["M4, 16 GB"][:3])
    monkeypatch.setattr(mac, "unused_memory", lambda: 300_000_000)
    fit = call("inspect", "builtin").lines[0]["fit"]
    assert (fit["free"], fit["fits"], fit["finetuning_fits"]) == (300_000_000, True, True)
    _, shown = terminal("inspect", "builtin", COLUMNS="200")
    assert "11.5 GB" in shown and "300.0 MB free" in shown and "other programs" in shown
    memory_estimate.warn_unless_it_fits("model: needs", 300_000_000)
    assert not warnings
    memory_estimate.warn_unless_it_fits("model: needs", 310_000_000)
    assert "0.3 GB" in warnings[0] and "11.5 GB" in warnings[0]


def test_what_does_not_fit_is_said_before_weights_are_read_and_loaded_all_the_same(
    warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    about = inspect("builtin").fit
    for available, said in ((about.weights + about.batch, 0), (about.weights + about.batch // 8, 1)):
        monkeypatch.setattr(device, "unused_memory", lambda available=available: available)
        assert load("builtin").network.heads and len(warnings) == said
    with monkeypatch.context() as patched, pytest.raises(InterruptedError):
        patched.setattr(loading, "build_network", Mock(side_effect=InterruptedError))
        load("builtin", task="embed")
    assert len(warnings) == 2 and "builtin" in warnings[1]
    monkeypatch.setattr(device, "available_memory", lambda: None)
    monkeypatch.setattr(device, "unused_memory", lambda: None)
    load("builtin")
    assert len(warnings) == 2


@needs("train")
def test_training_says_what_its_weights_take(warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxbert.train.base_model import BaseModel
    from mlxbert.train.options.loop_options import TrainingOptions

    assert TrainingOptions.batch_size == TEXTS and BATCH_TOKENS["small"] == TEXTS * TEXT
    base = BaseModel(ref=ModelRef("builtin"), files=find_model(ModelRef("builtin")))
    total = inspect("builtin").parameters["total"]

    def warned(available: int, **options: Any) -> bool:
        del warnings[:]
        monkeypatch.setattr(device, "unused_memory", lambda: available)
        base.warn_unless_it_fits(TrainingOptions(**options))
        return bool(warnings)

    assert warned(4 * total) and not warned(16 * total)
    assert not warned(4 * total, lora=8) and not warned(4 * total, freeze=base.load().config.num_stored_layers)


@together(
    ("stated", "limit", "held", "kept", "expected"),
    [
        ("MemTotal: 8388608 kB\nMemFree: 9 kB\nMemAvailable:    1048576 kB\nCached: 9 kB\n", 8, 0, 0, 1),
        ("MemAvailable:    1048576 kB\n", 8, 2, 3, 4),  # what MLX keeps for this process is free
        ("MemAvailable:    9437184 kB\n", 8, 2, 3, 6), ("MemAvailable:    9437184 kB\n", 1, 2, 0, 0),
        ("MemTotal: 8388608 kB\n", 8, 2, 0, 6), (None, 8, 2, 0, 6),
    ],
)  # fmt: skip
def test_free_is_what_neither_other_programs_nor_this_one_hold(
    stated: str | None, limit: int, held: int, kept: int, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All in GiB."""
    (tmp_path / "meminfo").write_text(stated or "")
    monkeypatch.setattr(device, "_MEMINFO", tmp_path / ("nothing" if stated is None else "meminfo"))
    monkeypatch.setattr(device, "available_memory", lambda: limit * GIB)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(mx, "get_active_memory", lambda: held * GIB)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: kept * GIB)
    assert device.unused_memory() == expected * GIB


def test_a_container_has_a_part_of_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "_CONTAINER", tmp_path)
    monkeypatch.setattr(device, "on_gpu", lambda: False)
    whole = device.available_memory()
    assert whole is not None and whole > GIB
    for name, text, expected in (
        ("memory.max", "max\n", whole), ("memory.max", f"{GIB}\n", GIB),
        ("memory/memory.limit_in_bytes", f"{GIB // 2}\n", GIB // 2), ("memory.max", f"{2**63}\n", GIB // 2),
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        assert device.available_memory() == expected
