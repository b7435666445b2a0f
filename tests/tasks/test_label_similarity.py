"""Zero-shot classification with embedding models, which have no head for labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError, MissingHeadError
from mlxbert.option_declarations import declared_options
from mlxbert.tasks import zero_shot
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.tasks.options import ClassifyOptions
from mlxbert.text.sample_texts import english
from tests.helpers.classifiers import NLI, SENTIMENT, save_classifier
from tests.helpers.program import call

NAMES = ("delivery", "payment", "praise")
TEXT = "The parcel is still not here"


@pytest.fixture(scope="module")
def model() -> mlxbert.Model:
    return mlxbert.load(dtype="float32")


def scores(result: Any) -> dict[str, float]:
    return {label.label: label.score for label in result.labels}


def above(model: mlxbert.Model, text: str, template: str = "This text is about {}.") -> "np.ndarray[Any, Any]":
    """The similarity to each label, in standard deviations above its mean similarity to the sentences."""
    labels = mlxbert.embed(model, [template.replace("{}", name) for name in NAMES], normalize=True)
    unrelated = mlxbert.embed(model, english(), normalize=True) @ labels.T
    return np.asarray((mlxbert.embed(model, text, normalize=True) @ labels.T - unrelated.mean(0)) / unrelated.std(0))


def test_scores_are_a_softmax_of_similarities_beyond_those_of_unrelated_texts(model: mlxbert.Model) -> None:
    for given, template in ((None, zero_shot.TOPIC_HYPOTHESIS), ("a complaint about {}", "a complaint about {}")):
        found: Any = mlxbert.classify(model, TEXT, labels=NAMES, hypothesis=given)
        powers = np.exp(above(model, TEXT, template) / 0.6)
        expected = dict(zip(NAMES, (powers / powers.sum()).tolist(), strict=True))
        assert scores(found) == pytest.approx(expected, abs=1e-4)
        assert sum(scores(found).values()) == pytest.approx(1)
        assert found.labels[0].label == "delivery" and {label.chosen for label in found.labels} == {None}


def test_several_labels_are_each_judged_alone(model: mlxbert.Model) -> None:
    found: Any = mlxbert.classify(model, TEXT, labels=NAMES, multi=True)
    expected = dict(zip(NAMES, (1 / (1 + np.exp(2 - above(model, TEXT)))).tolist(), strict=True))
    assert scores(found) == pytest.approx(expected, abs=1e-4)
    assert all(label.chosen is (label.score >= 0.5) for label in found.labels)
    alone: Any = mlxbert.classify(model, TEXT, labels=NAMES[:1])
    assert scores(alone)[NAMES[0]] == pytest.approx(scores(found)[NAMES[0]], abs=1e-6)


def test_a_text_has_the_same_scores_alone_and_among_others(model: mlxbert.Model) -> None:
    alone: Any = mlxbert.classify(model, TEXT, labels=NAMES)
    texts = ["You charged my card twice.", TEXT, "Wonderful, thank you so much!"]
    many: Any = list(mlxbert.classify(model, texts, labels=NAMES))
    assert [result.labels[0].label for result in many] == ["payment", "delivery", "praise"]
    assert scores(many[1]) == pytest.approx(scores(alone), abs=1e-5)


def test_windows_give_the_vector_of_the_whole_text(model: mlxbert.Model) -> None:
    long = "The postman brought the parcel to my neighbour. " * 30 + "You charged my card twice. " * 80
    whole, cut = (mlxbert.classify(model, long, labels=NAMES, overflow=overflow) for overflow in ("window", "truncate"))
    assert cut.truncated and not whole.truncated
    assert scores(whole)["payment"] > scores(cut)["payment"] + 0.2


def test_the_sentences_are_embedded_once_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, embedded = mlxbert.load(), []
    whole = zero_shot.LabelSimilarityTask._vectors

    def counted(self: Any, texts: Any) -> Any:
        embedded.append(len(listed := list(texts)))
        return whole(self, listed)

    monkeypatch.setattr(zero_shot.LabelSimilarityTask, "_vectors", counted)
    for _ in range(2):
        mlxbert.classify(model, TEXT, labels=NAMES)
    assert embedded == [3, len(english()), 3]


def test_a_model_for_inference_is_still_asked_for_entailment(tmp_path: Path) -> None:
    inference = mlxbert.load(save_classifier(tmp_path / "nli", NLI))
    task = CATALOGUE["classify"].make(inference, CATALOGUE["classify"].read_options({"labels": NAMES}))
    assert type(task).__name__ == "ZeroShotTask"
    sentiment = mlxbert.load(save_classifier(tmp_path / "sentiment", SENTIMENT))
    with pytest.raises(MissingHeadError, match="entail"):
        mlxbert.classify(sentiment, TEXT, labels=NAMES)


def test_the_help_says_both_default_hypotheses() -> None:
    _, option = declared_options(ClassifyOptions)["hypothesis"]
    assert f"'{zero_shot.TOPIC_HYPOTHESIS}'" in option.help and f"'{zero_shot.HYPOTHESIS}'" in option.help


def test_bad_input_is_refused(model: mlxbert.Model) -> None:
    with pytest.raises(MissingHeadError):
        mlxbert.classify(model, TEXT)
    with pytest.raises(ArgumentError, match="'delivery' is given twice"):
        mlxbert.classify(model, TEXT, labels=["delivery", "delivery"])
    with pytest.raises(ArgumentError, match="hypothesis"):
        mlxbert.classify(model, TEXT, labels=NAMES, hypothesis="no slot")
    with pytest.raises(InputError, match="expected a text"):
        mlxbert.classify(model, (TEXT, TEXT), labels=NAMES)


def test_labels_equal_to_every_sentence_divide_by_no_zero(
    monkeypatch: pytest.MonkeyPatch, model: mlxbert.Model
) -> None:
    monkeypatch.setattr(zero_shot, "english", lambda: ("the same",) * 3)
    monkeypatch.setattr(zero_shot, "_SENTENCES", {})
    for multi in (False, True):
        found: Any = mlxbert.classify(model, TEXT, labels=NAMES, multi=multi)
        assert all(np.isfinite(label.score) for label in found.labels)


def test_usage_counts_the_texts_alone(model: mlxbert.Model) -> None:
    usage = mlxbert.Usage()
    list(mlxbert.classify(model, [TEXT, "It rains."], labels=NAMES, usage=usage))
    assert usage.texts == 2


def test_the_command_takes_any_labels_with_the_built_in_model() -> None:
    done = call("classify", TEXT, "--labels", ",".join(NAMES), "--quiet")
    labels = json.loads(done.out)["labels"]
    assert done.status == 0 and labels[0]["label"] == "delivery" and len(labels) == 3
    assert call("classify", TEXT, "--quiet").status != 0
