"""Learning a task from a teacher: each distance is its formula, and what runs, resumes and refuses."""

import itertools
import json
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

import mlxbert
from mlxbert.errors import ArgumentError, MissingHeadError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.train.distillation import Distillation
from mlxbert.train.loop.events import Evaluated, Finished, Started, Step
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.distillation_losses import DistillationExample, ScoreDistillation, TeacherTargets
from mlxbert.train.objectives.objective import Split, TrainBatch
from mlxbert.train.options.loop_options import TeacherOptions
from mlxbert.weights.model_source import ModelRef
from tests.helpers.cases import together
from tests.helpers.frozen import change_config
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.helpers.tiny import CONFIG, VOCAB, save
from tests.train import test_answer_objective, test_finetune, test_tag
from tests.train.runs import Parity, network

Array = NDArray[np.float64]
SIZES: dict[str, tuple[int, ...]] = {
    **{"classify": (4, 3), "multilabel": (4, 3), "regress": (4, 1), "rerank": (4, 1)},
    **{"tag": (2, 6, 3), "answer": (2, 6, 2)},
}


def task_of(name: str, loss: str | None = None) -> Any:
    """A task whose own loss is the sum of its targets, of which there are 7."""
    found: Any = make_objective(name, loss=loss)
    found.loss = lambda network, batch: (network.logits("", batch.inputs).sum() * 0 + batch.targets.sum(), 7.0)
    return found


class Scored:
    """Stands for a network: counts how often its scores are computed."""

    def __init__(self, scores: Array | mx.array) -> None:
        self.scores, self.calls = scores, 0

    def logits(self, head: str, inputs: Batch) -> mx.array:
        self.calls += 1
        return mx.array(self.scores).astype(mx.float32)


