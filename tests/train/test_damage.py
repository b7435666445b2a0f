"""What a run has stored is damaged: it ends in the result of an undamaged run, or in an error that says so.

A damaged corpus of pre-training is read again.
"""

import functools
import itertools
import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import CheckpointError, MlxbertError
from mlxbert.train.loop.events import Event, Saved
from tests.helpers.damage import DAMAGES, damage
from tests.train.files import data_file
from tests.train.pretraining import test_pretrain
from tests.train.pretraining.files import model_folder, text_file

_LOG = logging.getLogger(__name__)
PLACES = int(os.environ.get("MLXBERT_TEST_DAMAGES", "4"))  # of each file and kind of damage
FILES = (
    *("manifest.json", "runs/000/result.json", "runs/000/weights.safetensors"),
    *("runs/001/state.json", "runs/001/state-*.safetensors", "runs/001/best-*.safetensors"),
)
CORPUS = ("corpus/ids.bin", "corpus/sentences.bin", "corpus/documents.bin", "corpus/corpus.json")
OF_PRETRAINING = (
    *(*CORPUS, "manifest.json"),
    *("runs/000/state.json", "runs/000/state-*.safetensors", "runs/000/best-*.safetensors"),
)


class Stopped:
    """A call that takes the folder to write, and was interrupted once it had saved a state."""

    def __init__(self, run: int, step: int, folder: Path, call: Callable[[Path], Iterator[Event]]) -> None:
        stream = call(folder / "out")
        assert any(isinstance(event, Saved) and (event.run, event.step) == (run, step) for event in stream)
        stream.close()  # type: ignore[attr-defined]
        self.call, self.partial = call, folder / "out.partial"
        shutil.copytree(self.partial, folder / "whole.partial")
        self.expected = self.resumed(folder / "whole")

    def resumed(self, target: Path) -> tuple[bytes, Any]:
        """The result of the same call with `target.partial`."""
        list(self.call(target))
        return result(target)


def result(target: Path) -> tuple[bytes, Any]:
    """The weights, and what the folder says of the runs, but how long they took."""
    record = json.loads((target / "training.json").read_text())
    runs = [{name: value for name, value in run.items() if name != "seconds"} for run in record.get("runs", [])]
    return (target / "model.safetensors").read_bytes(), (runs, record.get("metrics"))


def start(options: Mapping[str, Any], target: Path) -> Iterator[Event]:
    return mlxbert.finetune("classify", output=target, **options)


@pytest.fixture(scope="module")
def options(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        **{"train": data_file(tmp_path_factory.mktemp("data"), "classify", 48), "model": base, "seeds": 2},
        **{"epochs": 2, "lr": 1e-2, "batch_size": 16, "save_every": 1},
    }


@pytest.fixture(scope="module")
def stopped(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """Interrupted in the second of two runs, a step after its first evaluation."""
    return Stopped(1, 4, tmp_path_factory.mktemp("stopped"), functools.partial(start, options))


@pytest.fixture(scope="module")
def pretraining(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    folder = tmp_path_factory.mktemp("pretraining")
    text, model, options = text_file(folder / "text.txt"), model_folder(folder / "tiny"), test_pretrain.OPTIONS

    def call(output: Path) -> Iterator[Event]:
        return mlxbert.pretrain(text, model=model, output=output, save_every=1, **options)

    return Stopped(0, 4, folder, call)


def check(stopped: Stopped, file: str, kind: str, folder: Path, places: int) -> tuple[int, int]:
    """Damages a file at some places, one at a time; how many calls were refused, and how many gave the result."""
    refused = whole = 0
    for place in range(places):
        target = folder / f"out-{place}"
        partial = shutil.copytree(stopped.partial, f"{target}.partial")
        (path,) = Path(partial).glob(file)
        damage(path, kind, random.Random(f"{file} {kind} {place}"))
        try:
            assert stopped.resumed(target) == stopped.expected
            whole += 1
        except MlxbertError as problem:
            assert problem.hint and target.name in problem.message
            refused += 1
            assert not target.exists()
        for left in (target, Path(partial)):
            shutil.rmtree(left, ignore_errors=True)
    _LOG.info("%s, %s: %d refused, %d with the same result", file, kind, refused, whole)
    return refused, whole


@pytest.mark.sampled
@pytest.mark.parametrize("file", OF_PRETRAINING)
def test_damage_of_pre_training_never_gives_another_result(pretraining: Stopped, file: str, tmp_path: Path) -> None:
    assert check(pretraining, file, "block", tmp_path, 1)[0] == (file not in CORPUS)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_damage_never_gives_another_result(stopped: Stopped, file: str, kind: str, tmp_path: Path) -> None:
    check(stopped, file, kind, tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize(
    ("call", "file"), [*(("stopped", file) for file in FILES), *(("pretraining", file) for file in OF_PRETRAINING)]
)
def test_damage_at_many_places_never_gives_another_result(
    call: str, file: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    refused, whole = check(request.getfixturevalue(call), file, kind, tmp_path, PLACES)
    assert refused + whole == PLACES
    assert not (refused if file in CORPUS else whole and not file.endswith(".json"))  # of JSON, a space may be changed


@pytest.mark.parametrize(("one", "other"), [("runs/000", "runs/001"), ("runs/001", "runs/000")])
def test_a_run_is_not_taken_for_another(stopped: Stopped, one: str, other: str, tmp_path: Path) -> None:
    partial = Path(shutil.copytree(stopped.partial, tmp_path / "out.partial"))
    shutil.rmtree(partial / other)
    shutil.copytree(partial / one, partial / other)
    with pytest.raises(CheckpointError, match=f"out.partial/{other}") as caught:
        stopped.resumed(tmp_path / "out")
    assert caught.value.hint and other in caught.value.hint
    shutil.rmtree(partial / other)  # as the hint says
    assert stopped.resumed(tmp_path / "out") == stopped.expected


def test_the_work_of_other_options_is_not_taken_although_its_manifest_was_exchanged(
    stopped: Stopped, options: dict[str, Any], tmp_path: Path
) -> None:
    stream = start({**options, "lr": 2e-3}, tmp_path / "out")
    assert any(isinstance(event, Saved) for event in itertools.islice(stream, 5))
    stream.close()  # type: ignore[attr-defined]
    shutil.copyfile(stopped.partial / "manifest.json", tmp_path / "out.partial/manifest.json")
    with pytest.raises(CheckpointError, match="another run"):
        stopped.resumed(tmp_path / "out")
