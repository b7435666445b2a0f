"""The first step of training next to torch: the loss and every gradient, of every family and task, without dropout."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.goldens.golden_outputs import load_network
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.text.encoding import Encoding
from mlxbert.train.nn.losses import binary_cross_entropy, cross_entropy, mean_squared_error
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.objective import TrainBatch
from mlxbert.train.objectives.tag import Tag, TagExample
from tests.helpers.cells import cells, some
from tests.helpers.families import FAMILIES
from tests.helpers.gradients import assert_same_gradients, our_step, precision, their_gradients, without_dropout
from tests.train.test_tag import tagged

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

CLASSIFIERS, TAGGERS, ANSWERING = (
    [family for family, compared in FAMILIES.items() if f"For{kind}" in compared.heads]
    for kind in ("SequenceClassification", "TokenClassification", "QuestionAnswering")
)
# The targets of four texts by the problem type.
PROBLEMS: dict[str, Any] = {
    "single_label_classification": [0, 3, 1, 3],
    "multi_label_classification": [[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]],
    "regression": [0.5, -2.0, 3.25, 0.0],
}
Loss = Callable[..., Any]


def their_model(family: str, problem: str) -> Any:
    """A classifier of transformers, with one output for a regression."""
    made = without_dropout(family, "ForSequenceClassification")
    if problem == "regression":
        for module in made.modules():
            if isinstance(module, torch.nn.Linear) and module.out_features == 4:
                for name, array in [*module.named_parameters()]:
                    setattr(module, name, torch.nn.Parameter(array[:1].clone()))
        made.config.id2label, made.config.label2id, made.num_labels = {0: "A"}, {"A": 0}, 1
    made.config.problem_type = problem
    return made


def assert_same_step(model: Any, family: str, folder: Path, batch: Batch, ours: Loss, theirs: Loss) -> None:
    """Compares a loss of ours, of a network, with one of theirs, of what a model gives for a batch."""
    model.save_pretrained(folder / "weights")
    network = load_network(folder / "weights")
    given = {"attention_mask": batch.attention_mask, "token_type_ids": batch.token_type_ids}
    inputs = {name: torch.tensor(np.array(array)).long() for name, array in given.items() if array is not None}
    model = model.to(precision(model)).train()
    loss = theirs(model, torch.tensor(np.array(batch.input_ids)).long(), inputs)
    loss.backward()
    value, gradients = our_step(network, ours)
    assert value == pytest.approx(loss.item(), rel=2e-6)
    assert_same_gradients(gradients, their_gradients(model, folder / "gradients"), family=family)


def pairs_of(family: str) -> Batch:
    case = FAMILIES[family].cases["pairs"]
    assert case.mask is not None
    segments = None if case.segments is None or not case.segments.any() else mx.array(case.segments)
    return Batch(mx.array(case.input_ids), mx.array(case.mask) != 0, segments)


@pytest.mark.parametrize(("family", "problem"), cells(CLASSIFIERS, PROBLEMS))
def test_classifiers(family: str, problem: str, tmp_path: Path) -> None:
    model, batch, targets = their_model(family, problem), pairs_of(family), PROBLEMS[problem]

    def ours(network: Network) -> mx.array:
        logits, wanted = network.logits("sequence_classifier", batch), mx.array(targets)
        if problem == "regression":
            return mean_squared_error(logits[:, 0], wanted) / 4
        if problem == "multi_label_classification":
            return binary_cross_entropy(logits, wanted) / 16
        return cross_entropy(logits, wanted) / 4

    def theirs(model: Any, ids: Any, inputs: Any) -> Any:
        dtype = torch.int64 if problem.startswith("single") else precision(model)
        return model(ids, **inputs, labels=torch.tensor(targets, dtype=dtype)).loss

    assert_same_step(model, family, tmp_path, batch, ours, theirs)


@pytest.mark.parametrize("family", ANSWERING)
def test_answers(family: str, tmp_path: Path) -> None:
    """The loss is one over the tokens that are not padding."""
    batch, rng = pairs_of(family), random.Random(4)
    mask = np.array(batch.attention_mask)
    lengths = [int(row.sum()) for row in mask]
    targets = [sorted((rng.randrange(length), rng.randrange(length))) for length in lengths[:-1]] + [[0, 0]]
    objective = make_objective("answer")

    def ours(network: Network) -> mx.array:
        return objective.loss(network, TrainBatch(batch, mx.array(targets)))[0] / len(targets)

    def theirs(model: Any, ids: Any, inputs: Any) -> Any:
        found = model(ids, **inputs)
        ends = [logits.masked_fill(~torch.tensor(mask), -1e9) for logits in (found.start_logits, found.end_logits)]
        wanted = torch.tensor(targets)
        return sum(torch.nn.functional.cross_entropy(end, wanted[:, side]) for side, end in enumerate(ends)) / 2

    model = without_dropout(family, "ForQuestionAnswering")
    assert_same_step(model, family, tmp_path, batch, ours, theirs)


def tag_examples(family: str, labels: int) -> list[TagExample]:
    """Random inputs of different lengths; some of their tokens have tags."""
    compared, rng = FAMILIES[family], random.Random(7)
    words = [number for number in range(compared.facts["vocab_size"]) if number != compared.facts["pad_token_id"]]
    found = []
    for _ in range(4):
        length = rng.randint(4, compared.max_length)
        none: list[int | None] = [None] * length
        ids = rng.choices(words, k=length)
        encoding = Encoding(ids, [0] * length, [(0, 0)] * length, none, none, [*range(length)], False)
        target = [(place, rng.randrange(labels)) for place in range(1, length) if rng.random() < 0.6]
        found.append(TagExample(encoding, target, tagged(["a"], ["O"]), 0, ()))
    return found


@pytest.mark.parametrize("family", some(TAGGERS))
def test_tags(family: str, tmp_path: Path) -> None:
    model, made = without_dropout(family, "ForTokenClassification"), Tag()
    model.save_pretrained(tmp_path / "config")
    made.config, made._crf = load_network(tmp_path / "config").encoder.config, None
    examples = tag_examples(family, model.config.num_labels)
    batch = made.collate(examples, random.Random(0))

    def ours(network: Network) -> mx.array:
        loss, weight = made.loss(network, batch)
        return loss / weight

    def theirs(model: Any, ids: Any, inputs: Any) -> Any:
        labels = torch.full(tuple(ids.shape), -100)
        for row, example in enumerate(examples):
            for place, tag in example.target:
                labels[row, place] = tag
        return model(ids, **inputs, labels=labels).loss

    assert_same_step(model, family, tmp_path, batch.inputs, ours, theirs)
