"""Static models next to model2vec and sentence-transformers: vectors, and folders that each program wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from tests.helpers.static_folders import TEXTS
from tests.tasks.test_static import LAYOUTS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
MODEL2VEC = ("plain", "unscaled", "float64", "int8", "mapped", "weighted", "short", "unlimited")
MODULES = ("module", "root module", "limited module")


def by_model2vec(folder: Path) -> np.ndarray[Any, Any]:
    """The vectors by model2vec, in float32."""
    static = pytest.importorskip("model2vec").StaticModel
    vectors: np.ndarray[Any, Any] = static.from_pretrained(folder).encode([*TEXTS])
    return vectors


def by_modules(folder: Path) -> np.ndarray[Any, Any]:
    """The vectors by sentence-transformers."""
    pytest.importorskip("torch")
    library = pytest.importorskip("sentence_transformers")
    vectors: np.ndarray[Any, Any] = library.SentenceTransformer(str(folder), device="cpu").encode([*TEXTS])
    return vectors


@pytest.mark.parametrize("name", MODEL2VEC)
def test_vectors_are_those_of_model2vec(name: str, tmp_path: Path) -> None:
    folder = LAYOUTS[name](tmp_path / name)
    assert np.abs(mlxbert.load(folder).embed(TEXTS) - by_model2vec(folder)).max() < 1e-5


def test_float16_is_rounded_by_model2vec_only(tmp_path: Path) -> None:
    folder = LAYOUTS["float16"](tmp_path / "m")
    assert np.abs(mlxbert.load(folder).embed(TEXTS) - by_model2vec(folder)).max() < 2e-3


@pytest.mark.parametrize("name", MODULES)
def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    folder = LAYOUTS[name](tmp_path / name)
    assert np.abs(mlxbert.load(folder).embed(TEXTS) - by_modules(folder)).max() < 1e-5


@pytest.mark.parametrize("name", ["plain", "int8", "mapped"])
@pytest.mark.parametrize("write", ["save", "convert"])
def test_both_libraries_open_a_written_folder(name: str, write: str, tmp_path: Path) -> None:
    folder, out = LAYOUTS[name](tmp_path / name), tmp_path / "out"
    if write == "save":
        mlxbert.load(folder).save(out)
    else:
        mlxbert.convert(folder, out)
    assert np.abs(by_model2vec(out) - by_model2vec(folder)).max() < 1e-5
    known = [0, 1, 5]  # texts without unknown tokens, which sentence-transformers keeps
    assert np.abs(by_modules(out)[known] - by_model2vec(folder)[known]).max() < 1e-5


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("write", ["save", "convert"])
def test_a_written_module_opens(name: str, write: str, tmp_path: Path) -> None:
    folder, out = LAYOUTS[name](tmp_path / name), tmp_path / "out"
    if write == "save":
        mlxbert.load(folder).save(out)
    else:
        mlxbert.convert(folder, out)
    assert np.abs(by_modules(out) - by_modules(folder)).max() < 1e-5
    by_model2vec(out)


def test_a_trained_classifier_opens_as_an_embedding_model(tmp_path: Path) -> None:
    words = (("the cat", "pet"), ("rain", "weather"))
    records = [{"text": " ".join([text] * count), "label": label} for text, label in words for count in range(1, 40)]
    folder, out = LAYOUTS["plain"](tmp_path / "m"), tmp_path / "out"
    mlxbert.finetune("classify", train=records, output=out, model=folder, few_shot=False).run()
    ours = mlxbert.load(out).embed(TEXTS)
    assert np.abs(by_model2vec(out) - ours).max() < 1e-5
    assert by_modules(out).shape == ours.shape


def test_a_distilled_model_opens_in_both_libraries(tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    mlxbert.distill_static(tiny_folder, output=out, dimensions=8, dtype="float32")
    known = [0, 1]  # see `test_both_libraries_open_a_written_folder`
    ours = mlxbert.load(out).embed(TEXTS)
    assert np.abs(by_model2vec(out) - ours).max() < 1e-5
    assert np.abs(by_modules(out) - ours)[known].max() < 1e-5
