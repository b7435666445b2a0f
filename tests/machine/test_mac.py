"""A Mac that is described by a fake system: what is wrong with it, and what is advised."""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.machine import device, mac
from mlxbert.machine.device import mx
from mlxbert.machine.mac import Mac, problems
from mlxbert.other_libraries import pip_install
from tests.helpers.cases import together
from tests.helpers.program import call
from tests.helpers.rooms import needs

M2 = {"machdep.cpu.brand_string": "Apple M2", "macos": "15.6", "kern.hv_vmm_present": "0"}
M5 = {**M2, "machdep.cpu.brand_string": "Apple M5 Pro", "macos": "26.2"}
OLD, NEW = (14, 5), (26, 0)  # systems that a Python is built for
Make = Callable[..., Mac]


def stored(value: str) -> bytes:
    """A value as the kernel gives it: a number, or text that ends with a zero."""
    return int(value).to_bytes(4, "little") if value in ("0", "1") else f"{value}\0".encode()


def kernel(values: dict[str, str], sdk: tuple[int, int]) -> dict[str, str]:
    """The values that a Python gets: XNU masks the version of macOS, not its own, for programs built for another."""
    major, *rest = map(int, values["macos"].split("."))
    darwin = ".".join(map(str, [major - 1 if major >= 26 else major + 9, *rest, 0][:3]))
    masked = ".".join(map(str, [16, *rest])) if major >= 26 > sdk[0] else values["macos"]
    return {**values, "kern.osrelease": darwin, "kern.osproductversion": masked}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes this machine a Mac with some values of the kernel, seen by a Python that is built for an older system."""

    def made(
        values: dict[str, str], python: str = "arm64", tag: str | None = "macosx_15_0_arm64", sdk: tuple[int, int] = OLD
    ) -> Mac:
        values = kernel(values, sdk)

        def distribution(name: str) -> SimpleNamespace:
            if tag is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return SimpleNamespace(read_text=lambda name: f"Wheel-Version: 1.0\nTag: py3-none-{tag}\n")

        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(platform, "machine", lambda: python)
        monkeypatch.setattr(platform, "mac_ver", lambda: (values["kern.osproductversion"], ("", "", ""), python))
        monkeypatch.setattr(mac, "sysctl", lambda name: stored(values[name]) if name in values else None)
        monkeypatch.setattr(mac, "unused_memory", lambda: None)
        monkeypatch.setattr(importlib.metadata, "distribution", distribution)
        found = mac.read_mac()
        assert found is not None
        return found

    return made


@together(
    ("values", "others", "metal", "expected"),
    [
        (M2, {}, True, ()),
        (M5, {"tag": "macosx_26_0_arm64"}, True, ()),
        ({**M2, "sysctl.proc_translated": "1"}, {"python": "x86_64"}, False, ("Rosetta", "brew install python")),
        ({**M2, "machdep.cpu.brand_string": "Intel(R) Core(TM) i7"}, {"python": "x86_64"}, False, ("Apple silicon",)),
        ({**M2, "macos": "13.7.1"}, {}, True, ("13.7.1", "14")),
        ({**M2, "kern.hv_vmm_present": "1"}, {}, False, ("virtual machine", "CPU")),
        (M2, {}, False, ("CPU",)),
        (
            M5,
            {"tag": "macosx_15_0_arm64"},
            True,
            ("macosx_15_0_arm64", "16.2", "Apple M5 Pro", "SYSTEM_VERSION_COMPAT=0 "),
        ),
        (M5, {"sdk": NEW}, True, ("macosx_15_0_arm64", "26.2", "Apple M5 Pro", "SYSTEM_VERSION_COMPAT=0 ")),
        ({**M5, "macos": "26.1"}, {"tag": "macosx_26_0_arm64"}, True, ("26.2", "26.1")),
        ({**M5, "macos": "26.1.1"}, {"tag": "macosx_26_0_arm64", "sdk": NEW}, True, ("26.2", "26.1.1")),
        ({**M5, "macos": "26.10.1"}, {"tag": "macosx_26_0_arm64"}, True, ()),
        ({**M5, "macos": "26.10.1"}, {"tag": "macosx_26_0_arm64", "sdk": NEW}, True, ()),  # 8 bytes with its end
        ({**M5, "macos": "27.0"}, {}, True, ("27.0", "SYSTEM_VERSION_COMPAT=0 ")),
        ({**M5, "macos": "26.1"}, {"tag": "macosx_15_0_arm64"}, True, ()),
        ({**M2, "macos": "26.1"}, {"tag": "macosx_26_0_arm64"}, True, ()),
    ],
)
def test_what_is_wrong_with_a_mac_is_said(
    make: Make, values: dict[str, str], others: dict[str, Any], metal: bool, expected: tuple[str, ...]
) -> None:
    found = problems(make(values, **others), metal=metal)
    assert len(found) == bool(expected)
    assert all(word in found[0] for word in expected)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """Makes an environment as a program makes it; returns its folder."""

    def made(by: str) -> str:
        folder = tmp_path / {"brew": "Cellar/mlxbert/1.0/libexec/venv", "pipx": "mlxbert"}.get(by, "env")
        (folder / "conda-meta").mkdir(parents=True)
        files = {
            "pipx": ("pipx_metadata.json", "{}"), "uv": ("pyvenv.cfg", "home = /\nuv = 0.9.1\n"),
            "conda": ("conda-meta/mlx-0.32.0-py313.json", "{}"),
        }  # fmt: skip
        name, text = files.get(by, ("pyvenv.cfg", "home = /\n"))
        (folder / name).write_text(text)
        monkeypatch.setattr(sys, "prefix", str(folder))
        monkeypatch.setattr(sys, "base_prefix", str(folder) if by == "conda" else "/usr")
        monkeypatch.setattr(sys, "_base_executable", "/opt/homebrew/bin/python3.13")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if by in ("uv", "brew") else ctypes)
        return str(folder)

    return made


@pytest.mark.parametrize(
    ("by", "repair", "install"),
    [
        ("pip", "`SYSTEM_VERSION_COMPAT=0 pip install --force-reinstall", "pip install torch"),
        ("pipx", "=0 pipx runpip mlxbert install --force", "pipx runpip mlxbert install torch"),
        ("uv", "=0 uv pip install --python FOLDER --force", "uv pip install --python FOLDER torch"),
        (
            "brew", "`brew update && brew reinstall mlxbert`",
            "/opt/homebrew/bin/python3.13 -m pip --python FOLDER install torch",
        ),
        ("conda", "`conda remove --force mlx && SYSTEM_VERSION_COMPAT=0 pip install --force", "pip install torch"),
    ],
)  # fmt: skip
def test_advice_fits_how_the_environment_was_made(
    make: Make, installed: Callable[[str], str], by: str, repair: str, install: str
) -> None:
    folder = installed(by)
    (advice,) = problems(make(M5, tag=None), metal=True, float16_gain=lambda: 1.04)
    assert repair.replace("FOLDER", folder) in advice and "1.0 times" in advice
    assert repair.replace("FOLDER", folder) in problems(make(M5), metal=True)[0]
    assert pip_install("torch") == install.replace("FOLDER", folder)


@together(
    ("values", "tag", "gain"),
    [(M5, None, 3.1), (M5, None, None), (M5, "macosx_26_0_arm64", 1), (M2, None, 1), (M5 | {"macos": "26.1"}, None, 1)],
)
def test_matrix_units_that_work_or_are_not_there_are_no_problem(
    make: Make, values: dict[str, str], tag: str | None, gain: float | None
) -> None:
    assert problems(make(values, tag=tag), metal=True, float16_gain=None if gain is None else lambda: gain) == []


@needs("doctor")
def test_products_are_compared_on_a_gpu_that_does_not_round_float32(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxbert.doctor import device_speed

    make(M5, tag=None)
    speeds = {mx.float32: 3900.0, mx.float16: 4100.0}
    monkeypatch.setattr(device_speed, "measure_gflops", lambda size, runs, dtype: speeds[dtype])
    monkeypatch.setattr(mx, "is_available", lambda kind: True)
    for on_gpu, tf32, count in ((True, "0", 1), (True, "1", 0), (False, "0", 0)):
        monkeypatch.setattr(device_speed, "on_gpu", lambda on_gpu=on_gpu: on_gpu)
        monkeypatch.setenv("MLX_ENABLE_TF32", tf32)
        assert ["1.1 times" in problem for problem in device_speed.mac_problems()] == [True] * count


@together(
    ("darwin", "product", "expected"),
    [
        ("25.2.0", "16.2", "26.2"), ("25.2.0", "26.2", "26.2"), ("25.1.1", "16.1.1", "26.1"),
        ("25.1.1", "26.1.1", "26.1.1"), ("26.0.0", "16.0", "27.0"), ("24.6.0", "15.6", "15.6"),
        ("23.7.1", "14.7.1", "14.7.1"), ("20.0.0", "11.0", "11.0"), ("20.6.0", "10.16", "11.6"),
        ("19.6.0", "10.15.7", "10.15.7"), ("", "15.6", "15.6"), ("25", "16.2", "16.2"), ("26.0.0", "26.4", "26.4"),
    ],
)  # fmt: skip
def test_the_version_is_that_of_the_kernel_where_the_one_of_the_product_is_masked(
    darwin: str, product: str, expected: str
) -> None:
    assert mac._macos(darwin, product) == expected


def test_another_system_is_no_mac() -> None:
    assert sys.platform == "darwin" or mac.read_mac() is None


def test_values_of_the_kernel_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {b"text": b"Apple M1\0", b"number": (1).to_bytes(4, "little")}

    def sysctlbyname(name: bytes, data: Any, size: Any, new: Any, length: Any) -> int:
        if name not in known:
            return -1
        size._obj.value = len(known[name])
        if data is not None:
            data[: len(known[name])] = known[name]
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(sysctlbyname=sysctlbyname))
    assert [mac.sysctl(name) for name in ("text", "number", "other")] == [known[b"text"], known[b"number"], None]


@pytest.mark.parametrize(("status", "expected"), [(0, (1000 + 200_000) * os.sysconf("SC_PAGE_SIZE")), (5, None)])
def test_free_and_inactive_pages_are_memory_that_no_program_holds(
    monkeypatch: pytest.MonkeyPatch, status: int, expected: int | None
) -> None:
    pages = {"free": 1000, "active": 300_000, "inactive": 200_000, "wired": 150_000}  # as the structure begins

    def host_statistics64(host: int, kind: int, words: Any, count: Any) -> int:
        assert (host, kind, count._obj.value) == (0x1203, 4, 38)  # HOST_VM_INFO64, HOST_VM_INFO64_COUNT
        words[: len(pages)] = list(pages.values())
        return status

    kernel = SimpleNamespace(host_statistics64=host_statistics64, mach_host_self=lambda: 0x1203)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: kernel)
    monkeypatch.setattr(mac, "_host", mac._host.__wrapped__)
    assert mac.unused_memory() == expected


SOURCE = "Now drawing from '{}'\n -InternalBattery-0 (id=1)\t27%; discharging; 3:32 remaining present: true\n"
SETTINGS = "System-wide power settings:\nCurrently in use:\n standby              1\n {}\n womp                 0\n"
HEAT = "com.apple.system.thermalpressurelevel {}\n"


@needs("doctor")
@together(
    ("battery", "settings", "heat", "expected"),
    [
        ("Battery Power", "lowpowermode         1", 2, ("Battery Power", "low power", "heavy")),
        ("AC Power", "powermode            2", 0, ("AC Power", "high power", "nominal")),
        ("UPS Power", "lowpowermode 7", 9, ("UPS Power", None, None)),
        ("", "", "", (None, None, None)),
    ],
)
def test_power_and_heat_are_what_the_system_says(
    make: Make, monkeypatch: pytest.MonkeyPatch, battery: str, settings: str, heat: object, expected: tuple[Any, ...]
) -> None:
    from mlxbert.doctor import mac_state

    make(M2)
    said = {
        ("/usr/bin/pmset", "-g", "batt"): SOURCE.format(battery),
        ("/usr/bin/pmset", "-g"): SETTINGS.format(settings),
        ("/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel"): HEAT.format(heat),
    }

    def run(command: tuple[str, ...], **_: Any) -> Any:
        if not battery:
            raise FileNotFoundError(command[0])
        return Mock(stdout=said[command].encode())

    monkeypatch.setattr(subprocess, "run", run)
    keys = ("power_source", "energy_mode", "thermal_pressure")
    assert mac_state.power_state() == dict(zip(keys, expected, strict=True))
    monkeypatch.setattr(sys, "platform", "linux")
    assert mac_state.power_state() == {}


@needs("doctor")
def test_the_footprint_has_the_memory_of_the_gpu(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxbert.doctor import worker

    def proc_pid_rusage(pid: int, flavor: int, buffer: Any) -> int:
        if pid != os.getpid() or flavor != 4:
            return -1
        numbers = [*range(100, 135)]  # those of `rusage_info_v4` after its UUID
        assert ctypes.sizeof(buffer._obj) == 16 + 8 * len(numbers)
        ctypes.memmove(ctypes.addressof(buffer._obj) + 16, (ctypes.c_uint64 * 35)(*numbers), 8 * len(numbers))
        return 0

    make(M2)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(proc_pid_rusage=proc_pid_rusage))
    assert worker.process_memory() == {"resident": 106, "footprint": 107}
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(proc_pid_rusage=lambda *_: -1))
    assert worker.process_memory() == {}


@pytest.mark.slow
def test_float32_is_float32_unless_the_user_says_otherwise() -> None:
    script = "import os; from mlxbert.machine.device import tf32; print(os.environ['MLX_ENABLE_TF32'], tf32())"
    kept = {name: value for name, value in os.environ.items() if name != "MLX_ENABLE_TF32"}
    for given, expected in (({}, "0 False\n"), ({"MLX_ENABLE_TF32": "1"}, "1 True\n")):
        assert subprocess.check_output([sys.executable, "-c", script], text=True, env=kept | given) == expected


@pytest.mark.slow
def test_a_mac_never_imports_the_backend_of_a_linux_cpu() -> None:
    code = """
