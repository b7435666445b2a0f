"""What pre-training has stored is damaged: the corpus is read again, a state is refused."""

import functools
from pathlib import Path

import pytest

from tests.helpers.damage import DAMAGES
from tests.train.pretraining.test_pretrain import folder, start  # noqa: F401 - a fixture
from tests.train.test_damage import PLACES, Stopped, check

CORPUS = ("corpus/ids.bin", "corpus/sentences.bin", "corpus/documents.bin", "corpus/corpus.json")
FILES = (*CORPUS, "manifest.json", "runs/000/state.json", "runs/000/state-*.safetensors", "runs/000/best-*.safetensors")


@pytest.fixture(scope="module")
def stopped(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Stopped:  # noqa: F811
    return Stopped.after(0, 4, tmp_path_factory.mktemp("stopped"), functools.partial(start, folder, save_every=1))


@pytest.mark.sampled
@pytest.mark.parametrize("file", FILES)
def test_damage_never_gives_another_result(stopped: Stopped, file: str, tmp_path: Path) -> None:
    refused, _ = check(stopped, file, "block", tmp_path, 1)
    assert refused == (file not in CORPUS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_damage_at_many_places_never_gives_another_result(
    stopped: Stopped, file: str, kind: str, tmp_path: Path
) -> None:
    refused, whole = check(stopped, file, kind, tmp_path, PLACES)
    assert not (refused if file in CORPUS else whole and not file.endswith(".json"))
