"""Zero-shot classification next to the transformers pipeline, with models of every family that has a classifier.

Needs torch and transformers.
"""

from pathlib import Path
from typing import Any

import pytest

import mlxbert
from tests.helpers.families import FAMILIES, class_of, make_config
from tests.helpers.frozen import add_vocabulary
from tests.tasks.test_classify_parity import BOUND, CLASSIFIERS, HEAD, pipeline, torch

pytestmark = pytest.mark.slow

NAMES = ["milk", "tokyo", "the store , paris"]
# Without "dog", whose id is padding to some of these models, and without an empty text, which transformers refuses.
# The last one is truncated.
TEXTS = ["the cat sat on the mat", "went", "he bought milk in tokyo , playing", "the largest city is tokyo . " * 8]
THREE, TWO = ("contradiction", "neutral", "ENTAILMENT"), ("entailment", "not_entailment")


@pytest.mark.parametrize("names", [THREE, TWO], ids=["three", "two"])
@pytest.mark.parametrize("family", CLASSIFIERS)
@pytest.mark.sampled
def test_scores_are_those_of_the_pipeline(family: str, names: tuple[str, ...], tmp_path: Path) -> None:
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
