"""Hugging Face's own client and its pipelines: the numbers of mlxbert in the shapes of transformers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from tests.helpers.serving import listening, serving

pytestmark = pytest.mark.slow
hub = pytest.importorskip("huggingface_hub")

TEXTS = ["the cat sat on the mat", "paris is a city", "a dog , he went to the store"]
CONTEXT = "the cat sat on the mat in paris , a city . a dog went to the store ."
MASKED = "the cat sat on the [MASK] in [MASK] ."
near = pytest.approx


@pytest.fixture(scope="module")
def url(folders: dict[str, Path]) -> Iterator[str]:
    with serving(folders) as service, listening(service) as address:
        yield address


@pytest.fixture(scope="module")
def ask(url: str) -> Callable[[str], Any]:
    return lambda name: hub.InferenceClient(f"{url}/models/{name}")


@pytest.fixture
def model(folders: dict[str, Path]) -> Callable[[str], mlxbert.Model]:
    return lambda name: mlxbert.load(folders[name])


@pytest.fixture(scope="module")
def pipeline(folders: dict[str, Path]) -> Callable[..., Any]:
    transformers = pytest.importorskip("transformers")

    def make(task: str, name: str, **options: Any) -> Any:
        tokenizer = transformers.BertTokenizerFast.from_pretrained(str(folders[name]))
        return transformers.pipeline(task, model=str(folders[name]), tokenizer=tokenizer, device="cpu", **options)

    return make


def as_dicts(found: Any) -> Any:
    """What the client gives as plain values, without fields that are not there."""
    if isinstance(found, list):
        return [as_dicts(one) for one in found]
    return {name: value for name, value in dict(found).items() if value is not None}


def test_feature_extraction(url: str, ask: Any, model: Any) -> None:
    client = hub.InferenceClient(url)  # the first model of the server is asked at its root
    for given in ({}, {"prompt_name": "query"}, {"dimensions": 8, "normalize": True}):
        expected = mlxbert.embed(model("embed"), TEXTS, **given)
        np.testing.assert_allclose(client.feature_extraction(TEXTS, **given), expected, atol=1e-6)
        np.testing.assert_allclose(client.feature_extraction(TEXTS[0], **given), expected[:1], atol=1e-6)
    long = "cat " * 100
    with pytest.raises(hub.errors.HfHubHTTPError, match="tokens"):
        client.feature_extraction(long)
    found = client.feature_extraction(long, truncate=True)
    np.testing.assert_allclose(found[0], mlxbert.embed(model("embed"), long), atol=1e-6)
    with pytest.raises(hub.errors.HfHubHTTPError, match="truncation_direction"):
        client.feature_extraction("cat", truncation_direction="left")


@pytest.mark.parametrize("name", ["sentiment", "emotions", "stars", "rerank"])
def test_text_classification(ask: Any, model: Any, pipeline: Any, name: str) -> None:
    expected: Any = mlxbert.classify(model(name), TEXTS[0])
    found = ask(name).text_classification(TEXTS[0])
    labels = [("stars", expected.value)] if name == "stars" else [(one.label, one.score) for one in expected.labels]
    assert [(one.label, one.score) for one in found] == [(label, near(score, abs=1e-6)) for label, score in labels]
    theirs = pipeline("text-classification", name)(TEXTS[0], top_k=None)
    assert {one["label"]: near(one["score"], abs=1e-4) for one in theirs} == {one.label: one.score for one in found}
    own = {"sentiment": "softmax", "stars": "none"}.get(name, "sigmoid")
    assert ask(name).text_classification(TEXTS[0], function_to_apply=own, top_k=1) == found[:1]
    with pytest.raises(hub.errors.HfHubHTTPError, match=own):
        ask(name).text_classification(TEXTS[0], function_to_apply="none" if own != "none" else "softmax")


@pytest.mark.parametrize("aggregation", [None, "none", "simple", "first", "average", "max"])
def test_token_classification(ask: Any, model: Any, pipeline: Any, aggregation: Any) -> None:
    text = " . ".join(TEXTS)
    expected = mlxbert.tag(model("tag"), text, aggregation=aggregation or "simple")
    found = as_dicts(ask("tag").token_classification(text, aggregation_strategy=aggregation))
    name = "entity" if aggregation == "none" else "entity_group"
    assert [(one[name], one["start"], one["end"], one["word"]) for one in found] == [
        (one.label, one.start, one.end, one.text) for one in expected.entities
    ]
    assert [one["score"] for one in found] == near([one.score for one in expected.entities], abs=1e-6)
    theirs = pipeline("token-classification", "tag", aggregation_strategy=aggregation or "simple")(text)
    assert [(one[name], one["start"], one["end"], near(one["score"], abs=1e-4)) for one in theirs] == [
        (one[name], one["start"], one["end"], one["score"]) for one in found
    ]
    assert theirs[0].keys() - {"index"} == found[0].keys()
    left = ask("tag").token_classification(text, aggregation_strategy=aggregation, ignore_labels=["O", found[0][name]])
    assert as_dicts(left) == [one for one in found if one[name] != found[0][name]]


def test_fill_mask(ask: Any, model: Any, pipeline: Any) -> None:
    theirs = pipeline("fill-mask", "fill-mask")
    for given in ({}, {"top_k": 3}, {"targets": ["cat", "paris"]}, {"targets": ["cat", "paris"], "top_k": 1}):
        for text in (MASKED, "the [MASK] sat"):
            found = ask("fill-mask").fill_mask(text, **given)
            masks = found if text == MASKED else [found]
            expected = mlxbert.fill_mask(model("fill-mask"), text, **given)
            assert [[one["token"] for one in as_dicts(words)] for words in masks] == [
                [fill.token_id for fill in mask.fills] for mask in expected.masks
            ]
            assert masks[0][0]["score"] == near(expected.masks[0].fills[0].score, abs=1e-6)
            other = theirs(text, **given)
            other = other if text == MASKED else [other]
            assert [
                [{**one, "sequence": "", "score": near(one["score"], abs=1e-4)} for one in words] for words in other
            ] == [[{**one, "sequence": ""} for one in as_dicts(words)] for words in masks]
    with pytest.raises(hub.errors.HfHubHTTPError, match=r"no \[MASK\]"):
        ask("fill-mask").fill_mask("the cat")
    with pytest.raises(hub.errors.HfHubHTTPError, match="vocabulary"):
        ask("fill-mask").fill_mask(MASKED, targets=["zzz"])


def test_question_answering(url: str, ask: Any, model: Any) -> None:
    for client in (hub.InferenceClient(url), ask("answer")):  # a question says itself which model it is for
        found = client.question_answering("the cat ?", CONTEXT, max_answer_len=4)
        expected = mlxbert.answer(model("answer"), "the cat ?", context=CONTEXT, max_words=4)
        assert (found.answer, found.start, found.end) == (
            *[getattr(expected.spans[0], one) for one in ("answer", "start", "end")],
        )
        assert found.score == near(expected.score, abs=1e-6)
    several = client.question_answering("the cat ?", CONTEXT, top_k=3, handle_impossible_answer=True)
    assert len(several) == 3
    none = mlxbert.answer(model("answer"), "the cat ?", context=CONTEXT, top_k=3)
    scores = sorted([none.no_answer_score, *(one.score for one in none.spans)], reverse=True)
    assert [one["score"] for one in several] == near(scores[:3], abs=1e-6)
    with pytest.raises(hub.errors.HfHubHTTPError, match="max_question_len"):
        client.question_answering("the cat ?", CONTEXT, max_question_len=3)


def test_sentence_similarity_and_errors(url: str, model: Any) -> None:
    vectors = mlxbert.embed(model("embed"), TEXTS, normalize=True)
    found = hub.InferenceClient(url).sentence_similarity(TEXTS[0], TEXTS)
    assert found == near((vectors @ vectors[0]).tolist(), abs=1e-6)
    with pytest.raises(hub.errors.HfHubHTTPError, match="expected one of embed"):
        hub.InferenceClient(f"{url}/models/none").fill_mask(MASKED)
    with pytest.raises(hub.errors.HfHubHTTPError):
        hub.InferenceClient(f"{url}/models/fill-mask").text_classification("cat", function_to_apply="softmax")


@pytest.mark.parametrize("given", [{}, {"multi_label": True}, {"hypothesis_template": "a {} ."}])
def test_zero_shot_classification(ask: Any, model: Any, pipeline: Any, given: dict[str, Any]) -> None:
    labels = ["cat", "city", "dog"]
    found = ask("nli").zero_shot_classification(TEXTS[0], labels, **given)
    ours = {"multi_label": "multi", "hypothesis_template": "hypothesis"}
    expected = mlxbert.classify(
        model("nli"), TEXTS[0], labels=labels, **{ours[name]: value for name, value in given.items()}
    )
    assert [(one.label, near(one.score, abs=1e-6)) for one in expected.labels] == [
        (one.label, one.score) for one in found
    ]
    theirs = pipeline("zero-shot-classification", "nli")(TEXTS[0], labels, **given)
    assert theirs["labels"] == [one.label for one in found]
    assert theirs["scores"] == near([one.score for one in found], abs=1e-4)
