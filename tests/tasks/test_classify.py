"""Classification through Python: labels with scores, or numbers, as the configuration says what the model is."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Classification, Label, Labels, Regression
from mlxbert.errors import ArgumentError, CheckpointError, InputError, MlxbertError
from mlxbert.labels.labels import MULTI_LABEL, PROBLEM_TYPES, REGRESSION
from mlxbert.machine.device import mx
from mlxbert.text.encoding import Encoding
from tests.helpers.cases import together
from tests.helpers.classifiers import EMOTIONS, SENTIMENT, STARS, save_classifier
from tests.helpers.families import FAMILIES, Compared, class_of, make_config, make_model
from tests.helpers.frozen import add_vocabulary, read_config
from tests.helpers.libraries import Library
from tests.helpers.rooms import needs

TEXT, PAIR = "the cat sat on the mat", ("the cat sat", "he bought milk in tokyo")
LONG = "the cat sat on the mat , a man went to the store . " * 4
ONE, TWO = Labels(("relevant",)), Labels(("valence", "arousal"), "regression")


def load(folder: Path, labels: Labels, dtype: str = "float32") -> mlxbert.Model:
    return mlxbert.load(save_classifier(folder, labels), task="classify", dtype=dtype)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> mlxbert.Model:
    return load(tmp_path_factory.mktemp("sentiment") / "model", SENTIMENT)


def logits(model: mlxbert.Model, encoding: Encoding) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Straight from the network, without a mask."""
    ids, segments = mx.array([encoding.ids]), mx.array([encoding.token_type_ids])
    output = model.network(ids, None, segments)
    return np.array(model.network.logits("sequence_classifier", output)[0].astype(mx.float32)).astype(np.float64)


def softmax(values: Any) -> Any:
    return np.exp(values) / np.exp(values).sum()


def sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-values))


def by_name(result: Any) -> dict[str, float]:
    return {label.label: label.score for label in result.labels}


@pytest.mark.parametrize(
    ("labels", "function"),
    [
        (SENTIMENT, softmax),
        (replace(SENTIMENT, problem_type=None), softmax),
        (EMOTIONS, sigmoid),
        (ONE, sigmoid),
        (replace(ONE, problem_type="single_label_classification"), sigmoid),
    ],
    ids=["single", "unnamed", "several", "one unnamed", "one"],
)
@pytest.mark.parametrize("item", [TEXT, PAIR], ids=["text", "pair"])
def test_the_configuration_says_how_scores_are_made(labels: Labels, function: Any, item: Any, tmp_path: Path) -> None:
    model = load(tmp_path / "model", labels)
    found = mlxbert.classify(model, item)
    assert isinstance(found, Classification)
    texts = (item,) if isinstance(item, str) else item
    wanted = function(logits(model, model.tokenizer.encode(*texts)))
    assert by_name(found) == pytest.approx(dict(zip(labels.names, wanted.tolist(), strict=True)), abs=1e-6)
    scores = [label.score for label in found.labels]
    assert scores == sorted(scores, reverse=True) and len(scores) == len(labels)
    assert (found.text, found.pair) == (item, None) if isinstance(item, str) else item
    assert all((label.chosen is None) is (labels != EMOTIONS) for label in found.labels)


def test_numbers_are_what_the_network_computes(tmp_path: Path) -> None:
    for labels in (STARS, TWO):
        model = load(tmp_path / labels.names[0], labels)
        found, wanted = mlxbert.classify(model, TEXT), logits(model, model.tokenizer.encode(TEXT))
        assert isinstance(found, Regression) and found.value == pytest.approx(wanted[0], abs=1e-6)
        named = dict(zip(labels.names, wanted.tolist(), strict=True)) if len(labels) > 1 else {}
        assert dict(found.values) == pytest.approx(named, abs=1e-6)


