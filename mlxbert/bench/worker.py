"""`python -m mlxbert.bench.worker FOLDER SIDE DTYPE DEVICE`: a process that is asked for forward passes.

Only mlxbert's side imports what computes with MLX: the BLAS that it loads would take over torch's own products, too,
and they would run at a fraction of their speed.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

OURS, PEER = "mlxbert", "torch"
_PEER_BATCH = 32  # the default of sentence-transformers
_LIMIT_SIZE = {"cpu": 1024, "gpu": 8192}  # of the square matrices whose product is the limit
Work = Callable[[Sequence[int]], float]


def _serve(folder: str, side: str, dtype: str, device: str) -> None:
    """Answers on stdout: that it has started, what it is, and then each line of stdin, the lengths of inputs."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else a library prints

    def answer(found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    compute, facts, memory = (_ours if side == OURS else _torch)(Path(folder), dtype, device)
    compute([8])
    answer({})
    answer(facts())
    for line in sys.stdin:
        shape = json.loads(line)
        answer({"seconds": compute(shape) if shape else None, "memory": memory()})


def _ours(folder: Path, dtype: str, device: str) -> tuple[Work, Callable[[], Any], Callable[[], int]]:
    from mlxbert.bench.thresholds import thresholds
    from mlxbert.config import Rotary
    from mlxbert.machine import device as devices
    from mlxbert.machine.cores import inference
    from mlxbert.machine.device import mx
    from mlxbert.model import load
    from mlxbert.nn.encoder import Batch
    from mlxbert.tasks.runner import run_batches
    from mlxbert.text.encoding import Encoding

    model = load(folder, dtype=dtype, device=device)
    none: list[int | None] = []

    def compute(shape: Sequence[int]) -> float:
        rng = random.Random(1)
        inputs = []
        for length in shape:
            ids = [rng.randrange(model.config.vocab_size) for _ in range(length)]
            inputs.append(Encoding(ids, [0] * length, [(0, 0)] * length, none, none, [*range(length)], False))
        begun = time.perf_counter()
        even = len({*shape}) == 1  # one batch
        budget = sum(shape) if even else None

        def forward(batch: Batch, group: list[int]) -> mx.array:
            with inference():
                return model.network.encode(batch).last_hidden_state

        for _ in run_batches(inputs, forward, lambda found, group: group, model.config, budget):
            pass
        return time.perf_counter() - begun

    def facts() -> dict[str, Any]:
        config, encoder = model.config, model.network.encoder
        matrices = sum(array.size for array in _matrices(encoder)) / config.num_stored_layers
        rotations = config.positions.rotations if isinstance(config.positions, Rotary) else ()
        windows = [rotations[stored].window if rotations else None for stored in config.layer_schedule]
        machine = {key: value for key, value in devices.describe().items() if key not in ("blas_hint", "gpu_found")}
        chosen = devices.choose_dtype(dtype)
        return {
            "most": min(config.max_length, 512), "per_token": 2 * matrices, "per_score": 4 * config.hidden_size,
            "spans": [window and 2 * window + 1 for window in windows], "dtype": devices.dtype_name(chosen),
            "limit": devices.measure_gflops(_LIMIT_SIZE[str(machine["device"])], dtype=chosen),
            "machine": {**machine, "mlx": version("mlx")},
            "thresholds": thresholds(chosen) if devices.on_gpu() else None,
        }  # fmt: skip

    return compute, facts, lambda: mx.get_peak_memory() if devices.on_gpu() else peak_memory()


def _matrices(encoder: Any) -> list[Any]:
    from mlxbert.machine.device import nn

    return [
        module.weight for name, module in encoder.named_modules()
        if name.startswith("layers.") and isinstance(module, nn.Linear)
    ]  # fmt: skip


def _torch(folder: Path, dtype: str, device: str) -> tuple[Work, Callable[[], Any], Callable[[], int]]:
    """Transformers' model, in batches of that many texts of similar length, as sentence-transformers makes them."""
    import torch
    from transformers import AutoModel

    name = "cpu" if device == "cpu" else _torch_gpu(torch)
    model = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).to(name).eval()

    def compute(shape: Sequence[int]) -> float:
        ordered = sorted(shape)
        begun = time.perf_counter()
        with torch.inference_mode():
            for first in range(0, len(ordered), _PEER_BATCH):
                part = ordered[first : first + _PEER_BATCH]
                ids = torch.randint(0, model.config.vocab_size, (len(part), part[-1]), device=name)
                mask = torch.arange(part[-1], device=name) < torch.tensor(part, device=name)[:, None]
                given = {} if part[0] == part[-1] else {"attention_mask": mask.long()}
                model(ids, **given).last_hidden_state.sum().item()
        return time.perf_counter() - begun

    allocated = {"cuda": torch.cuda.max_memory_allocated, "mps": torch.mps.driver_allocated_memory, "cpu": peak_memory}
    return compute, dict, allocated[name]


def _torch_gpu(torch: Any) -> str:
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    from mlxbert.errors import MlxbertError

    raise MlxbertError("torch finds no GPU here, but MLX does", hint="--device cpu compares both on the CPU")


def peak_memory() -> int:
    """The most memory that this process has had, in bytes."""
    if sys.platform == "linux":  # not `ru_maxrss`, which begins with that of the process that started this one
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    _serve(*sys.argv[1:])
