"""The fuzzer of options: a sample of its cases, and that it notices what it is there to notice."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cases import ALL

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_options.py"
PLANTED = f"""
import os, sys, tempfile, time
from pathlib import Path
sys.path.insert(0, {str(SCRIPT.parent)!r})
import fuzz_options as fuzz

def planted(arguments):
    match arguments[0]:
        case "abort": os.abort()
        case "raise": raise KeyError("x")
        case "hang": time.sleep(60)
        case "memory": return len(bytearray(2 * fuzz.ROOM))
        case "large": return min(len(bytearray(b"x") * (fuzz.MEMORY + 2**24)), 0)
        case "silent": return 1
        case "loud": print("error: " + "x" * fuzz.MAX_PRINTED, file=sys.stderr); return 1
        case "well": print("error: x", file=sys.stderr); return 2
    return 0

fuzz.MEMORY, fuzz.app.run = 2**29, planted
with tempfile.TemporaryDirectory() as place:
    for name in sys.argv[1:]:
        cwd, printed = Path(place) / "case" / "a" / "b" / "c", Path(place) / "printed"
        fuzz.WALL_SECONDS = 3 if name == "hang" else 300  # a busy machine takes seconds to fill memory
        print(name, fuzz.run(fuzz.Case([name], {{}}), cwd, printed)[0].partition(" ")[0])
"""
FOUND = {
    "abort": "crash", "raise": "crash", "hang": "hang,", "memory": "crash", "large": "memory", "silent": "no",
    "loud": "output", "well": "", "fine": "",
}  # fmt: skip
if sys.platform != "linux":  # where the address space is not limited
    del FOUND["memory"]


@pytest.mark.slow
def test_hostile_numbers_and_names_are_refused_by_every_command() -> None:
    cases = 400 if ALL else 100
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--cases", str(cases), "--seed", "7"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert f"{{'well': {cases}}}" in run.stdout


@pytest.mark.slow
def test_every_command_works_with_its_usual_arguments() -> None:
    run = subprocess.run([sys.executable, str(SCRIPT), "--usual"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]


@pytest.mark.slow
def test_what_must_not_happen_is_noticed() -> None:
    run = subprocess.run([sys.executable, "-c", PLANTED, *FOUND], capture_output=True, text=True, check=False)
    found = dict(line.split(" ", 1) for line in run.stdout.splitlines())
    assert found == FOUND, run.stderr[-2000:]
