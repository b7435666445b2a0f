"""The front matter of a trained model's card, as the Hugging Face hub reads it."""

import importlib.machinery
import importlib.util
import json
import re
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from huggingface_hub import ModelCard, ModelCardData

import mlxbert
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.export import card
from mlxbert.export.card import Scores
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.other_libraries import pip_install
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.train.loop.events import Finished
from mlxbert.train.options.training_tasks import TASKS
from tests.helpers.cases import together
from tests.helpers.classifiers import SENTIMENT, save_classifier
from tests.helpers.program import tiny_model

_ROWS = [("a good day", "good"), ("a bad day", "bad")]


# The tasks of texts that the hub knows, and the form of identifiers there.
HUB_TASKS = {
    *("text-classification", "token-classification", "question-answering", "sentence-similarity", "text-ranking"),
    *("fill-mask", "feature-extraction", "zero-shot-classification"),
}
REPOSITORY, LANGUAGE = re.compile(r"[\w.-]+(/[\w.-]+)?"), re.compile(r"[a-z]{2,3}(-[A-Za-z]{2,8})*|code|multilingual")
FIELDS = {
    *("license", "license_name", "license_link", "language", "library_name", "pipeline_tag", "datasets", "base_model"),
    *("tags", "model-index"),
}


def check_front(found: dict[str, Any]) -> None:
    """Checks front matter against the hub's specification of model cards."""
    assert found.keys() <= FIELDS
    assert all(LANGUAGE.fullmatch(code) for code in np.atleast_1d(found.get("language", [])))
    assert found.get("pipeline_tag") in {*HUB_TASKS, None}
    assert isinstance(found["library_name"], str) and all(isinstance(tag, str) for tag in found["tags"])
    assert all(REPOSITORY.fullmatch(name) for name in (*found.get("datasets", ()), found.get("base_model", "a")))
    assert found.get("license") != "other" or "license_name" in found
    for model in found.get("model-index", ()):
        assert model["name"]
        for result in model["results"]:
            assert result["task"]["type"] == found["pipeline_tag"]
            assert result["dataset"]["name"] and REPOSITORY.fullmatch(result["dataset"]["type"])
            for metric in result["metrics"]:
                assert isinstance(metric["type"], str) and type(metric["value"]) in (int, float)
    card_data = ModelCardData(**found)  # raises an error for a list of results that is not as specified
    assert ModelCard(f"---\n{card_data.to_yaml()}\n---\n").data.to_dict() == card_data.to_dict()


def test_a_trained_classifier_says_what_the_hub_asks_for(tmp_path: Path) -> None:
    table = tmp_path / "days.csv"
    table.write_text("text,label\n" + "".join(f"{text} {n},{label}\n" for n in range(8) for text, label in _ROWS))
    tiny_model(tmp_path / "base")
    (tmp_path / "base" / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: en\n---\n")
    how: dict[str, Any] = {"model": tmp_path / "base", "output": tmp_path / "days", "epochs": 1}
    events = [*mlxbert.finetune("classify", train=table, **how)]
    written = ModelCard.load(tmp_path / "days" / "README.md")
    data = written.data
    assert (data.pipeline_tag, data.library_name, data.base_model) == ("text-classification", "transformers", None)
    assert (data.license, data.language) == ("apache-2.0", "en")  # of the model that training began with
    assert data.model_name == "days" and data.eval_results
    scores = {result.metric_type: result.metric_value for result in data.eval_results}
    assert scores["accuracy"] == pytest.approx(events[-1].evaluation.metrics["accuracy"], abs=1e-4)
    assert all(result.dataset_type == "private" for result in data.eval_results)
    assert data.datasets is None and str(tmp_path) not in str(written)
    check_front(data.to_dict())
    assert 'model = mlxbert.load("days")\nmlxbert.classify(model, "A text.")' in written.text
    assert 'pipeline("text-classification", model="days")' in written.text


def test_data_sets_of_the_hub_are_named_and_files_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"{text} {n}", "label": label} for n in range(20) for text, label in _ROWS]
    open_hub = mock.Mock(return_value=rows)
    monkeypatch.setattr("mlxbert.train.data.labelled_rows.open_hub", open_hub)
    table = tmp_path / "secret.csv"
    table.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    base = tmp_path / "base"
    tiny_model(base)
    how: dict[str, Any] = {"model": base, "epochs": 1, "few_shot": False}
    cards = []
    for output, train, valid in (
        ("a", "hub:org/days:en:train", None), ("b", ["hub:org/days", str(table)], table),
        ("c", str(table), "hub:org/other"),
    ):  # fmt: skip
        [*mlxbert.finetune("classify", train=train, valid=valid, output=tmp_path / output, **how)]
        cards.append(ModelCard.load(tmp_path / output / "README.md"))
        check_front(cards[-1].data.to_dict())
        assert str(tmp_path) not in str(cards[-1])
    asked = [call.args[0] for call in open_hub.call_args_list]
    assert asked == ["hub:org/days:en:train", "hub:org/days", "hub:org/other"]
    assert [written.data.datasets for written in cards] == [["org/days"], ["org/days"], None]
    tested = [{result.dataset_type for result in written.data.eval_results or ()} for written in cards]
    assert tested == [{"org/days"}, {"private"}, {"org/other"}]
    held_out = ["held-out" in (written.data.eval_results or [])[0].dataset_name for written in cards]
    assert held_out == [True, False, False]


