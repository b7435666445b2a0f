"""classify, also with any labels, next to the transformers pipelines, with every family that has a classifier.

Needs torch and transformers.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert import Labels
from mlxbert.labels.labels import MULTI_LABEL, PROBLEM_TYPES, REGRESSION
from tests.helpers.families import FAMILIES, Compared, class_of, make_config, make_model
from tests.helpers.frozen import add_vocabulary, read_config

torch = pytest.importorskip("torch", reason="parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

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


def given(item: Any) -> Any:
    """An item as the pipeline takes it."""
    return item if isinstance(item, str) else {"text": item[0], "text_pair": item[1]}


def assert_same_scores(folder: Path, compared: Compared) -> None:
    """Every label with its score, in the same order but for ties."""
    theirs, model = pipeline(folder, compared), mlxbert.load(folder, task="classify", dtype="float32")
    for item, found in zip(ITEMS, mlxbert.classify(model, ITEMS), strict=True):
        wanted = {row["label"]: row["score"] for row in theirs(given(item), top_k=None)}
        if isinstance(found, mlxbert.Regression):
            numbers = dict(found.values) or {model.config.labels.names[0]: found.value}  # type: ignore[union-attr]
            assert numbers == pytest.approx(wanted, abs=BOUND, rel=BOUND)
        else:
            assert isinstance(found, mlxbert.Classification)
            assert {label.label: label.score for label in found.labels} == pytest.approx(wanted, abs=BOUND)
            best = [wanted[label.label] for label in found.labels]
            assert all(later <= earlier + BOUND for earlier, later in itertools.pairwise(best))


@pytest.mark.parametrize("problem_type", [None, *PROBLEM_TYPES])
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_scores_are_those_of_the_pipeline(family: str, problem_type: str | None, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    model = make_model(compared, HEAD)
    model.config.problem_type = problem_type
    model.save_pretrained(tmp_path)
    add_vocabulary(tmp_path)
    assert_same_scores(tmp_path, compared)


@pytest.mark.parametrize("problem_type", [None, REGRESSION, MULTI_LABEL])  # of one class it refuses single_label
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_single_output_is_what_the_pipeline_says(family: str, problem_type: str | None, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    config = make_config(compared, HEAD)
    config.id2label, config.label2id, config.problem_type = {0: "yes"}, {"yes": 0}, problem_type
    torch.manual_seed(3)
    class_of(compared.classes + HEAD)(config).save_pretrained(tmp_path)
    assert_same_scores(add_vocabulary(tmp_path), compared)


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
THREE, TWO = ("contradiction", "neutral", "ENTAILMENT"), ("entailment", "not_entailment")


@pytest.mark.parametrize("names", [THREE, TWO], ids=["three", "two"])
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_scores_of_any_labels_are_those_of_the_pipeline(family: str, names: tuple[str, ...], tmp_path: Path) -> None:
    compared = FAMILIES[family]
    config = make_config(compared, HEAD)
    config.id2label, config.label2id = dict(enumerate(names)), {name: number for number, name in enumerate(names)}
    torch.manual_seed(3)
    class_of(compared.classes + HEAD)(config).save_pretrained(tmp_path)
    model = mlxbert.load(add_vocabulary(tmp_path), task="classify", dtype="float32")
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