def test_a_label_is_chosen_from_its_threshold_on(tmp_path: Path) -> None:
    half = dict.fromkeys(EMOTIONS.names, 0.5)
    for thresholds, chosen in ((None, set(EMOTIONS.names)), ([0.5, 0.51, 0, 1], {"joy", "fear"})):
        folder = save_classifier(tmp_path / str(bool(thresholds)), EMOTIONS, thresholds=thresholds)
        model = mlxbert.load(folder, dtype="float32")
        out: Any = model.network.heads["sequence_classifier"]
        out.out.weight, out.out.bias = mx.zeros((4, 24)), mx.zeros(4)  # all scores are 0.5
        found: Any = mlxbert.classify(model, TEXT)
        assert by_name(found) == half and [label.label for label in found.labels] == [*EMOTIONS.names]
        assert {label.label for label in found.labels if label.chosen} == chosen


def test_many_items_of_both_kinds_are_each_as_alone(model: mlxbert.Model) -> None:
    items: list[Any] = ["", TEXT, PAIR, ["a", "b"], LONG, "the cat", ("", ""), (LONG, LONG)]
    for batch_tokens in (None, 1, 50):
        found: list[Any] = list(mlxbert.classify(model, items, batch_tokens=batch_tokens))
        for item, one in zip(items, found, strict=True):
            alone = mlxbert.classify(model, tuple(item) if isinstance(item, list) else item)
            assert by_name(one) == pytest.approx(by_name(alone), abs=1e-5)
            assert ([one.text, one.pair] if one.pair is not None else one.text) in (item, list(item))
        assert [one.truncated for one in found] == [LONG in (item, *item) for item in items]
    for count in (1, 2, 9):  # more than there are is all
        best: Any = mlxbert.classify(model, TEXT, top_k=count)
        assert best.labels == found[1].labels[:count]


@together("wrong", [3, None, ("one",), ("a", "b", "c"), ("a", 2), b"the cat", {"text": "a"}])
def test_what_is_neither_a_text_nor_a_pair(wrong: Any, model: mlxbert.Model) -> None:
    with pytest.raises(InputError, match="input 1: expected a text or a pair of texts"):
        list(mlxbert.classify(model, ["the", wrong]))
    _, failed, last = mlxbert.classify(model, ["the", wrong, "cat"], on_error="return")
    assert isinstance(failed, mlxbert.Failure) and failed.index == 1
    assert isinstance(last, Classification) and last.text == "cat"


def mean_over(model: mlxbert.Model, windows: list[Encoding]) -> Any:
    return np.average([softmax(logits(model, one)) for one in windows], axis=0, weights=list(map(len, windows)))


