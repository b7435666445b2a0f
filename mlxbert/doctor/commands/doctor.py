"""`mlxbert doctor` and `mlxbert bench`: the state and the speed of this machine."""

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from mlxbert.cli import session
from mlxbert.cli.shared_options import ComputingOptions, OutputOptions
from mlxbert.cli.views import console, json_lines, progress
from mlxbert.doctor import mac_state, views
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.machine.missing_mlx import LINUX_WHEELS
from mlxbert.option_declarations import ROUNDS, Device, Option
from mlxbert.version import __version__

_WHEELS = ("mlx-metal", *LINUX_WHEELS)
_PACKAGES = ("mlx", *_WHEELS, "numpy", "tokenizers", "rich", "typer", "onnxruntime")
_READ_AS_NUMBERS = ("MLX_ENABLE_TF32", "MLX_SDPA_VJP_FALLBACK")
_CHECK_HINT = "--check tests its results"
_ROUNDS = 3  # of the measurement for a report
_SLOW = 10.0  # GFLOP/s: a core reaches 30 and more with a fast BLAS, at most 8 with the reference BLAS


def doctor(
    out: OutputOptions,
    device: Annotated[Device, Option("Device. With auto, the GPU if there is one.")] = "auto",
    check: Annotated[
        bool,
        Option(
            "Also check the device's results. It takes a minute, and covers operations, gradients, families, training."
        ),
    ] = False,
    quick: Annotated[
        bool,
        Option(
            "A quick check of about ten seconds. It covers the operations that all models use, and the update of "
            "training. With --check or --report it replaces the full check, and --report measures no speed."
        ),
    ] = False,
    report: Annotated[
        bool,
        Option(
            "Check the device, measure its speed and print a report to paste into an issue. It takes two minutes, with "
            "--quick ten seconds, and compares with torch if that is installed. The report names neither you nor your "
            "files."
        ),
    ] = False,
) -> None:
    """Show what mlxbert runs on: chip, device, dtype, BLAS and its measured speed, versions, and what to fix.

    Exit status: 1 if a check finds a fault.

    Example: mlxbert doctor
    """
    if report and out.json:
        raise ArgumentError(
            "--report cannot be combined with --json",
            hint="--check --json prints the facts of the report as JSON, and mlxbert bench --json its speeds",
        )
    console.require_stdout()
    facts = _report(device)
    checks = check or quick or report
    if checks:
        facts |= mac_state.power_state()
    _show(facts, partial(_check, device, quick=quick) if checks else None, out, report=report)
    for problem in facts["problems"]:
        console.say("hint", problem)
    if checks:
        _raise_faults(facts["check"])
    else:
        _ask_for_report(facts)
    if not facts["problems"]:
        speed = f"{facts['gflops']:,} GFLOP/s on the {facts['device']}"
        console.say("note", f"all is well: {speed}" if checks else f"nothing to fix: {speed}; {_CHECK_HINT}")


def _show(
    facts: dict[str, Any], check: Callable[[], dict[str, Any]] | None, out: OutputOptions, *, report: bool
) -> None:
    """Shows the facts and, if there is a check, its result; adds the result to the facts.

    In a terminal, the facts are drawn before the check runs, so that they are visible even if the user stops it.
    """
    drawn = not report and console.draws(out.json)
    if drawn:
        session.show_object(facts, lambda: views.draw(facts), out)
    if check is not None:
        facts["check"] = check()
    if report:
        json_lines.put_line(views.markdown(facts))
        if not facts["check"]["quick"]:
            json_lines.put_line(_measured(facts["device"]))
    elif not drawn:
        session.show_object(facts, tuple, out)
    elif check is not None:
        session.show_object(facts, lambda: views.draw_check(facts["check"]), out)


def _measured(device: Device) -> str:
    """Measures the built-in model for a report, next to torch if it is installed and computes on the same device."""
    peers: list[Peer | None] = ["torch", None] if _version("torch") and _version("transformers") else [None]
    problems = []
    for against in peers:
        try:
            measured = _measure(ComputingOptions(device=device), against, _ROUNDS)
        except MlxbertError as problem:
            problems.append(("not measured" if against is None else f"not compared with {against}", problem.message))
        else:
            return views.measured([*views.bench_facts(measured), *problems], views.bench_figures(measured))
    return views.measured(problems, [])


def _check(name: str, *, quick: bool) -> dict[str, Any]:
    with progress.steps() as on_step:
        from mlxbert.doctor.check.check_device import check

        return check(name, quick=quick, on_step=on_step)


def _raise_faults(check: Mapping[str, Any]) -> None:
    if not (faults := len(check["faults"])):
        return
    checks = sum(group["checks"] for group in check["groups"].values())
    consequences = len(check["consequences"])
    others = console.counted(consequences, "other failure")
    raise MlxbertError(
        f"{faults:,} of {checks:,} checks failed{f', which caused {others}' * bool(consequences)}",
        hint="please report this: `mlxbert doctor --report` prints a text without private data to paste into an issue",
    )


def _ask_for_report(facts: Mapping[str, Any]) -> None:
    """Asks for a report if nobody has reported on this Apple chip yet, at most once per version of MLX."""
    if "macos" not in facts or facts["device"] != "gpu" or facts["problems"]:
        return
    from mlxbert.doctor.reported_chips import asks_now, is_reported

    chip = str(facts["chip"])
    if not is_reported(chip) and asks_now(chip, facts["packages"].get("mlx", "")):
        request = (
            f"nobody has reported yet whether mlxbert computes correctly on {chip}; this command checks in a minute and"
        )
        console.say("note", f"{request} prints a text to paste into an issue:", "mlxbert doctor --report")


Peer = Literal["torch"]  # a library that `bench` compares mlxbert to


