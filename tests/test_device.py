"""Which kernels an OpenBLAS is asked to take."""

import os
import subprocess
import sys

import pytest

from mlxbert.blas import openblas_core

WIDE = "avx512f avx512dq avx512cd avx512bw avx512vl"
CPU = "processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags} sse\n\nprocessor\t: 1\n"


@pytest.mark.parametrize(
    ("vendor", "flags", "core"),
    [
        ("AuthenticAMD", WIDE, "SKYLAKEX"),
        ("AuthenticAMD", WIDE.replace("avx512vl", "avx512vlx"), None),  # Zen 3 and older have none of them
        ("AuthenticAMD", "avx2", None),
        ("GenuineIntel", WIDE, None),  # OpenBLAS has always known these
    ],
)
def test_wide_kernels_are_asked_for_where_an_old_openblas_does_not_know_the_processor(
    vendor: str, flags: str, core: str | None
) -> None:
    assert openblas_core(CPU.format(vendor=vendor, flags=flags)) == core


@pytest.mark.parametrize("text", ["", "flags", "\x00", "Processor: ARMv8\nFeatures: asimd\n"])
def test_what_another_processor_says_of_itself_asks_for_nothing(text: str) -> None:
    assert openblas_core(text) is None


@pytest.mark.slow
def test_the_kernels_that_a_user_names_are_kept() -> None:
    code = "import os, mlxbert.device; print(os.environ['OPENBLAS_CORETYPE'])"
    environment = os.environ | {"OPENBLAS_CORETYPE": "HASWELL"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "HASWELL\n"
