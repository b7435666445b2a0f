"""Quantized models agree if enough is kept of what they are used for; otherwise the number is said."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.export import verify
from mlxbert.export.compare import outputs
from mlxbert.export.compare.outputs import _divergence, _same_choices, judge, more_bits
from mlxbert.export.compare.reports import MaskDifferences, OutputDifferences, VectorDifferences
from mlxbert.frozen_dict import FrozenDict
from mlxbert.text.sample_texts import sample
from mlxbert.weights.formats.quantized import Quantization
from tests.helpers.program import tiny_model

FAR, NEAR = VectorDifferences(0.955, 0.898, 0.2), VectorDifferences(0.9999, 0.999, 0.01)
WORDS = MaskDifferences(5, 1.0, 0.95, 0.1)


@pytest.mark.parametrize(("found", "vectors", "named"), [
    (OutputDifferences(18, vectors=FAR), True, ["vectors"]),
    (OutputDifferences(18, vectors=FAR), False, ["vectors"]),
    (OutputDifferences(18, vectors=FAR, fill_mask=WORDS), False, []),
    (OutputDifferences(18, vectors=FAR, fill_mask=WORDS), True, ["vectors"]),
    (OutputDifferences(18, vectors=NEAR, fill_mask=WORDS), True, []),
    (OutputDifferences(18, fill_mask=MaskDifferences(5, 1.0, 0.5, 0.1)), True, ["masked_lm"]),
    (OutputDifferences(18, choices=FrozenDict({"tag": 0.8, "next_sentence": 1.0})), True, ["tag"]),
    (OutputDifferences(18, choices=FrozenDict({"sequence_classifier": math.nan})), True, ["sequence_classifier"]),
    (OutputDifferences(18), True, []),
])  # fmt: skip
def test_what_is_kept_is_judged_by_use(found: OutputDifferences, vectors: bool, named: list[str]) -> None:
    differences = [*judge(found, makes_vectors=vectors)]
    assert [one.name for one in differences] == named
    assert all(one.kind == "output" and f"{one.b:g}" in one.text for one in differences)
    if "vectors" in named:
        assert "0.955" in differences[-1].text and differences[-1].b == outputs.LEAST_COSINE


def test_choices_of_heads() -> None:
    texts: Any = [np.array([1.0, 2.0]), np.array([3.0, 0.0]), np.array([0.0, 1.0]), np.array([1.0, 0.0])]
    other: Any = [np.array([0.0, 9.0]), np.array([0.1, 0.2]), np.array([0.0, 1.0]), np.array([1.0, 0.0])]
    assert _same_choices("sequence_classifier", texts, other) == 0.75
    tokens: Any = [np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])]
    assert _same_choices("token_classifier", tokens, [tokens[0][::-1], tokens[1]]) == pytest.approx(1 / 3)
    spans: Any = [np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])]
    assert _same_choices("question_answering", spans, [np.roll(spans[0], 1, axis=0)]) == 0.0
    assert _same_choices("discriminator", [np.array([1.0, -1.0])], [np.array([2.0, 1.0])]) == 0.5
    scores: Any = [np.array([value]) for value in (1.0, 2.0, 4.0)]
    assert _same_choices("sequence_classifier", scores, [2 * one + 1 for one in scores]) == pytest.approx(1.0)
    assert _same_choices("sequence_classifier", scores, [0 * one for one in scores]) is None


def test_the_divergence_is_that_of_kullback_and_leibler() -> None:
    one, other = {"a": 0.6, "b": 0.4}, {"a": 0.4, "b": 0.6}
    assert _divergence(one, one) == 0
    assert _divergence(one, other) == pytest.approx(0.6 * math.log(1.5) + 0.4 * math.log(2 / 3), abs=1e-6)
    assert _divergence({"a": 0.9}, {"b": 0.9}) > 1


@pytest.mark.parametrize(("bits", "group", "words"), [
    (4, 64, ["quantize=8", "group_size=32"]), (4, 32, ["quantize=8"]), (8, 64, ["group_size=32"]), (8, 32, ["dtype"]),
])  # fmt: skip
def test_what_keeps_more_is_said(bits: int, group: int, words: list[str]) -> None:
    said = more_bits(Quantization(bits, group))
    assert all(word in said for word in words) and ("quantize=8" in said) == ("quantize=8" in words)


def test_a_conversion_that_keeps_too_little_warns_with_the_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = tiny_model(tmp_path / "a", hidden_size=32)
    monkeypatch.setattr(outputs, "LEAST_WORDS", 1.1)
    monkeypatch.setattr("mlxbert.export.convert.sample", lambda: sample()[:16])
    with caplog.at_level(logging.WARNING):
        found = mlxbert.convert(a, tmp_path / "b", quantize=4, group_size=32)
    kept = found.difference.outputs.fill_mask
    assert kept is not None and not found.difference.agree
    assert f"{kept.kept_probability:.3f}" in caplog.text and "quantize=8" in caplog.text
    assert not mlxbert.verify(a, tmp_path / "b")
    assert mlxbert.verify(a, a).agree and verify.verify(a, tmp_path / "b", tolerance=100.0).agree
