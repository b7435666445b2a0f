"""A tiny classifier with a width that published models have, and its gradients and losses in torch.

`scripts/make_goldens.py` computes `goldens/classifier/classifier.json` in float64, with `transformers`' BERT and
torch's AdamW. The weights are not stored, because they are random numbers from a fixed seed.
"""

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.doctor.check.operations import operations_of
from mlxbert.goldens.golden_outputs import GOLDENS, Case, facts_of, load_network, make_cases
from mlxbert.machine.device import mx, nn, scalar
from mlxbert.nn.encoder import Batch, KnownIds
from mlxbert.nn.heads import Network
from mlxbert.train.loop.adamw import AdamW, Arrays
from mlxbert.train.loop.gradients import Differentiator, Gradients, dropout_key
from mlxbert.train.loop.optimizer_steps import optimizer_step
from mlxbert.train.loop.saved_run import Progress
from mlxbert.train.nn.losses import cross_entropy
from mlxbert.train.objectives.objective import Example, LoopObjective, TrainBatch
from mlxbert.weights.formats.config_json import ConfigJson

PATH = GOLDENS / "classifier" / "classifier.json"
UPDATES, RATE, DECAY, CLASSES = 5, 1e-3, 0.01, 4
_HEAD = "sequence_classifier"
CONFIG: dict[str, Any] = {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 43, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "hidden_act": "gelu",
    "max_position_embeddings": 32, "type_vocab_size": 2, "layer_norm_eps": 1e-5, "pad_token_id": 0,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": CLASSES,
    "id2label": {str(number): f"LABEL_{number}" for number in range(CLASSES)},
    "label2id": {f"LABEL_{number}": number for number in range(CLASSES)},
}  # fmt: skip
PROJECTIONS = 3


def operations() -> frozenset[str]:
    """Returns the names of all operations that training the classifier uses, including gradients, loss and AdamW."""
    used = operations_of(facts_of(ConfigJson(PATH, CONFIG)))
    gradients = {f"gradient of {name}" for name in (*used, "attention in training")}
    return used | gradients | {"cross entropy", "update"}


def draw_weights(shapes: dict[str, Sequence[int]]) -> dict[str, NDArray[np.float32]]:
    """Draws random float32 weights, given shapes by name in a checkpoint.

    The weights of norms are around 1, all others around 0.
    """
    weights = {}
    for number, (name, shape) in enumerate(shapes.items()):
        noise = np.random.default_rng(number).standard_normal(tuple(shape), np.float32) * np.float32(0.2)
        weights[name] = noise + np.float32(name.endswith("LayerNorm.weight"))
    return weights


def project(gradient: NDArray[np.float64], number: int) -> list[float]:
    """Returns the length of a gradient, and its products with random vectors of length about 1.

    The random vectors are seeded by `number`, the number of the parameter.
    """
    directions = np.random.default_rng(1000 + number).standard_normal((PROJECTIONS, gradient.size))
    return [float(np.linalg.norm(gradient)), *(directions @ gradient.ravel() / gradient.size**0.5).tolist()]


def case() -> Case:
    """Returns the batch of four padded texts that the classifier is trained on."""
    return make_cases(CONFIG["vocab_size"], CONFIG["max_position_embeddings"], 0, 1)["padding"]


@cache
def golden() -> dict[str, Any]:
    """Reads the results of torch: `losses` and `parameters`.

    `parameters` maps the name of each parameter, in order, to its facts: `ours` (its name in the network), `shape`, and
    `projections`.
    """
    results: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return results


def write(folder: Path, shapes: dict[str, Sequence[int]]) -> Path:
    """Writes the classifier into a folder, in the form that `transformers` uses; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    weights = {name: mx.array(array) for name, array in draw_weights(shapes).items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


class _ClassObjective(LoopObjective[Example]):
    """The training objective of the classifier, which is the cross-entropy of the classes."""

    name, metric, pure = "classify", "loss", True

    def collate(self, examples: Sequence[Example], rng: random.Random) -> TrainBatch:
        """Returns the only batch, whatever the examples are."""
        return batch()

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, mx.array | float]:
        logits = network.logits(_HEAD, batch.inputs)
        return cross_entropy(logits, batch.targets), float(len(batch.targets))


def batch() -> TrainBatch:
    """Returns the batch of texts with their classes, ready for training."""
    texts = case()
    ids, mask = mx.array(texts.input_ids), mx.array(texts.real)
    ids_used = KnownIds(frozenset(map(int, np.unique(texts.input_ids))))
    return TrainBatch(Batch(ids, mask, ids=ids_used), mx.arange(len(texts.input_ids)) % CLASSES)


def trained(folder: Path) -> tuple[Gradients, list[float]]:
    """Trains the classifier as `finetune` does; returns the first gradients, and the loss of each update."""
    shapes = {name: parameter["shape"] for name, parameter in golden()["parameters"].items()}
    network = load_network(write(folder, shapes))
    network.train()
    parameters: Arrays = dict(nn.utils.tree_flatten(network.parameters()))
    differentiate = Differentiator(network, _ClassObjective(), mx.float32)
    factors, decays = dict.fromkeys(parameters, 1.0), dict.fromkeys(parameters, DECAY)
    step, optimizer = optimizer_step(factors, decays, 0, scaled=False), AdamW.new(parameters)  # without clipping
    counters = step.counters(Progress())
    losses, first = list[float](), None
    for _ in range(UPDATES):
        gradients = differentiate(parameters, [lambda: (batch(), dropout_key(0))])
        mx.eval(gradients.arrays)
        first = first or gradients
        losses.append(scalar(gradients.loss) / scalar(gradients.weight))
        _, parameters, optimizer, counters = step(parameters, optimizer, gradients, counters, RATE)
    assert first is not None
    return first, losses
