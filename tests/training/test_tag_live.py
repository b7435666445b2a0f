"""The first step of training on tags next to torch: the loss and every gradient, of every family, without dropout."""

import random
from pathlib import Path

import numpy as np
import pytest

from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import Network
from mlxbert.text.encoding import Encoding
from mlxbert.training.objectives.tag import Tag, TagExample
from tests.helpers.cells import some
from tests.helpers.families import FAMILIES, make_config, make_model
from tests.training.test_tag import tagged

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
pytest.importorskip("transformers", reason="live parity needs transformers")
from tests.nn.test_gradients_live import load, parameters_of  # noqa: E402

pytestmark = pytest.mark.slow

CLASS = "ForTokenClassification"
TAGGERS = [family for family, compared in FAMILIES.items() if CLASS in compared.heads]


def examples(family: str, labels: int) -> list[TagExample]:
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
def test_the_first_step_is_that_of_torch(family: str, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    rates = {key: 0.0 for key in make_config(compared, CLASS).to_dict() if key.endswith(("dropout", "dropout_prob"))}
    model = make_model(type(compared)(compared.classes, compared.changes | rates, compared.heads), CLASS)
    model.save_pretrained(tmp_path / "weights")
    network = load(tmp_path / "weights")
    made = Tag()
    made.config, made._layer = network.encoder.config, None
    found = examples(family, model.config.num_labels)
    batch = made.collate(found, random.Random(0))

    def mean(network: Network) -> mx.array:
        loss, weight = made.loss(network, batch)
        return loss / weight

    network.train()
    value, gradients = nn.value_and_grad(network, mean)(network)
    arrays: dict[str, mx.array] = dict(nn.utils.tree_flatten(gradients))
    ours = {name: np.array(array) for name, array in arrays.items()}

    dtype = torch.float32 if compared.classes == "ModernBert" else torch.float64  # NaN in double precision
    labels = torch.full(tuple(batch.inputs.input_ids.shape), -100)
    for row, example in enumerate(found):
        for place, tag in example.target:
            labels[row, place] = tag
    assert batch.inputs.attention_mask is not None
    model = model.to(dtype).train()
    given = {
        "input_ids": torch.tensor(np.array(batch.inputs.input_ids)).long(),
        "attention_mask": torch.tensor(np.array(batch.inputs.attention_mask)).long(),
    }
    loss = model(**given, labels=labels).loss
    loss.backward()
    assert float(value) == pytest.approx(loss.item(), rel=2e-6)
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    model.float().save_pretrained(tmp_path / "gradients")
    theirs = parameters_of(load(tmp_path / "gradients"))
    assert theirs.keys() == ours.keys()
    largest = max(float(np.abs(array).max()) for array in theirs.values())
    padded = {f"encoder.embeddings.{table}.weight" for table in ("word", "position")}
    far = {}
    for name, array in theirs.items():
        difference = np.abs(ours[name] - array)
        if name in padded:  # torch leaves the rows of padding without a gradient
            difference[compared.facts["pad_token_id"]] = 0
        far[name] = float(difference.max()) / largest
    worst = max(far, key=lambda name: far[name])
    assert far[worst] <= 1e-5, f"{worst} differs by {far[worst]:.1e} of the largest gradient"
