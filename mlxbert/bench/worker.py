"""`python -m mlxbert.bench.worker FOLDER SIDE DTYPE DEVICE [train]`: is asked for forward passes or training steps.

Only mlxbert's side imports what computes with MLX: the BLAS that it loads would take over torch's own products, too,
and they would run at a fraction of their speed.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.bench.steps import Spent, Step, measured, our_classifier, our_step, their_classifier, their_step, token_ids

if TYPE_CHECKING:
    from mlxbert.config import EncoderConfig
    from mlxbert.model import Model

OURS, PEER = "mlxbert", "torch"
_PEER_BATCH = 32  # the default of sentence-transformers
_LIMIT_SIZE = {"cpu": 1024, "gpu": 8192}  # of the square matrices whose product is the limit
_PASSES = 3  # as many products has a step of training: each of a forward pass has two in the backward pass
Work = Callable[[Sequence[int]], Spent]


def _serve(folder: str, side: str, dtype: str, device: str, train: str = "") -> None:
    """Answers on stdout: that it has started, what it is, and then each line of stdin, the lengths of inputs."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else a library prints

    def answer(found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    compute, facts, memory = (_ours if side == OURS else _torch)(Path(folder), dtype, device, bool(train))
    compute([8])
    answer({})
    answer(facts())
    for line in sys.stdin:
        shape = json.loads(line)
        answer({**(compute(shape) if shape else {}), "memory": memory()})


def _ours(folder: Path, dtype: str, device: str, train: bool) -> tuple[Work, Callable[[], Any], Callable[[], int]]:
    from mlxbert.machine import device as devices
    from mlxbert.machine.device import mx
    from mlxbert.model import load

    model = load(folder, dtype="float32" if train else dtype, device=device)
    facts = partial(_facts, model.config, sum(array.size for array in _matrices(model.network.encoder)), dtype, train)
    memory = mx.get_peak_memory if devices.on_gpu() else peak_memory
    if not train:
        return partial(_forward, model), facts, memory
    loaded = [model]  # for the first step; it is not kept, as memory is measured

    def make(lengths: Sequence[int]) -> Step:
        fresh = loaded.pop() if loaded else load(folder, dtype="float32", device=device)
        ids = token_ids(lengths, fresh.config.vocab_size, fresh.config.pad_token_id)
        return our_step(fresh, *our_classifier(fresh, ids), dtype)

    return measured(make), facts, memory


def _forward(model: "Model", shape: Sequence[int]) -> Spent:
    """One pass of mlxbert."""
    from mlxbert.machine.cores import inference
    from mlxbert.machine.device import mx
    from mlxbert.nn.encoder import Batch
    from mlxbert.tasks.runner import run_batches
    from mlxbert.text.encoding import Encoding

    rng = random.Random(1)
    none: list[int | None] = []
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
    return {"seconds": time.perf_counter() - begun}


def _facts(config: "EncoderConfig", weights: int, dtype: str, train: bool) -> dict[str, Any]:
    """What the worker says of itself; `weights` are those of the matrices of all stored layers."""
    from mlxbert.bench.thresholds import thresholds
    from mlxbert.config import Rotary
    from mlxbert.machine import device as devices

    rotations = config.positions.rotations if isinstance(config.positions, Rotary) else ()
    windows = [rotations[stored].window if rotations else None for stored in config.layer_schedule]
    machine = {key: value for key, value in devices.describe().items() if key not in ("blas_hint", "gpu_found")}
    chosen, passes = devices.choose_dtype(dtype), _PASSES if train else 1
    return {
        "most": min(config.max_length, 512), "per_token": 2 * passes * weights / config.num_stored_layers,
        "per_score": 4 * passes * config.hidden_size,
        "spans": [window and 2 * window + 1 for window in windows], "dtype": devices.dtype_name(chosen),
        "limit": devices.measure_gflops(_LIMIT_SIZE[str(machine["device"])], dtype=chosen),
        "machine": {**machine, "mlx": version("mlx")},
        "thresholds": thresholds(chosen) if devices.on_gpu() and not train else None,
    }  # fmt: skip


def _matrices(encoder: Any) -> list[Any]:
    from mlxbert.machine.device import nn

    return [
        module.weight for name, module in encoder.named_modules()
        if name.startswith("layers.") and isinstance(module, nn.Linear)
    ]  # fmt: skip


def _torch(folder: Path, dtype: str, device: str, train: bool) -> tuple[Work, Callable[[], Any], Callable[[], int]]:
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    name = "cpu" if device == "cpu" else _torch_gpu(torch)
    allocated = {"cuda": torch.cuda.max_memory_allocated, "mps": torch.mps.driver_allocated_memory, "cpu": peak_memory}
    if not train:
        model = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).to(name).eval()
        return partial(_torch_forward, model), dict, allocated[name]
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).to(name).train()
    pad = model.config.pad_token_id or 0

    def make(lengths: Sequence[int]) -> Step:
        ids = token_ids(lengths, model.config.vocab_size, pad)
        return their_step(model, their_classifier(ids, pad, name), dtype)

    return measured(make), dict, allocated[name]


def _torch_forward(model: Any, shape: Sequence[int]) -> Spent:
    """One pass in batches of that many texts of similar length, as sentence-transformers makes them."""
    import torch

    ordered = sorted(shape)
    begun = time.perf_counter()
    with torch.inference_mode():
        for first in range(0, len(ordered), _PEER_BATCH):
            part = ordered[first : first + _PEER_BATCH]
            ids = torch.randint(0, model.config.vocab_size, (len(part), part[-1]), device=model.device)
            mask = torch.arange(part[-1], device=model.device) < torch.tensor(part, device=model.device)[:, None]
            given = {} if part[0] == part[-1] else {"attention_mask": mask.long()}
            model(ids, **given).last_hidden_state.sum().item()
    return {"seconds": time.perf_counter() - begun}


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
