"""The front matter of a trained model's card, as the Hugging Face hub reads it."""

import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from huggingface_hub import ModelCard, ModelCardData

import mlxbert
from mlxbert.export import card
from mlxbert.export.card import Scores
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.train.options.training_tasks import TASKS
from tests.helpers.cases import together
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
def test_the_license_and_the_languages_are_those_of_the_base(
    stated: str, inherited: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text(stated, encoding="utf-8")
    found = front(card.trained("a", "Text.", "transformers", "base", tmp_path, Scores(None, {})))
    assert {name: value for name, value in found.items() if name.startswith(("license", "language"))} == inherited
