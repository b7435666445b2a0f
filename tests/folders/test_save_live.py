"""`mlxbert.save` and transformers: it opens what was saved with no missing and no unexpected tensor, bit for bit."""

from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert import Labels
from mlxbert.goldens.golden_outputs import outputs
from mlxbert.nn.heads import HEADS
from tests.helpers.families import CELLS, FAMILIES, class_of, make_config, make_model
from tests.helpers.frozen import add_vocabulary, read_config, write_config
from tests.helpers.parity import assert_equal, reference_outputs

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
from tests.export import test_round_trip_live as live  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.sampled]
quiet = live.quiet

LABELS = Labels(("no", "maybe", "yes"), "single_label_classification")
THEIRS = [(family, head) for family, head in CELLS if FAMILIES[family].in_transformers]


def heads_of(family: str, head: str) -> dict[str, Labels | None]:
    if head == "ForPreTraining":
        others = {"Bert": ("masked_lm", "next_sentence"), "Albert": ("masked_lm", "sentence_order")}
        return dict.fromkeys(others.get(FAMILIES[family].classes, ("discriminator",)))
    return {name: LABELS if spec.labelled else None for name, spec in HEADS.items() if spec.class_names[0] == head}


def assert_opens(model: mlxbert.Model, folder: Path, family: str, head: str) -> Any:
    """Transformers finds nothing missing and nothing unexpected, and computes what mlxbert does; returns its model."""
    saved = mlxbert.save(model, folder)
    named = class_of(FAMILIES[family].classes + head)
    assert read_config(saved)["architectures"] == [named.__name__]
    with torch.device("meta"):
        empty = named(make_config(FAMILIES[family], head))
    found = live.reload(empty, saved)
    for case in FAMILIES[family].cases.values():
        assert_equal(outputs(model.network, case), reference_outputs(found, case))
    return found


@pytest.mark.parametrize(("family", "head"), [(family, head) for family, head in THEIRS if head != "Model"], ids=str)
def test_new_heads_open(family: str, head: str, tmp_path: Path) -> None:
    source = live.save(make_model(FAMILIES[family], "Model"), tmp_path / "source")
    model = mlxbert.load(source, new_heads=heads_of(family, head), dtype="float32")
    found = assert_opens(model, tmp_path / "saved", family, head)
    if model.labels:
        assert found.config.id2label == dict(enumerate(LABELS.names))
        assert found.config.label2id == {name: number for number, name in enumerate(LABELS.names)}


@pytest.mark.parametrize(("family", "head"), THEIRS, ids=str)
def test_a_new_model_opens(family: str, head: str, tmp_path: Path) -> None:
    values = make_config(FAMILIES[family], head).to_dict()
    heads = None if head == "Model" else heads_of(family, head)
    (tmp_path / "vocabulary").mkdir()
    vocabulary = write_config(add_vocabulary(tmp_path / "vocabulary"), values)
    assert_opens(mlxbert.new_model(values, vocabulary, heads=heads, dtype="float32"), tmp_path / "saved", family, head)
