"""Runs that are interrupted within a window of texts: what is computed is not computed again."""

import functools
import itertools
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.cli.output import unfinished_part
from mlxbert.cli.output.unfinished_part import UnfinishedPart
from mlxbert.labels.labels import Labels
from mlxbert.tasks import runner
from mlxbert.text import batch
from tests.helpers.answering import save_answering
from tests.helpers.cases import fast
from tests.helpers.classifiers import save_classifier
from tests.helpers.program import Outcome, call

WORDS = ("the", "cat", "dog", "sat", "on", "mat", "paris")
TASKS = {
    "embed": ["--output-dtype", "float32"],
    "classify": [],
    "tag": [],
    "answer": ["--context", f"{'the cat sat on the mat ' * 5}in paris"],
    "fill-mask": [],
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of many lengths: less than a window, but many batches."""
    path, rng = tmp_path_factory.mktemp("texts") / "in.jsonl", random.Random(1)
    lines = []
    for _ in range(60):
        text = " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))
        lines.append(f'{{"text": "{text} [MASK]", "question": "{text}", "a": "{text}", "b": "cat"}}\n')
    path.write_text("".join(lines))
    return path


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


def run(task: str, model: Path, texts: Path, output: Path) -> Outcome:
    options = ["--model", str(model), "--input", str(texts), "--batch-tokens", "24", "--output", str(output)]
    return call(*task.split(), *TASKS[task], *options)


@pytest.mark.parametrize(
    ("task", "killed"), fast(itertools.product(TASKS, [False, True]), ("embed", True), ("answer", False))
)
def test_batches_are_computed_once(
    task: str, killed: bool, models: dict[str, Path], texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    with interrupted(None) as all_of_them:
        assert run(task, models[task], texts, whole).status == 0
    (total,) = all_of_them
    done = total * 3 // 4
    if killed:
        monkeypatch.setattr(unfinished_part, "SECONDS", 0.0)
        copied = (Path(f"{whole}.partial"), Path(f"{parts}.partial"))
        whole.unlink()
        with interrupted(done, copied):
            assert run(task, models[task], texts, whole).status == 0
    else:
        with interrupted(done):
            outcome = run(task, models[task], texts, parts)
        assert outcome.status == 130 and "hint: " in outcome.err and "parts.jsonl.partial" in outcome.err
    with interrupted(None) as rest:
        assert run(task, models[task], texts, parts).status == 0
    assert total > 8 and rest == [total - done]
    assert parts.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.jsonl", "whole.jsonl"]


def test_batches_after_others_replace_what_is_left_of_their_files(tmp_path: Path) -> None:
    def outputs(kept: UnfinishedPart, *keys: str) -> int:
        """Uses batches, one per file; returns how many were computed."""
        computed = list[str]()

        def compute(key: str) -> list[Any]:
            computed.append(key)
            return [np.array([ord(key)])]

        for key in keys:
            kept.remember(key, functools.partial(compute, key))
            kept.write()
        return len(computed)

    def again() -> UnfinishedPart:
        return UnfinishedPart(tmp_path, "owner")

    assert outputs(again(), *"abcdef") == 6
    assert outputs(again(), *"abXY") == 2
    assert len(again()) == 4
    assert outputs(again(), *"abXYZ") == 1
    assert [again().remember(key, list)[0].item() for key in "a"] == [ord("a")]