@together("task", CATALOGUE)
def test_every_task_has_a_card(task: str, tmp_path: Path) -> None:
    scores = Scores(task, {"accuracy": 0.98765})
    found = front(card.trained("a", "Text.", "transformers", "org/base", tmp_path, scores))
    assert found["base_model"] == "org/base" and found["tags"] == ["mlxbert"]
    if CATALOGUE[task].pipeline is None:
        assert not {"pipeline_tag", "model-index"} & found.keys()
    else:
        (result,) = found["model-index"][0]["results"]
        assert result["task"]["type"] == found["pipeline_tag"] == CATALOGUE[task].pipeline
        assert result["metrics"] == [{"type": "accuracy", "value": 0.9877}]


def front(text: str) -> dict[str, Any]:
    found = ModelCard(text).data.to_dict()
    check_front(found)
    return found


def test_examples_name_the_library_that_opens_the_model() -> None:
    for task, of_task in TASKS.items():
        library = "sentence-transformers" if task == "embed" else "transformers"
        assert Scores(of_task.use, {}).pipeline in HUB_TASKS
        assert card.examples(of_task.use, "m", library).count("```python") == 2, task
    assert any("SentenceTransformer(" in line for line in card.examples("embed", "m", "sentence-transformers"))
    assert card.examples("embed", "m", "mlxbert").count("```python") == 1
    assert not card.examples("pretrain", "m", "transformers")
    roberta = card.examples("fill-mask", "m", "transformers", "<mask>")
    assert sum("A <mask>." in line for line in roberta) == 2 and not any("MASK" in line for line in roberta)