def bench(
    model: ComputingOptions,
    out: OutputOptions,
    against: Annotated[
        Peer | None, Option("Also measure another library, with the same model. It must be installed.")
    ] = None,
    rounds: Annotated[int, Option("Measure everything N times. The median is reported.", bounds=ROUNDS)] = 5,
) -> None:
    """Measure how fast this machine runs and fine-tunes a model: texts and updates per second, startup, memory.

    The default model has the layers and width of all-MiniLM-L6-v2. With it this takes half a minute on two CPU cores,
    and should take no longer on a GPU; with --against it takes two to three times as long.

    Texts have 32, 128 and 300 tokens, and are computed in batches of 32 from token ids to hidden states. Updates train
    a new classifier with batches of 16 texts of 128 tokens: forward and backward pass with dropout, clipping and AdamW.
    The first update is timed in a new process. The share is relative to the speed of multiplying large square matrices,
    which is roughly the device's peak.

    torch computes on the GPU (MPS or CUDA) if mlxbert does, else on the CPU.

    Exit status: 1 if torch or transformers is not installed, or torch finds no GPU where mlxbert computes on one.

    Example: mlxbert bench --model BAAI/bge-small-en-v1.5 --against torch
    """
    console.require_stdout()
    report = _measure(model, against, rounds)
    session.show_object(report, lambda: views.draw_bench(report), out)
    if "problem" in report["training"]:
        console.say("note", f"training was not measured: {report['training']['problem']}")
    if console.draws(out.json):
        console.say("note", "a row to share, for mlxbert's table of machines:", views.bench_line(report))


def _measure(model: ComputingOptions, against: Peer | None, rounds: int) -> dict[str, Any]:
    if model.dtype != "auto":
        from mlxbert.machine.device import use

        use(model.device)
        session.hint_emulated(model.dtype)
    with progress.waiting("measuring speed, training, start and memory"):
        from mlxbert.doctor.bench import bench as measure

        return measure(
            model.model, against=against, rounds=rounds, revision=model.revision, offline=model.offline,
            adapter=model.adapter, dtype=model.dtype, device=model.device,
        )  # fmt: skip


def _report(name: str) -> dict[str, Any]:
    from mlxbert.doctor import device_speed
    from mlxbert.machine import device
    from mlxbert.text.batch import default_batch_tokens

    device.use(name)
    versions = {name: version for name in _PACKAGES if (version := _version(name))}
    facts = device.describe()
    gflops = round(device_speed.measure_gflops(), 1)
    system = os.uname()
    return {
        "mlxbert": __version__,
        "python": platform.python_version(),
        "platform": f"{system.sysname} {system.release} {system.machine}",
        "system": _system(),
        "wheel": _wheel(versions, gpu=bool(facts["gpu_found"])),
        **{name: value for name, value in facts.items() if name not in ("blas_hint", "gpu_found")},
        "batch_tokens": default_batch_tokens(),
        "gflops": gflops,
        "python_path": sys.executable,
        "packages": versions,
        "problems": [
            *device_speed.mac_problems(), *filter(None, (_slow_blas(facts, gflops), _two_backends(versions))),
            *_misread_variables(),
        ],
    }  # fmt: skip


def _system() -> str:
    """Describes the system without details that identify the machine: `Linux x86_64, glibc 2.39`, or `Darwin arm64`."""
    system, libc = os.uname(), " ".join(filter(None, platform.libc_ver()))
    return ", ".join(filter(None, (f"{system.sysname} {system.machine}", libc)))


def _misread_variables() -> Iterator[str]:
    """Yields advice on environment variables that MLX reads as whole numbers, but that have other values.

    MLX then uses the leading digits of the value, or 0.
    """
    for name in _READ_AS_NUMBERS:
        value = os.environ.get(name, "0")
        if not re.fullmatch(r"\s*[-+]?[0-9]+\s*", value, re.ASCII):
            digits = re.match(r"\s*[-+]?[0-9]+", value, re.ASCII)
            number = int(digits[0][:20]) if digits else 0
            yield f"{name} is {value!r:.60}, which MLX reads as {number}; unset the variable, or set 0 or 1"


def _wheel(versions: dict[str, str], *, gpu: bool) -> str | None:
    """Returns the name and version of the wheel whose library MLX uses.

    If wheels for a CPU and for a GPU are both installed, the choice depends on whether MLX finds a GPU.
    """
    installed = [name for name in _WHEELS if name in versions]
    fitting = [name for name in installed if gpu == (name != "mlx-cpu")] or installed
    return f"{fitting[-1]} {versions[fitting[-1]]}" if fitting else None


def _slow_blas(device: Mapping[str, object], gflops: float) -> str | None:
    """Returns advice if matrix products on a CPU are slow."""
    if device["device"] != "cpu" or not sys.platform.startswith("linux"):
        return None
    if device["blas_hint"]:
        return str(device["blas_hint"])
    if device["blas"] == "reference":
        return "unset MLXBERT_BLAS, because MLXBERT_BLAS=off selects the reference BLAS, which is many times slower"
    if gflops < _SLOW:
        return (
            f"matrix products run at {gflops:,} GFLOP/s, expected at least 30 per core; either {device['blas_path']} "
            "is slow, or other programs keep the machine busy"
        )
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _two_backends(versions: dict[str, str]) -> str | None:
    """Returns advice if MLX's CPU and CUDA wheels are both installed: each overwrites the library of the other."""
    cuda = [name for name in ("mlx-cuda-12", "mlx-cuda-13") if name in versions]
    if "mlx-cpu" in versions and cuda:
        return f"uninstall mlx-cpu and {cuda[0]}, because each overwrites the other, then install one of the two"
    return None
