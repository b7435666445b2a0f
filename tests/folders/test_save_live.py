"""`mlxbert.save` and transformers: it opens what was saved with no missing and no unexpected tensor, bit for bit."""

from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert import Labels
from mlxbert.goldens.golden_outputs import outputs
from tests.helpers.families import CELLS, FAMILIES, class_of, make_config, make_model
from tests.helpers.frozen import add_vocabulary, read_config, write_config
from tests.helpers.parity import assert_equal, reference_outputs

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
from tests.export import test_round_trip_live as live  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.sampled]
quiet = live.quiet

LABELS = Labels(("no", "maybe", "yes"), "single_label_classification")
HEADS: dict[str, dict[str, Labels | None]] = {
    "ForMaskedLM": {"masked_lm": None},
    "ForNextSentencePrediction": {"next_sentence": None},
    "ForSequenceClassification": {"sequence_classifier": LABELS},
    "ForTokenClassification": {"token_classifier": LABELS},
    "ForQuestionAnswering": {"question_answering": None},
}
FOR_PRE_TRAINING: dict[str, dict[str, Labels | None]] = {
    "Bert": {"masked_lm": None, "next_sentence": None},
    "Albert": {"masked_lm": None, "sentence_order": None},
    "Electra": {"discriminator": None},
}
THEIRS = [(family, head) for family, head in CELLS if FAMILIES[family].in_transformers]
NEW = [(family, head) for family, head in THEIRS if head != "Model"]


def heads_of(family: str, head: str) -> dict[str, Labels | None]:
    """The heads of a class of transformers."""
    return FOR_PRE_TRAINING[FAMILIES[family].classes] if head == "ForPreTraining" else HEADS[head]


def reload(saved: Path, family: str, head: str) -> Any:
    """What was saved, as the class that its configuration names, with nothing missing and nothing unexpected."""
    named = class_of(FAMILIES[family].classes + head)
    assert read_config(saved)["architectures"] == [named.__name__]
    with torch.device("meta"):
        empty = named(make_config(FAMILIES[family], head))
    return live.reload(empty, saved)


def assert_same_numbers(model: mlxbert.Model, found: Any, family: str) -> None:
    """Mlxbert with the network in memory and transformers with what was saved."""
    for case in FAMILIES[family].cases.values():
        assert_equal(outputs(model.network, case), reference_outputs(found, case))


@pytest.mark.parametrize(("family", "head"), NEW, ids=str)
def test_new_heads_open(family: str, head: str, tmp_path: Path) -> None:
    source = live.save(make_model(FAMILIES[family], "Model"), tmp_path / "source")
    model = mlxbert.load(source, new_heads=heads_of(family, head), dtype="float32")
    found = reload(mlxbert.save(model, tmp_path / "saved"), family, head)
    assert_same_numbers(model, found, family)
    if model.labels:
        assert found.config.id2label == dict(enumerate(LABELS.names))
        assert found.config.label2id == {name: number for number, name in enumerate(LABELS.names)}


@pytest.mark.parametrize(("family", "head"), THEIRS, ids=str)
def test_a_new_model_opens(family: str, head: str, tmp_path: Path) -> None:
    values = make_config(FAMILIES[family], head).to_dict()
    heads = None if head == "Model" else heads_of(family, head)
    (tmp_path / "vocabulary").mkdir()
    vocabulary = add_vocabulary(tmp_path / "vocabulary")
    write_config(vocabulary, values)
    model = mlxbert.new_model(values, vocabulary, heads=heads, dtype="float32")
    found = reload(mlxbert.save(model, tmp_path / "saved"), family, head)
    assert_same_numbers(model, found, family)
