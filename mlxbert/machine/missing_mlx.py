"""Advice for a machine on which MLX cannot be loaded."""

import importlib.metadata
import platform
import re
import sys

from mlxbert.machine import mac
from mlxbert.other_libraries import pip_install

SUPPORTED = "mlxbert runs on Apple silicon (macOS 14 or newer) and on Linux with glibc 2.35 or newer (x86-64, arm64)"
LINUX_WHEELS = ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13")  # the package `mlx` alone has no library on Linux
_CPU = '"mlx[cpu]"'
_CUDA = '"mlx[cuda13]"'
_GLIBC, _MACHINES = (2, 35), ("x86_64", "aarch64")


def advice() -> str:
    """The reason why MLX cannot be loaded on this machine, or the package to install."""
    if (this_mac := mac.read_mac()) is not None:
        return next(iter(mac.problems(this_mac, metal=True)), SUPPORTED)
    if _runs_on_this_linux() and not any(map(_is_installed, LINUX_WHEELS)):
        return f"install a backend of MLX with {pip_install(_CPU)}, or for an NVIDIA GPU with {pip_install(_CUDA)}"
    return SUPPORTED


def _runs_on_this_linux() -> bool:
    libc, version = platform.libc_ver()
    numbers = tuple(map(int, re.findall("[0-9]+", version)[:2]))
    return sys.platform == "linux" and platform.machine() in _MACHINES and libc == "glibc" and numbers >= _GLIBC


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