import sys
sys.platform = "darwin"
import mlxbert
from mlxbert.machine import mac
from mlxbert.machine.device import mx, nn
mac.unused_memory = lambda: None
model = mlxbert.load(device="cpu")
print(mlxbert.fill_mask(model, "Paris is the [MASK] of France.").masks[0].fills[0].token)
print(mlxbert.embed(mlxbert.load(task="embed", device="cpu"), ["a"]).shape)
model.network.train()
loss = lambda network: network(mx.ones((2, 5), mx.int32)).last_hidden_state.sum()
mx.eval(nn.value_and_grad(model.network, loss)(model.network))
print([name for name in sys.modules if name.startswith("mlxbert.cpu")])
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "capital\n(1, 384)\n[]\n"


@needs("doctor")
def test_doctor_says_what_is_wrong(make: Make) -> None:
    from mlxbert.doctor import device_speed

    make({**M2, "kern.hv_vmm_present": "1"})
    (said,) = device_speed.mac_problems()
    assert "virtual machine" in said
    found = device.describe()
    assert found["dtype"] == "float32" and "CPU" in str(found["dtype_reason"])
    assert found["chip"] == "Apple M2" and found["macos"] == "15.6" and found["wheel_for"] == "macosx_15_0_arm64"


@together(
    ("value", "on"),
    [("0", False), ("1", True), ("", False), ("banana", False), (" 2x", True), ("9" * 5000, True), ("\u0661", False)],
)
def test_tf32_is_read_as_mlx_reads_it(monkeypatch: pytest.MonkeyPatch, value: str, on: bool) -> None:
    monkeypatch.setenv("MLX_ENABLE_TF32", value)
    assert device.tf32() is on


