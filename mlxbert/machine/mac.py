"""Reads the facts about a Mac, and finds problems that keep mlxbert from being correct and fast on it.

Nothing here imports MLX, which is not available for Intel builds of Python.
"""

import ctypes
import functools
import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlxbert.other_libraries import pip_install

_OLDEST = 14  # the oldest macOS that MLX has wheels for
# MLX's wheel for macOS 26 is built for 26.2 and uses the matrix units of M5 chips. It does so on 26.0 and 26.1, too,
# which do not support them (ml-explore/mlx#4525); MLX's wheels for older systems do not use them at all.
_UNITS = (26, 2)
_FIRST_WITH_UNITS = 5  # M5
# How many times as fast float16 products are as float32 ones: at most about 1.2 on chips without matrix units, and 3 or
# more with them, according to Apple and to reports; not measured by us.
_LEAST_GAIN = 1.5
_FIRST_DARWIN, _DARWIN_BY_YEAR = 20, 25  # the kernel versions of macOS 11 and 26
_SMALL = 8 * 2**30  # bytes of memory
_HOST_VM_INFO64, _VM_WORDS = 4, 38  # Mach's number of `struct vm_statistics64`, and its size in words of 32 bits

GpuSize = Literal["small", "medium", "large"]


@dataclass(frozen=True)
class Mac:
    """A Mac as its system describes it."""

    chip: str  # the chip, such as `Apple M4 Pro` or `Intel(R) Core(TM) …`
    macos: str  # the true version of macOS; to some builds of Python, the system reports another, such as 16.2 for 26.2
    python: str  # the architecture that this Python is built for: `arm64` or `x86_64`
    translated: bool  # whether Rosetta translates this Python
    virtual: bool  # whether the Mac is a virtual machine
    # The system that the installed wheel of MLX is for, such as `macosx_26_0_arm64`; `None` if unknown.
    wheel: str | None


def read_mac() -> Mac | None:
    """Returns the facts about this Mac; `None` on another system."""
    if sys.platform != "darwin":
        return None
    return Mac(
        chip=_text("machdep.cpu.brand_string") or platform.processor(),
        macos=_macos(_text("kern.osrelease"), _text("kern.osproductversion") or platform.mac_ver()[0]),
        python=platform.machine(),
        translated=_is_set("sysctl.proc_translated"),
        virtual=_is_set("kern.hv_vmm_present"),
        wheel=_wheel(),
    )


