"""The first step of training beside torch: the loss and every gradient, of every family, without dropout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.device import mx, nn
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.nn.losses import binary_cross_entropy, cross_entropy, mean_squared_error
from mlxbert.weights import keymap
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import Checkpoint, open_checkpoint
from tests.helpers.families import FAMILIES, make_config, make_model
from tests.helpers.parity import Case

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = pytest.mark.slow

HEAD = "sequence_classifier"
CLASSIFIERS = [family for family, compared in FAMILIES.items() if "ForSequenceClassification" in compared.heads]
# By the problem type: outputs, targets of four texts.
PROBLEMS: dict[str, tuple[int, Any]] = {
    "single_label_classification": (4, [0, 3, 1, 3]),
    "multi_label_classification": (4, [[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]]),
    "regression": (1, [0.5, -2.0, 3.25, 0.0]),
}


def _their_model(family: str, problem: str) -> Any:
    """In double precision: torch's own single precision is as far from it as we are."""
    compared = FAMILIES[family]
    known = make_config(compared, "ForSequenceClassification").to_dict()
    rates = {key: 0.0 for key in known if key.endswith(("dropout", "dropout_prob"))}
    changes = compared.changes | rates | ({"cls_dropout": 0.0} if compared.classes == "DebertaV2" else {})
    made = make_model(type(compared)(compared.classes, changes, compared.heads), "ForSequenceClassification")
    outputs, _ = PROBLEMS[problem]
    if outputs != 4:
        for module in made.modules():
            if isinstance(module, torch.nn.Linear) and module.out_features == 4:
                module.weight = torch.nn.Parameter(module.weight[:outputs].clone())
                module.bias = torch.nn.Parameter(module.bias[:outputs].clone())
        made.config.id2label = {0: "A"}
        made.config.label2id = {"A": 0}
        made.num_labels = 1
    made.config.problem_type = problem
    return made


def _their_step(model: Any, case: Case, problem: str) -> tuple[float, dict[str, np.ndarray[Any, Any]]]:
    _, targets = PROBLEMS[problem]
    labels = torch.tensor(targets, dtype=torch.int64 if problem.startswith("single") else torch.float64)
    segments = None if case.segments is None or not case.segments.any() else torch.tensor(case.segments).long()
    given = {} if segments is None else {"token_type_ids": segments}
    model = model.double().train()
    found = model(torch.tensor(case.input_ids).long(), attention_mask=torch.tensor(case.mask), labels=labels, **given)
    found.loss.backward()
    gradients = {name: tensor.grad for name, tensor in model.named_parameters() if tensor.grad is not None}
    return found.loss.item(), {name: array.numpy() for name, array in gradients.items()}


def _our_step(network: Network, case: Case, problem: str) -> tuple[float, dict[str, mx.array]]:
    outputs, targets = PROBLEMS[problem]
    segments = None if case.segments is None or not case.segments.any() else mx.array(case.segments)
    batch = Batch(mx.array(case.input_ids), mx.array(case.mask), segments)

    def loss(network: Network) -> mx.array:
        logits, wanted = network.logits(HEAD, batch), mx.array(targets)
        if problem == "regression":
            return mean_squared_error(logits[:, 0], wanted) / 4
        if problem == "multi_label_classification":
            return binary_cross_entropy(logits, wanted) / (4 * outputs)
        return cross_entropy(logits, wanted) / 4

    network.train()
    value, gradients = nn.value_and_grad(network, loss)(network)
    return float(value), dict(nn.utils.tree_flatten(gradients))


def _under_their_names(checkpoint: Checkpoint, ours: dict[str, mx.array]) -> dict[str, mx.array]:
    family, config = checkpoint.family, checkpoint.config
    prefix = family.prefixes[0]
    theirs: dict[str, mx.array] = {}
    for entry in keymap.pairs(family.table(family.parts), config.num_stored_layers, ours):
        inside = prefix if entry.ours[0].startswith("encoder.") else ""
        theirs |= {inside + name: array for name, array in keymap.save(entry, ours).items()}
    return theirs


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_the_first_step_is_that_of_torch(family: str, problem: str, tmp_path: Path) -> None:
    model = _their_model(family, problem)
    model.save_pretrained(tmp_path)
    case = FAMILIES[family].cases["pairs"]
    loss, theirs = _their_step(model, case, problem)
    checkpoint = open_checkpoint(tmp_path)
    network = build_network(checkpoint, checkpoint.parts, mx.float32)
    found_loss, ours = _our_step(network, case, problem)
    assert found_loss == pytest.approx(loss, rel=1e-6)
    found = {name: np.array(array) for name, array in _under_their_names(checkpoint, ours).items()}
    assert theirs.keys() <= found.keys(), theirs.keys() - found.keys()
    largest = max(float(np.abs(array).max()) for array in theirs.values())
    pad = FAMILIES[family].facts["pad_token_id"]
    far = {}
    for name, array in theirs.items():
        difference = np.abs(found[name] - array)
        if array.ndim == 2 and "embeddings" in name and array.shape[0] > pad:
            difference[pad] = 0  # torch leaves the row of padding without a gradient
        far[name] = float(difference.max()) / largest
    worst = max(far, key=lambda name: far[name])
    assert far[worst] <= 1e-5, f"{worst} differs by {far[worst]:.1e} of the largest gradient"