def test_tf32_is_decided_once_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_ENABLE_TF32", "0")
    monkeypatch.setattr(device, "_tf32_chosen", [])
    device._choose_tf32(False, gpu=True)
    with pytest.raises(ArgumentError, match="fast_float32"):
        device._choose_tf32(True, gpu=True)
    assert not device.tf32()
    device._tf32_chosen.clear()
    device._choose_tf32(True, gpu=True)
    device._choose_tf32(False, gpu=True)  # with a hint
    assert device.tf32()


@pytest.fixture
def unreported(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache of a Mac with a GPU, on which `doctor` finds nothing to mend."""
    from mlxbert.doctor import device_speed
    from mlxbert.doctor.commands import doctor as machine

    make(M2)
    facts = {"device": "gpu", "gpu_found": True, "blas": "accelerate", "blas_hint": None, "chip": "Apple M2"}
    monkeypatch.setattr(device, "describe", lambda: {**facts, "macos": "15.6"})
    monkeypatch.setattr(device_speed, "mac_problems", list)
    monkeypatch.setattr(device, "use", lambda name: None)
    monkeypatch.setattr(device_speed, "measure_gflops", lambda: 100.0)
    monkeypatch.setattr(machine, "_version", {"mlx": "0.32.4", "mlx-metal": "0.32.4"}.get)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@needs("doctor")
def test_a_chip_that_nobody_has_reported_is_asked_for_once(unreported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxbert.doctor import reported_chips
    from mlxbert.doctor.commands import doctor as machine

    said = [call("doctor").err for _ in range(3)]
    assert "Apple M2" in said[0] and "mlxbert doctor --report" in said[0]
    assert all("report" not in one for one in said[1:])
    assert [path.name for path in (unreported / "mlxbert").iterdir()] == ["asked-to-report-apple-m2-mlx-0.32.4"]
    monkeypatch.setattr(machine, "_version", {"mlx": "0.32.5"}.get)
    assert "mlxbert doctor --report" in call("doctor").err
    monkeypatch.setattr(reported_chips, "reports", lambda: [{"chip": "Apple M2"}])
    monkeypatch.setattr(machine, "_version", {"mlx": "0.32.6"}.get)
    assert "report" not in call("doctor").err


@needs("doctor")
@pytest.mark.parametrize("cache", ["a file", "a file in it", "no home"])
def test_a_report_is_asked_for_where_nothing_can_be_written(
    cache: str, unreported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cache == "a file":
        unreported.write_text("")
    elif cache == "a file in it":
        unreported.mkdir()
        (unreported / "mlxbert").write_text("")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for _ in range(2):
        outcome = call("doctor")
        assert outcome.status == 0 and "mlxbert doctor --report" in outcome.err


@needs("doctor")
def test_other_systems_are_not_asked_and_reports_are_of_apple_chips(
    unreported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxbert.doctor import reported_chips

    facts = {"device": "gpu", "gpu_found": True, "blas": None, "blas_hint": None, "chip": "NVIDIA H200"}
    monkeypatch.setattr(device, "describe", lambda: facts)
    assert "report" not in call("doctor").err and not unreported.exists()
    for one in reported_chips.reports():
        assert one.keys() == {*reported_chips.FIELDS} and one["chip"].startswith("Apple ")


@needs("search")
@together(("system", "before", "expected"), [("darwin", 0, 10), ("linux", 0, 10), ("linux", 15, 0)])
def test_other_programs_go_first(monkeypatch: pytest.MonkeyPatch, system: str, before: int, expected: int) -> None:
    from mlxbert.search import power

    nice, library = Mock(return_value=before), Mock()
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(os, "nice", nice)
    power.lower_priority()
    assert [one.args for one in nice.call_args_list] == [(0,), (expected,)]
    classes = library.pthread_set_qos_class_self_np.call_args_list
    assert [one.args for one in classes] == [(0x11, 0)] * (system == "darwin")


@needs("search")
@together(
    ("output", "expected"),
    [
        (SOURCE.format("AC Power"), False), (SOURCE.format("Battery Power"), True), (SOURCE.format("UPS Power"), True),
        ("", None), (FileNotFoundError(2, "no pmset"), None), (subprocess.TimeoutExpired("pmset", 10), None),
    ],
)  # fmt: skip
def test_where_a_mac_draws_its_power_from(
    monkeypatch: pytest.MonkeyPatch, output: str | Exception, expected: bool | None
) -> None:
    from mlxbert.search import power

    run = Mock(return_value=Mock(stdout=str(output).encode()))
    run.side_effect = output if isinstance(output, Exception) else None
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", run)
    if expected is None:
        with pytest.raises(MlxbertError, match="pmset -g batt"):
            power.on_battery()
    else:
        assert power.on_battery() == expected
    assert run.call_args.args == (("/usr/bin/pmset", "-g", "batt"),)


@needs("search")
@together(
    ("supplies", "expected"),
    [
        ([], False), (["Battery Device Discharging"], False), (["Battery - Discharging", "Battery - Unknown"], True),
        (["Battery System Discharging", "Mains - - 0"], True), (["Battery - Charging", "Mains - - 1"], False),
        (["Battery - Discharging", "Mains - - 0", "USB - - 1"], False), (["Battery - Full", "Mains - - 0"], False),
        (["UPS - Discharging", "Mains - - 0"], True),
    ],
)  # fmt: skip
def test_where_linux_draws_its_power_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, supplies: list[str], expected: bool
) -> None:
    from mlxbert.search import power

    folder = tmp_path / str(len([*tmp_path.iterdir()]))
    folder.mkdir()
    monkeypatch.setattr(power, "_SUPPLIES", folder)
    for number, values in enumerate(supplies):
        (folder / f"{number}").mkdir()
        for name, value in zip(("type", "scope", "status", "online"), values.split(), strict=False):
            if value != "-":
                (folder / f"{number}" / name).write_text(f"{value}\n")
    assert power.on_battery() == expected
