"""The first step of training adapters next to PEFT: the loss, and the gradients of A, B, magnitudes and heads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx, scalar
from mlxbert.nn.encoder import Batch
from mlxbert.train.base_model import BaseModel
from mlxbert.train.files.trained_model import write_trained
from mlxbert.train.loop.gradients import Differentiator, dropout_key
from mlxbert.train.lora_adapters import adapt_model, choose, write_adapter
from mlxbert.train.nn.losses import cross_entropy
from mlxbert.train.objectives.objective import TrainBatch
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.weights.build import parameters
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef
from tests.helpers.families import FAMILIES, Compared, class_of, make_config
from tests.helpers.frozen import add_vocabulary
from tests.train.test_adapter_live import change

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
peft = pytest.importorskip("peft", reason="live parity needs peft")

pytestmark = [pytest.mark.slow]

HEAD, TARGETS = "sequence_classifier", [1, 0, 3]


class _Objective:
    """The mean loss of a batch."""

    pure = True
    losses: tuple[str, ...] = ()

    def terms(self, network: Any, batch: TrainBatch) -> tuple[dict[str, mx.array], float]:
        return {"": cross_entropy(network.logits(HEAD, batch.inputs), batch.targets).sum() / 3}, 3.0


@pytest.mark.parametrize("family", ["bert", "modernbert", "neobert"])
@pytest.mark.parametrize(
    "kind",
    [{}, {"dora": True, "lora_layers": "all-linear"}, {"rslora": True, "lora_layers": "all-linear"}],
    ids=["lora", "dora", "rslora"],
)
def test_loss_and_gradients_are_those_of_peft(family: str, kind: dict[str, Any], tmp_path: Path) -> None:
    model, trained = _ours(family, kind, tmp_path)
    ids = FAMILIES[family].cases["full length"].input_ids
    network, arrays = model.network, parameters(model.network)
    differentiator = Differentiator(network, _Objective(), mx.float32)  # type: ignore[arg-type]
    differentiator.freeze({name: array for name, array in arrays.items() if name not in trained})
    network.train()
    batch = TrainBatch(Batch(mx.array(ids)), mx.array(TARGETS))
    found = differentiator({name: arrays[name] for name in trained}, [lambda: (batch, dropout_key(0))])
    network.eval()
    network.load_weights(list(found.arrays.items()), strict=False)  # gradients in the place of weights are written
    gradients = _written(model, kind, tmp_path / "gradients")

    theirs = _theirs(family, tmp_path)
    outputs = theirs(input_ids=torch.tensor(ids).long(), labels=torch.tensor(TARGETS))
    outputs.loss.backward()
    assert scalar(found.loss) == pytest.approx(outputs.loss.item(), rel=1e-5)
    expected = {name.replace(".default", "").replace(".modules_to_save", ""): parameter.grad.numpy()
                for name, parameter in theirs.named_parameters() if parameter.requires_grad}  # fmt: skip
    expected = {name.replace("magnitude_vector.weight", "magnitude_vector"): grad for name, grad in expected.items()}
    assert expected.keys() == gradients.keys()
    largest = max(np.abs(grad).max() for grad in expected.values())
    for name, grad in expected.items():
        assert np.abs(np.array(gradients[name]) - grad).max() < 1e-5 * largest, name


def _ours(family: str, kind: dict[str, Any], folder: Path) -> tuple[mlxbert.Model, frozenset[str]]:
    """An adapted model without dropout, its base and its adapter in folders."""
    compared = FAMILIES[family]
    rates = {key: 0.0 for key in make_config(compared, "Model").to_dict() if key.endswith(("dropout", "dropout_prob"))}
    calm = Compared(compared.classes, compared.changes | rates | {"initializer_range": 0.1}, compared.heads)
    torch.manual_seed(20)
    made = class_of(f"{compared.classes}Model")(make_config(calm, "Model"))
    made.save_pretrained(folder / "base")
    add_vocabulary(folder / "base")
    labels = mlxbert.Labels(("A", "B", "C", "D"))
    model = mlxbert.load(folder / "base", new_heads={HEAD: labels}, dtype="float32", device="cpu")
    adapters = adapt_model(model, TrainingOptions(lora=3, **kind))
    assert adapters is not None
    change(model.network, adapters.trained)
    (folder / "out").mkdir()
    source = BaseModel(ref=ModelRef(folder / "base"), files=ModelFolder(folder / "base"))
    write_trained(model, folder / "out", lambda path: {}, {}, adapter=adapters.writer(model, source))
    return model, adapters.trained


def _written(model: mlxbert.Model, kind: dict[str, Any], folder: Path) -> dict[str, mx.array]:
    """The arrays of adapters and heads under PEFT's names."""
    folder.mkdir()
    options = TrainingOptions(lora=3, **kind)
    assert options.adapters is not None
    targets = choose(model.architecture, options)
    # Layers that share A are given the gradient of A once: that of their sum.
    write_adapter(folder, model.architecture, model.network, targets, options.adapters, {})
    arrays = mx.load(str(folder / "adapter_model.safetensors"))
    assert isinstance(arrays, dict)
    return arrays


def _theirs(family: str, folder: Path) -> Any:
    kind = f"{FAMILIES[family].classes}ForSequenceClassification"
    plain = class_of(kind).from_pretrained(folder / "base", num_labels=4, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(plain, folder / "out", is_trainable=True)
    return model.double().train()
