"""Zero-shot classification: any labels, by a model that knows what entails what, or by the similarity of vectors."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Labels
from mlxbert.errors import ArgumentError, CheckpointError, InputError, MissingHeadError
from mlxbert.machine.device import mx
from mlxbert.tasks import zero_shot
from mlxbert.tasks.zero_shot import HYPOTHESIS, TOPIC_HYPOTHESIS, find_contradiction, find_entailment
from mlxbert.text.sample_texts import english
from tests.helpers.cases import together
from tests.helpers.classifiers import NLI, SENTIMENT, save_classifier

TEXT, NAMES = "the cat sat on the mat", ("dog", "tokyo", "milk")
LONG = "the cat sat on the mat , a man went to the store . " * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> mlxbert.Model:
    return mlxbert.load(save_classifier(tmp_path_factory.mktemp("nli") / "model", NLI), dtype="float32")


def logits(model: mlxbert.Model, text: str, hypothesis: str) -> list[float]:
    """Of contradiction, neutrality and entailment, straight from the network."""
    encoding = model.tokenizer.encode(text, hypothesis)
    output = model.network(mx.array([encoding.ids]), None, mx.array([encoding.token_type_ids]))
    found: Any = model.network.logits("sequence_classifier", output)[0].tolist()
    return [float(value) for value in found]


def scores(result: Any) -> dict[str, float]:
    return {label.label: label.score for label in result.labels}


def test_labels_share_the_entailment_of_their_hypotheses(model: mlxbert.Model) -> None:
    for given, template in ((None, HYPOTHESIS), ("a {} is a {}", "a {} is a {}")):
        found = mlxbert.classify(model, TEXT, labels=NAMES, hypothesis=given)
        powers = [math.exp(logits(model, TEXT, template.replace("{}", name))[2]) for name in NAMES]
        assert scores(found) == pytest.approx(
            {name: power / sum(powers) for name, power in zip(NAMES, powers, strict=True)}, abs=1e-6
        )
        assert isinstance(found, mlxbert.Classification) and found.text == TEXT and found.pair is None
        ordered = [label.score for label in found.labels]
        assert ordered == sorted(ordered, reverse=True)
        assert {label.chosen for label in found.labels} == {None}


def test_several_labels_are_each_judged_against_contradiction(model: mlxbert.Model) -> None:
    found: Any = mlxbert.classify(model, TEXT, labels=NAMES, multi=True)
    for name in NAMES:
        no, _, yes = logits(model, TEXT, HYPOTHESIS.replace("{}", name))
        assert scores(found)[name] == pytest.approx(1 / (1 + math.exp(no - yes)), abs=1e-6)
    assert all(label.chosen is (label.score >= 0.5) for label in found.labels)
    alone: Any = mlxbert.classify(model, TEXT, labels=NAMES[:1])
    assert scores(alone)[NAMES[0]] == pytest.approx(scores(found)[NAMES[0]], abs=1e-6)
    assert alone.labels[0].chosen is None


def test_only_the_text_is_truncated(model: mlxbert.Model) -> None:
    long, short = mlxbert.classify(model, [LONG, TEXT], labels=[*NAMES, "went to the store"])
    assert (long.truncated, short.truncated) == (True, False)
    hypothesis = "this is a man who went to the store ."
    cut, whole = model.tokenizer.encode_each(LONG, [hypothesis, "a"], overflow="truncate")
    for encoding, second in ((cut, hypothesis), (whole, "a")):
        assert len(encoding) == model.tokenizer.max_length and encoding.truncated
        kept = [number for number, text in zip(encoding.ids, encoding.sequence_ids, strict=True) if text == 1]
        assert kept == model.tokenizer.pieces(second)
    with pytest.raises(InputError, match=f"at most {model.tokenizer.max_length}"):
        mlxbert.classify(model, LONG, labels=NAMES, overflow="error")
    with pytest.raises(ArgumentError, match="`overflow` is 'window'"):
        mlxbert.classify(model, LONG, labels=NAMES, overflow="window")


def test_a_hypothesis_must_leave_room(model: mlxbert.Model) -> None:
    room = model.tokenizer.max_length - 3
    exact = ("the " * room).strip()
    assert not model.tokenizer.encode_each("", [exact])[0].truncated
    for hypothesis, text in ((exact, "cat"), (f"{exact} cat", "")):
        with pytest.raises(InputError, match="leaves no room"):
            model.tokenizer.encode_each(text, [hypothesis], overflow="truncate")
    with pytest.raises(InputError, match="leaves no room"):
        mlxbert.classify(model, "cat", labels=["the " * room])


@together(
    "options,told",
    [
        *(({"labels": []}, "`labels` is empty"), ({"labels": "a,b"}, "`labels` is 'a,b'")),
        *(({"labels": ["a", 3]}, "`labels` contains 3"), ({"labels": 3}, "`labels` is 3")),
        ({"labels": ["a", " "]}, "label ' ' is empty"),
        ({"labels": ["a", "b", "a"]}, "label 'a' is given twice"),
        ({"labels": ["a"], "hypothesis": "no place"}, "`hypothesis` is 'no place'"),
        ({"labels": ["a"], "hypothesis": 3}, "`hypothesis` is 3"),
        ({"hypothesis": "a {}"}, "`hypothesis` works only with `labels`"),
        ({"multi": True}, "`multi` works only with `labels`"),
    ],
)
def test_options_that_cannot_be_used(model: mlxbert.Model, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        mlxbert.classify(model, TEXT, **options)


def test_pairs_keep_their_place_as_failures(model: mlxbert.Model) -> None:
    items: list[Any] = [TEXT, (TEXT, TEXT), 3, ""]
    found = list(mlxbert.classify(model, items, labels=NAMES, on_error="return"))
    assert [isinstance(one, mlxbert.Failure) for one in found] == [False, True, True, False]
    for one, text in ((found[0], TEXT), (found[3], "")):
        assert scores(one) == pytest.approx(scores(mlxbert.classify(model, text, labels=NAMES)), abs=1e-5)
    best: Any = mlxbert.classify(model, TEXT, labels=NAMES, top_k=2)
    assert [label.label for label in best.labels] == [*scores(found[0])][:2]
    with pytest.raises(InputError, match="expected a text"):
        mlxbert.classify(model, (TEXT, TEXT), labels=NAMES)


@together(
    "names,entailment,contradiction",
    [
        (("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), 2, 0),
        (("entailment", "neutral", "contradiction"), 0, 2),
        (("neutral", "Entails", "Contradicts"), 1, 2),  # where transformers takes the first as contradiction
        (("not_entailment", "entailment"), 1, 0),
        (("entailment", "not_entailment"), 0, 1),
    ],
)
def test_outputs_are_found_by_name(names: tuple[str, ...], entailment: int, contradiction: int) -> None:
    labels = Labels(names)
    assert (find_entailment(labels, "m"), find_contradiction(labels, "m")) == (entailment, contradiction)


def test_a_model_that_judges_no_entailment_is_refused(tmp_path: Path) -> None:
    other = mlxbert.load(save_classifier(tmp_path / "other", SENTIMENT))
    with pytest.raises(CheckpointError, match=r"negative, neutral, positive.*'entail'") as caught:
        mlxbert.classify(other, TEXT, labels=NAMES)
    assert "NLI" in str(caught.value.hint)
    half = mlxbert.load(save_classifier(tmp_path / "half", Labels(("entailment", "x", "y"))))
    assert len(scores(mlxbert.classify(half, TEXT, labels=NAMES))) == 3  # contradiction is not needed
    with pytest.raises(CheckpointError, match="'contradict'"):
        mlxbert.classify(half, TEXT, labels=NAMES, multi=True)


def test_large_logits_do_not_overflow(tmp_path: Path) -> None:
    model = mlxbert.load(save_classifier(tmp_path / "model", NLI), dtype="float32")
    head: Any = model.network.heads["sequence_classifier"]
    head.out.weight = head.out.weight * 1e4
    for multi in (False, True):
        found = scores(mlxbert.classify(model, TEXT, labels=NAMES, multi=multi))
        assert np.isfinite([*found.values()]).all()


@pytest.fixture(scope="module")
def embedder(tiny_folder: Path) -> mlxbert.Model:
    return mlxbert.load(tiny_folder, dtype="float32")


def above(model: mlxbert.Model, text: str, template: str = TOPIC_HYPOTHESIS, **how: Any) -> "np.ndarray[Any, Any]":
    """The similarity to each label, in standard deviations above its mean similarity to the sentences."""
    labels = mlxbert.embed(model, [template.replace("{}", name) for name in NAMES], normalize=True)
    unrelated = mlxbert.embed(model, english(), normalize=True) @ labels.T
    similar = mlxbert.embed(model, text, normalize=True, **how) @ labels.T
    return np.asarray((similar - unrelated.mean(0)) / unrelated.std(0))


@together(
    "text,template,overflow",
    [(TEXT, None, "truncate"), (TEXT, "a {} is a {}", "truncate"), (LONG, None, "truncate"), (LONG, None, "window")],
)
def test_scores_are_a_softmax_of_similarities_beyond_those_of_unrelated_texts(
    embedder: mlxbert.Model, text: str, template: str | None, overflow: Any
) -> None:
    found: Any = mlxbert.classify(embedder, text, labels=NAMES, hypothesis=template, overflow=overflow)
    powers = np.exp(above(embedder, text, template or TOPIC_HYPOTHESIS, overflow=overflow) / 0.6)
    assert scores(found) == pytest.approx(dict(zip(NAMES, (powers / powers.sum()).tolist(), strict=True)), abs=1e-3)
    ordered = [label.score for label in found.labels]
    assert ordered == sorted(ordered, reverse=True) and {label.chosen for label in found.labels} == {None}
    assert found.truncated is (text == LONG and overflow == "truncate")


def test_several_labels_are_each_judged_by_their_own_similarity(embedder: mlxbert.Model) -> None:
    found: Any = mlxbert.classify(embedder, TEXT, labels=NAMES, multi=True)
    expected = dict(zip(NAMES, (1 / (1 + np.exp(2 - above(embedder, TEXT)))).tolist(), strict=True))
    assert scores(found) == pytest.approx(expected, abs=1e-4)
    assert all(label.chosen is (label.score >= 0.5) for label in found.labels)
    alone: Any = mlxbert.classify(embedder, TEXT, labels=NAMES[:1])
    assert scores(alone)[NAMES[0]] == pytest.approx(scores(found)[NAMES[0]], abs=1e-6)


def test_the_sentences_are_embedded_once_per_model(tiny: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded, whole, usage = list[int](), zero_shot.LabelSimilarityTask._vectors, mlxbert.Usage()

    def counted(self: Any, texts: Any) -> Any:
        embedded.append(len(listed := list(texts)))
        return whole(self, listed)

    monkeypatch.setattr(zero_shot.LabelSimilarityTask, "_vectors", counted)
    alone = mlxbert.classify(tiny, TEXT, labels=NAMES)
    _, among, _ = mlxbert.classify(tiny, ["a dog", TEXT, "milk"], labels=NAMES, usage=usage)
    assert scores(among) == pytest.approx(scores(alone), abs=1e-5)
    assert embedded == [3, len(english()), 3] and usage.texts == 3


def test_an_embedding_model_needs_labels_and_single_texts(embedder: mlxbert.Model) -> None:
    with pytest.raises(MissingHeadError):
        mlxbert.classify(embedder, TEXT)
    with pytest.raises(InputError, match="expected a text"):
        mlxbert.classify(embedder, (TEXT, TEXT), labels=NAMES)
    wrong: Any
    for wrong in ({"labels": ["dog", "dog"]}, {"hypothesis": "no slot"}, {"overflow": "head-tail"}):
        with pytest.raises(ArgumentError, match=next(iter(wrong)).removesuffix("s")):
            mlxbert.classify(embedder, TEXT, **{"labels": NAMES, **wrong})


def test_labels_equal_to_every_sentence_divide_by_no_zero(
    embedder: mlxbert.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zero_shot, "english", lambda: ("the same",) * 3)
    monkeypatch.setattr(zero_shot, "_SENTENCES", {})
    for multi in (False, True):
        assert np.isfinite([*scores(mlxbert.classify(embedder, TEXT, labels=NAMES, multi=multi)).values()]).all()
