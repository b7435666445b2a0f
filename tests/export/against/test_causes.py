"""`verify_vectors` names the fault of vectors, and none if there is none."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.export.against.recipes import RecipeRunner
from mlxbert.model import Model
from tests.helpers.tiny import VOCAB
from tests.helpers.wrong_vectors import FAULTS, LIMIT, TEXTS, save_embedder, vectors


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return mlxbert.load(save_embedder(tmp_path_factory.mktemp("against") / "model"))


def test_the_faultless_vectors_of_the_tests_are_those_of_embed(model: Model) -> None:
    assert np.abs(vectors(model) - mlxbert.embed(model, TEXTS)).max() < 1e-5


def test_lowercased_texts_of_a_cased_model(tmp_path: Path) -> None:
    model = mlxbert.load(save_embedder(tmp_path / "model", cased=True))
    assert mlxbert.verify_vectors(model, vectors(model), TEXTS)
    (cause,) = mlxbert.verify_vectors(model, vectors(model, change=str.lower), TEXTS).causes
    assert (cause.kind, cause.texts) == ("case", sum(text != text.lower() for text in TEXTS))


def test_a_cause_of_most_texts_is_named_and_the_others_are_counted(model: Model) -> None:
    found = vectors(model, pool=lambda hidden: hidden[0])
    found[2] = vectors(model, ["he bought milk"])[0]
    result = mlxbert.verify_vectors(model, found, TEXTS)
    assert [cause.kind for cause in result.causes] == ["pooling"] and not result
    assert result.notes[0].startswith("1 of 20 ") and result.cosine_explained is not None
    assert result.cosine_explained.lowest < 0.99


def test_a_common_prompt_that_the_files_do_not_state(model: Model) -> None:
    prompt = "Represent this sentence for searching relevant passages: "
    result = mlxbert.verify_vectors(model, mlxbert.embed(model, [prompt + text for text in TEXTS]), TEXTS)
    assert [cause.kind for cause in result.causes] == ["prompt"] and result.alternatives == ()
    assert result.cause is not None and repr(prompt) in result.cause


def test_none_of_the_causes_is_named_for_vectors_of_another_model(model: Model) -> None:
    own, noise = vectors(model), np.random.RandomState(3).randn(len(TEXTS), 24)
    for found in (-own, own + noise * 0.05):
        result = mlxbert.verify_vectors(model, found, TEXTS)
        assert not result and result.differ > 10 and result.causes == () and result.cause is None
        assert sum(band.texts for band in result.cosine.ranges) == len(TEXTS)


def test_without_a_cause_few_inputs_are_computed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, compute = 0, RecipeRunner._compute

    def counted(runner: Any, reading: Any, pooled: Any, windows: Any) -> Any:
        nonlocal tokens
        tokens += sum(len(each.encoding) for text in windows for each in text)
        return compute(runner, reading, pooled, windows)

    monkeypatch.setattr(RecipeRunner, "_compute", counted)
    result = mlxbert.verify_vectors(model, np.random.RandomState(3).randn(len(TEXTS), 24), TEXTS)
    own = sum(min(len(model.tokenizer.pieces(text)) + 2, LIMIT) for text in TEXTS)
    assert result.tried > 100 and tokens < 4 * own
    assert not result and result.differ > 10 and result.causes == () and result.cause is None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str, model: Model) -> None:
    kinds, make = FAULTS[fault]
    result = mlxbert.verify_vectors(model, make(model), TEXTS)
    assert tuple(cause.kind for cause in result.causes) == kinds
    assert result.agrees == bool(result) == (not kinds)
    assert (result.cause is None) == (not kinds)
    assert result.alternatives == ()
    if result.cosine_explained is not None:
        assert result.cosine_explained.lowest > (0.97 if fault == "binary" else 0.998 if "int8" in fault else 0.9999)


def test_windows_are_averaged_as_embed_does_it(model: Model) -> None:
    texts = [" ".join([text] * 6) for text in TEXTS[:12]]
    found = np.stack([mlxbert.embed(model, text, overflow="window") for text in texts])
    result = mlxbert.verify_vectors(model, found, texts)
    assert [cause.kind for cause in result.causes] == ["windows"]
    assert result.cosine_explained is not None and result.cosine_explained.lowest > 1 - 1e-6


def test_a_limit_below_all_texts_is_found_in_vectors_of_few_bits(model: Model) -> None:
    rng = random.Random(459)
    words = [word for word in VOCAB if word.isalpha()]
    texts = [" ".join(rng.choices(words, k=rng.randint(24, 30))) for _ in range(40)]
    for limit in (12, 23):
        packed = np.packbits(vectors(model, texts, limit=limit) > 0, axis=1)
        result = mlxbert.verify_vectors(model, packed, texts)
        assert result.cause is not None and f"truncated at {limit} tokens: 40 of 40 texts" in result.cause