def sysctl(name: str) -> bytes | None:
    """Returns a kernel value as raw bytes; `None` if no value has this name."""
    call, key, size = ctypes.CDLL(None).sysctlbyname, name.encode(), ctypes.c_size_t(0)
    if call(key, None, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return None
    data = ctypes.create_string_buffer(size.value)
    if call(key, data, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return None
    return data.raw[: size.value]


def unused_memory() -> int | None:
    """Returns the bytes of memory that programs do not hold, or can be made to give back at once; `None` if unknown.

    These are the free and the inactive pages, as psutil counts what is available. `struct vm_statistics64` (XNU,
    osfmk/mach/vm_statistics.h) begins with the numbers of free, active and inactive pages. The free pages include the
    speculative ones, and the other queues the purgeable ones, so neither are added.
    """
    words, count = (ctypes.c_uint32 * _VM_WORDS)(), ctypes.c_uint32(_VM_WORDS)
    if ctypes.CDLL(None).host_statistics64(_host(), _HOST_VM_INFO64, words, ctypes.byref(count)):
        return None
    free, _, inactive = words[:3]
    return (free + inactive) * os.sysconf("SC_PAGE_SIZE")


@functools.cache  # each call adds a reference to the port
def _host() -> int:
    return int(ctypes.CDLL(None).mach_host_self())


def _text(name: str) -> str:
    return (sysctl(name) or b"").rstrip(b"\0").decode("utf-8", "replace")


def _is_set(name: str) -> bool:
    return any(sysctl(name) or b"")  # a number


def _macos(darwin: str, product: str) -> str:
    """Returns the version of macOS.

    A program that was built for an older system gets a masked product version: 10.16, or 16.2 for 26.2 (XNU,
    `sysctl_osproductversion` in bsd/kern/kern_sysctl.c). The kernel version is never masked: macOS 11 to 15 have Darwin
    20 to 24, and 26.2 has 25.2. Only masked versions are replaced: other systems may number kernels differently.

    Args:
        darwin: The kernel version, such as `25.2.0`.
    """
    kernel = _version(darwin)
    if len(kernel) < 2 or kernel[0] < _FIRST_DARWIN:  # no version, or a system before macOS 11
        return product
    major = kernel[0] + 1 if kernel[0] >= _DARWIN_BY_YEAR else kernel[0] - 9
    masked = _version(product)[:2] == (10, 16) or _version(product)[:1] in ((16,), ())
    return f"{major}.{kernel[1]}" if masked else product


def _wheel() -> str | None:
    import importlib.metadata  # takes a twentieth of the startup time, and only Macs need it

    try:
        metadata = importlib.metadata.distribution("mlx-metal").read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        return None
    tag = re.search(r"^Tag: .*-(macosx_\w+)$", metadata, re.MULTILINE)
    return tag[1] if tag else None


def power_source() -> str | None:
    """Returns where this Mac draws its power from: `AC Power`, `Battery Power` or `UPS Power`."""
    source = re.search(r"drawing from '(.+?)'", output_of("/usr/bin/pmset", "-g", "batt"))
    return source[1] if source else None


def output_of(*command: str) -> str:
    """Returns what a program of the system prints; nothing if it cannot be run."""
    import subprocess

    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).stdout.decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        return ""


def problems(mac: Mac, *, metal: bool, float16_gain: Callable[[], float] | None = None) -> list[str]:
    """The problems that keep MLX from running, or from running at full speed, each with advice.

    Args:
        metal: Whether MLX finds a GPU.
        float16_gain: Measures how many times as fast products are in float16 as in float32; `None` not to
            measure.
    """
    if mac.translated:
        return [
            "this Python is built for Intel and runs under Rosetta, but MLX needs a Python for Apple silicon; install "
            "one with `brew install python` or `uv python install 3.13` in a terminal without Rosetta, then make a new "
            "environment"
        ]
    if mac.python != "arm64":
        return [f"this Mac has the chip {mac.chip}, but MLX needs Apple silicon"]
    if _version(mac.macos) < (_OLDEST,):
        return [f"this is macOS {mac.macos}, but MLX needs macOS {_OLDEST} or newer"]
    messages = []
    if not metal:
        kind = "virtual machine without a GPU for Metal" if mac.virtual else "session without a GPU for Metal"
        messages.append(f"this is a {kind}, so mlxbert computes on the CPU, many times slower than on a GPU")
    if metal and _generation(mac.chip) >= _FIRST_WITH_UNITS and (advice := _matrix_unit_advice(mac, float16_gain)):
        messages.append(advice)
    return messages


def gpu_size(chip: str, memory: int) -> GpuSize:
    """The size of a Mac's GPU, `small`, `medium` or `large`, judged by the name of its chip.

    No system call returns the number of GPU cores. A plain M chip has 7 to 10 of them, a Pro 14 to 20, a Max 24 or
    more.

    Args:
        chip: The name, such as `Apple M4 Pro`; chips with other names count as small.
        memory: The machine's memory in bytes, which the GPU shares: with 8 GB, the GPU counts as small.
    """
    match = re.match(r"Apple M\d+ (Pro|Max|Ultra)\b", chip)
    if match is None or memory <= _SMALL:
        return "small"
    return "medium" if match[1] == "Pro" else "large"


def _matrix_unit_advice(mac: Mac, float16_gain: Callable[[], float] | None) -> str | None:
    """Returns advice if MLX does not use the chip's matrix units, or if macOS is too old for them; otherwise `None`.

    An MLX that is not from a wheel, such as that of conda-forge, does not say what it was built for, so it is measured.
    """
    new_wheel = mac.wheel is not None and _version(mac.wheel.removeprefix("macosx_").replace("_", ".")) >= _UNITS[:1]
    if _version(mac.macos) >= _UNITS:
        if new_wheel:
            return None
        if mac.wheel is not None:
            finding = f"the installed MLX is for an older system ({mac.wheel}) and does not use"
        elif float16_gain is not None and (gain := float16_gain()) < _LEAST_GAIN:
            finding = f"float16 products are only {gain:.1f} times as fast as float32 ones, so MLX seems not to use"
        else:
            return None
        return f"{finding} the matrix units of {mac.chip}; {_reinstalling(mac)}"
    if new_wheel and _version(mac.macos) >= _UNITS[:1]:
        return (
            f"MLX's wheel for macOS 26 needs macOS 26.2 on {mac.chip}, but this is macOS {mac.macos}; update macOS, "
            "because results can be wrong"
        )
    return None


def _reinstalling(mac: Mac) -> str:
    """Returns advice on how to install MLX's wheel for this version of macOS."""
    if "/Cellar/mlxbert/" in sys.prefix:
        return f"`brew update && brew reinstall mlxbert` installs the version for macOS {mac.macos}"
    reported = platform.mac_ver()[0]
    masked = f"this Python reports macOS {reported} to pip; " if _version(reported) < _UNITS[:1] else ""
    of_conda = any(Path(sys.prefix, "conda-meta").glob("mlx-[0-9]*.json"))
    command = f"SYSTEM_VERSION_COMPAT=0 {pip_install('--force-reinstall --no-deps mlx mlx-metal')}"
    return f"{masked}`{'conda remove --force mlx && ' * of_conda}{command}` installs the version for macOS {mac.macos}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _generation(chip: str) -> int:
    """The generation of an M chip: 5 for `Apple M5 Pro`; 0 for other chips."""
    match = re.match(r"Apple M(\d+)", chip)
    return int(match[1]) if match else 0
