"""Training next to torch: the first step of every family and task, ten steps with AdamW, and vectors and rerankers.

The largest relative difference of a loss of ten steps that was measured is 2.6e-6, of a parameter 2e-5; torch in single
precision is 1.9e-6 away from torch in double precision. The first step is compared without dropout.
"""

import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.config import EncoderConfig
from mlxbert.goldens.golden_outputs import load_network
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx, scalar
from mlxbert.nn import dropout
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.text.encoding import Encoding
from mlxbert.train.base_model import BaseModel
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.data.relevance import JudgedPair
from mlxbert.train.loop.data_order import Epochs, Training
from mlxbert.train.loop.events import Step
from mlxbert.train.loop.phase_times import Times
from mlxbert.train.loop.training_run import Run
from mlxbert.train.nn.losses import binary_cross_entropy, cross_entropy, mean_squared_error
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.classify import Classify
from mlxbert.train.objectives.embed import Embed
from mlxbert.train.objectives.objective import Example, TrainBatch
from mlxbert.train.objectives.rerank import Rerank
from mlxbert.train.objectives.tag import Tag, TagExample
from mlxbert.train.objectives.text_objective import TextObjective
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.training_plan import make_plan
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef
from tests.helpers.cells import cells, some
from tests.helpers.classifiers import save_classifier
from tests.helpers.families import FAMILIES
from tests.helpers.gradients import (
    Arrays,
    arrays_of,
    assert_same_gradients,
    our_step,
    precision,
    their_gradients,
    without_dropout,
)
from tests.tasks.test_rerank import SCORE
from tests.train.test_embed_objective import compared
from tests.train.test_rerank import pairs
from tests.train.test_tag import tagged

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
library = pytest.importorskip("sentence_transformers", reason="live parity needs sentence-transformers")
from sentence_transformers.sentence_transformer import losses  # noqa: E402

pytestmark = pytest.mark.slow


LOSS, PARAMETER = 1e-5, 1e-4  # a tenth of the learning rate: Adam makes rounding of small gradients large
_NO_INFLUENCE = "key.bias", "key_norm.bias"  # added to all scores of a query
BOUND = 1e-5
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


@pytest.mark.sampled
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


@pytest.mark.sampled
@pytest.mark.parametrize("family", ANSWERING)
def test_answers(family: str, tmp_path: Path) -> None:
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


def random_encoding(family: str, length: int, rng: random.Random, first: int = 0) -> Encoding:
    """So many words, the second segment after `first` of them where the model has segments."""
    compared = FAMILIES[family]
    words = [number for number in range(compared.facts["vocab_size"]) if number != compared.facts["pad_token_id"]]
    none: list[int | None] = [None] * length
    segments = [0] * first + [min(1, compared.segments - 1)] * (length - first)
    return Encoding(rng.choices(words, k=length), segments, [(0, 0)] * length, none, none, [*range(length)], False)


def tag_examples(family: str, labels: int) -> list[TagExample]:
    """Random inputs of different lengths; some of their tokens have tags."""
    rng, found = random.Random(7), []
    for _ in range(4):
        length = rng.randint(4, FAMILIES[family].max_length)
        encoding = random_encoding(family, length, rng, length)
        target = [(place, rng.randrange(labels)) for place in range(1, length) if rng.random() < 0.6]
        found.append(TagExample(encoding, target, tagged(["a"], ["O"]), 0, ()))
    return found


@pytest.mark.sampled
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


NAMES = ("A", "B", "C", "D")
KINDS = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}
Rate = Callable[[str], float]


@dataclass(frozen=True)
class Case:
    """What is trained, and how."""

    family: str  # a name in `FAMILIES`
    task: str = "classify"
    objective: dict[str, Any] = field(default_factory=dict)  # options of the objective
    options: dict[str, Any] = field(default_factory=dict)  # options of the loop
    count: int = 40  # training examples

    @property
    def loop(self) -> TrainingOptions:
        """Ten updates of all weights, unless something else is asked for."""
        usual = {"epochs": 2, "batch_size": 8, "lr": 1e-3, "weight_decay": 0.1, "max_grad_norm": 1.0, "seed": 5}
        return TrainingOptions(**usual | self.options)


