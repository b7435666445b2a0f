"""The front matter of a trained model's card, as the Hugging Face hub reads it."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard import metadata_load

import mlxbert
from mlxbert.folders import card
from mlxbert.folders.card import Scores
from mlxbert.tasks.catalogue import CATALOGUE

_ROWS = [("a good day", "good"), ("a bad day", "bad")]


def front(text: str, folder: Path) -> dict[str, Any]:
    (folder / "card.md").write_text(text, encoding="utf-8")
    found = metadata_load(folder / "card.md")
    assert found is not None
    return found


def test_a_trained_classifier_says_what_the_hub_asks_for(tmp_path: Path) -> None:
    table = tmp_path / "days.csv"
    table.write_text("text,label\n" + "".join(f"{text} {n},{label}\n" for n in range(20) for text, label in _ROWS))
    events = [*mlxbert.finetune("classify", train=table, output=tmp_path / "days", epochs=1, few_shot=False)]
    written = ModelCard.load(tmp_path / "days" / "README.md")
    data = written.data
    assert (data.pipeline_tag, data.library_name, data.base_model) == ("text-classification", "transformers", None)
    assert (data.license, data.language) == ("apache-2.0", "en")  # of the built-in model
    assert data.model_name == "days" and data.eval_results
    scores = {result.metric_type: result.metric_value for result in data.eval_results}
    assert scores["accuracy"] == pytest.approx(events[-1].evaluation.metrics["accuracy"], abs=1e-4)
    assert all(result.dataset_type == "private" for result in data.eval_results)
    assert str(tmp_path) not in str(data.to_dict())
    assert 'model = mlxbert.load("days")\nmlxbert.classify(model, "A text.")' in written.text
    assert 'pipeline("text-classification", model="days")' in written.text


@pytest.mark.parametrize("task", CATALOGUE)
def test_every_task_has_a_card(task: str, tmp_path: Path) -> None:
    scores = Scores(task, {"accuracy": 0.98765})
    found = front(card.trained("a", "Text.", "transformers", "org/base", tmp_path, scores), tmp_path)
    assert found["base_model"] == "org/base" and found["tags"] == ["mlxbert"]
    if CATALOGUE[task].pipeline is None:
        assert not {"pipeline_tag", "model-index"} & found.keys()
    else:
        (result,) = found["model-index"][0]["results"]
        assert result["task"]["type"] == found["pipeline_tag"] == CATALOGUE[task].pipeline
        assert result["metrics"] == [{"type": "accuracy", "value": 0.9877}]


@pytest.mark.parametrize(
    ("stated", "inherited"),
    [
        ("---\nlicense: mit\nlanguage:\n- de\n- fr\ntags: [x]\n---\n# A", {"license": "mit", "language": ["de", "fr"]}),
        ("---\nlicense: other\nlicense_name: own\n---\n", {"license": "other", "license_name": "own"}),
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
    found = front(card.trained("a", "Text.", "transformers", "base", tmp_path, Scores(None, {})), tmp_path)
    assert {name: value for name, value in found.items() if name.startswith(("license", "language"))} == inherited


def test_examples_name_the_library_that_opens_the_model() -> None:
    assert any("SentenceTransformer(" in line for line in card.examples("embed", "m", "sentence-transformers"))
    assert card.examples("embed", "m", "mlxbert").count("```python") == 1
    assert card.examples("tag", "m", "transformers").count("```python") == 2
    assert not card.examples("pretrain", "m", "transformers")