@together(
    ("stated", "inherited"),
    [
        ("---\nlicense: mit\nlanguage:\n- de\n- fr\ntags: [x]\n---\n# A", {"license": "mit", "language": ["de", "fr"]}),
        ("---\nlicense: other\nlicense_name: own\n---\n", {"license": "other", "license_name": "own"}),
        ("---\nlanguage: no\n---\n", {"language": "no"}),
        ("---\nlanguage: [no, en, 3]\n---\n", {"language": ["no", "en"]}),
        ("---\nlicense: [unclosed\n---\n# A", {}),
        ("---\n- a list\n---\n# A", {}),
        ("# A", {}),
        ("\xff\xfe", {}),
    ],
)
def test_license_and_languages_are_those_of_the_base(stated: str, inherited: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(stated, encoding="utf-8")
    found = front(card.trained("a", "Text.", "transformers", "base", tmp_path, Scores(None, {})))
    assert {name: value for name, value in found.items() if name.startswith(("license", "language"))} == inherited


RECORDS = [{"text": f"the cat sat {'on mat ' * number}", "label": SENTIMENT.names[number % 3]} for number in range(6)]


@dataclass
class Fake:
    """Stands for transformers: opens a folder, and changes its logits."""

    change: Any = lambda logits: logits
    bars: bool = True
    opened: list[Path] = field(default_factory=list)
    shown: list[bool] = field(default_factory=list)

    def from_pretrained(self, folder: str, **given: Any) -> Any:
        self.opened.append(Path(folder))
        self.shown.append(self.bars)
        assert given["trust_remote_code"] is False
        network = mlxbert.load(folder, task="classify", dtype="float32").network

        def call(ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            assert ids.shape == attention_mask.shape and attention_mask.all()
            batch = Batch(mx.array(ids), None, None if token_type_ids is None else mx.array(token_type_ids))
            return SimpleNamespace(logits=self.change(np.array(network.logits("sequence_classifier", batch))))

        return SimpleNamespace(eval=lambda: call)


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(content)
    return module


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    logging = _module(
        "transformers.utils.logging", CRITICAL=50, get_verbosity=lambda: 30, set_verbosity=lambda level: None,
        is_progress_bar_enabled=lambda: fake.bars, disable_progress_bar=lambda: setattr(fake, "bars", False),
        enable_progress_bar=lambda: setattr(fake, "bars", True),
    )  # fmt: skip
    numbers = {"tensor": np.array, "ones_like": np.ones_like, "no_grad": nullcontext, "float32": "float32"}
    for module in (
        _module("torch", **numbers),
        _module("transformers", AutoModelForSequenceClassification=fake),
        _module("transformers.utils"),
        logging,
    ):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return fake


def train(tmp_path: Path, **options: Any) -> Finished:
    if not (tmp_path / "model").exists():
        save_classifier(tmp_path / "model", SENTIMENT)
    given: dict[str, Any] = {"train": RECORDS, "valid": RECORDS, "model": tmp_path / "model", "epochs": 1}
    *_, last = mlxbert.finetune("classify", **given | {"output": tmp_path / "out"} | options)
    assert isinstance(last, Finished)
    return last


def test_the_folder_is_compared_before_it_is_in_place_and_not_unasked(tmp_path: Path, fake: Fake) -> None:
    fake.change = lambda logits: logits + np.float32(2e-5)
    finished = train(tmp_path, check=True)
    assert finished.check == pytest.approx(2e-5, rel=0.05)
    assert json.loads((tmp_path / "out/training.json").read_text())["check"] == finished.check
    assert fake.opened == [tmp_path / "out.partial/model"] and fake.shown == [False] and fake.bars
    assert not (tmp_path / "out.partial").exists()
    mlxbert.save(mlxbert.load(tmp_path / "model"), tmp_path / "out", overwrite=True)  # all files are those it lists
    opened = len(fake.opened)
    assert train(tmp_path, output=tmp_path / "unasked").check is None and len(fake.opened) == opened
    assert json.loads((tmp_path / "unasked/training.json").read_text())["check"] is None


def _broken(logits: Any) -> Any:
    raise OSError("no such weights")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda logits: logits + 1e-2, r"differ by 1\.0e-02"),
        (lambda logits: logits * np.nan, "differ by nan"),
        (lambda logits: logits[:, :2], "2 logits, mlxbert 3"),
        (_broken, "no such weights"),
    ],
)
def test_a_difference_is_an_error_and_the_model_is_kept(tmp_path: Path, fake: Fake, change: Any, told: str) -> None:
    fake.change = change
    with pytest.raises(MlxbertError, match=told) as caught:
        train(tmp_path, check=True)
    assert caught.value.hint and "check=True" in caught.value.hint and fake.bars
    assert not (tmp_path / "out").exists()
    assert mlxbert.load(tmp_path / "out.partial/model").labels == SENTIMENT
    assert train(tmp_path).output == str(tmp_path / "out")  # nothing is trained again
    assert not (tmp_path / "out.partial").exists()


def test_missing_packages_are_told_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *more: None if name in ("torch", "transformers") else found(name, *more),
    )
    with pytest.raises(ArgumentError, match="torch") as caught:
        train(tmp_path, check=True)
    assert caught.value.hint is not None and pip_install("torch transformers") in caught.value.hint
    assert not [*tmp_path.glob("out*")]
