"""The first step of question answering next to torch: the loss and every gradient, of every family with the head."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.machine.device import mx, nn
from mlxbert.nn.encoder import Batch
from mlxbert.training.objective import TrainBatch
from mlxbert.training.objectives import make_objective
from tests.helpers.families import FAMILIES, make_config, make_model
from tests.nn.test_gradients_live import Arrays, load, parameters_of

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

KIND = "ForQuestionAnswering"
ANSWERING = [family for family, compared in FAMILIES.items() if KIND in compared.heads]


def their_model(family: str) -> Any:
    """Without dropout."""
    compared = FAMILIES[family]
    known = make_config(compared, KIND).to_dict()
    rates = {key: 0.0 for key in known if key.endswith(("dropout", "dropout_prob"))}
    return make_model(type(compared)(compared.classes, compared.changes | rates, compared.heads), KIND)


def their_step(model: Any, batch: TrainBatch, folder: Path) -> tuple[float, Arrays]:
    """The loss over the tokens that are not padding, and the gradients by our names."""
    # Torch gives NaN where ModernBERT's window holds padding alone, in double precision only.
    dtype = torch.float32 if type(model).__name__.startswith("ModernBert") else torch.float64
    ids, segments = batch.inputs.input_ids, batch.inputs.token_type_ids
    mask = torch.tensor(np.array(batch.inputs.attention_mask))
    given = {} if segments is None else {"token_type_ids": torch.tensor(np.array(segments)).long()}
    model = model.to(dtype).train()
    found = model(torch.tensor(np.array(ids)).long(), attention_mask=mask.long(), **given)
    targets = torch.tensor(np.array(batch.targets)).long()
    ends = [logits.masked_fill(~mask, -1e9) for logits in (found.start_logits, found.end_logits)]
    losses = [torch.nn.functional.cross_entropy(logits, targets[:, side]) for side, logits in enumerate(ends)]
    loss = sum(losses) / 2
    loss.backward()
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    model.float().save_pretrained(folder)
    return loss.item(), parameters_of(load(folder))


@pytest.mark.parametrize("family", ANSWERING)
def test_the_first_step_is_that_of_torch(family: str, tmp_path: Path) -> None:
    model, case = their_model(family), FAMILIES[family].cases["pairs"]
    model.save_pretrained(tmp_path / "weights")
    network = load(tmp_path / "weights")
    assert case.mask is not None
    segments = None if case.segments is None or not case.segments.any() else mx.array(case.segments)
    rng = random.Random(4)
    lengths = [int(row.sum()) for row in case.mask]
    targets = [sorted((rng.randrange(length), rng.randrange(length))) for length in lengths[:-1]] + [[0, 0]]
    batch = TrainBatch(Batch(mx.array(case.input_ids), mx.array(case.mask) != 0, segments), mx.array(targets))
    loss, theirs = their_step(model, batch, tmp_path / "gradients")
    objective = make_objective("answer")
    network.train()
    found, gradients = nn.value_and_grad(network, lambda net: objective.loss(net, batch)[0] / len(targets))(network)
    flat: dict[str, mx.array] = dict(nn.utils.tree_flatten(gradients))
    ours = {name: np.array(array) for name, array in flat.items()}
    assert float(found) == pytest.approx(loss, rel=1e-6)
    assert theirs.keys() == ours.keys()
    largest = max(float(np.abs(array).max()) for array in theirs.values())
    # Torch leaves the rows of padding without a gradient.
    tables = ("word", "position") if FAMILIES[family].kind.counted else ("word",)
    for table in tables:
        name, pad = f"encoder.embeddings.{table}.weight", FAMILIES[family].facts["pad_token_id"]
        if name in ours:
            ours[name][pad] = theirs[name][pad] = 0
    far = {name: float(np.abs(ours[name] - array).max()) / largest for name, array in theirs.items()}
    worst = max(far, key=lambda name: far[name])
    assert far[worst] <= 1e-5, f"{worst} differs by {far[worst]:.1e} of the largest gradient"
