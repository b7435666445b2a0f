"""A device that fails: one line of error and a hint, nothing half-written, and a command that can be repeated."""

from pathlib import Path

import numpy as np
import pytest

from mlxbert.machine.device import hint_once
from tests.helpers.faults import MEMORY, NO_FAULTS, OTHER, small_memory
from tests.helpers.program import call, names


@pytest.fixture(autouse=True)
def _untold() -> None:
    hint_once.cache_clear()


@pytest.fixture
def texts(tmp_path: Path) -> str:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"the cat sat {'on the mat ' * (n % 3)}\n" for n in range(40)), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("sentence", [MEMORY[0], MEMORY[3], OTHER[0], OTHER[1]])
def test_an_error_is_one_line_with_a_hint(
    sentence: str, small: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_memory(monkeypatch, 0, sentence)
    outcome = call("embed", "--input", texts, "--model", small, "--output", str(tmp_path / "vectors.npy"))
    outcome.fails(1, " ".join(sentence.split()))
    kinds = [line.partition(":")[0] for line in outcome.err.splitlines() if not line.startswith("note: ")]
    tried = sentence in MEMORY  # smaller batches
    assert kinds == (["hint"] if tried else []) + ["error", "hint"]
    assert ("--batch-tokens" in outcome.err) == tried and ("mlxbert doctor --check" in outcome.err) != tried
    assert names(tmp_path) == ["texts.txt"] and outcome.out == ""


def test_results_are_those_of_a_device_with_more_memory(
    small: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vectors(name: str) -> "np.ndarray":
        outcome = call("embed", "--input", texts, "--model", small, "--output", str(tmp_path / name))
        assert outcome.status == 0, outcome
        return np.load(tmp_path / name)

    expected = vectors("whole.npy")
    tried = small_memory(monkeypatch, 3)
    assert np.abs(vectors("parts.npy") - expected).max() <= 1e-6
    assert max(tried) > 3


def test_another_error_is_not_swallowed(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_memory(monkeypatch, 0, NO_FAULTS[0])
    with pytest.raises(RuntimeError, match="no Stream"):
        call("embed", "the cat", "--model", small)
