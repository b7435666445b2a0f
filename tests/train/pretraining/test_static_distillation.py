"""`distill_static`: the vocabulary, the components, the weights, and the written folder."""

import json
from pathlib import Path

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError
from mlxbert.train.pretraining.static_distillation import _principal_components, distill_static
from tests.helpers.tiny import save


def raw_vectors(folder: Path) -> np.ndarray:
    return np.array(mlxbert.load(folder).network.encoder.embeddings.word.weight)


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 6)) @ np.diag([5, 4, 3, 2, 1, 0.5])
    components, share = _principal_components(vectors, 3)
    centred = vectors - vectors.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    assert np.allclose(np.abs(components), np.abs(left[:, :3] * values[:3]))
    assert share == pytest.approx((values[:3] ** 2).sum() / (values**2).sum())


def test_vectors_come_from_the_teacher(tmp_path: Path) -> None:
    teacher = mlxbert.load(save(tmp_path / "teacher"))
    size = teacher.embedder.size
    result = distill_static(tmp_path / "teacher", output=tmp_path / "out", dimensions=size, rarity=0, dtype="float32")
    static = mlxbert.load(tmp_path / "out")
    numbers = static.tokenizer.files.tokenizer.get_vocab()
    tokens = sorted(numbers, key=lambda token: numbers[token])
    assert result.tokens == len(tokens) and result.variance == pytest.approx(1)
    assert not {"[CLS]", "[SEP]", "[MASK]"} & {*tokens}
    words = [number for number, token in enumerate(tokens) if token.isalpha()][:8]
    theirs = teacher.embed([tokens[number] for number in words], pooling="mean", normalize=False)
    ours = raw_vectors(tmp_path / "out")[words]
    first, second = (np.linalg.norm(a[:, None] - a[None], axis=-1) for a in (theirs, ours))  # PCA rotates
    assert np.allclose(first, second, atol=1e-4)


def test_rare_tokens_weigh_more(tmp_path: Path) -> None:
    save(tmp_path / "teacher")
    for name, rarity in (("plain", 0), ("weighted", 1e-3)):
        distill_static(tmp_path / "teacher", output=tmp_path / name, dimensions=4, rarity=rarity, dtype="float32")
    plain, weighted = (np.linalg.norm(raw_vectors(tmp_path / name), axis=1) for name in ("plain", "weighted"))
    share = 1 / np.arange(2, len(plain) + 2)
    assert np.allclose(weighted / plain, 1e-3 / (1e-3 + share / share.sum()), rtol=1e-4)


@pytest.mark.parametrize(("rarity", "dtype"), [(1e-300, "float32"), (1e-12, "float16")])
def test_weights_that_leave_a_vector_of_zeros_are_refused(tmp_path: Path, rarity: float, dtype: str) -> None:
    save(tmp_path / "teacher")
    with pytest.raises(ArgumentError, match="rarity") as caught:
        distill_static(tmp_path / "teacher", output=tmp_path / "out", dimensions=4, rarity=rarity, dtype=dtype)
    assert caught.value.hint and not (tmp_path / "out").exists()


def test_words_of_texts_become_tokens(tmp_path: Path) -> None:
    teacher = mlxbert.load(save(tmp_path / "teacher"))
    known = [word for word in teacher.tokenizer.files.tokenizer.get_vocab() if word.isalpha() and word.islower()]
    word = known[0] + known[1]  # two pieces of the teacher's vocabulary, if it has no such word
    (tmp_path / "texts.txt").write_text(f"{word} {word} {known[2]}\n{word}\n")
    result = distill_static(
        tmp_path / "teacher", output=tmp_path / "out", texts=[tmp_path / "texts.txt"], words=1, dimensions=4
    )
    static = mlxbert.load(tmp_path / "out")
    assert result.words == 1
    assert static.tokenizer.word_id(word) == result.tokens - 1
    assert np.isfinite(static.embed(word)).all() and static.embed(word).any()


def test_the_folder_is_replaced_only_on_request_and_opens(tmp_path: Path) -> None:
    save(tmp_path / "teacher")
    distill_static(tmp_path / "teacher", output=tmp_path / "out", dimensions=4)
    with pytest.raises(ArgumentError, match="already exists"):
        distill_static(tmp_path / "teacher", output=tmp_path / "out", dimensions=4)
    distill_static(tmp_path / "teacher", output=tmp_path / "out", dimensions=3, overwrite=True)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["hidden_dim"], config["embedding_dtype"]) == ("model2vec", 3, "float16")
    assert mlxbert.load(tmp_path / "out").embed("a").shape == (3,)
    with pytest.raises(ArgumentError, match="static"):
        distill_static(tmp_path / "out", output=tmp_path / "again")
    with pytest.raises(ArgumentError, match="dimensions"):
        distill_static(tmp_path / "teacher", output=tmp_path / "again", dimensions=10_000)
    assert not (tmp_path / "again").exists()
