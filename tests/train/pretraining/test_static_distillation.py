"""`distill_static`: the vocabulary, the components, the weights, and the written folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError
from mlxbert.train.pretraining.static_distillation import _principal_components, distill_static
from tests.helpers.tiny import save


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return save(tmp_path / "teacher")


def raw_vectors(folder: Path) -> np.ndarray:
    return np.array(mlxbert.load(folder).network.encoder.embeddings.word.weight)


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 6)) @ np.diag([5, 4, 3, 2, 1, 0.5])
    components, share = _principal_components(vectors, 3)
    centred = vectors - vectors.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    assert np.allclose(np.abs(components), np.abs(left[:, :3] * values[:3]))
    assert share == pytest.approx((values[:3] ** 2).sum() / (values**2).sum())


def test_vectors_come_from_the_teacher_and_rare_tokens_weigh_more(teacher: Path, tmp_path: Path) -> None:
    model = mlxbert.load(teacher)
    whole: dict[str, Any] = {"dimensions": model.embedder.size, "dtype": "float32"}
    result = distill_static(teacher, output=tmp_path / "out", rarity=0, **whole)
    numbers = mlxbert.load(tmp_path / "out").tokenizer.files.tokenizer.get_vocab()
    tokens = sorted(numbers, key=lambda token: numbers[token])
    assert result.tokens == len(tokens) and result.variance == pytest.approx(1)
    assert not {"[CLS]", "[SEP]", "[MASK]"} & {*tokens}
    words = [number for number, token in enumerate(tokens) if token.isalpha()][:8]
    theirs = model.embed([tokens[number] for number in words], pooling="mean", normalize=False)
    ours = raw_vectors(tmp_path / "out")
    first, second = (np.linalg.norm(a[:, None] - a[None], axis=-1) for a in (theirs, ours[words]))  # PCA rotates
    assert np.allclose(first, second, atol=1e-4)
    distill_static(teacher, output=tmp_path / "weighted", rarity=1e-3, **whole)
    plain, weighted = (np.linalg.norm(vectors, axis=1) for vectors in (ours, raw_vectors(tmp_path / "weighted")))
    share = 1 / np.arange(2, len(plain) + 2)
    assert np.allclose(weighted / plain, 1e-3 / (1e-3 + share / share.sum()), rtol=1e-4)


def test_weights_that_leave_a_vector_of_zeros_are_refused(teacher: Path, tmp_path: Path) -> None:
    for rarity, dtype in ((1e-300, "float32"), (1e-12, "float16")):
        with pytest.raises(ArgumentError, match="rarity") as caught:
            distill_static(teacher, output=tmp_path / "out", dimensions=4, rarity=rarity, dtype=dtype)
        assert caught.value.hint and not (tmp_path / "out").exists()


def test_words_of_texts_become_tokens(teacher: Path, tmp_path: Path) -> None:
    vocabulary = mlxbert.load(teacher).tokenizer.files.tokenizer.get_vocab()
    first, second, third, *_ = (word for word in vocabulary if word.isalpha() and word.islower())
    word = first + second  # two pieces of the teacher's vocabulary, if it has no such word
    (tmp_path / "texts.txt").write_text(f"{word} {word} {third}\n{word}\n")
    texts = [tmp_path / "texts.txt"]
    result = distill_static(teacher, output=tmp_path / "out", texts=texts, words=1, dimensions=4)
    static = mlxbert.load(tmp_path / "out")
    assert result.words == 1 and static.tokenizer.word_id(word) == result.tokens - 1
    assert np.isfinite(static.embed(word)).all() and static.embed(word).any()


def test_the_folder_is_replaced_only_on_request_and_opens(teacher: Path, tmp_path: Path) -> None:
    distill_static(teacher, output=tmp_path / "out", dimensions=4)
    with pytest.raises(ArgumentError, match="already exists"):
        distill_static(teacher, output=tmp_path / "out", dimensions=4)
    distill_static(teacher, output=tmp_path / "out", dimensions=3, overwrite=True)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["hidden_dim"], config["embedding_dtype"]) == ("model2vec", 3, "float16")
    assert mlxbert.load(tmp_path / "out").embed("a").shape == (3,)
    with pytest.raises(ArgumentError, match="static"):
        distill_static(tmp_path / "out", output=tmp_path / "again")
    with pytest.raises(ArgumentError, match="dimensions"):
        distill_static(teacher, output=tmp_path / "again", dimensions=10_000)
    assert not (tmp_path / "again").exists()
