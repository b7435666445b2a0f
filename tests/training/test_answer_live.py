"""A trained folder of question answering opens in transformers and computes the same there."""

from pathlib import Path

import pytest

import mlxbert
from mlxbert.training.events import Finished
from tests.helpers.answering import save_answering
from tests.training.test_answer_objective import records

pytest.importorskip("torch", reason="parity needs torch: pip install -r requirements-parity.txt")
pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.slow


def test_a_trained_folder_computes_the_same_in_transformers(tmp_path: Path) -> None:
    model = save_answering(tmp_path / "model")
    *_, last = mlxbert.finetune(
        "answer", train=records(60), model=model, output=tmp_path / "out", epochs=1, lr=1e-3, check=True
    )
    assert isinstance(last, Finished) and last.check is not None and last.check <= 1e-4
