"""Runs that are interrupted between the large windows of a GPU: parts of the output end with them."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from mlxbert.machine.mac import GpuSize
from mlxbert.text.batch import WINDOWS
from tests.cli.test_output_batches import WORDS, interrupted
from tests.helpers.batches import as_on_a_gpu
from tests.helpers.cases import fast
from tests.helpers.program import Outcome, call

SMALL = WINDOWS["small"]
TOTAL = 2 * SMALL + 60


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("texts") / "in.txt", random.Random(1)
    path.write_text("".join(" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) + "\n" for _ in range(TOTAL)))
    return path


def run(model: Path, texts: Path, output: Path) -> Outcome:
    return call(
        "embed", "--model", str(model), "--input", str(texts), "--batch-tokens", "1024", "--output-dtype", "float32",
        "--output", str(output),
    )  # fmt: skip


def vectors(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("resumed_on", fast(["small", "large"], "small"))
def test_a_run_resumes_with_the_windows_that_are_left(
    resumed_on: GpuSize, tiny_folder: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    as_on_a_gpu(monkeypatch, "small")
    with interrupted(None) as all_of_them:
        assert run(tiny_folder, texts, whole).status == 0
    (total,) = all_of_them
    done = total * 3 // 4  # within the second window
    with interrupted(done):
        outcome = run(tiny_folder, texts, parts)
    assert outcome.status == 130
    kept = sorted(Path(f"{parts}.partial").glob("part-*.jsonl"))
    assert [len(vectors(path)) for path in kept] == [SMALL] * len(kept) and kept
    as_on_a_gpu(monkeypatch, resumed_on)
    with interrupted(None) as rest:
        outcome = run(tiny_folder, texts, parts)
    assert outcome.status == 0 and f"resumed: {len(kept) * SMALL:,} results" in outcome.err
    if resumed_on == "small":
        assert parts.read_bytes() == whole.read_bytes()
        assert rest[0] <= total - done + 2  # those that were started and not read: of this window and of the next
        return
    found, expected = vectors(parts), vectors(whole)
    assert [one["text"] for one in found] == [one["text"] for one in expected] and len(found) == TOTAL
    apart = np.array([one["embedding"] for one in found]) - np.array([one["embedding"] for one in expected])
    assert np.abs(apart).max() < 1e-5
