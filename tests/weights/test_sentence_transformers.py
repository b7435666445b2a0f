"""Folders of sentence-transformers without it: what their modules compute, both dialects, and all that is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlxbert
from mlxbert.loading import load_tokenizer_of
from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Embedder, EmbeddingConfig
from mlxbert.nn.encoder import EncoderOutput
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef
from mlxbert.weights.sentence_transformers import read_embedder
from tests.helpers.st_folder import (
    FLAGS,
    NORMALIZE,
    Spec,
    dense,
    layer_norm,
    pooling,
    save_st,
    write_json,
    write_modules,
)
from tests.helpers.tiny import save

Array = NDArray[np.float64]
D, L = 24, 5
RANDOM = np.random.default_rng(4)
HIDDEN = RANDOM.normal(size=(2, L, D)).astype(np.float32)
MASK = np.array([[1] * L, [1, 1, 1, 0, 0]])
MEAN = np.stack([HIDDEN[0].mean(axis=0), HIDDEN[1, :3].mean(axis=0)]).astype(np.float64)


def _random(*shape: int) -> mx.array:
    return mx.array(RANDOM.normal(size=shape).astype(np.float32))


WEIGHT, BIAS, SQUARE, NARROW = _random(7, D), _random(7), _random(D, D), _random(7, D)
SCALE, SHIFT = _random(D), _random(D)


def _norm(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _linear(weight: mx.array, bias: mx.array | None = None) -> Array:
    y: Array = MEAN @ np.array(weight, dtype=np.float64).T
    return y if bias is None else y + np.array(bias)


def _layer_norm(x: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * np.array(SCALE) + np.array(SHIFT)


MODULES: dict[str, tuple[list[Spec], Callable[[], Array]]] = {
    "no module": ([], lambda: MEAN),
    "Tanh": ([dense(WEIGHT, BIAS)], lambda: np.tanh(_linear(WEIGHT, BIAS))),
    "residual of another width": (
        [dense(WEIGHT, BIAS, use_residual=True, residual=NARROW)],
        lambda: np.tanh(_linear(WEIGHT, BIAS)) + _linear(NARROW),
    ),
    "LayerNorm": ([layer_norm(SCALE, SHIFT)], lambda: _layer_norm(MEAN)),
    "LayerNorm of small values": (  # the eps shows
        [dense(mx.eye(D) * 1e-3, None, "Identity"), layer_norm(SCALE, SHIFT)],
        lambda: _layer_norm(MEAN * 1e-3),
    ),
    "Normalize": ([NORMALIZE], lambda: _norm(MEAN)),
    "both": ([layer_norm(SCALE, SHIFT), NORMALIZE], lambda: _norm(_layer_norm(MEAN))),
}


def _embedder(folder: Path, *specs: Spec) -> Embedder:
    return read_embedder(write_modules(folder, specs), D)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_computes_what_its_name_says(name: str, tmp_path: Path) -> None:
    specs, expected = MODULES[name]
    embedder = _embedder(tmp_path, pooling("mean"), *specs)
    found = embedder(EncoderOutput(mx.array(HIDDEN), None), mx.array(MASK))
    assert found.dtype == mx.float32 and found.shape == (2, embedder.size)
    assert np.abs(np.array(found) - expected()).max() < 1e-5
    assert embedder.unit is (name in ("Normalize", "both"))


def test_a_vector_of_zeros_stays_one() -> None:
    embedder = Embedder(EmbeddingConfig(normalize=True), D)
    assert np.array(embedder(EncoderOutput(mx.zeros((1, 3, D)), None))).tolist() == [[0.0] * D]


NAMES = {"mean_sqrt_len_tokens": "mean_sqrt_len", "weightedmean": "weighted_mean", "lasttoken": "last_token"}


@pytest.mark.parametrize("modes", [*[(mode,) for mode in FLAGS], ("cls", "mean"), tuple(FLAGS)])
def test_both_dialects_say_the_same(modes: tuple[str, ...], tmp_path: Path) -> None:
    found = [_embedder(tmp_path / str(old), pooling(*modes, old=old)).config for old in (False, True)]
    expected = tuple(NAMES.get(mode, mode) for mode in modes)
    assert found == [EmbeddingConfig(poolings=expected, stated=True)] * 2


def test_poolings_stand_in_the_order_that_the_file_names(tmp_path: Path) -> None:
    assert _embedder(tmp_path, pooling("lasttoken", "cls")).config.poolings == ("last_token", "cls")
    write_json(tmp_path / "1_Pooling" / "config.json", {"word_embedding_dimension": D})  # no flag is set
    assert read_embedder(tmp_path, D).config.poolings == ("mean",)


def test_module_classes_of_both_dialects_are_known(tmp_path: Path) -> None:
    specs = [pooling("mean"), dense(WEIGHT), layer_norm(_random(7), _random(7)), NORMALIZE]
    kinds = ["Transformer", *(kind for kind, _, _ in specs)]
    for namespace in ("sentence_transformers.models", "sentence_transformers.base.modules.some_file"):
        write_modules(tmp_path, specs, namespace)
        assert [module.kind for module in ModelFolder(tmp_path).modules] == kinds


SETTINGS: dict[str, Any] = {"prompts": {"query": "the cat ", "document": None}, "truncate_dim": 9}


def test_settings_of_the_model_are_read(tmp_path: Path) -> None:
    folder = save_st(
        tmp_path,
        pooling("cls", include_prompt=False),
        NORMALIZE,
        transformer={"max_seq_length": 12, "do_lower_case": True},
        settings=SETTINGS | {"default_prompt_name": "query"},
    )
    assert read_embedder(folder, D).config == EmbeddingConfig(
        poolings=("cls",),
        include_prompt=False,
        dimensions=9,
        prompts={"query": "the cat ", "document": ""},
        default_prompt_name="query",
        max_length=12,
        lower_case=True,
        stated=True,
    )
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")
    assert read_embedder(folder, D).config.max_length == 12


def test_a_checkpoint_without_modules_is_mean_pooled(tmp_path: Path) -> None:
    assert read_embedder(tmp_path, D).config == EmbeddingConfig()


def test_the_transformer_may_lie_in_a_folder_of_its_own(tmp_path: Path) -> None:
    plain = save_st(tmp_path / "plain", pooling("cls"), transformer={"max_seq_length": 4})
    outer = write_modules(tmp_path / "outer", [pooling("cls")])
    inner = save(outer / "0_Transformer")
    write_json(inner / "sentence_bert_config.json", {"max_seq_length": 4})
    modules = [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    modules += [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    write_json(outer / "modules.json", modules)
    expected = mlxbert.embed(mlxbert.load(plain, dtype="float32"), "the cat sat on the mat")
    for said in (None, {"__version__": "0.4.1"}):
        if said is not None:
            write_json(outer / "config.json", said)
        assert ModelFolder(outer).transformer == inner and load_tokenizer_of(ModelRef(outer))[0] == outer
        found = mlxbert.embed(mlxbert.load(outer, dtype="float32"), "the cat sat on the mat")
        assert np.abs(found - expected).max() < 1e-6


def test_a_folder_is_read_as_a_checkpoint_whatever_its_modules(tmp_path: Path) -> None:
    folder = save_st(tmp_path, pooling("mean"), ("CNN", {}, None))
    model = mlxbert.load(folder)
    assert mlxbert.fill_mask(model, "a [MASK] .").masks
    with pytest.raises(mlxbert.ConfigError, match="CNN"):
        mlxbert.embed(model, "a")
    with pytest.raises(mlxbert.ConfigError, match="CNN"):
        mlxbert.load(folder, task="embed")


def _entry(kind: str = "sentence_transformers.models.Pooling", path: str = "1_Pooling") -> list[dict[str, str]]:
    return [{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": path, "type": kind}]


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (_entry("sentence_transformers.models.CNN"), r"has type 'sentence_transformers.models.CNN', expected one of"),
        (_entry("sentence_transformers.sparse_encoder.modules.SparseAutoEncoder"), "SparseAutoEncoder"),
        (_entry("other_st.Transformer"), r"has type 'other_st.Transformer'"),
        (_entry("evil_sentence_transformers.models.Pooling"), "has type 'evil_sentence"),
        (_entry("os.system"), r"has type 'os.system'"),
        (_entry(path="../x"), r"path '\.\./x', expected a path inside"),
        (_entry(path="1_Pooling/../../x"), "expected a path inside"),
        (_entry(path="/etc"), "path '/etc', expected a path inside"),
        (_entry(path="..\\x"), "expected a path inside"),
        ({"0": "x"}, "expected a JSON array, found dict"),
        (["Transformer"], "a module is 'Transformer', expected an object with type and path"),
        ([{"type": "sentence_transformers.models.Transformer"}], "an object with type and path"),
        ([{"path": None, "type": "sentence_transformers.models.Transformer"}], "an object with type and path"),
        ([], "the modules are none, expected Transformer, Pooling"),
        (_entry()[:1] * 2, "modules are Transformer, Transformer, expected Transformer, Pooling"),
        (_entry()[::-1], "modules are Pooling, Transformer, expected"),
    ],
)  # fmt: skip
def test_modules_that_are_none_of_ours_are_refused_by_name(modules: Any, message: str, tmp_path: Path) -> None:
    write_json(tmp_path / "modules.json", modules)
    with pytest.raises(mlxbert.ConfigError, match=message) as caught:
        assert ModelFolder(tmp_path).modules
    assert str(tmp_path / "modules.json") in caught.value.message
