"""`mlxbert doctor` and `mlxbert bench`: what this machine runs on, and how fast."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from mlxbert.cli import session
from mlxbert.cli.options import ComputingOptions, OutputOptions
from mlxbert.cli.views import bench as bench_view, console, doctor as view, progress
from mlxbert.errors import MlxbertError
from mlxbert.options import Device, Option
from mlxbert.version import __version__

_WHEELS = ("mlx-metal", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13")
_PACKAGES = ("mlx", *_WHEELS, "numpy", "tokenizers", "rich", "typer")
_SLOW = 10.0  # GFLOP/s: a core with a fast BLAS has 30 and more, the reference BLAS at most 8


def doctor(
    out: OutputOptions,
    device: Annotated[Device, Option("Device. With auto it is the GPU if there is one.")] = "auto",
    check: Annotated[
        bool, Option("Also check what the device computes, kernel by kernel. It takes a minute, on a CPU some minutes.")
    ] = False,
) -> None:
    """Show what mlxbert runs on: chip, device, dtype, BLAS and its measured speed, versions, and what to fix.

    Exit status: 1 if --check finds a fault.

    Example: mlxbert doctor
    """
    report = _report(device)
    if check:
        report["check"] = _check(device)
    session.show_object(report, lambda: view.draw(report), out)
    for problem in report["problems"]:
        console.say("hint", problem)
    faults = len(report["check"]["faults"]) if check else 0
    if faults:
        checks = sum(group["checks"] for group in report["check"]["groups"].values())
        raise MlxbertError(f"{faults:,} of {checks:,} checks failed", hint="a bug report should have this output")
    if not report["problems"]:
        console.say("note", f"all is well: {report['gflops']:,} GFLOP/s on the {report['device']}")


def _check(name: str) -> dict[str, Any]:
    with progress.waiting("checking kernels, families, training and speed: a minute, on a CPU some minutes"):
        from mlxbert.bench.check import check

        return check(name)


Peer = Literal["torch"]  # what `bench` measures besides mlxbert


def bench(
    model: ComputingOptions,
    out: OutputOptions,
    against: Annotated[
        Peer | None, Option("Another library. If it is installed, it is measured in turn on the same model.")
    ] = None,
    train: Annotated[
        bool, Option("Measure training alone, at more shapes. On a CPU also show where the time goes.")
    ] = False,
    rounds: Annotated[int, Option("Measure everything N times. The median is reported.")] = 5,
) -> None:
    """Measure how fast this machine runs and fine-tunes a model: texts per second, updates, start, memory.

    The default model has the layers and width of all-MiniLM-L6-v2. With it this takes half a minute on two CPU cores,
    and should take no longer on a GPU; with --against it takes two to three times as long.

    Texts have 32, 128 and 300 tokens, and go in batches of 32 from token ids to hidden states. Updates train a new
    classifier with batches of 16 texts of 128 tokens: forward and backward pass with dropout, clipping and AdamW. The
    first update is that of a new process. The share is relative to multiplying large square matrices, roughly the
    device's peak.

    Torch computes on the GPU (MPS or CUDA) if mlxbert does, else on the CPU.

    Exit status: 1 if torch finds no GPU where mlxbert computes on one.

    Example: mlxbert bench --model BAAI/bge-small-en-v1.5 --against torch
    """
    report = _measure(model, against, train, rounds)
    session.show_object(report, lambda: bench_view.draw(report), out)
    if "problem" in report["training"]:
        console.say("note", f"training was not measured: {report['training']['problem']}")
    if console.draws(out.json) and not train:
        console.say("note", "a row to share, for mlxbert's table of machines:", bench_view.line(report))


def _measure(model: ComputingOptions, against: Peer | None, train: bool, rounds: int) -> dict[str, Any]:
    with progress.waiting("measuring speed, training, start and memory"):
        from mlxbert.bench.measure import bench as measure

        return measure(
            model.model, against=against, train=train, rounds=rounds, revision=model.revision,
            offline=model.offline, adapter=model.adapter, dtype=model.dtype, device=model.device,
        )  # fmt: skip


def _report(name: str) -> dict[str, Any]:
    from mlxbert.machine import device
    from mlxbert.text.batch import default_batch_tokens

    device.use(name)
    versions = {name: version for name in _PACKAGES if (version := _version(name))}
    found = device.describe()
    gflops = round(device.measure_gflops(), 1)
    system = os.uname()
    return {
        "mlxbert": __version__,
        "python": platform.python_version(),
        "platform": f"{system.sysname} {system.release} {system.machine}",
        "wheel": _wheel(versions, gpu=bool(found["gpu_found"])),
        **{name: value for name, value in found.items() if name not in ("blas_hint", "gpu_found")},
        "batch_tokens": default_batch_tokens(),
        "gflops": gflops,
        "python_path": sys.executable,
        "packages": versions,
        "problems": [*device.mac_problems(), *filter(None, (_slow_blas(found, gflops), _two_backends(versions)))],
    }


def _wheel(versions: dict[str, str], *, gpu: bool) -> str | None:
    """The wheel whose library MLX runs: of two in the same place, the one that finds a GPU or does not."""
    installed = [name for name in _WHEELS if name in versions]
    fitting = [name for name in installed if gpu == (name != "mlx-cpu")] or installed
    return f"{fitting[-1]} {versions[fitting[-1]]}" if fitting else None


def _slow_blas(found: Mapping[str, object], gflops: float) -> str | None:
    """Advice where matrix products on a CPU are slow."""
    if found["device"] != "cpu" or not sys.platform.startswith("linux"):
        return None
    if found["blas_hint"]:
        return str(found["blas_hint"])
    if found["blas"] == "reference":
        return "MLXBERT_BLAS=off selects the reference BLAS, many times slower than this machine allows: unset it"
    if gflops < _SLOW:
        return (
            f"matrix products run at {gflops:,} GFLOP/s, expected 30 and more per core: {found['blas_path']} is slow, "
            "or other programs keep the machine busy"
        )
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _two_backends(versions: dict[str, str]) -> str | None:
    """MLX's CPU and CUDA wheels install the same library in the same place, and the last one installed runs."""
    cuda = [name for name in ("mlx-cuda-12", "mlx-cuda-13") if name in versions]
    if "mlx-cpu" in versions and cuda:
        return f"mlx-cpu and {cuda[0]} are both installed and overwrite each other: uninstall both, then install one"
    return None
