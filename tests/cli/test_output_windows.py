"""Runs that are interrupted within a window, or between the large windows of a GPU: all other windows are kept."""

import itertools
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.labels.labels import Labels
from mlxbert.machine.mac import GpuSize
from mlxbert.readers import stream
from mlxbert.tasks import runner
from mlxbert.text import batch
from tests.helpers.answering import save_answering
from tests.helpers.batches import as_on_a_gpu
from tests.helpers.cases import fast
from tests.helpers.classifiers import save_classifier
from tests.helpers.program import Outcome, call

pytestmark = pytest.mark.usefixtures("loaded_once")
WORDS = ("the", "cat", "dog", "sat", "on", "mat", "paris")
TASKS = {
    "embed": ["--output-dtype", "float32"],
    "classify": [],
    "tag": [],
    "answer": ["--context", f"{'the cat sat on the mat ' * 5}in paris"],
    "fill-mask": [],
}
SMALL = 64  # of a window on a small GPU, which has more
TOTAL = 2 * SMALL + 8


@contextmanager
def interrupted(after: int | None, copied: tuple[Path, Path] | None = None) -> Iterator[list[int]]:
    """Counts batches; before one of them raises an interrupt, or copies a folder as a killed process would leave it."""
    count, made = [0], batch.make_batch

    def make_batch(*given: Any) -> Any:
        if count[0] == after:
            if copied is not None:
                shutil.copytree(*copied)
            else:
                raise KeyboardInterrupt
        count[0] += 1
        return made(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "make_batch", make_batch)
        yield count


@pytest.fixture(scope="module")
def models(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model for each task."""
    folder = tmp_path_factory.mktemp("models")
    tagger = mlxbert.load(tiny_folder, new_heads={"token_classifier": Labels(("O", "B-x", "I-x"))})
    return {
        **{"embed": tiny_folder, "fill-mask": tiny_folder, "answer": save_answering(folder / "answer")},
        **{"classify": save_classifier(folder / "classify", Labels(("a", "b")))},
        **{"tag": mlxbert.save(tagger, folder / "tag")},
    }


def texts_of(path: Path, count: int) -> Path:
    """Writes texts of many lengths."""
    rng, lines = random.Random(1), list[str]()
    for _ in range(count):
        text = " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))
        lines.append(json.dumps({"text": f"{text} [MASK]", "question": text}) + "\n")
    path.write_text("".join(lines))
    return path


def run(task: str, model: Path, texts: Path, output: Path, batch_tokens: int = 24) -> Outcome:
    given = ["--model", str(model), "--input", str(texts), "--batch-tokens", str(batch_tokens)]
    return call(task, *TASKS[task], *given, "--output", str(output))


def batches(task: str, model: Path, texts: Path, output: Path, **options: int) -> int:
    with interrupted(None) as count:
        assert run(task, model, texts, output, **options).status == 0
    return count[0]


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("task", "killed"), fast(itertools.product(TASKS, [False, True]), ("embed", True), ("classify", False))
)
def test_an_interruption_costs_a_window(
    task: str, killed: bool, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_USUAL_CHARACTERS", 1)  # 512 characters: windows of a few texts
    model, whole, parts = models[task], tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    texts = texts_of(tmp_path / "in.jsonl", 60)
    total = batches(task, model, texts, whole)
    done = total * 3 // 4
    if killed:
        whole.unlink()
        with interrupted(done, (Path(f"{whole}.partial"), Path(f"{parts}.partial"))):
            assert run(task, model, texts, whole).status == 0
    else:
        with interrupted(done):
            outcome = run(task, model, texts, parts)
        assert outcome.status == 130 and "hint: " in outcome.err and "parts.jsonl.partial" in outcome.err
    kept = [len(results(path)) for path in sorted(Path(f"{parts}.partial").glob("part-*.jsonl"))]
    first, following = (
        batches(task, model, texts_of(tmp_path / "first.jsonl", count), tmp_path / f"{count}.jsonl")
        for count in (sum(kept), min(sum(kept) + max(kept) + 5, 60))
    )
    assert len(kept) > 1 and max(kept) < 30 and first <= done < following
    assert batches(task, model, texts, parts) == total - first
    assert parts.read_bytes() == whole.read_bytes() and not Path(f"{parts}.partial").exists()


@pytest.mark.parametrize("resumed_on", fast(["small", "large"], "small"))
def test_a_run_resumes_with_the_windows_that_are_left(
    resumed_on: GpuSize, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, whole, parts = texts_of(tmp_path / "in.jsonl", TOTAL), tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    as_on_a_gpu(monkeypatch, "small")
    monkeypatch.setattr(batch, "WINDOWS", {"small": SMALL, "large": 4 * SMALL})
    given: dict[str, int] = {"batch_tokens": 128}
    total = batches("embed", tiny_folder, texts, whole, **given)
    with interrupted(total * 3 // 4):  # within the second window
        assert run("embed", tiny_folder, texts, parts, **given).status == 130
    kept = sorted(Path(f"{parts}.partial").glob("part-*.jsonl"))
    assert [len(results(path)) for path in kept] == [SMALL]
    first = batches(
        "embed", tiny_folder, texts_of(tmp_path / "first.jsonl", SMALL), tmp_path / "first.out.jsonl", **given
    )
    as_on_a_gpu(monkeypatch, resumed_on)
    with interrupted(None) as rest:
        outcome = run("embed", tiny_folder, texts, parts, **given)
    assert outcome.status == 0 and f"resumed: {SMALL:,} results" in outcome.err
    if resumed_on == "small":
        assert rest == [total - first] and parts.read_bytes() == whole.read_bytes()
        return
    found, expected = results(parts), results(whole)
    assert [one["text"] for one in found] == [one["text"] for one in expected] and len(found) == TOTAL
    apart = np.array([one["embedding"] for one in found]) - np.array([one["embedding"] for one in expected])
    assert np.abs(apart).max() < 1e-5
