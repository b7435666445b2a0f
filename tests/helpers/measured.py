"""Made-up reports of `mlxbert bench`."""

from typing import Any

from mlxbert.doctor.worker_job import OURS, PASSES, PEER, UPDATE

POWER = {"power_source": "Battery Power", "energy_mode": "low power"}


def measured(word: str = "chip", *, peer: bool = True) -> dict[str, Any]:
    sides = (OURS, PEER) if peer else (OURS,)
    machine = dict.fromkeys(("chip", "device", "cores", "memory_gib", "blas", "mlx"), word)
    training = {
        "first_update_seconds": _by_side(sides, 0.41, 0.82), "dtype": "float32",
        **_part(sides, [UPDATE], "updates"),
    }  # fmt: skip
    encoding = {
        "dtype": "float16", **_part(sides, PASSES, "texts"), "start_seconds": _by_side(sides, 0.3, 6.0),
        "many_lengths": {"texts": 1000, "lengths": 512, "process_memory_bytes": _process_memory(sides)},
    }  # fmt: skip
    return {
        "model": word, "layers": 6, "width": 384, "mlxbert": "0.1.0", "machine": machine,
        "peer": {"torch": word, "transformers": "5.23.0", "device": "mps"} if peer else None,
        "power": {"start": {**POWER, "thermal_pressure": "nominal"}, "end": {**POWER, "thermal_pressure": "heavy"}},
        "encoding": encoding, "training": training,
    }  # fmt: skip


def _by_side(sides: tuple[str, ...], *values: float) -> dict[str, float]:
    return dict(zip(sides, values, strict=False))


def _process_memory(sides: tuple[str, ...]) -> dict[str, dict[str, int]]:
    return {side: {"resident": 33_000_000, "footprint": 1_200_000_000} for side in sides}


def _part(sides: tuple[str, ...], shapes: Any, unit: str) -> dict[str, Any]:
    speeds = []
    for texts, tokens in shapes:
        speed = {"shape": f"{texts} x {tokens}", "texts": texts, "tokens_per_text": tokens, "tokens": texts * tokens}
        rates = {f"{unit}_per_second": 12.5, "tokens_per_second": 1600.0, "gflops": 1.0, "share": 0.5}
        seconds = {"seconds": 0.5, "slowest_seconds": 0.6, "fastest_seconds": 0.4}
        ratio = {"ratio": 2.5} if len(sides) > 1 else {}
        speeds.append({**speed, **{side: {**seconds, **rates} for side in sides}, **ratio})
    memory = {
        "peak_memory_bytes": _by_side(sides, 250e6, 1e9),
        "peak_memory_of": dict(zip(sides, ("arrays", "arrays and cache"), strict=False)),
        "process_memory_bytes": _process_memory(sides),
    }
    return {"limit_gflops": 50.0, "speeds": speeds, **memory}
