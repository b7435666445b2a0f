"""Adapters of pre-training in PEFT: the same logits from the same folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from tests.train.pretraining.test_lora import models, start

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
peft = pytest.importorskip("peft", reason="live parity needs peft")

pytestmark = [pytest.mark.slow]

IDS = [[2, 7, 9, 4, 12, 3], [2, 4, 8, 30, 11, 3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("adapters"))


@pytest.mark.parametrize("options", [{}, {"dora": True, "lora_layers": "all-linear"}, {"rslora": True}], ids=str)
@pytest.mark.parametrize(
    ("model", "objective"), [("words", "mlm"), ("bare", "mlm"), ("words", "mlm,nsp"), ("both", "mlm,nsp")]
)
def test_peft_computes_the_same(
    model: str, objective: str, options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    [*start(folder, model, tmp_path / "out", objective=objective, **options)]
    ours = mlxbert.load(tmp_path / "out", dtype="float32", device="cpu").network
    kind = transformers.BertForMaskedLM if objective == "mlm" else transformers.BertForPreTraining
    theirs = peft.PeftModel.from_pretrained(kind.from_pretrained(folder / model), tmp_path / "out").eval()
    with torch.no_grad():
        found = theirs(input_ids=torch.tensor(IDS))
    pairs = [("masked_lm", found.logits if objective == "mlm" else found.prediction_logits)]
    pairs += [] if objective == "mlm" else [("next_sentence", found.seq_relationship_logits)]
    for head, logits in pairs:
        np.testing.assert_allclose(np.array(ours.logits(head, Batch(mx.array(IDS)))), logits.numpy(), atol=1e-5)
