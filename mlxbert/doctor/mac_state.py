"""What a Mac is doing at the moment: its power, its heat, and the memory of this process."""

import ctypes
import os
import re
import sys

from mlxbert.machine.mac import output_of, power_source

_ENERGY_MODES = ("automatic", "low power", "high power")
_THERMAL_PRESSURES = ("nominal", "moderate", "heavy", "trapping", "sleeping")  # OSThermalNotification.h of macOS
_RUSAGE_INFO_V4 = 4


class _ProcessUsage(ctypes.Structure):
    """`rusage_info_v4` of `<sys/resource.h>`: a UUID and 35 numbers, of which two are read."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("times", ctypes.c_uint64 * 6),
        ("resident", ctypes.c_uint64),
        ("footprint", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 27),
    )


def power_state() -> dict[str, str | None]:
    """What decides how fast this Mac runs at the moment; empty on another system.

    Returns:
        `power_source` (`AC Power`, `Battery Power`, `UPS Power`), `energy_mode` (`automatic`, `low power` or `high
        power`) and `thermal_pressure` (`nominal`, `moderate`, `heavy`, …); `None` for what the system does not say.
    """
    if sys.platform != "darwin":
        return {}
    # Macs that have a High Power Mode call the setting `powermode`.
    mode = re.search(r"^\s*(?:low)?powermode\s+([0-2])\s*$", output_of("/usr/bin/pmset", "-g"), re.MULTILINE)
    # Not `pmset -g therm`: on Apple silicon it reports no throttling (exelban/stats#749, macmade/Hot#80).
    pressure = re.search(
        r"thermalpressurelevel\s+([0-4])\s*$",
        output_of("/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel"),
    )
    return {
        "power_source": power_source(),
        "energy_mode": _ENERGY_MODES[int(mode[1])] if mode else None,
        "thermal_pressure": _THERMAL_PRESSURES[int(pressure[1])] if pressure else None,
    }


def process_memory() -> dict[str, int]:
    """Returns the `resident` memory and the `footprint` of this process in bytes; nothing if the system refuses.

    The footprint is what Activity Monitor shows and what the system limits. It includes the memory that Metal has
    allocated for the process, of which next to nothing may be resident.
    """
    usage = _ProcessUsage()
    if ctypes.CDLL(None).proc_pid_rusage(os.getpid(), _RUSAGE_INFO_V4, ctypes.byref(usage)):
        return {}
    return {"resident": usage.resident, "footprint": usage.footprint}
