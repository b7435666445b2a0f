"""What a student learns from a teacher, and students of some layers."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.cpu import numpy_layers
from mlxbert.cpu.cores import stages
from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Embedder, EmbeddingConfig
from mlxbert.train.pretraining.chunks import full_sentences
from mlxbert.train.pretraining.initial_model import InitialModel, find_teacher, with_layers
from mlxbert.train.pretraining.loss_terms import Teacher, TermInputs
from mlxbert.train.pretraining.objective import Pretraining, make_terms, read_terms
from mlxbert.weights.build import parameters
from mlxbert.weights.model_folder import open_folder
from mlxbert.weights.model_source import ModelRef
from tests.helpers.cases import together
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config
from tests.train.pretraining.corpora import WORDS, examples, random_corpus
from tests.train.pretraining.files import model_folder, text_file

OPTIONS: dict[str, Any] = {"length": "24", "batch_size": 8, "steps": 2}


def _inputs() -> tuple[TermInputs, Pretraining, Any]:
    config = tiny_config(vocab_size=WORDS)
    student, teacher = random_network(config, ("masked_lm",), seed=1), random_network(config, ("masked_lm",), seed=2)
    embedder = Embedder(EmbeddingConfig(("mean",)), config.hidden_size)
    found = random_corpus(40)
    some = [*examples(found, full_sentences(found, 26))[0]][:7]
    objective = Pretraining(make_terms(read_terms("soft,hidden,vectors"), 3.0), Teacher(teacher, embedder))
    objective.use(config)
    batch = objective.collate(some, random.Random(0))
    return TermInputs(student, batch.inputs, batch.targets, Teacher(teacher, embedder)), objective, some


def test_numpy_computes_nothing_of_a_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_layers, "_MIN_SIZE", 1)  # all that it may
    inputs, _, _ = _inputs()
    with stages(filled=True) as of_teacher:
        _ = inputs.teacher_output, inputs.teacher_words, inputs.teacher_vectors
    with stages(filled=True) as of_student:
        _ = inputs.output, inputs.words
    assert of_teacher and all(isinstance(stage, mx.array) for stage in of_teacher)
    assert not all(isinstance(stage, mx.array) for stage in of_student)


def _far(first: Any, second: Any) -> Any:
    """The sum of the cosine distances of rows."""
    first, second = (np.array(array).astype(np.float64) for array in (first, second))
    return (1 - (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)).sum()


def test_each_term_is_its_formula() -> None:
    inputs, objective, some = _inputs()
    found = {term.name: float(np.array(term.loss(inputs))) for term in objective.weighted}
    count = sum(len(one.places) for one in some)
    ours, theirs = (np.array(array)[:count].astype(np.float64) / 3 for array in (inputs.words, inputs.teacher_words))
    logs = [array - np.log(np.exp(array).sum(1, keepdims=True)) for array in (ours, theirs)]
    assert found["soft"] == pytest.approx(9 * (np.exp(logs[1]) * (logs[1] - logs[0])).sum(), rel=1e-4)
    states = [np.array(one.last_hidden_state) for one in (inputs.output, inputs.teacher_output)]
    far = sum(_far(*(state[row, : len(one)] for state in states)) for row, one in enumerate(some))
    assert found["hidden"] == pytest.approx(far, rel=1e-4)
    assert found["vectors"] == pytest.approx(_far(inputs.vectors, inputs.teacher_vectors), rel=1e-4)
    # For vectors the teacher sees nothing hidden.
    clean = np.array(inputs.targets.clean)
    assert all(clean[row, : len(one)].tolist() == one.clean.tolist() for row, one in enumerate(some))
    assert (np.array(inputs.batch.input_ids) != clean).any()
    totals = objective.totals(some)
    assert totals == {"soft": count, "hidden": sum(map(len, some)), "vectors": 7, "": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    text_file(folder / "text.txt")
    model_folder(folder / "tiny")
    config = tiny_config(layer_schedule=tuple(range(5)))
    save(folder / "deep", tensors_of(random_network(config)), {**CONFIG, "num_hidden_layers": 5})
    return folder


def test_a_student_begins_with_layers_of_its_teacher(folder: Path, tmp_path: Path) -> None:
    teacher = mlxbert.load(folder / "deep", dtype="float32")
    student = with_layers(teacher, (0, 2, 4))
    assert student.config.num_stored_layers == 3
    theirs, ours = parameters(teacher.network), parameters(student.network)
    for name, array in ours.items():
        for new, old in ((0, 0), (1, 2), (2, 4)):
            name = name.replace(f"encoder.layers.{new}.", f"encoder.layers.-{old}.")
        assert mx.array_equal(array, theirs[name.replace("layers.-", "layers.")]), name
    events = [*mlxbert.distill(folder / "text.txt", teacher=folder / "deep", output=tmp_path / "out", **OPTIONS)]
    [step, *_] = [event for event in events if isinstance(event, mlxbert.Step)]
    assert {*step.terms} == {"mlm", "soft", "hidden"}
    assert mlxbert.load(tmp_path / "out").config.num_stored_layers == 3


@pytest.mark.parametrize("layers", [[0], None])
def test_a_student_of_vectors_keeps_the_modules_of_its_teacher(
    folder: Path, tmp_path: Path, layers: list[int] | None
) -> None:
    teacher = save_st(tmp_path / "teacher", pooling("cls", old=True), NORMALIZE)
    given = {"objective": "mlm,vectors", "layers": layers, "model": teacher, "output": tmp_path / "out", **OPTIONS}
    assert [*mlxbert.pretrain(folder / "text.txt", **given)]
    found = mlxbert.load(tmp_path / "out", task="embed").embedder
    assert found.config.poolings == ("cls",) and found.unit


def test_a_model_that_is_its_own_teacher_has_nothing_to_learn(folder: Path, tmp_path: Path) -> None:
    given = {**OPTIONS, "steps": 1, "dropout": 0.0, "model": folder / "tiny", "objective": "soft,hidden"}
    events = [*mlxbert.pretrain(folder / "text.txt", output=tmp_path / "out", **given)]
    [step] = [event for event in events if isinstance(event, mlxbert.Step)]
    assert step.terms == pytest.approx({"soft": 0, "hidden": 0}, abs=1e-5)


@together("changes", [
    {"objective": "mlm", "teacher": "builtin"},
    {"objective": "mlm,soft", "teacher": "builtin"},  # another vocabulary
    {"objective": "mlm,soft", "model": None, "config": "tiny", "vocabulary": "builtin"},
    {"objective": "mlm,soft", "temperature": 0}, {"objective": "mlm,hidden", "temperature": 3},
    {"layers": [0, 7]}, {"layers": [2, 0]}, {"layers": []}, {"layers": "0,x"}, {"layers": 3},
])  # fmt: skip
def test_teachers_and_layers_that_are_refused(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        mlxbert.pretrain(folder / "text.txt", output=tmp_path / "out", **{"model": folder / "deep", **changes})


def test_a_teacher_that_is_the_model_is_of_the_same_revision(folder: Path) -> None:
    files = open_folder(folder / "deep")
    base = InitialModel(ref=ModelRef("some/model", revision="v1"), files=files, config=None)
    found = find_teacher("some/model", base, ["soft"])
    assert found is not None and found.files is files


def test_distill_has_one_student(folder: Path, tmp_path: Path) -> None:
    given: dict[str, Any]
    for given in ({"student": folder / "tiny", "layers": [0]}, {"model": folder / "tiny"}):
        with pytest.raises(ArgumentError):
            mlxbert.distill(folder / "text.txt", teacher=folder / "deep", output=tmp_path / "out", **given)
