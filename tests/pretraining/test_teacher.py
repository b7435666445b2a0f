"""What a student learns from a teacher, and students of some layers."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.device import mx
from mlxbert.errors import ArgumentError
from mlxbert.nn.embedder import Embedder, EmbeddingConfig
from mlxbert.pretraining.chunks import full_sentences
from mlxbert.pretraining.objective import Pretraining
from mlxbert.pretraining.start import with_layers
from mlxbert.pretraining.terms.registry import make_terms, read_terms
from mlxbert.pretraining.terms.term import Seen, Teacher
from mlxbert.weights.build import parameters
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config
from tests.pretraining.corpora import WORDS, examples, random_corpus
from tests.pretraining.files import model_folder, text_file

OPTIONS: dict[str, Any] = {"length": "24", "batch_size": 8, "steps": 3}


def _seen() -> tuple[Seen, Pretraining, Any]:
    config = tiny_config(vocab_size=WORDS)
    student, teacher = random_network(config, ("masked_lm",), seed=1), random_network(config, ("masked_lm",), seed=2)
    embedder = Embedder(EmbeddingConfig(("mean",)), config.hidden_size)
    found = random_corpus(40)
    some = examples(found, full_sentences(found, 26))[0][:7]
    objective = Pretraining(make_terms(read_terms("soft,hidden,vectors"), 3.0), Teacher(teacher, embedder))
    objective.use(config)
    batch = objective.collate(some, random.Random(0))
    return Seen(student, batch.inputs, batch.targets, Teacher(teacher, embedder)), objective, some


def test_each_term_is_its_formula() -> None:
    seen, objective, some = _seen()
    found = {term.name: float(np.array(term.loss(seen))) for term in objective.weighted}
    count = sum(len(one.places) for one in some)
    ours, theirs = (np.array(array)[:count].astype(np.float64) / 3 for array in (seen.words, seen.teacher_words))
    logs = [array - np.log(np.exp(array).sum(1, keepdims=True)) for array in (ours, theirs)]
    assert found["soft"] == pytest.approx(9 * (np.exp(logs[1]) * (logs[1] - logs[0])).sum(), rel=1e-4)
    far = 0.0
    for row, one in enumerate(some):
        first, second = (
            np.array(output.last_hidden_state)[row, : len(one)].astype(np.float64)
            for output in (seen.output, seen.teacher_output)
        )
        cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
        far += (1 - cosines).sum()
    assert found["hidden"] == pytest.approx(far, rel=1e-4)
    first, second = (np.array(array).astype(np.float64) for array in (seen.vectors, seen.teacher_vectors))
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    assert found["vectors"] == pytest.approx((1 - cosines).sum(), rel=1e-4)
    totals = objective.totals(some)
    assert totals == {"soft": count, "hidden": sum(map(len, some)), "vectors": 7, "": 7}


def test_the_teacher_sees_nothing_hidden_for_vectors() -> None:
    seen, _, some = _seen()
    clean = np.array(seen.targets.clean)
    for row, one in enumerate(some):
        assert clean[row, : len(one)].tolist() == one.clean.tolist()
    assert (np.array(seen.inputs.input_ids) != clean).any()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    text_file(folder / "text.txt")
    model_folder(folder / "tiny")
    config = tiny_config(layer_schedule=tuple(range(5)))
    save(folder / "deep", tensors_of(random_network(config)), {**CONFIG, "num_hidden_layers": 5})
    return folder


def test_a_student_begins_with_layers_of_its_teacher(folder: Path) -> None:
    teacher = mlxbert.load(folder / "deep", dtype="float32")
    student = with_layers(teacher, (0, 2, 4))
    assert student.config.num_stored_layers == 3
    theirs, ours = parameters(teacher.network), parameters(student.network)
    for name, array in ours.items():
        for new, old in ((0, 0), (1, 2), (2, 4)):
            name = name.replace(f"encoder.layers.{new}.", f"encoder.layers.-{old}.")
        assert mx.array_equal(array, theirs[name.replace("layers.-", "layers.")]), name


def test_distillation_writes_a_smaller_model(folder: Path, tmp_path: Path) -> None:
    events = [*mlxbert.distill(folder / "text.txt", teacher=folder / "deep", output=tmp_path / "out", **OPTIONS)]
    [step, *_] = [event for event in events if isinstance(event, mlxbert.Step)]
    assert {*step.terms} == {"mlm", "soft", "hidden"}
    assert mlxbert.load(tmp_path / "out").config.num_stored_layers == 3


def test_a_model_that_is_its_own_teacher_has_nothing_to_learn(folder: Path, tmp_path: Path) -> None:
    given = {**OPTIONS, "steps": 1, "dropout": 0.0, "model": folder / "tiny", "objective": "soft,hidden"}
    events = [*mlxbert.pretrain(folder / "text.txt", output=tmp_path / "out", **given)]
    [step] = [event for event in events if isinstance(event, mlxbert.Step)]
    assert step.terms == pytest.approx({"soft": 0, "hidden": 0}, abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "mlm", "teacher": "builtin"},
        {"objective": "mlm,soft", "teacher": "builtin"},  # another vocabulary
        {"objective": "mlm,soft", "model": None, "config": "tiny", "vocabulary": "builtin"},
        {"objective": "mlm,soft", "temperature": 0},
        {"layers": [0, 7]},
        {"layers": [2, 0]},
        {"layers": []},
    ],
    ids=str,
)
def test_teachers_and_layers_that_are_refused(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        mlxbert.pretrain(folder / "text.txt", output=tmp_path / "out", **{"model": folder / "deep", **changes})


def test_distill_has_one_student(folder: Path, tmp_path: Path) -> None:
    given: dict[str, Any]
    for given in ({"student": folder / "tiny", "layers": [0]}, {"model": folder / "tiny"}):
        with pytest.raises(ArgumentError):
            mlxbert.distill(folder / "text.txt", teacher=folder / "deep", output=tmp_path / "out", **given)
