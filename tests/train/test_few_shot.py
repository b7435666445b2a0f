"""Few examples: the loss, the fitted classifier, the folder, resuming, and what is refused."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.train.loop.events import Evaluated, Started
from mlxbert.train.nn.vector_losses import same_class
from mlxbert.weights.sentence_transformers import read_embedder
from tests.helpers.cases import fast, together
from tests.helpers.frozen import read_config
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.helpers.tiny import save
from tests.train.test_finetune import begun

WORDS = ("cat", "mat", "dog", "house", "night", "friend", "run", "sit", "far", "near")
VECTOR_CLASSIFIER = "vector_classifier.safetensors"
Record = dict[str, str]


def records(classes: int, shots: int, seed: int = 0) -> list[Record]:
    """Texts whose class is the pair of words that occurs twice."""
    rng = np.random.default_rng(seed)
    kinds = list(itertools.combinations(WORDS, 2))[:classes]
    found: dict[str, str] = {}
    while len(found) < classes * shots:
        number = len(found) % classes
        text = " ".join(rng.permutation([*kinds[number] * 2, *rng.choice(WORDS, 2)]))
        found.setdefault(text, f"class {number:02}")
    return [{"text": text, "label": label} for text, label in found.items()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_st(tmp_path / "start", pooling("mean", old=True), NORMALIZE)


def train(folder: Path, data: Any, output: Path, **options: Any) -> list[Any]:
    given: dict[str, Any] = {"few_shot": True, "epochs": 1, "lr": 1e-3, "device": "cpu"} | options
    return list(mlxbert.finetune("classify", train=data, model=folder, output=output, **given))


def begins(folder: Path, data: Any, output: Path, **options: Any) -> Started:
    return begun("classify", train=data, model=folder, output=output, **{"few_shot": True, "device": "cpu"} | options)


def test_the_loss_is_that_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    vectors, classes = rng.normal(size=(7, 5)), np.array([0, 1, 0, 2, 1, 0, 3])
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for a, b in itertools.combinations(range(7), 2):
        same = bool(classes[a] == classes[b])
        errors[same].append((units[a] @ units[b] - same) ** 2)
    wanted = np.mean(errors[True]) + np.mean(errors[False])
    assert same_class(mx.array(vectors), mx.array(classes)).item() == pytest.approx(wanted, rel=1e-5)
    for alone in ([0, 0, 0], [0, 1, 2], [0]):  # a batch without pairs of a kind has a finite gradient
        some = mx.array(vectors[: len(alone)])
        loss, gradient = mx.value_and_grad(lambda v, alone=alone: same_class(v, mx.array(alone)))(some)
        assert np.isfinite(loss.item()) and mx.isfinite(gradient).all().item()


@together(
    ("start", "options", "used"),
    [
        ("start", {}, True),
        ("start", {"few_shot": False}, False),
        ("start", {"lora": 2}, False),  # works with ordinary training alone
        ("start", {"label_smoothing": 0.1}, False),
        ("plain", {}, False),  # has no pooling
    ],
)
def test_few_labels_are_trained_on_pairs_without_being_asked(
    start: str, options: dict[str, Any], used: bool, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "plain")
    caplog.clear()
    data = [*records(2, 8), {"text": "no label", "label": ""}]
    report = begins(tmp_path / start, data, tmp_path / "out", **{"few_shot": None} | options).report
    assert report is not None and ("method" in report.facts) == used
    assert sum("have no 'label'" in record.getMessage() for record in caplog.records) == 1


def test_names_of_labels_are_kept_and_few_texts_are_no_error_where_nobody_asked(folder: Path, tmp_path: Path) -> None:
    texts = [{"text": one["text"], "label": one["label"][-1]} for one in records(2, 8)]
    train(folder, texts, tmp_path / "out", few_shot=None, label_names="no,maybe", epochs=1)
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["options"]["few_shot"] and record["options"]["label_names"] == {"0": "no", "1": "maybe"}
    model = mlxbert.load(tmp_path / "out")
    assert model.labels is not None and model.labels.names == ("no", "maybe")
    assert mlxbert.evaluate("classify", model, data=texts).metrics["accuracy"] > 0.5
    # The first text has the first label, whatever else there is.
    begins(folder, texts, tmp_path / "one", few_shot=None, label_names="no,maybe", valid=texts[:1])
    texts = records(5, 2)[:6]  # one label has two texts, and one of them may be held out
    for seed in range(2):
        begins(folder, texts, tmp_path / "out", few_shot=None, seed=seed, validation_fraction=0.3)


@pytest.mark.parametrize(("classes", "shots"), fast([(2, 8), (20, 8)], (2, 8)))
def test_the_folder_gives_the_scores_of_the_evaluation(folder: Path, tmp_path: Path, classes: int, shots: int) -> None:
    data, valid = records(classes, shots), records(classes, 3, seed=1)
    events = train(folder, data, tmp_path / "out", valid=valid, epochs=2)
    best = [event for event in events if isinstance(event, Evaluated) and event.best][-1]
    model = mlxbert.load(tmp_path / "out", task="classify", device="cpu")
    found = mlxbert.evaluate("classify", model, data=valid)
    # A logit is a sum over the vector with weights of 10 and more: float32 sums in another order, of another BLAS or of
    # batches of another size, move it by some 1e-6.
    assert found.metrics == pytest.approx(events[-1].evaluation.metrics, rel=1e-5)
    assert found.metrics == pytest.approx(best.metrics, rel=1e-5)
    assert found.score > 1.5 / classes
    answer = mlxbert.classify(model, valid[0]["text"], top_k=1)
    assert isinstance(answer, mlxbert.Classification)
    (label,) = answer.labels
    assert label.label in {record["label"] for record in data} and 0 < label.score < 1


def test_training_makes_texts_of_a_class_similar(folder: Path, tmp_path: Path) -> None:
    data, valid = records(3, 8), records(3, 4, seed=1)
    train(folder, data, tmp_path / "out", valid=valid, epochs=12, eval_every=18, lr=5e-3)
    texts, labels = [one["text"] for one in valid], np.array([one["label"] for one in valid])
    same = (labels[:, None] == labels) & ~np.eye(len(labels), dtype=bool)

    def gap(model: Path) -> float:
        vectors = mlxbert.embed(mlxbert.load(model, task="embed", device="cpu"), texts, normalize=True)
        cosines = vectors @ vectors.T
        return float(cosines[same].mean() - cosines[labels[:, None] != labels].mean())

    assert gap(tmp_path / "out") > 10 * abs(gap(folder))


def test_what_is_written(tmp_path: Path) -> None:
    start = save_st(tmp_path / "start", pooling("cls", old=True), NORMALIZE)  # the model's own pooling is kept
    finished = train(start, records(2, 8), tmp_path / "out")[-1]
    assert "few_shot=False" in finished.opens
    out = tmp_path / "out"
    config = read_config(out / "encoder")
    assert (config["architectures"], config["vector_classifier"]["pooling"]) == (["BertModel"], "cls")
    assert config["vector_classifier"]["labels"] == ["class 00", "class 01"]
    assert not {"id2label", "label2id", "problem_type"} & config.keys()
    assert {path.name for path in out.iterdir()} & {"config.json", "model.safetensors", "vocab.txt"} == set()
    embedder = read_embedder(mlxbert.load(out).files, config["hidden_size"])
    assert (embedder.config.poolings, embedder.config.stated, embedder.unit) == (("cls",), True, True)
    card = (out / "README.md").read_text()
    assert VECTOR_CLASSIFIER in card and "library_name: mlxbert\n" in card
    assert VECTOR_CLASSIFIER in json.loads((out / "saved.json").read_text())["note"]
    assert json.loads((out / "training.json").read_text())["options"]["few_shot"] is True


@pytest.mark.parametrize(("max_length", "longest"), [(None, 10), (8, 10), (12, 12)])
def test_the_limits_that_the_model_states_are_kept(tmp_path: Path, max_length: int | None, longest: int) -> None:
    stated = {"max_seq_length": 10, "do_lower_case": True}
    start = save_st(tmp_path / "start", pooling("mean", old=True), NORMALIZE, transformer=stated)
    data = [{"text": f"{one['text']} " * 3, "label": one["label"]} for one in records(2, 4)]
    started = train(start, data, tmp_path / "out", max_length=max_length)[0]
    assert started.report.max_length == (max_length or 10)
    written = json.loads((tmp_path / "out/encoder/sentence_bert_config.json").read_text())
    assert written == stated | {"max_seq_length": longest}
    for task in (None, "classify"):
        model = mlxbert.load(tmp_path / "out", task=task, device="cpu")
        assert model.tokenizer.max_length == longest
        assert model.tokenizer.encode("A CAT").ids == model.tokenizer.encode("a cat").ids
    further = begins(tmp_path / "out", data, tmp_path / "further").report
    assert further is not None and further.max_length == longest


def test_it_is_trained_further_with_and_without(folder: Path, tmp_path: Path) -> None:
    data = records(2, 8)
    train(folder, data, tmp_path / "one")
    assert not begins(tmp_path / "one", data, tmp_path / "two").new_head
    assert train(tmp_path / "one", data, tmp_path / "plain", few_shot=False)[0].new_head
    assert read_config(tmp_path / "plain")["architectures"] == ["BertForSequenceClassification"]
    assert not [*(tmp_path / "plain").rglob(VECTOR_CLASSIFIER)]
    assert "library_name: transformers\n" in (tmp_path / "plain/README.md").read_text()
    train(tmp_path / "one", data, tmp_path / "adapter", few_shot=False, lora=2)
    adapted = mlxbert.load(tmp_path / "one", task="classify", adapter=tmp_path / "adapter")
    assert adapted.labels is not None and adapted.labels.head_pooling is None
    assert begins(tmp_path / "plain", data, tmp_path / "back").new_head


ONE_CLASS = [{**record, "label": "one"} for record in records(2, 4)]
PAIRS = [{**record, "pair": "a cat"} for record in records(2, 4)]


@together(
    ("task", "options", "said"),
    [
        ("classify", {"label_smoothing": 0.1}, "label_smoothing"),
        ("classify", {"class_weights": "balanced"}, "class_weights"),
        ("classify", {"check": True}, "check"),
        ("classify", {"lora": 4}, "lora"),
        ("classify", {"few_shots": True}, "few_shot"),
        ("multilabel", {}, "few_shot"),
        ("tag", {}, "few_shot"),
        ("classify", {"train": ONE_CLASS}, None),
        ("classify", {"train": PAIRS, "pair_column": "pair"}, None),
        ("classify", {"train": records(10, 1)}, None),  # one example of each class
    ],
)
def test_options_and_data_that_do_not_fit_are_refused(
    task: str, options: dict[str, Any], said: str | None, folder: Path, tmp_path: Path
) -> None:
    given: Any = {"few_shot": True, "device": "cpu", "train": records(2, 8)} | options
    with pytest.raises(mlxbert.ArgumentError if said else mlxbert.InputError) as caught:
        [*mlxbert.finetune(task, model=folder, output=tmp_path / "out", **given)]
    assert (said or "") in f"{caught.value.message} {caught.value.hint}"
