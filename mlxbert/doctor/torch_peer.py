"""Runs torch for `mlxbert bench --against torch`: chooses device and precision, and computes passes and steps.

Importing this module loads neither MLX nor torch (see `mlxbert.doctor.worker` for the reason).
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

from mlxbert.doctor.training_steps import Step, checked, measured, their_classifier, their_step, token_ids, wait_for
from mlxbert.doctor.worker_job import MeasuredLibrary, Spent, WorkerJob
from mlxbert.errors import MlxbertError


def torch_side(job: WorkerJob) -> MeasuredLibrary:
    """Makes the `MeasuredLibrary` that runs transformers on torch, on the same kind of device as mlxbert.

    Its first step of training fails if torch cannot train in the dtype of the job (see `check_training`).
    """
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    device = device_name(torch, job.device)
    match_precision(torch, tf32=job.tf32)
    if job.train:
        model = AutoModelForSequenceClassification.from_pretrained(job.folder, dtype=torch.float32).to(device).train()
    else:
        model = AutoModel.from_pretrained(job.folder, dtype=getattr(torch, job.dtype)).to(device).eval()
    pad = model.config.pad_token_id or 0
    checks: list[Callable[[], None]] = [partial(check_training, torch, device, job.dtype)]

    def make(lengths: Sequence[int]) -> Step:
        ids = token_ids(lengths, model.config.vocab_size, pad)
        if not job.train:
            return _pass(model, ids[0])
        return checked(their_step(model, their_classifier(ids, pad, device), job.dtype), checks)

    memory, memory_of = device_memory(torch, device)
    about = {"torch": torch.__version__, "transformers": version("transformers"), "device": device}
    return MeasuredLibrary(measured(make), lambda: {"peer": about}, memory, memory_of)


def device_name(torch: Any, device: str) -> str:
    """Returns torch's name for a device: `mps` or `cuda` if `device` is `gpu`, otherwise `cpu`."""
    if device == "cpu":
        return "cpu"
    if torch.backends.mps.is_available():
        return "mps"
    if torch.cuda.is_available():
        return "cuda"
    raise MlxbertError(
        f"mlxbert computes on the GPU here, but torch {torch.__version__} finds no GPU (neither MPS nor CUDA)",
        hint="install a torch for this GPU, or compare both on the CPU with `device='cpu'`",
    )


def match_precision(torch: Any, *, tf32: bool) -> None:
    """Makes torch compute float32 products as mlxbert does: in full precision, unless TF32 is allowed."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def device_memory(torch: Any, device: str) -> tuple[Callable[[], int] | None, str]:
    """Returns a function that measures the memory of a device in bytes, and the kind of memory (see `MeasuredLibrary`).

    On MPS, torch records no peak. Instead, the memory that Metal has allocated is measured, which shrinks only if
    memory runs low.
    """
    if device == "cuda":
        return torch.cuda.max_memory_allocated, "arrays"
    if device == "mps":
        return torch.mps.driver_allocated_memory, "arrays and cache"
    return None, "process"


def check_training(torch: Any, device: str, dtype: str) -> None:
    """Raises `MlxbertError` if torch cannot train in a dtype; tries a small layer with mixed precision.

    The trial is needed because torch only logs a warning and uses float32 if mixed precision is not supported.
    """
    layer = torch.nn.Linear(8, 8, device=device)
    x, problem = torch.ones((2, 8), device=device), ""
    try:
        with torch.autocast(device, getattr(torch, dtype), enabled=dtype != "float32"):
            y = layer(x)
        if y.dtype != getattr(torch, dtype):
            problem = f"autocast computes in {str(y.dtype).removeprefix('torch.')}"
        scaler = torch.amp.GradScaler(device, enabled=dtype == "float16")
        scaler.scale(y.float().sum()).backward()
        optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    except (RuntimeError, TypeError) as error:  # TypeError: the scaler needs float64 on MPS before torch 2.8
        problem = f"{error}".partition("\n")[0]
    if problem:
        raise MlxbertError(
            f"torch {torch.__version__} cannot train in {dtype} on {device} ({problem:.200})",
            hint="try a newer torch" + ", or train both with `dtype='float32'`" * (dtype != "float32"),
        )


def _pass(model: Any, ids: list[list[int]]) -> Step:
    """Returns a function that runs and times a forward pass, starting from token ids in CPU memory."""
    import torch

    batch, device = torch.tensor(ids), model.device

    def step() -> Spent:
        wait_for(device.type)
        started = time.perf_counter()
        with torch.inference_mode():
            model(batch.to(device))
        wait_for(device.type)
        return {"seconds": time.perf_counter() - started}

    return step
