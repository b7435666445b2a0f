"""`mlxbert doctor`."""

import importlib.metadata
import platform
import sys
from typing import Any

from mlxbert import __version__
from mlxbert.cli import session
from mlxbert.cli.options import OutputOptions
from mlxbert.cli.views import console
from mlxbert.cli.views import doctor as view

_PACKAGES = ("mlx", "mlx-metal", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "numpy", "tokenizers", "rich", "typer")


def doctor(out: OutputOptions) -> None:
    """Show what mlxbert runs on: chip, device, dtype, BLAS and its measured speed, versions, and what to fix.

    Example: mlxbert doctor
    """
    report = _report()
    session.show_object(report, lambda: view.draw(report), out)
    for problem in report["problems"]:
        console.say("hint", problem)


def _report() -> dict[str, Any]:
    from mlxbert import device

    device.use()
    versions = {name: version for name in _PACKAGES if (version := _version(name))}
    found = device.describe()
    return {
        "mlxbert": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: value for name, value in found.items() if name != "blas_hint"},
        "gflops": round(device.measure_gflops(), 1),
        "python_path": sys.executable,
        "packages": versions,
        "problems": [hint for hint in (found["blas_hint"], _two_backends(versions)) if hint],
    }


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
