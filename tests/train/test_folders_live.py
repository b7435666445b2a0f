"""Folders of training and transformers: what it saved is trained, and what was trained opens there, of every family."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError
from mlxbert.labels.labels import Labels
from mlxbert.text.batch import make_batch
from mlxbert.train.loop.events import Finished
from tests.export import test_round_trip_live as live
from tests.helpers.answering import save_answering
from tests.helpers.cells import cells, some
from tests.helpers.families import FAMILIES, class_of, make_config, make_model
from tests.helpers.frozen import add_vocabulary, read_config
from tests.train.test_answer_objective import records

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]
quiet = live.quiet

HEAD, BOUND = "ForSequenceClassification", 1e-5
CLASSIFIERS = [family for family, compared in FAMILIES.items() if HEAD in compared.heads]
# Without "dog", whose id is padding to some of these models.
TEXTS = [
    *("the cat sat on the mat", "a man is in paris", "he bought milk in tokyo", "the largest city , tokyo"),
    *("the store !", "playing", "the man went to the store .", "milk is on the mat", "he went to paris ."),
    *("cat , man , city", "is the man in tokyo", "a largest cat sat in the city of paris"),
]
LABELS: dict[str, list[Any]] = {
    "classify": ["größe", "no", 'yes, "really"'] * 4,
    "multilabel": [["a"], ["a", "b"], [], ["c", "b"]] * 3,
    "regress": [0.5, -1.0, 2.25, 4.0] * 3,
}
EXPECTED = {
    "classify": Labels(("größe", "no", 'yes, "really"'), "single_label_classification"),
    "multilabel": Labels(("a", "b", "c"), "multi_label_classification"),
    "regress": Labels(("label",), "regression"),
}


def saved(model: Any, folder: Path) -> Path:
    """A model and a tokenizer as transformers saves them."""
    live.save(model, folder)
    transformers.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def train(task: str, source: Path, output: Path, **options: Any) -> mlxbert.Model:
    """Trains for one epoch on twelve records, and loads what was written."""
    data = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS[task], strict=True)]
    given: dict[str, Any] = {"train": data, "valid": data, "epochs": 1, "batch_size": 4, "lr": 1e-3}
    *_, last = mlxbert.finetune(task, model=source, output=output, **given | options)
    assert isinstance(last, Finished) and (options.get("check") is None or cast(float, last.check) < BOUND)
    return mlxbert.load(output, task="classify", dtype="float32")


def opened(folder: Path, family: str) -> tuple[Any, Any]:
    """The model by its class, with nothing missing, and the tokenizer; segments only where the model has them."""
    model, report = class_of(FAMILIES[family].classes + HEAD).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert [name.endswith(HEAD) for name in read_config(folder)["architectures"]] == [True]
    assert {name: list(problems) for name, problems in report.items() if problems} == {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    segments = ["token_type_ids"] * (FAMILIES[family].segments > 1)
    tokenizer.model_input_names = ["input_ids", "attention_mask", *segments]
    return model.eval(), tokenizer


def assert_same_logits(folder: Path, family: str, ours: mlxbert.Model) -> None:
    """Of every text, from the text on."""
    model, tokenizer = opened(folder, family)
    for text in TEXTS:
        with torch.no_grad():
            wanted = model(**tokenizer(text, return_tensors="pt")).logits[0].numpy()
        batch = make_batch([ours.tokenizer.encode(text)], ours.config)
        found = np.array(ours.network.logits("sequence_classifier", batch)[0])
        assert found == pytest.approx(wanted, abs=BOUND, rel=BOUND)


def assert_labels(folder: Path, model: mlxbert.Model, expected: Labels) -> None:
    """Those of the configuration, for both."""
    assert model.labels is not None
    assert (model.labels.names, model.labels.problem_type) == (expected.names, expected.problem_type)
    config = transformers.PreTrainedConfig.from_pretrained(folder)  # of any type
    assert config.id2label == dict(enumerate(expected.names)) and config.num_labels == len(expected)
    assert config.label2id == {name: number for number, name in enumerate(expected.names)}
    assert config.problem_type == expected.problem_type


@pytest.mark.parametrize(("family", "task"), cells(CLASSIFIERS, LABELS))
def test_a_model_without_a_head_becomes_a_classifier(family: str, task: str, tmp_path: Path) -> None:
    source = saved(make_model(FAMILIES[family], "Model"), tmp_path / "source")
    if not FAMILIES[family].in_transformers:
        with pytest.raises(ArgumentError, match="check"):
            train(task, source, tmp_path / "out", check=True)
    model = train(task, source, tmp_path / "out", **({"check": True} if FAMILIES[family].in_transformers else {}))
    checked = json.loads((tmp_path / "out/training.json").read_text(encoding="utf-8"))["check"]
    assert checked < BOUND if FAMILIES[family].in_transformers else checked is None
    assert_labels(tmp_path / "out", model, EXPECTED[task])
    assert_same_logits(tmp_path / "out", family, model)
    if task == "multilabel":
        thresholds = model.labels and model.labels.thresholds
        assert thresholds and read_config(tmp_path / "out")["thresholds"] == [*thresholds]
        opened(tmp_path / "out", family)[0].save_pretrained(tmp_path / "again")
        add_vocabulary(tmp_path / "again")
        assert mlxbert.load(tmp_path / "again", task="classify").labels == model.labels


def test_a_model_that_answers_computes_the_same_in_transformers(tmp_path: Path) -> None:
    how: dict[str, Any] = {"train": records(60), "model": save_answering(tmp_path / "model"), "epochs": 1, "lr": 1e-3}
    *_, last = mlxbert.finetune("answer", output=tmp_path / "out", check=True, **how)
    assert isinstance(last, Finished) and last.check is not None and last.check <= 1e-4


@pytest.mark.parametrize("family", some(CLASSIFIERS))
def test_a_classifier_with_the_same_labels_keeps_its_head(family: str, tmp_path: Path) -> None:
    config = make_config(FAMILIES[family], HEAD)
    names = EXPECTED["classify"].names[::-1]
    config.id2label, config.label2id = dict(enumerate(names)), {name: number for number, name in enumerate(names)}
    torch.manual_seed(3)
    start = class_of(FAMILIES[family].classes + HEAD)(config)
    source = saved(start, tmp_path / "source")
    model = train("classify", source, tmp_path / "out", lr=1e-9)
    assert_labels(tmp_path / "out", model, Labels(names, "single_label_classification"))
    assert_same_logits(tmp_path / "out", family, model)
    assert_same_logits(source, family, model)  # at this rate nothing was learned
