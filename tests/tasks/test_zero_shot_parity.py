"""Zero-shot classification beside the transformers pipeline, with models of every family that has a classifier.

Needs torch and transformers.
"""

from pathlib import Path
from typing import Any

import pytest

import mlxbert
from tests.helpers.families import FAMILIES, Compared, make_config
from tests.helpers.frozen import add_vocabulary

torch = pytest.importorskip("torch", reason="parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.slow

HEAD, BOUND = "ForSequenceClassification", 1e-5
CLASSIFIERS = [name for name, compared in FAMILIES.items() if HEAD in compared.heads]
NAMES = ["milk", "tokyo", "the store , paris"]
# Without "dog", whose id is padding to some of these models. The last one is truncated.
TEXTS = ["the cat sat on the mat", "", "he bought milk in tokyo , playing", "the largest city is tokyo . " * 8]
THREE, TWO = ("contradiction", "neutral", "ENTAILMENT"), ("entailment", "not_entailment")


def make(compared: Compared, names: tuple[str, ...], folder: Path) -> None:
    """Writes a random model with these labels."""
    config = make_config(compared, HEAD)
    config.id2label, config.label2id = dict(enumerate(names)), {name: number for number, name in enumerate(names)}
    torch.manual_seed(3)
    getattr(transformers, compared.classes + HEAD)(config).save_pretrained(folder)
    add_vocabulary(folder)


def pipeline(folder: Path, compared: Compared, longest: int) -> Any:
    """That of transformers, with eager attention and segments only where the model has them."""
    tokenizer = transformers.BertTokenizer.from_pretrained(folder, model_max_length=longest)
    tokenizer.model_input_names = ["input_ids", "attention_mask", *["token_type_ids"] * (compared.segments > 1)]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager")
    return transformers.pipeline("zero-shot-classification", model=model, tokenizer=tokenizer, device="cpu")


@pytest.mark.parametrize("names", [THREE, TWO], ids=["three", "two"])
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_scores_are_those_of_the_pipeline(family: str, names: tuple[str, ...], tmp_path: Path) -> None:
    make(FAMILIES[family], names, tmp_path)
    model = mlxbert.load(tmp_path, task="classify", dtype="float32")
    theirs = pipeline(tmp_path, FAMILIES[family], model.tokenizer.max_length)
    for options in ({}, {"hypothesis": "a {} is in the largest city"}, {"multi": True}):
        template = {"hypothesis_template": options["hypothesis"]} if "hypothesis" in options else {}
        for labels in (NAMES, NAMES[:1]):
            wanted = theirs(TEXTS, labels, multi_label="multi" in options, **template)
            found = list(mlxbert.classify(model, TEXTS, labels=labels, **options))  # type: ignore[arg-type]
            for one, other in zip(found, wanted, strict=True):
                assert isinstance(one, mlxbert.Classification) and one.text == other["sequence"]
                expected = dict(zip(other["labels"], other["scores"], strict=True))
                assert {label.label: label.score for label in one.labels} == pytest.approx(expected, abs=BOUND)
            assert [one.truncated for one in found] == [False, False, False, True]
