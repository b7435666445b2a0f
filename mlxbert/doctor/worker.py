"""`python -m mlxbert.doctor.worker JOB`: a process that computes forward passes or steps of training on request.

JOB is a `WorkerJob` as JSON. A worker for torch does not import MLX, because torch would then use the BLAS that MLX
loads, and its products would run at a fraction of their speed.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.doctor import mac_state
from mlxbert.doctor.torch_peer import torch_side
from mlxbert.doctor.training_steps import Step, measured, our_classifier, our_step, token_ids
from mlxbert.doctor.worker_job import OURS, MeasuredLibrary, Spent, Work, WorkerJob
from mlxbert.errors import MlxbertError

if TYPE_CHECKING:
    from mlxbert.config import EncoderConfig
    from mlxbert.model import Model

_LIMIT_SIZE = {"cpu": 1024, "gpu": 8192}  # of the square matrices whose product sets the limit
_PASSES = 3  # products in a training step per product in a forward pass: the backward pass adds two
_FIRST = 8  # tokens of the first text; the time to start ends with its result


def main(job: WorkerJob) -> None:
    """Reports on stdout that the worker has started, then answers each request on stdin; also reports errors.

    The facts about machine and model are reported right after the start or, for training, after the first answer.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries goes to stderr

    def answer(values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    try:
        _serve(job, answer)
    except MlxbertError as problem:
        answer({"problem": problem.message, "hint": problem.hint})


def _serve(job: WorkerJob, answer: Callable[[Any], None]) -> None:
    side = (_ours if job.side == OURS else torch_side)(job)
    if not job.train:  # the first step of training is measured separately
        side.compute([_FIRST])
    answer({})
    memory = side.memory or peak_memory
    peak = memory()  # after loading; `facts` resets the peak
    reported = not job.train and _report(side, answer)  # before the first step, reporting would do part of its work
    for line in sys.stdin:
        request = json.loads(line)
        spent = repeated(side.compute, request["lengths"], request["least"])
        peak = max(peak, memory())
        answer({**spent, "memory": peak, "process_memory": process_memory()})
        reported = reported or _report(side, answer)


def _report(side: MeasuredLibrary, answer: Callable[[Any], None]) -> bool:
    answer({**side.facts(), "memory_of": side.memory_of})
    return True


def repeated(compute: Work, lengths: Sequence[int], least: float) -> Spent:
    """Repeats a computation until it has taken `least` seconds in all; returns the mean times of one computation."""
    results = [compute(lengths)]
    while sum(spent["seconds"] for spent in results) < least:
        results.append(compute(lengths))
    return {name: sum(spent[name] for spent in results) / len(results) for name in results[0]}


def _ours(job: WorkerJob) -> MeasuredLibrary:
    from mlxbert.loading import load
    from mlxbert.machine import device as devices
    from mlxbert.machine.device import mx

    devices.use(job.device)
    kernels = kernels_kept()  # before a model is loaded, which compiles kernels
    reload = partial(load, job.folder, dtype="float32" if job.train else job.dtype, device=job.device)
    model = reload()
    weights = sum(array.size for array in _matrices(model.network.encoder))
    facts = partial(_facts, model.config, weights, job.dtype, job.train, kernels)
    loaded = [model]  # for the first lengths; training drops it afterwards, because memory is measured

    def make(lengths: Sequence[int]) -> Step:
        fresh = (loaded.pop() if job.train else loaded[0]) if loaded else reload()
        ids = token_ids(lengths, fresh.config.vocab_size, fresh.config.pad_token_id)
        return our_step(fresh, *our_classifier(fresh, ids), job.dtype) if job.train else _pass(fresh, ids[0])

    memory = (mx.get_peak_memory, "arrays") if devices.on_gpu() else (None, "process")
    return MeasuredLibrary(measured(make), facts, *memory)


def _pass(model: "Model", ids: list[list[int]]) -> Step:
    """Returns a function that runs and times a forward pass on one batch of texts, in the way that tasks run it."""
    from mlxbert.machine.device import mx
    from mlxbert.nn.encoder import Batch
    from mlxbert.nn.ops import inference
    from mlxbert.tasks.runner import run_batches
    from mlxbert.text.encoding import Encoding

    none: list[int | None] = []
    inputs = [Encoding(row, [0] * len(row), [(0, 0)] * len(row), none, none, [*range(len(row))], False) for row in ids]
    tokens = sum(map(len, ids))

    def forward(batch: Batch, group: list[int]) -> mx.array:
        with inference():
            return model.network.encode(batch).last_hidden_state

    def step() -> Spent:
        mx.synchronize()
        started = time.perf_counter()
        for _ in run_batches(inputs, forward, lambda output, group: group, model.config, tokens):
            pass
        return {"seconds": time.perf_counter() - started}

    return step


def kernels_kept() -> bool | None:
    """Whether earlier processes left compiled kernels in MLX's cache folder; `None` if MLX has no such folder.

    It has one only for CUDA (see `mlxbert.machine.kernel_cache`); on a Mac, the system caches Metal's kernels.
    """
    from mlxbert.machine import device as devices
    from mlxbert.machine.kernel_cache import VARIABLE

    folder = os.environ.get(VARIABLE)
    if not folder or not devices.on_cuda():
        return None
    return any(Path(folder).glob("*.ptx"))


def _facts(config: "EncoderConfig", weights: int, dtype: str, train: bool, kernels: bool | None) -> dict[str, Any]:
    """Returns facts about the machine, the dtype and the model, which `mlxbert.doctor` needs for its report.

    `weights` is the number of weights in the matrices of all stored layers.
    """
    from mlxbert.config import Rotary
    from mlxbert.doctor import device_speed
    from mlxbert.machine import device as devices
    from mlxbert.machine.device import mx
    from mlxbert.nn.ops import backend

    rotations = config.positions.rotations if isinstance(config.positions, Rotary) else ()
    windows = [rotations[stored].window if rotations else None for stored in config.layer_schedule]
    machine = {key: value for key, value in devices.describe().items() if key not in ("blas_hint", "gpu_found")}
    chosen, passes = devices.choose_dtype(dtype), _PASSES if train else 1
    backend().join_cores()  # a batch in parts leaves BLAS one thread, but the limit is for all cores
    facts = {
        "per_token": 2 * passes * weights / config.num_stored_layers,
        "per_score": 4 * passes * config.hidden_size,
        "spans": [window and 2 * window + 1 for window in windows], "dtype": devices.dtype_name(chosen),
        "limit": device_speed.measure_gflops(_LIMIT_SIZE[str(machine["device"])], dtype=chosen),
        "machine": {**machine, "mlx": version("mlx")},
        "kernels_kept": kernels,
    }  # fmt: skip
    mx.clear_cache()
    mx.reset_peak_memory()  # on a GPU, the large matrices of the limit would be the peak
    return facts


def _matrices(encoder: Any) -> list[Any]:
    from mlxbert.machine.device import nn

    return [
        module.weight for name, module in encoder.named_modules()
        if name.startswith("layers.") and isinstance(module, nn.Linear)
    ]  # fmt: skip


def process_memory() -> dict[str, int]:
    """Returns the memory of this process now, in bytes; empty if the system does not say.

    `resident` is in main memory. `footprint`, on a Mac, also counts what Metal has allocated for the process.
    """
    if sys.platform == "linux":
        return {"resident": _linux_memory("VmRSS")}
    return mac_state.process_memory() if sys.platform == "darwin" else {}


def _linux_memory(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def peak_memory() -> int:
    """Returns the peak memory of this process, in bytes."""
    if sys.platform == "linux":  # not `ru_maxrss`, which starts from the peak of the parent process
        return _linux_memory("VmHWM")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    main(WorkerJob(**json.loads(sys.argv[1])))
