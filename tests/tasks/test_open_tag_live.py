"""GLiNER's layouts against the package gliner, which needs its own versions of torch and transformers."""

from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.model import Model
from tests.helpers import gliner_models as models

pytestmark = pytest.mark.slow


def _ours(model: Model, **options: Any) -> list[list[list[Any]]]:
    results = mlxbert.tag(model, [*models.TEXTS], labels=models.LABELS, **options)
    return [[[each.label, each.start, each.end, each.score] for each in result.entities] for result in results]


def _check(ours: list[list[list[Any]]], theirs: list[list[list[Any]]]) -> None:
    assert [[each[:3] for each in row] for row in ours] == [[each[:3] for each in row] for row in theirs]
    for left, right in zip(ours, theirs, strict=True):
        assert [each[3] for each in left] == pytest.approx([each[3] for each in right], abs=1e-4)


@pytest.mark.parametrize("kind", models.KINDS)
def test_entities_are_those_of_gliner(tmp_path: Path, kind: str) -> None:
    """Also when gliner opens what `save` and `convert` wrote."""
    gliner = pytest.importorskip("gliner")
    theirs = models.make(tmp_path, kind, safe=kind != "bert-marker")
    model = mlxbert.load(tmp_path / "model", dtype="float32", device="cpu")
    count = 0
    for threshold in (0.1, 0.35, 0.5):
        for nested in (False, True):
            expected = models.predicted(theirs, models.TEXTS, models.LABELS, threshold=threshold, flat_ner=not nested)
            _check(_ours(model, threshold=threshold, nested=nested), expected)
            count += sum(map(len, expected))
    assert count > 20
    for dtype in ("float32", "float16", "bfloat16"):
        saved = mlxbert.save(model, tmp_path / f"saved {dtype}", dtype=dtype)
        mlxbert.convert(tmp_path / "model", tmp_path / f"converted {dtype}", dtype=dtype)
        for folder in (saved, tmp_path / f"converted {dtype}"):
            opened = gliner.GLiNER.from_pretrained(folder).float()
            expected = models.predicted(opened, models.TEXTS, models.LABELS, threshold=0.35)
            _check(_ours(mlxbert.load(folder, dtype="float32", device="cpu"), threshold=0.35), expected)


def test_a_trained_model_opens_in_gliner(tmp_path: Path) -> None:
    gliner = pytest.importorskip("gliner")
    spans = [{"start": 0, "end": 3, "label": "person"}, {"start": 13, "end": 18, "label": "city"}]
    data = [{"text": f"{name} lives in Paris now.", "spans": spans} for name in ("Ada", "Bob", "Eve", "Tom")] * 6
    folder = tmp_path / "trained"
    model = mlxbert.finetune("tag", train=data, output=folder, open=True, epochs=1, batch_size=8, lr=1e-4).run()
    opened = gliner.GLiNER.from_pretrained(folder)
    expected = models.predicted(opened, models.TEXTS, models.LABELS, threshold=0.3)
    _check(_ours(mlxbert.load(folder, dtype="float32", device="cpu"), threshold=0.3), expected)
    assert model.labels is None