class Pair:
    """A model of transformers, and a run of the same weights on the same examples; they are stored in a folder."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case, self._folder = case, folder
        self.model = their_model(case.family, KINDS[case.task])
        self.model.save_pretrained(folder / "start")
        network = load_network(folder / "start")
        self.examples, records = _examples(case)
        self.objective = _objective(case, records, network.encoder.config)
        self.run = Run(
            Training(
                network=network, objective=self.objective, examples=self.examples, place=str,
                order=Epochs(self.examples, case.loop), options=case.loop, dtype=mx.float32, evaluate=None,
            ),
            None,
        )  # fmt: skip

    def ours(self) -> list[float]:
        return [event.loss for event in self.run.events() if isinstance(event, Step)]

    def theirs(self, rate: Rate) -> list[float]:
        """The losses of torch, which takes the examples of an update as one batch.

        `rate` gives the factor of the learning rate by the name of a parameter; 0 leaves the parameter as it is.
        """
        options, steps = self._case.loop, self.run.steps
        model = self.model.train()
        optimizer = _optimizer(model, options, rate)
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(options.warmup * steps), steps)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        losses = []
        for step in range(steps):
            loss = self._loss([number for batch in self.run.order.batches(step) for number in batch])
            optimizer.zero_grad()
            loss.backward()
            if options.max_grad_norm:
                torch.nn.utils.clip_grad_norm_(trained, options.max_grad_norm)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        return losses

    def _loss(self, numbers: list[int]) -> Any:
        batch = self.objective.collate([self.examples[number] for number in numbers], random.Random())
        given = {name: getattr(batch.inputs, name) for name in ("input_ids", "attention_mask", "token_type_ids")}
        inputs = {name: torch.tensor(np.array(array)).long() for name, array in given.items() if array is not None}
        targets = torch.tensor(np.array(batch.targets))
        targets = targets.long() if self._case.task == "classify" else targets.float()
        if not self._case.objective:
            return self.model(**inputs, labels=targets).loss
        assert isinstance(self.objective, Classify)
        how = self.objective.learning
        weights = self.objective.weights() if how.class_weights == "balanced" else [1.0] * len(NAMES)
        return torch.nn.functional.cross_entropy(
            self.model(**inputs).logits, targets, torch.tensor(weights),
            label_smoothing=how.label_smoothing,
        )  # fmt: skip

    def parameters(self) -> tuple[Arrays, Arrays]:
        self.model.save_pretrained(self._folder / "end")
        trained = {name: np.array(array) for name, array in self.run.best().items()}
        start = arrays_of(load_network(self._folder / "start").parameters())  # frozen ones stay as they are
        return start | trained, arrays_of(load_network(self._folder / "end").parameters())


def _examples(case: Case) -> tuple[list[Example], list[LabelledText]]:
    """Random texts and pairs with random labels, the first label more often than the others."""
    rng, examples, records = random.Random(11), list[Example](), list[LabelledText]()
    for _ in range(case.count):
        length = rng.randint(3, FAMILIES[case.family].max_length)
        encoding = random_encoding(case.family, length, rng, rng.randint(1, length))
        number = rng.choices(range(4), [4, 2, 1, 1])[0]
        several = [float(rng.random() < 0.4) for _ in NAMES]
        target = {"classify": number, "multilabel": several, "regress": rng.gauss(0.0, 2.0)}[case.task]
        examples.append(Example(encoding, target))
        records.append(LabelledText("", None, NAMES[number], ""))
    return examples, records


def _objective(case: Case, records: list[LabelledText], config: EncoderConfig) -> TextObjective:
    objective = make_objective(case.task, **case.objective)
    assert isinstance(objective, TextObjective)
    if case.task == "classify":
        objective.heads(records)  # counts the classes
    objective.labels = Labels(NAMES[:1] if case.task == "regress" else NAMES, KINDS[case.task])
    objective.config = config
    return objective


def _optimizer(model: Any, options: TrainingOptions, rate: Rate) -> Any:
    """AdamW with the groups of transformers' Trainer, a group for each rate; a rate of 0 freezes."""
    decayed = set(transformers.Trainer.get_decay_parameter_names(None, model))
    groups: dict[tuple[float, float], list[Any]] = {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(rate(name) > 0)
        key = rate(name), options.weight_decay if name in decayed else 0.0
        groups.setdefault(key, []).append(parameter)
    settings = [{"params": members, "lr": options.lr * factor, "weight_decay": decay}
                for (factor, decay), members in groups.items() if factor]  # fmt: skip
    return torch.optim.AdamW(settings, betas=(0.9, 0.999), eps=1e-8)


def depth(name: str, layers: int) -> int:
    """0 for embeddings, the number of a layer of transformers from 1, and one more for everything above."""
    if found := re.search(r"\.(?:layer|layers|albert_layer_groups|transformer_encoder)\.(\d+)\.", name):
        return int(found[1]) + 1
    below = re.search(r"embed|emb_ln|^model\.encoder\.|relative_attention_bias|deberta\.encoder\.", name)
    return 0 if below else layers + 1


def assert_same_training(pair: Pair, rate: Rate = lambda name: 1.0) -> list[float]:
    """The losses of torch, which may have a factor of the learning rate for each parameter; returns ours.

    Every parameter is compared but those whose gradient is 0 but for rounding, which Adam makes large.
    """
    expected, losses = pair.theirs(rate), pair.ours()
    assert losses == pytest.approx(expected, rel=LOSS)
    ours, theirs = pair.parameters()
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert name.endswith(_NO_INFLUENCE) or np.abs(ours[name] - array).max() < PARAMETER, name
    return losses


TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": ("classify", {}),
    "classify, weighted": ("classify", {"label_smoothing": 0.1, "class_weights": "balanced"}),
    "multilabel": ("multilabel", {}),
    "regress": ("regress", {}),
}