@together("pair", [("the cat", LONG), (LONG, "the cat"), (LONG, LONG)])
def test_a_pair_keeps_the_shorter_text_and_the_ends_of_the_longer_one(
    pair: tuple[str, str], model: mlxbert.Model
) -> None:
    tokenizer = model.tokenizer
    found = tokenizer.head_and_tail(*pair)
    assert len(found) == tokenizer.max_length and found.truncated
    whole = [tokenizer.split(text).ids for text in pair]
    own = [[id for id, text in zip(found.ids, found.sequence_ids, strict=True) if text == part] for part in (0, 1)]
    if min(map(len, whole)) < tokenizer.max_length - 3:
        longer = max((0, 1), key=lambda part: len(whole[part]))
        assert own[1 - longer] == whole[1 - longer]
        half = len(own[longer]) // 2
        assert own[longer][:half] == whole[longer][:half] and own[longer][-half:] == whole[longer][-half:]
    else:  # no room for the ends
        assert found == tokenizer.encode(*pair, overflow="truncate")
    assert tokenizer.head_and_tail("the cat", "sat") == tokenizer.encode("the cat", "sat")
    room, one = tokenizer.max_length - 2, tokenizer.split(LONG).ids
    assert tokenizer.head_and_tail(LONG).ids[1:-1] == [*one[: (room + 1) // 2], *one[-(room // 2) :]]


def test_a_long_text_is_cut_seen_through_windows_or_refused(model: mlxbert.Model) -> None:
    windows = model.tokenizer.windows(LONG, stride=0)
    assert len(windows) > 1 and not mlxbert.classify(model, LONG, overflow="window").truncated
    wanted: Any
    overflow: Any
    for overflow, wanted in (
        ("window", mean_over(model, windows)),
        ("window-max", np.max([softmax(logits(model, one)) for one in windows], axis=0)),
        ("head-tail", softmax(logits(model, model.tokenizer.head_and_tail(LONG)))),
        ("truncate", softmax(logits(model, windows[0]))),
    ):
        found = mlxbert.classify(model, LONG, overflow=overflow)
        assert list(map(by_name(found).get, SENTIMENT.names)) == pytest.approx(wanted.tolist(), abs=1e-6)
        assert found.truncated is (overflow in ("truncate", "head-tail"))
        assert mlxbert.classify(model, TEXT, overflow=overflow) == mlxbert.classify(model, TEXT)
    with pytest.raises(InputError, match="at most 32"):
        mlxbert.classify(model, LONG, overflow="error")


@together("pair", [("the cat", LONG), (LONG, "the cat")])
def test_windows_of_a_pair_cover_the_longer_text(pair: tuple[str, str], model: mlxbert.Model) -> None:
    windows = model.tokenizer.windows(*pair, stride=0, longer=True)
    assert len(windows) == 3  # 52 tokens of the longer text, 27 to a window
    found = mlxbert.classify(model, pair, overflow="window")
    wanted = mean_over(model, windows)
    assert list(map(by_name(found).get, SENTIMENT.names)) == pytest.approx(wanted.tolist(), abs=1e-6)
    with pytest.raises(InputError, match="leaves no room") as caught:
        mlxbert.classify(model, (LONG, LONG), overflow="window")
    assert "overflow='truncate'" in str(caught.value.hint)


def test_scores_in_half_precision_are_near(tmp_path: Path) -> None:
    for labels in (SENTIMENT, EMOTIONS):
        exact = mlxbert.classify(load(tmp_path / labels.names[0], labels), PAIR)
        halves = mlxbert.classify(load(tmp_path / labels.names[0], labels, "float16"), PAIR)
        assert by_name(halves) == pytest.approx(by_name(exact), abs=1e-2)
        if labels is SENTIMENT:
            assert sum(by_name(halves).values()) == pytest.approx(1, abs=1e-6)  # the softmax is float32


@together("labels,value", [(SENTIMENT, float("nan")), (EMOTIONS, float("inf")), (STARS, float("inf"))])
def test_scores_that_are_not_finite_are_an_error(labels: Labels, value: float, tmp_path: Path) -> None:
    model = load(tmp_path / labels.names[0], labels)
    head: Any = model.network.heads["sequence_classifier"]
    head.out.bias = head.out.bias + value
    with pytest.raises(MlxbertError, match="not finite") as caught:
        mlxbert.classify(model, TEXT)
    assert "bfloat16" in str(caught.value.hint)


def test_their_json_is_that_of_the_contract() -> None:
    labels, several = (Label("a", 0.75), Label("b", 0.25)), (Label("a", 0.75, True), Label("b", 0.25, False))
    plain = [{"label": "a", "score": 0.75}, {"label": "b", "score": 0.25}]
    chosen = [{**plain[0], "chosen": True}, {**plain[1], "chosen": False}]
    values = [{"label": "v", "value": 1.0}, {"label": "w", "value": 2.0}]
    for result, wanted in (
        (Classification("x", labels), {"text": "x", "labels": plain}),
        (Classification("x", labels[:1], "y"), {"text": "x", "pair": "y", "labels": plain[:1]}),
        (Classification("x", several), {"text": "x", "labels": chosen}),
        (Regression("x", 3.5), {"text": "x", "value": 3.5}),
        (Regression("", 3.5, pair=""), {"text": "", "pair": "", "value": 3.5}),
        (Regression("x", 1.0, (("v", 1.0), ("w", 2.0))), {"text": "x", "values": values}),
    ):
        assert json.dumps(result.to_dict()) == json.dumps(wanted)


@needs("export")
def test_thresholds_are_saved_loaded_and_converted(tmp_path: Path) -> None:
    labels = replace(EMOTIONS, thresholds=(0.25, 0.5, 1, 0))
    model = mlxbert.load(save_classifier(tmp_path / "plain", EMOTIONS), new_heads={"sequence_classifier": labels})
    saved = mlxbert.save(model, tmp_path / "saved")
    assert read_config(saved)["thresholds"] == [0.25, 0.5, 1.0, 0.0]
    mlxbert.convert(saved, tmp_path / "converted")
    for folder in (saved, tmp_path / "converted"):
        assert mlxbert.load(folder).labels == labels
    assert not mlxbert.verify(saved, mlxbert.save(mlxbert.load(saved), tmp_path / "same")).differences
    other = mlxbert.load(saved, new_heads={"sequence_classifier": SENTIMENT})
    assert "thresholds" not in read_config(mlxbert.save(other, tmp_path / "other"))


@together(
    "thresholds", [(0.5,), (0.5, 0.5, 0.5, 1.01), (-0.1, 0, 0, 0), (True, 0, 0, 0), ("a", 0, 0, 0), 0.5, float("nan")]
)
def test_thresholds_that_do_not_fit(thresholds: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"`thresholds` are .*each of the 4 labels"):
        replace(EMOTIONS, thresholds=thresholds).check()
    folder = save_classifier(tmp_path / "model", EMOTIONS, thresholds=thresholds)
    with pytest.raises(CheckpointError, match=r"thresholds is .*each of the 4 labels") as caught:
        mlxbert.load(folder, task="classify")
    assert mlxbert.load(folder, task="embed").labels is None and caught.value.hint is not None
    with pytest.raises(ArgumentError, match=r"`thresholds` .*'multi_label_classification'"):
        replace(SENTIMENT, thresholds=(0.5, 0.5, 0.5)).check()
    other = save_classifier(tmp_path / "other", SENTIMENT, thresholds=[0.5, 0.5, 0.5])
    with pytest.raises(CheckpointError, match="thresholds"):
        mlxbert.load(other, task="classify")


torch, transformers = Library("torch"), Library("transformers")


HEAD, BOUND = "ForSequenceClassification", 1e-5
CLASSIFIERS = [name for name, compared in FAMILIES.items() if HEAD in compared.heads and compared.in_transformers]
# Without "dog", whose id is padding to some of these models, and without an empty second text, which transformers takes
# for none.
ITEMS: list[Any] = [
    "the cat sat on the mat", "he bought milk in tokyo , playing", "", ("the cat", "went to the store ."),
    ("", "a man is in paris"), ("play", "the largest city is tokyo"),
]  # fmt: skip


def pipeline(folder: Path, compared: Compared, task: str = "text-classification", **options: Any) -> Any:
    """That of transformers, with eager attention, segments only where the model has them, and a tokenizer's options."""
    tokenizer = transformers.BertTokenizer.from_pretrained(folder, **options)
    tokenizer.model_input_names = ["input_ids", "attention_mask", *["token_type_ids"] * (compared.segments > 1)]
    model = class_of(compared.classes + HEAD).from_pretrained(folder, attn_implementation="eager")
    assert read_config(folder)["architectures"] == [type(model).__name__]
    return transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")


def assert_same_scores(folder: Path, compared: Compared) -> None:
    """Every label with its score, in the same order but for ties."""
    theirs, model = pipeline(folder, compared), mlxbert.load(folder, task="classify", dtype="float32")
    for item, found in zip(ITEMS, mlxbert.classify(model, ITEMS), strict=True):
        given = item if isinstance(item, str) else {"text": item[0], "text_pair": item[1]}
        wanted = {row["label"]: row["score"] for row in theirs(given, top_k=None)}
        if isinstance(found, mlxbert.Regression):
            numbers = dict(found.values) or {model.config.labels.names[0]: found.value}  # type: ignore[union-attr]
            assert numbers == pytest.approx(wanted, abs=BOUND, rel=BOUND)
        else:
            assert isinstance(found, mlxbert.Classification)
            assert {label.label: label.score for label in found.labels} == pytest.approx(wanted, abs=BOUND)
            best = [wanted[label.label] for label in found.labels]
            assert all(later <= earlier + BOUND for earlier, later in itertools.pairwise(best))


def save_named(folder: Path, compared: Compared, names: tuple[str, ...], problem_type: str | None = None) -> Path:
    config = make_config(compared, HEAD)
    config.id2label, config.label2id = dict(enumerate(names)), {name: number for number, name in enumerate(names)}
    config.problem_type = problem_type
    torch.manual_seed(3)
    class_of(compared.classes + HEAD)(config).save_pretrained(folder)
    return add_vocabulary(folder)


SINGLE = itertools.product(["bert", "roberta", "distilbert"], [None, REGRESSION, MULTI_LABEL], [True])


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("family", "problem_type", "single"),  # of one class the pipeline refuses single_label
    [*itertools.product(CLASSIFIERS, [None, *PROBLEM_TYPES], [False]), *SINGLE],
)
def test_scores_are_those_of_the_pipeline(family: str, problem_type: str | None, single: bool, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    if single:
        save_named(tmp_path, compared, ("yes",), problem_type)
    else:
        model = make_model(compared, HEAD)
        model.config.problem_type = problem_type
        model.save_pretrained(tmp_path)
    assert_same_scores(add_vocabulary(tmp_path), compared)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_what_was_saved_here_is_read_there(family: str, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    make_model(compared, "Model").save_pretrained(tmp_path / "source")
    add_vocabulary(tmp_path / "source")
    labels = Labels(("none", "söme", "all"), "multi_label_classification", (0.25, 0.5, 0.75))
    model = mlxbert.load(tmp_path / "source", new_heads={"sequence_classifier": labels}, dtype="float32")
    saved = mlxbert.save(model, tmp_path / "saved")
    assert read_config(saved)["thresholds"] == [0.25, 0.5, 0.75]
    assert_same_scores(saved, compared)
    theirs = pipeline(saved, compared).model
    assert theirs.config.id2label == dict(enumerate(labels.names))
    theirs.save_pretrained(tmp_path / "again")  # keeps a key that it does not know
    add_vocabulary(tmp_path / "again")
    assert mlxbert.load(tmp_path / "again", task="classify").labels == labels


NAMES = ["milk", "tokyo", "the store , paris"]
# Without "dog", whose id is padding to some of these models, and without an empty text, which transformers refuses.
# The last one is truncated.
TEXTS = ["the cat sat on the mat", "went", "he bought milk in tokyo , playing", "the largest city is tokyo . " * 8]
THREE_NAMES, TWO_NAMES = ("contradiction", "neutral", "ENTAILMENT"), ("entailment", "not_entailment")


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("names", [THREE_NAMES, TWO_NAMES], ids=["three", "two"])
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_scores_of_any_labels_are_those_of_the_pipeline(family: str, names: tuple[str, ...], tmp_path: Path) -> None:
    compared = FAMILIES[family]
    model = mlxbert.load(save_named(tmp_path, compared, names), task="classify", dtype="float32")
    longest = model.tokenizer.max_length
    theirs = pipeline(tmp_path, compared, "zero-shot-classification", model_max_length=longest)
    choices: list[dict[str, Any]] = [{}, {"hypothesis": "a {} is in the largest city"}, {"multi": True}]
    for options in choices:
        template = {"hypothesis_template": options["hypothesis"]} if "hypothesis" in options else {}
        for labels in (NAMES, NAMES[:1]):
            wanted = theirs(TEXTS, labels, multi_label="multi" in options, **template)
            found = list(mlxbert.classify(model, TEXTS, labels=labels, **options))
            for one, other in zip(found, wanted, strict=True):
                assert isinstance(one, mlxbert.Classification) and one.text == other["sequence"]
                expected = dict(zip(other["labels"], other["scores"], strict=True))
                assert {label.label: label.score for label in one.labels} == pytest.approx(expected, abs=BOUND)
            assert [one.truncated for one in found] == [False, False, False, True]
