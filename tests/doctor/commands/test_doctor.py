"""`mlxbert doctor`, apart from its check: what it says of this machine, and what it leaves out of a text for others."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, strategies as st

from mlxbert.cli import app
from mlxbert.doctor import device_speed, views
from mlxbert.doctor.commands import doctor as machine
from mlxbert.doctor.views import without_paths
from mlxbert.machine import device, missing_mlx
from tests.helpers.cases import together
from tests.helpers.cells import quick
from tests.helpers.program import call

_SIGNS = " -_.'&()"  # of the names of folders
_LETTERS = st.text("kqxzKQXZ7", min_size=2, max_size=6)  # in none of the words around a path
_FOLDER = st.lists(_LETTERS, min_size=1, max_size=3).flatmap(
    lambda words: st.sampled_from(_SIGNS).map(lambda sign: sign.join(words))
)
_FILE = st.builds("{}.{}".format, _LETTERS, st.sampled_from(["metallib", "so.0", "json"]))
_SENTENCES = ("cannot open {}", "cannot open '{}': no", 'no "{}", at all', "({}) is gone", "<{}>. Error: no")


def _path(parts: list[str], name: str, root: str) -> str:
    separator = "\\" if "\\" in root else "/"
    return root + separator.join([*parts, name])


_PATHS = st.builds(
    _path, st.lists(_FOLDER, max_size=4), _FILE, st.sampled_from(["/", "~/", "C:\\", "\\\\", "file:///"])
)


@quick(200)
@given(_PATHS, _PATHS, st.sampled_from(_SENTENCES))
def test_no_part_of_a_path_remains(path: str, other: str, sentence: str) -> None:
    for text in (sentence.format(path), f"{sentence.format(path)} and {sentence.format(other)}"):
        shown = without_paths(text)
        assert "…" in shown and not set(shown) & set("kqxzKQXZ7"), shown
    assert without_paths(sentence.format(path)).partition("…")[0] == sentence.partition("{")[0] + (
        "file:" if path.startswith("file:") else ""
    )


@quick(100)
@given(_FOLDER, st.sampled_from(["{}", "'{}' cannot be opened", "cannot read {}", "{}/x.json: gone", "at:{}"]))
def test_neither_the_home_nor_its_owner_remains(name: str, sentence: str) -> None:
    home = f"/Users/{name}"
    with mock.patch.object(os.path, "expanduser", lambda _: home), mock.patch.object(platform, "node", lambda: "kxz"):
        for text in (sentence.format(home), f"{name} may not", f"KXZ: {name}"):
            assert not set(views.anonymous(text)) & set("kqxzKQXZ7")


def test_names_are_left_out_as_words_and_what_is_no_path_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("67 GFLOP/s, copies 20 GB/s", "kernel gemm<float16> is missing", "error: 1 / 2", "and/or, ~5 s"):
        assert without_paths(text) == text
    monkeypatch.setenv("USER", "jane")
    monkeypatch.setattr(platform, "node", lambda: "Janes-Mac.local")
    shown = views.anonymous("jane@janes-mac.local: Jane, janes-mac and janet's float32 kernel")
    assert shown == "…@…: …, … and janet's float32 kernel"


def test_a_table_for_others_has_no_path_in_any_cell() -> None:
    facts = {"chip": "/Users/x/chip", "problems": [], "packages": {"mlx": "1"}, "wheel": "mlx-cpu 1"}
    check = {"quick": True, "seconds": 1.0, "groups": {}, "faults": [], "consequences": [{"operation": "/Users/x y/z"}]}
    check["process_memory"] = {"resident": 33_000_000, "footprint": 1_200_000_000}
    group = {"checks": 1, "faults": 0, "consequences": 0, "worst": 0.16}
    shown = views.markdown({**facts, "check": {**check, "groups": {"norms": group}}})
    assert "| process | resident 33.0 MB, footprint 1.2 GB |" in shown
    assert "home" not in shown and "| norms | 1 | 0 | 0 | 16% |" in shown and "| MLX | 1 (mlx-cpu) |" in shown


@together("words", [
    "doctor", "doctor --no-json", "doctor --report", "bench --no-json", "bench", "--help", "similarity a b --no-json",
    "similarity a b --json", "similarity a b --no-json --output",
])  # fmt: skip
def test_without_stdout_nothing_is_computed_for_nobody_unless_it_goes_to_a_file(
    words: str, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, to_file = words.split(), words.endswith("--output")
    arguments += [str(tiny_folder.with_name("x.jsonl"))] * to_file
    arguments += ["--model", str(tiny_folder)] * (arguments[0] == "similarity")
    with mock.patch.multiple(machine, _report=None, _measure=None), mock.patch.object(sys, "stdout", None):
        assert app.run(arguments) == (0 if to_file else 1)
    assert ("error: stdout is closed" in capsys.readouterr().err) == (not to_file)


def test_a_variable_that_is_no_whole_number_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_speed, "measure_gflops", lambda: 200.0)
    for name in ("MLX_ENABLE_TF32", "MLX_SDPA_VJP_FALLBACK"):
        for value, read in (("abc", 0), ("2x", 2), ("", 0), (" 1", None)):
            monkeypatch.setenv(name, value)
            found = [one for one in call("doctor").lines[0]["problems"] if name in one]
            said = [] if read is None else [f"{name} is {value!r}, which MLX reads as {read}"]
            assert len(found) == len(said) and all(map(str.startswith, found, said))


def test_a_cpu_neither_rounds_to_tf32_nor_has_a_kernel_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_ENABLE_TF32", "1")
    monkeypatch.setenv("MLX_SDPA_VJP_FALLBACK", "0")
    monkeypatch.setattr(device, "on_gpu", lambda: False)
    found = device.describe()
    assert found["float32_products"] == "float32" and "attention_gradient" not in found
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(device.mx.metal, "is_available", lambda: False)
    found = device.describe()
    assert found["float32_products"] == "TF32" and "attention_gradient" not in found
    monkeypatch.setattr(device.mx.metal, "is_available", lambda: True)
    assert device.describe()["attention_gradient"] == "fused"


@pytest.mark.parametrize(("installed", "libc", "advises"), [
    ((), "2.35", True), ((), "2.31", False), (("mlx-cpu",), "2.39", False), (("mlx-cuda-13",), "2.39", False),
])  # fmt: skip
def test_without_a_backend_one_is_named(
    installed: tuple[str, ...], libc: str, advises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name in installed:
            return "1"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", libc))
    said = missing_mlx.advice()
    assert ('"mlx[cpu]"' in said and '"mlx[cuda13]"' in said) == advises and (said == missing_mlx.SUPPORTED) == (
        not advises
    )


def test_a_gpu_that_is_not_there_is_an_error_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.mx, "is_available", lambda kind: False)
    monkeypatch.setattr(sys, "platform", "linux")
    outcome = call("doctor", "--device", "gpu")
    outcome.fails(1, "error: --device is 'gpu', but MLX finds no GPU", "hint: --device auto uses", "mlx[cuda13]")
    call("doctor", MLXBERT_DEVICE="gpu").fails(
        1, "error: `MLXBERT_DEVICE` is 'gpu'", "hint: `MLXBERT_DEVICE='auto'` uses"
    )


def test_half_precision_on_a_cpu_is_said_to_be_emulated(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["similarity", "a b", "c d", "--device", "cpu", "--model", str(tiny_folder)]
    assert "hint: a CPU emulates float16" in call(*words, "--dtype", "float16").err
    assert "emulates" not in call(*words, "--dtype", "float32").err + call(*words).err
    monkeypatch.setattr(machine, "views", mock.Mock())
    monkeypatch.setattr("mlxbert.doctor.bench.bench", lambda *given, **named: {"training": {}})
    assert "hint: a CPU emulates bfloat16" in call("bench", "--json", "--dtype", "bfloat16", "--device", "cpu").err