def shares(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return cast(Array, powers / powers.sum(-1, keepdims=True))


def divergence(ours: Array, theirs: Array) -> float:
    one, other = shares(ours), shares(theirs)
    return float((other * (np.log(other) - np.log(one))).sum())


def expected(name: str, loss: str | None, ours: Array, theirs: Array, t: float) -> float:
    """The distance from the teacher, as the papers write it."""
    if name == "regress" or loss == "mse":
        return float(((ours - theirs) ** 2).sum())
    if name == "answer":  # the second example has 4 tokens
        ends = [(one, row, size) for row, size in ((0, 6), (1, 4)) for one in (0, 1)]
        return t**2 * sum(divergence(ours[row, :n, one] / t, theirs[row, :n, one] / t) for one, row, n in ends) / 2
    if name == "tag":
        return t**2 * sum(divergence(ours[row, n] / t, theirs[row, n] / t) for row, n in ((0, 1), (0, 3), (1, 2)))
    if name == "classify":
        return t**2 * divergence(ours / t, theirs / t)
    pairs = [np.stack([scores / t, np.zeros_like(scores)], -1) for scores in (ours, theirs)]
    return t**2 * divergence(pairs[0], pairs[1]) / ours.shape[-1]


def targets(name: str, theirs: Array) -> TeacherTargets:
    own, soft = mx.array([1.0, 2.0]), theirs.astype(np.float32)
    if name == "tag":
        return TeacherTargets(own, mx.array(soft[[0, 0, 1], [1, 3, 2]]), mx.array([1, 3, 8]))
    if name == "answer":
        soft = soft.copy()
        soft[1, 4:] = -1e9
    return TeacherTargets(own, mx.array(soft))


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize(
    ("name", "loss"), [*((name, None) for name in SIZES if name != "rerank"), ("rerank", "bce"), ("rerank", "mse")]
)
def test_the_distance_of_each_task_is_its_formula(name: str, loss: str | None, share: float) -> None:
    rng = np.random.default_rng(0)
    ours, theirs = (rng.normal(size=SIZES[name]) * 3 for _ in range(2))
    objective = ScoreDistillation(task_of(name, loss), TeacherOptions(teacher_weight=share, temperature=3.0))
    scored = Scored(ours)
    batch = TrainBatch(Batch(mx.zeros((1, 1), mx.int32)), targets(name, theirs))
    found, weight = objective.terms(cast(Network, scored), batch)
    assert float(found["labels"]) == pytest.approx((1 - share) * 3)
    assert float(found["teacher"]) == pytest.approx(share * expected(name, loss, ours, theirs, 3.0), rel=1e-5)
    assert (weight, scored.calls) == (7.0, 1)  # one forward pass for both
    same = Scored(theirs)
    assert float(objective.terms(cast(Network, same), batch)[0]["teacher"]) == pytest.approx(0, abs=1e-5)


def test_a_batch_of_tokens_without_tags_has_no_distance() -> None:
    def place(target: list[tuple[int, int]]) -> Any:
        return mock.MagicMock(target=target, __len__=lambda self: 6)

    task = task_of("tag")
    task.collate = lambda examples, rng: TrainBatch(Batch(mx.zeros((2, 8), mx.int32)), mx.zeros(0))
    objective = ScoreDistillation(task, TeacherOptions())
    examples = [DistillationExample(place([]), lambda: np.ones((6, 3), np.float32)) for _ in range(2)]
    batch = objective.collate(examples, random.Random(0))
    assert float(objective.terms(cast(Network, Scored(np.ones((2, 8, 3)))), batch)[0]["teacher"]) == 0
    filled = [DistillationExample(place(places), partial(np.full, (6, 3), number, np.float32)) for number, places in
              enumerate(([(1, 0), (3, 2)], [(2, 1)]))]  # fmt: skip
    found: TeacherTargets = objective.collate(filled, random.Random(0)).targets
    assert found.rows is not None and found.rows.tolist() == [1, 3, 10]
    assert found.scores[:, 0].tolist() == [0, 0, 1]


def finetune(task: str, folder: Path, output: Path, data: Any, **options: Any) -> list[Any]:
    given: dict[str, Any] = {"epochs": 1, "lr": 1e-2, "batch_size": 16, "device": "cpu", "model": folder} | options
    return list(mlxbert.finetune(task, train=data, output=output, **given))


def texts() -> list[dict[str, Any]]:
    return [{"text": text, "label": label} for text, label in test_finetune.rows(60)]


@pytest.fixture(scope="module")
def teacher(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "teacher"
    finetune("classify", base, folder, texts(), epochs=6, eval_every=24, dropout=0.0)
    return folder


def test_a_student_learns_its_teacher(base: Path, teacher: Path, tmp_path: Path) -> None:
    wrong = [record | {"label": "animal" if number % 2 else "place"} for number, record in enumerate(texts())]
    events = finetune(
        "classify", base, tmp_path / "out", wrong, teacher=teacher, teacher_weight=1, valid=texts(), epochs=6,
        eval_every=12, dropout=0.0,
    )  # fmt: skip
    started, finished = events[0], events[-1]
    assert isinstance(started, Started) and isinstance(finished, Finished)
    assert started.report is not None and started.report.facts["teacher"] == str(teacher)
    assert finished.score > 0.9  # its labels say nothing
    [step, *_] = [event for event in events if isinstance(event, Step)]
    assert {*step.terms} == {"labels", "teacher"} and step.loss == pytest.approx(step.terms["teacher"])
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["teacher"] and record["teacher_weight"] == 1


def test_labels_are_matched_by_name(base: Path, teacher: Path, tmp_path: Path) -> None:
    config = json.loads((teacher / "config.json").read_text())
    other = shutil.copytree(teacher, tmp_path / "turned")
    names = [config["id2label"]["1"], config["id2label"]["0"]]
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}
    (other / "config.json").write_text(json.dumps(config))
    weights = cast(dict[str, mx.array], mx.load(str(teacher / "model.safetensors")))
    turned = {name: array[::-1] if name.startswith("classifier") else array for name, array in weights.items()}
    mx.save_safetensors(str(other / "model.safetensors"), turned, {"format": "pt"})
    losses = []
    for path in (teacher, other):
        steps = mlxbert.finetune("classify", train=texts(), model=base, output=tmp_path / "out", teacher=path, epochs=1)
        losses.append([event.terms["teacher"] for event in itertools.islice(steps, 3) if isinstance(event, Step)])
        steps.close()
        shutil.rmtree(tmp_path / "out.partial")
    assert losses[0] == pytest.approx(losses[1], rel=1e-6) and len(losses[0]) == 2


TASKS: dict[str, list[dict[str, Any]]] = {
    "multilabel": [one | {"label": [one["label"]]} for one in texts()],
    "regress": [one | {"label": float(one["label"] == "animal")} for one in texts()],
    "rerank": [
        {"query": one["label"], "text": one["text"], "label": float(number % 3 > 0)}
        for number, one in enumerate(texts())
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["multilabel", "regress", "rerank", "tag", "answer"])
def test_every_task_has_a_teacher(task: str, base: Path, tmp_path: Path) -> None:
    data: Any = TASKS.get(task)
    if task == "tag":
        data = test_tag.write(tmp_path / "train.conll", 40, seed=0)
    elif task == "answer":
        data = test_answer_objective.records(30, 0)
    finetune(task, base, tmp_path / "teacher", data)
    given = {"teacher": tmp_path / "teacher", "dropout": 0.0, "lr": 1e-9}
    same = finetune(task, tmp_path / "teacher", tmp_path / "same", data, **given)
    for step in (event for event in same if isinstance(event, Step)):
        assert abs(step.terms["teacher"]) < 1e-5  # it is its own teacher
    student = finetune(task, base, tmp_path / "student", data, teacher=tmp_path / "teacher")
    assert max(event.terms["teacher"] for event in student if isinstance(event, Step)) > 1e-4


def embedder(folder: Path, **changes: Any) -> Path:
    """A model of vectors of length 1; with other sizes a new one of random weights."""
    found = save_st(folder, pooling("mean", old=True), NORMALIZE)
    if changes:
        config = {**CONFIG, "initializer_range": 0.15, **changes}
        made = mlxbert.save(mlxbert.new_model(config, save(folder.with_suffix(".words"))), folder.with_suffix(".new"))
        for name in ("model.safetensors", "config.json"):
            shutil.copy(made / name, found)
        change_config(found / "1_Pooling", word_embedding_dimension=config["hidden_size"])
    return found


PLAIN = [{"text": one["text"]} for one in texts()]


def test_vectors_become_those_of_the_teacher(tmp_path: Path) -> None:
    start, guide = embedder(tmp_path / "start"), embedder(tmp_path / "guide", num_hidden_layers=1)
    given = {"valid": PLAIN[:9], "dropout": 0.0, "batch_size": len(PLAIN), "epochs": 20, "eval_every": 5}
    events = finetune("embed", start, tmp_path / "out", PLAIN, teacher=guide, **given)
    losses = [event.loss for event in events if isinstance(event, Step)]
    sentences = [one["text"] for one in PLAIN]
    before, wanted = (np.asarray(mlxbert.embed(mlxbert.load(path), sentences)) for path in (start, guide))
    assert losses[0] == pytest.approx(((before - wanted) ** 2).mean(), rel=1e-4)
    assert losses[-1] < 0.2 * losses[0]
    assert "squared error" in events[0].report.facts["loss"]
    assert events[0].report.facts["validated by"] == events[0].report.facts["loss"]
    # What is nearest to the teacher is kept: the error is that of the vectors that the model gives later.
    measured = [event.metrics["teacher_error"] for event in events if isinstance(event, Evaluated)]
    assert events[-1].metric == "teacher_error" and events[-1].score == min(measured)
    after, guided = (np.asarray(mlxbert.embed(mlxbert.load(path), sentences[:9])) for path in (tmp_path / "out", guide))
    assert min(measured) == pytest.approx(((after - guided) ** 2).mean(), rel=1e-3)


def test_what_is_judged_chooses_the_vectors(tmp_path: Path) -> None:
    start, guide = embedder(tmp_path / "start"), embedder(tmp_path / "guide", num_hidden_layers=1)
    pairs = [
        {"text": one["text"], "pair": other["text"], "label": number / 9}
        for number, (one, other) in enumerate(itertools.pairwise(PLAIN[:10]))
    ]
    for name, given in (("scores", {"valid": pairs}), ("asked", {"valid": PLAIN[:9], "metric": "ndcg@10"})):
        events = finetune("embed", start, tmp_path / name, PLAIN, teacher=guide, **given)
        assert events[-1].metric == ("spearman" if name == "scores" else "ndcg@10")
        assert not any("teacher_error" in event.metrics for event in events if isinstance(event, Evaluated))


@pytest.mark.slow
def test_vectors_of_another_vocabulary_and_size(tmp_path: Path) -> None:
    start, guide = embedder(tmp_path / "start"), embedder(tmp_path / "guide", hidden_size=48)
    words = [*VOCAB[:5], *reversed(VOCAB[5:])]
    (guide / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match="48 values") as caught:
        finetune("embed", start, tmp_path / "out", PLAIN, teacher=guide)
    assert "dimensions=" in str(caught.value.hint)
    events = finetune("embed", start, tmp_path / "out", PLAIN, teacher=guide, dimensions=[24, 12], epochs=4)
    losses = [event.loss for event in events if isinstance(event, Step)]
    assert losses[-1] < 0.6 * losses[0]


@together(
    ("task", "changes"),
    [
        ("classify", {"teacher": None, "teacher_weight": 0.3}),
        ("classify", {"teacher": None, "temperature": 3.0}),
        ("classify", {"teacher_weight": 0}),
        ("classify", {"teacher_weight": 1.5}),
        ("classify", {"temperature": 0}),
        ("classify", {"few_shot": True}),
        ("classify", {"train": [one | {"label": f"a {one['label']}"} for one in texts()]}),
        ("multilabel", {"train": TASKS["multilabel"]}),
        ("regress", {"train": TASKS["regress"]}),
        ("tag", {"train": [{"tokens": [word, "sat"], "tags": ["B-X", "O"]} for word in VOCAB[5:40]]}),
        ("embed", {"train": [{"anchor": one["text"], "positive": one["label"]} for one in texts()]}),
        ("embed", {"train": PLAIN, "teacher_weight": 0.5}),
    ],
)
def test_what_cannot_be_taught_is_refused(
    task: str, changes: dict[str, Any], base: Path, teacher: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"train": texts(), "model": base, "teacher": teacher, "output": tmp_path / "out"} | changes
    with pytest.raises((ArgumentError, MissingHeadError)):
        mlxbert.finetune(task, **given)


def test_tags_are_compared_token_by_token_and_objectives_of_ones_own_not_at_all(base: Path, tmp_path: Path) -> None:
    data = test_tag.write(tmp_path / "train.conll", 40, seed=0)
    finetune("tag", base, tmp_path / "teacher", data)
    given: dict[str, Any] = {"teacher": tmp_path / "teacher", "output": tmp_path / "out", "train": data}
    assert mlxbert.finetune("tag", model=base, max_length=8, **given)  # windows of one length for both
    with pytest.raises(ArgumentError, match="CRF"):
        mlxbert.finetune("tag", model=base, crf=True, **given)
    words = [*VOCAB[:5], *reversed(VOCAB[5:])]
    other = mlxbert.new_model({**CONFIG, "initializer_range": 0.15}, save(tmp_path / "words", vocab=words))
    with pytest.raises(ArgumentError, match="tokens"):
        mlxbert.finetune("tag", model=mlxbert.save(other, tmp_path / "other"), **given)
    nothing = Split([], [], [], [])
    with pytest.raises(ArgumentError, match="not with an Objective"):
        Distillation(ModelRef(), Parity(network()), nothing, nothing, TeacherOptions())