@pytest.mark.sampled
@pytest.mark.parametrize(("family", "task"), cells(CLASSIFIERS, TASKS))
def test_the_losses_are_those_of_torch(family: str, task: str, tmp_path: Path) -> None:
    ours = assert_same_training(Pair(Case(family, *TASKS[task]), tmp_path))
    assert len(ours) == 10 and max(ours) - min(ours) > 0.02 * max(ours)


@pytest.mark.parametrize(("family", "task"), cells(["bert", "roberta", "modernbert", "deberta-v2"], TASKS))
@pytest.mark.sampled
def test_batches_of_different_size_are_accumulated_to_one(family: str, task: str, tmp_path: Path) -> None:
    case = Case(family, *TASKS[task], {"gradient_accumulation": 2, "epochs": 5}, count=27)
    pair = Pair(case, tmp_path)
    sizes = {tuple(map(len, pair.run.order.batches(step))) for step in range(pair.run.steps)}
    assert pair.run.steps == 10 and {(6, 5), (8, 8)} <= sizes
    assert_same_training(pair)


@pytest.mark.parametrize(
    ("options", "rate"),
    [({"layer_decay": 0.6}, lambda below_top, _: 0.6**below_top), ({"freeze": 1}, lambda _, depth: float(depth > 1))],
    ids=["layer decay", "frozen"],
)
@pytest.mark.parametrize("family", some(CLASSIFIERS))
@pytest.mark.sampled
def test_layers_learn_as_in_groups_of_torch(
    family: str, options: dict[str, Any], rate: Callable[[int, int], float], tmp_path: Path
) -> None:
    pair = Pair(Case(family, options=options), tmp_path)
    layers = pair.objective.config.num_stored_layers
    assert_same_training(pair, lambda name: rate(layers + 1 - depth(name, layers), depth(name, layers)))


@pytest.mark.parametrize(
    "options", [{"max_grad_norm": 0.05}, {"max_grad_norm": 0.0}, {"warmup": 0.0}, {"warmup": 0.5, "lr": 5e-5}], ids=str
)
def test_clipping_and_schedule_are_those_of_transformers(options: dict[str, Any], tmp_path: Path) -> None:
    assert_same_training(Pair(Case("bert", options=options), tmp_path))


