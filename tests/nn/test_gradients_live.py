"""The first step of training next to torch: the loss and every gradient, of every family, without dropout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.machine.device import mx, nn
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.nn.losses import binary_cross_entropy, cross_entropy, mean_squared_error
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import open_checkpoint
from tests.helpers.cells import cells
from tests.helpers.families import FAMILIES, make_config, make_model
from tests.helpers.parity import Case

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

Arrays = dict[str, np.ndarray[Any, Any]]
HEAD = "sequence_classifier"
CLASSIFIERS = [family for family, compared in FAMILIES.items() if "ForSequenceClassification" in compared.heads]
# By the problem type: outputs, targets of four texts.
PROBLEMS: dict[str, tuple[int, Any]] = {
    "single_label_classification": (4, [0, 3, 1, 3]),
    "multi_label_classification": (4, [[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]]),
    "regression": (1, [0.5, -2.0, 3.25, 0.0]),
}


def their_model(family: str, problem: str) -> Any:
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


def _their_step(model: Any, case: Case, problem: str, folder: Path) -> tuple[float, Arrays]:
    """The loss, and the gradients by our names: they are saved in the place of the weights and loaded as such."""
    _, targets = PROBLEMS[problem]
    # Torch gives NaN where ModernBERT's window holds padding alone, in double precision only.
    dtype = torch.float32 if type(model).__name__.startswith("ModernBert") else torch.float64
    labels = torch.tensor(targets, dtype=torch.int64 if problem.startswith("single") else dtype)
    segments = None if case.segments is None or not case.segments.any() else torch.tensor(case.segments).long()
    given = {} if segments is None else {"token_type_ids": segments}
    model = model.to(dtype).train()
    found = model(torch.tensor(case.input_ids).long(), attention_mask=torch.tensor(case.mask), labels=labels, **given)
    found.loss.backward()
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    model.float().save_pretrained(folder)
    return found.loss.item(), parameters_of(load(folder))


def load(folder: Path) -> Network:
    checkpoint = open_checkpoint(folder)
    return build_network(checkpoint, checkpoint.parts, mx.float32)


def parameters_of(network: Network) -> Arrays:
    return _by_name(network.parameters())


def _by_name(tree: Any) -> Arrays:
    arrays: dict[str, mx.array] = dict(nn.utils.tree_flatten(tree))
    return {name: np.array(array) for name, array in arrays.items()}


def _our_step(network: Network, case: Case, problem: str) -> tuple[float, Arrays]:
    outputs, targets = PROBLEMS[problem]
    segments = None if case.segments is None or not case.segments.any() else mx.array(case.segments)
    assert case.mask is not None
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
    return float(value), _by_name(gradients)


@pytest.mark.parametrize(("family", "problem"), cells(CLASSIFIERS, PROBLEMS))
def test_the_first_step_is_that_of_torch(family: str, problem: str, tmp_path: Path) -> None:
    model = their_model(family, problem)
    model.save_pretrained(tmp_path / "weights")
    network = load(tmp_path / "weights")
    case = FAMILIES[family].cases["pairs"]
    loss, theirs = _their_step(model, case, problem, tmp_path / "gradients")
    found_loss, ours = _our_step(network, case, problem)
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert theirs.keys() == ours.keys()
    largest = max(float(np.abs(array).max()) for array in theirs.values())
    # Torch leaves the rows of padding without a gradient.
    tables = ("word", "position") if FAMILIES[family].kind.counted else ("word",)
    padded = {f"encoder.embeddings.{table}.weight" for table in tables}
    far = {}
    for name, array in theirs.items():
        difference = np.abs(ours[name] - array)
        if name in padded:
            difference[FAMILIES[family].facts["pad_token_id"]] = 0
        far[name] = float(difference.max()) / largest
    worst = max(far, key=lambda name: far[name])
    assert far[worst] <= 1e-5, f"{worst} differs by {far[worst]:.1e} of the largest gradient"
