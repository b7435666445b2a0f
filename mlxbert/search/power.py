"""What a program that runs for days owes its machine: it lets other programs go first, and can rest on battery."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from mlxbert.errors import MlxbertError
from mlxbert.machine import mac

_NICE = 10
_UTILITY = 0x11  # QOS_CLASS_UTILITY of sys/qos.h
_SUPPLIES = Path("/sys/class/power_supply")
_STORES = ("Battery", "UPS")  # types of supplies that run out


def lower_priority() -> None:
    """Lets other programs go first. Call it before threads are made, since on Linux each thread has its own priority.

    On a Mac, this thread also gets the QoS class "utility", for long work that may use every core. "Background" would
    be too low: it has the efficiency cores only, and the disk last of all, so that a writer would keep others waiting
    for its lock.
    """
    with suppress(OSError):  # a sandbox may forbid it
        os.nice(max(0, _NICE - os.nice(0)))
    if sys.platform == "darwin":
        import ctypes

        ctypes.CDLL(None).pthread_set_qos_class_self_np(_UTILITY, 0)


def on_battery() -> bool:
    """Whether this machine runs on a battery; one without a battery never does.

    Raises:
        MlxbertError: A Mac does not say it.
    """
    if sys.platform == "darwin":
        source = mac.power_source()
        if source is None:
            raise MlxbertError("`pmset -g batt` does not say where the power comes from")
        return source != "AC Power"
    supplies = [
        {name: _value(folder / name) for name in ("type", "scope", "online", "status")}
        for folder in _SUPPLIES.glob("*")
    ]
    if any(one["online"] == "1" for one in supplies if one["type"] not in _STORES):
        return False
    stores = [one for one in supplies if one["type"] in _STORES and one["scope"] != "Device"]  # not that of a mouse
    return any(one["status"] == "Discharging" for one in stores)


def _value(path: Path) -> str:
    """Returns what the kernel says about a power supply; nothing if it says nothing."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
