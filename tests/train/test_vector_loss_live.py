"""The first step of training vectors next to the losses of sentence-transformers."""

import functools
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.machine.device import mx, nn, scalar
from mlxbert.nn import dropout
from mlxbert.train.base_model import BaseModel
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.loop.gradients import ComparedBatch, Differentiator, dropout_key
from mlxbert.train.loop.phase_times import Times
from mlxbert.train.objectives.embed import Embed
from mlxbert.train.objectives.objective import TrainBatch
from mlxbert.train.objectives.vector_objective import TextGroup
from mlxbert.train.training_plan import make_plan
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef
from tests.helpers.gradients import Arrays, assert_same_gradients, their_gradients

if not os.environ.get("MLXBERT_TEST_EMBEDDER"):
    pytest.skip("MLXBERT_TEST_EMBEDDER is not set", allow_module_level=True)
pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
library = pytest.importorskip("sentence_transformers", reason="live parity needs sentence-transformers")
from sentence_transformers.sentence_transformer import losses  # noqa: E402

BOUND = 1e-5
WORDS = ("cat", "mat", "dog", "house", "night", "friend", "runs", "sits", "far", "with", "near", "the", "and", "of")


def text(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(2, 8)))


def rows(kind: str, count: int) -> list[dict[str, Any]]:
    """Records of a kind; no text occurs twice, so that nothing is left out as a false negative."""
    rng = np.random.default_rng(3)
    texts = list(dict.fromkeys(text(rng) for _ in range(12 * count)))
    found: list[dict[str, Any]] = []
    for number in range(count):
        first, second, *others = texts[4 * number : 4 * number + 4]
        one: dict[str, Any] = {"anchor": first, "positive": second}
        if kind == "negatives":
            one["negatives"] = others
        elif kind == "triplet":
            one["negative"] = others[0]
        elif kind == "scored":
            one = {"sentence1": first, "sentence2": second, "score": float(rng.integers(0, 6)) / 5}
        found.append(one)
    return found


def columns(kind: str, records: list[dict[str, Any]]) -> list[list[str]]:
    """The texts of the records by columns, as sentence-transformers takes them."""
    if kind == "negatives":
        each = [(one["anchor"], one["positive"], *one["negatives"]) for one in records]
    else:
        each = [tuple(value for value in one.values() if isinstance(value, str)) for one in records]
    return [list(column) for column in zip(*each, strict=True)]


def matryoshka(model: Any, loss: Any) -> Any:
    return losses.MatryoshkaLoss(model, loss, [384, 96, 32])


# What the data are, our options, and the loss of sentence-transformers.
CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "in-batch": ("pairs", {}, losses.MultipleNegativesRankingLoss),
    "negatives": ("negatives", {"temperature": 0.1}, lambda m: losses.MultipleNegativesRankingLoss(m, scale=10.0)),
    "both ways": ("pairs", {"symmetric": True}, losses.MultipleNegativesSymmetricRankingLoss),
    "cached": ("negatives", {"chunk": 3}, lambda m: losses.CachedMultipleNegativesRankingLoss(m, mini_batch_size=3)),
    "triplet": ("triplet", {"loss": "triplet", "margin": 0.7}, lambda m: losses.TripletLoss(m, triplet_margin=0.7)),
    "cosine": ("scored", {"loss": "cosine"}, losses.CosineSimilarityLoss),
    "cosent": ("scored", {}, losses.CoSENTLoss),
    "matryoshka": (
        "pairs", {"dimensions": [384, 96, 32]}, lambda m: matryoshka(m, losses.MultipleNegativesRankingLoss(m)),
    ),
    "matryoshka, scored": ("scored", {"dimensions": [384, 96, 32]}, lambda m: matryoshka(m, losses.CoSENTLoss(m))),
}  # fmt: skip


def theirs(folder: Path, kind: str, records: list[dict[str, Any]], make: Any, saved: Path) -> tuple[float, Arrays]:
    """Their loss, and their gradients by our names: saved in the place of the weights and loaded as such."""
    model = library.SentenceTransformer(str(folder), device="cpu")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    loss = make(model)
    features = [model.tokenize(column) for column in columns(kind, records)]
    labels = torch.tensor([one.get("score", 0.0) for one in records])
    value = loss(features, labels)
    value.backward()
    found = their_gradients(model[0].auto_model, saved)
    return value.item(), {name: array for name, array in found.items() if "pooler" not in name}


def part_of(objective: Embed, examples: Sequence[TextGroup], number: int) -> tuple[TrainBatch, mx.array]:
    return objective.collate(examples, random.Random(0)), dropout_key(number)


def ours(folder: Path, records: list[dict[str, Any]], options: dict[str, Any], parts: int) -> tuple[float, Arrays]:
    """Our loss and gradients, in that many parts."""
    objective = Embed(**options)
    source = BaseModel(ref=ModelRef("start", device="cpu"), files=ModelFolder(folder))
    plan = make_plan(objective, source, read_rows(records), read_rows(records), None, 0, Times())
    network = source.with_heads(plan.heads, 0).network
    dropout.set_rate(network, 0.0)
    network.train()
    examples = plan.train.examples
    shares = [examples[part::parts] for part in range(parts)]
    made = [functools.partial(part_of, objective, some, number) for number, some in enumerate(shares)]
    whole = ComparedBatch(
        compare=objective.compare,
        targets=objective.targets([one for some in shares for one in some]),
        total=None,
        width=objective.width,
    )
    parameters = dict(nn.utils.tree_flatten(network.parameters()))
    counts = [sum(len(one.encodings) for one in some) for some in shares]
    found = Differentiator(network, objective, mx.float32).compared(parameters, made, counts, whole)
    weight = scalar(found.weight)
    gradients = {name: np.array(array / weight) for name, array in found.arrays.items()}
    return scalar(found.loss) / weight, gradients


@pytest.fixture
def folder() -> Path:
    """A trained model: vectors of an untrained one are all nearly the same, and their gradients mostly rounding."""
    return Path(os.environ.get("MLXBERT_TEST_EMBEDDER", "/none"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled
def test_the_first_step_is_that_of_sentence_transformers(case: str, folder: Path, tmp_path: Path) -> None:
    kind, options, make = CASES[case]
    records = rows(kind, 8)
    expected, gradients = theirs(folder, kind, records, make, tmp_path / "gradients")
    loss, found = ours(folder, records, options, 3 if "chunk" in options else 1)
    assert abs(loss - expected) <= BOUND * abs(expected)
    assert_same_gradients(found, gradients, BOUND)