WORDS = ("cat", "mat", "dog", "house", "night", "friend", "runs", "sits", "far", "with", "near", "the", "and", "of")


def rows(kind: str, count: int) -> list[dict[str, Any]]:
    """Records of a kind; no text occurs twice, so that nothing is left out as a false negative."""
    rng = np.random.default_rng(3)
    texts = list(dict.fromkeys(" ".join(rng.choice(WORDS, rng.integers(2, 8))) for _ in range(12 * count)))
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


def columns(records: list[dict[str, Any]]) -> list[list[str]]:
    texts = [one | dict(enumerate(one.get("negatives", ()))) for one in records]
    each = [[value for value in one.values() if isinstance(value, str)] for one in texts]
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


def undropped(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def theirs(folder: Path, records: list[dict[str, Any]], make: Any, saved: Path) -> tuple[float, Arrays]:
    model = undropped(library.SentenceTransformer(str(folder), device="cpu"))
    loss = make(model)
    features = [model.tokenize(column) for column in columns(records)]
    labels = torch.tensor([one.get("score", 0.0) for one in records])
    value = loss(features, labels)
    value.backward()
    found = their_gradients(model[0].auto_model, saved)
    return value.item(), {name: array for name, array in found.items() if "pooler" not in name}


def ours(folder: Path, records: list[dict[str, Any]], options: dict[str, Any], parts: int) -> tuple[float, Arrays]:
    objective = Embed(**options)
    source = BaseModel(ref=ModelRef("start", device="cpu"), files=ModelFolder(folder))
    plan = make_plan(objective, source, read_rows(records), read_rows(records), None, 0, Times())
    network = source.with_heads(plan.heads, 0).network
    dropout.set_rate(network, 0.0)
    network.train()
    found = compared(network, objective, plan.train.examples, parts)
    weight = scalar(found.weight)
    gradients = {name: np.array(array / weight) for name, array in found.arrays.items()}
    return scalar(found.loss) / weight, gradients


@pytest.mark.skipif("MLXBERT_TEST_EMBEDDER" not in os.environ, reason="needs MLXBERT_TEST_EMBEDDER")
@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES)
def test_the_first_step_of_vectors_is_that_of_sentence_transformers(case: str, tmp_path: Path) -> None:
    # Vectors of an untrained model are all nearly the same, and their gradients mostly rounding.
    folder = Path(os.environ["MLXBERT_TEST_EMBEDDER"])
    kind, options, make = CASES[case]
    records = rows(kind, 8)
    expected, gradients = theirs(folder, records, make, tmp_path / "gradients")
    loss, found = ours(folder, records, options, 3 if "chunk" in options else 1)
    assert abs(loss - expected) <= BOUND * abs(expected)
    assert_same_gradients(found, gradients, BOUND)


LOSSES = {"bce": "BinaryCrossEntropyLoss", "mse": "MSELoss"}


@pytest.mark.parametrize("kind", LOSSES)
def test_the_first_step_of_a_reranker_is_that_of_sentence_transformers(kind: str, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "m", SCORE)
    model = mlxbert.load(folder, task="classify", dtype="float32")
    objective = make_objective("rerank", loss=kind)
    assert isinstance(objective, Rerank)
    objective.bind(model)
    data = pairs(12, graded=kind == "mse")
    records = [JudgedPair(one["query"], one["text"], one["label"] / (5 if kind == "mse" else 1), "") for one in data]
    batch = objective.collate([objective.prepare(record) for record in records], random.Random())
    dropout.set_rate(model.network, 0.0)

    def loss(network: Any) -> mx.array:
        summed, weight = objective.loss(network, batch)
        return summed / weight

    found, gradients = our_step(model.network, loss)
    theirs = undropped(library.CrossEncoder(str(folder), device="cpu")).train()
    expected = getattr(library.cross_encoder.losses, LOSSES[kind])(theirs)(
        [[one.text for one in records], [one.pair for one in records]], torch.tensor([one.label for one in records])
    )
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=BOUND)
    assert_same_gradients(gradients, their_gradients(theirs.transformers_model, tmp_path / "gradients"), BOUND)
