"""Folders of sentence-transformers without it: what their modules compute, both dialects, and all that is refused."""

import json
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
from tests.helpers.cases import together
from tests.helpers.st_folder import (
    FLAGS,
    NORMALIZE,
    TRANSFORMER,
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
    "LayerNorm of small values": (  # the eps shows
        [dense(mx.eye(D) * 1e-3, None, "Identity"), layer_norm(SCALE, SHIFT)],
        lambda: _layer_norm(MEAN * 1e-3),
    ),
    "Normalize": ([NORMALIZE], lambda: _norm(MEAN)),
    "LayerNorm and Normalize": ([layer_norm(SCALE, SHIFT), NORMALIZE], lambda: _norm(_layer_norm(MEAN))),
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
    assert embedder.unit is name.endswith("Normalize")
    if name == "Normalize":  # a vector of zeros stays one
        assert not np.array(embedder(EncoderOutput(mx.zeros((1, 3, D)), None))).any()


NAMES = {"mean_sqrt_len_tokens": "mean_sqrt_len", "weightedmean": "weighted_mean", "lasttoken": "last_token"}


@together("modes", [*[(mode,) for mode in FLAGS], ("cls", "mean"), tuple(FLAGS)])
def test_both_dialects_say_the_same(modes: tuple[str, ...], tmp_path: Path) -> None:
    found = [_embedder(tmp_path / str(old), pooling(*modes, old=old)).config for old in (False, True)]
    expected = tuple(NAMES.get(mode, mode) for mode in modes)
    assert found == [EmbeddingConfig(poolings=expected, stated=True)] * 2


def test_poolings_stand_in_the_order_that_the_file_names(tmp_path: Path) -> None:
    assert _embedder(tmp_path, pooling("lasttoken", "cls")).config.poolings == ("last_token", "cls")
    write_json(tmp_path / "1_Pooling" / "config.json", {"word_embedding_dimension": D})  # no flag is set
    assert read_embedder(tmp_path, D).config.poolings == ("mean",)
    assert read_embedder(tmp_path / "no modules", D).config == EmbeddingConfig()  # mean as well


KINDS = ["Transformer", "Pooling", "Dense", "LayerNorm", "Normalize"]


def test_module_classes_of_both_dialects_are_known(tmp_path: Path) -> None:
    specs = [pooling("mean"), dense(WEIGHT), layer_norm(_random(7), _random(7)), NORMALIZE]
    for namespace in ("sentence_transformers.models", "sentence_transformers.base.modules.some_file"):
        write_modules(tmp_path, specs, namespace)
        assert [module.kind for module in ModelFolder(tmp_path).modules] == KINDS


def test_settings_of_the_model_are_read(tmp_path: Path) -> None:
    prompts = {"query": "the cat ", "document": None}
    settings = {"prompts": prompts, "truncate_dim": 9, "default_prompt_name": "query"}
    transformer = {"max_seq_length": 12, "do_lower_case": True}
    modules = pooling("cls", include_prompt=False), NORMALIZE
    folder = save_st(tmp_path, *modules, transformer=transformer, settings=settings)
    assert read_embedder(folder, D).config == EmbeddingConfig(
        poolings=("cls",), include_prompt=False, dimensions=9, prompts={"query": "the cat ", "document": ""},
        default_prompt_name="query", max_length=12, lower_case=True, stated=True,
    )  # fmt: skip
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")
    assert read_embedder(folder, D).config.max_length == 12


def test_the_transformer_may_lie_in_a_folder_of_its_own(tmp_path: Path) -> None:
    plain = save_st(tmp_path / "plain", pooling("cls"), transformer={"max_seq_length": 4})
    outer = write_modules(tmp_path / "outer", [pooling("cls")])
    inner = save(outer / "0_Transformer")
    write_json(inner / "sentence_bert_config.json", {"max_seq_length": 4})
    write_json(outer / "modules.json", [_entry()[0] | {"path": "0_Transformer"}, _entry()[1]])
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
    for use in (lambda: mlxbert.embed(model, "a"), lambda: mlxbert.load(folder, task="embed")):
        with pytest.raises(mlxbert.ConfigError, match="CNN"):
            use()


def _entry(kind: str = "sentence_transformers.models.Pooling", path: str = "1_Pooling") -> list[dict[str, str]]:
    return [{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": path, "type": kind}]


@together(
    ("modules", "message"),
    [
        (_entry("sentence_transformers.models.CNN"), r"has type 'sentence_transformers.models.CNN', expected one of"),
        (_entry("sentence_transformers.sparse_encoder.modules.SparseAutoEncoder"), "SparseAutoEncoder"),
        *(
            (_entry(kind), f"has type '{kind}'")
            for kind in ("other_st.Transformer", "evil_sentence_transformers.models.Pooling", "os.system")
        ),
        (_entry(path="../x"), r"path '\.\./x', expected a path inside"),
        *((_entry(path=path), "expected a path inside") for path in ("1_Pooling/../../x", "/etc", "..\\x")),
        ({"0": "x"}, "expected a JSON array, found dict"),
        (["Transformer"], "a module is 'Transformer', expected an object with type and path"),
        *(([_entry()[0] | {key: None}], "an object with type and path") for key in ("type", "path")),
        ([], "the modules are none, expected Transformer, Pooling"),
        (_entry()[:1] * 2, "modules are Transformer, Transformer, expected Transformer, Pooling"),
        (_entry()[::-1], "modules are Pooling, Transformer, expected"),
    ],
)
def test_modules_that_are_none_of_ours_are_refused_by_name(modules: Any, message: str, tmp_path: Path) -> None:
    write_json(tmp_path / "modules.json", modules)
    with pytest.raises(mlxbert.ConfigError, match=message) as caught:
        assert ModelFolder(tmp_path).modules
    assert str(tmp_path / "modules.json") in caught.value.message


ONES, ONE = mx.ones((7, D)), mx.ones((7,))  # weights and a bias


def _with(spec: Spec, **settings: Any) -> Spec:
    kind, config, tensors = spec
    return kind, {**(config or {}), **settings}, tensors


def _tensors(spec: Spec, **tensors: mx.array | None) -> Spec:
    kind, config, given = spec
    named = {name.replace("__", "."): array for name, array in tensors.items()}
    return kind, config, {name: array for name, array in {**(given or {}), **named}.items() if array is not None}


STACKS: list[tuple[list[Spec], str]] = [
    ([pooling("mean"), pooling("cls")], "modules are Transformer, Pooling, Pooling, expected"),
    ([dense(ONES), pooling("mean")], "modules are Transformer, Dense, Pooling, expected"),
    ([pooling("mean"), TRANSFORMER], "modules are Transformer, Pooling, Transformer"),
    ([pooling("median")], "pooling_mode is 'median', expected one or more of cls"),
    ([pooling("cls", "mean", "cls")], r"expected one or more of cls, .* without duplicates"),
    ([pooling(*["mean"] * 10**6)], r"pooling_mode is \['mean', .*\.\.\.\], expected one or more"),
    ([pooling("cls", "median")], r"pooling_mode is \['cls', 'median'\]"),
    ([_with(pooling("cls"), pooling_mode=[])], r"pooling_mode is \[\]"),
    ([_with(pooling("cls"), pooling_mode=[["cls"]])], r"pooling_mode is \[\['cls'\]\]"),
    ([_with(pooling("cls"), pooling_mode=3)], "pooling_mode is 3"),
    ([pooling("cls", old=True, pooling_mode_median=True)], "pooling_mode_median is True"),
    ([pooling("cls", old=True, pooling_mode_max_tokens="no")], "is 'no', expected true or"),
    ([pooling("cls", include_prompt="no")], "include_prompt is 'no', expected true or false"),
    *(
        ([pooling("cls"), spec], said)
        for spec, said in (
            (dense(ONES, ONE, "LeakyReLU"), "activation_function is 'torch.*LeakyReLU', expected one of"),
            (_with(dense(ONES), activation_function="custom.Tanh"), "is 'custom.Tanh', expected one of torch's Tanh"),
            (
                _with(dense(ONES), module_input_name="token_embeddings"),
                "module_input_name is 'token_embeddings', but mlxbert reads 'sentence_embedding' only",
            ),
            (_with(dense(ONES), module_output_name="other"), "module_output_name is 'other', but mlxbert writes"),
            (_with(NORMALIZE, module_input_name="x"), "2_Normalize/config.json: module_input_name is 'x'"),
            (
                dense(mx.ones((7, 25))),
                r"modules.json: pooling 'cls' gives 24 values, but layer 1 after the pooling \(Dense\) takes 25",
            ),
            (_with(dense(ONES), in_features="24"), "in_features is '24', expected a whole"),
            (_with(dense(ONES), bias="yes"), "bias is 'yes', expected true or false"),
            (("LayerNorm", {}, None), "dimension is missing, expected a whole number"),
        )
    ),
    ([pooling("cls", "max"), dense(ONES)], r"'cls\+max' gives 48 values.* takes 24"),
    (
        [pooling("cls"), dense(ONES), layer_norm(mx.ones((D,)), mx.ones((D,)))],
        r"gives 7 values, but layer 2 after the pooling \(LayerNorm\) takes 24",
    ),
]


@together(("specs", "message"), STACKS)
def test_modules_that_mlxbert_does_not_compute_are_refused(specs: list[Spec], message: str, tmp_path: Path) -> None:
    with pytest.raises(mlxbert.ConfigError, match=message) as caught:
        read_embedder(write_modules(tmp_path, specs), D)
    assert str(tmp_path) in caught.value.message


WEIGHTS: list[tuple[Spec, str]] = [
    (("Dense", dense(ONES)[1], None), r"2_Dense: the folder has no weights, .* modules\.json requires"),
    (_tensors(dense(ONES, ONE), linear__bias=None), r"linear.bias' is missing, .* shape \(7,"),
    (_tensors(dense(ONES), linear__bias=ONE), r"linear.bias' has shape \(7,\), expected no such"),
    (_tensors(dense(ONES), other=ONE), r"'other' has shape \(7,\), expected no such"),
    (_tensors(dense(ONES), linear__weight=ONES.T), r"'linear.weight' has shape \(24, 7\), expected shape \(7, 24\)"),
    (dense(ONES, use_residual=True), r"'residual.weight' is missing, expected shape \(7, 24\)"),
    (  # where the width stays
        dense(mx.ones((D, D)), use_residual=True, residual=mx.ones((D, D))),
        r"'residual.weight' has shape \(24, 24\), expected no such tensor",
    ),
    (
        _tensors(layer_norm(mx.ones((D,)), mx.ones((D,))), norm__bias=None),
        r"'norm.bias' is missing, expected shape \(24,\)",
    ),
]


@pytest.mark.parametrize(("spec", "message"), WEIGHTS)
def test_weights_of_a_module_are_exactly_those_expected(spec: Spec, message: str, tmp_path: Path) -> None:
    with pytest.raises(mlxbert.CheckpointError, match=message) as caught:
        read_embedder(write_modules(tmp_path, [pooling("mean"), spec]), D)
    assert str(tmp_path) in caught.value.message and caught.value.hint is None


def test_a_path_that_no_system_takes_is_refused(tmp_path: Path) -> None:
    folder = write_modules(tmp_path, [pooling("mean")])
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    for place in (0, 1):
        changed = [entry | ({"path": "x" * 300} if number == place else {}) for number, entry in enumerate(modules)]
        write_json(folder / "modules.json", changed)
        with pytest.raises(mlxbert.ConfigError, match="of 300 characters, expected a shorter path"):
            read_embedder(folder, D)


def test_damaged_weights_of_a_module_are_refused(tmp_path: Path) -> None:
    folder = write_modules(tmp_path, [pooling("mean"), dense(ONES)])
    path = folder / "2_Dense" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(mlxbert.CheckpointError, match=r"2_Dense/model.safetensors"):
        read_embedder(folder, D)


MODEL, FIRST = "config_sentence_transformers.json", "sentence_bert_config.json"
NONSENSE: list[tuple[str, dict[str, Any], str]] = [
    *(
        (MODEL, settings, said)
        for settings, said in (
            ({"prompts": ["a"]}, r"prompts is \['a'\], expected an object"),
            ({"prompts": ""}, "prompts is '', expected an object"),
            ({"prompts": {"query": 3}}, "prompts is {'query': 3}, expected an object"),
            ({"prompts": {"query": "q"}, "default_prompt_name": "q"}, "_name is 'q', expected one of query"),
            ({"prompts": {"query": "q"}, "default_prompt_name": ["query"]}, r"default_prompt_name is \['query'\]"),
            ({"default_prompt_name": "q"}, "default_prompt_name is 'q'"),
            ({"truncate_dim": 25}, "dimensions is 25, .* 24"),
            ({"truncate_dim": 0}, "truncate_dim is 0, expected a whole number from 1"),
            ({"truncate_dim": "all"}, "truncate_dim is 'all', expected a whole number"),
            ({"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'"),
        )
    ),
    *(
        (FIRST, {key: value}, f"{key} is {value!r}, {said}")
        for key, value, said in (
            ("max_seq_length", 0, "expected a whole number from 1"), ("max_seq_length", "many", "expected a whole"),
            ("max_seq_length", True, "expected"), ("do_lower_case", "yes", "expected true or false"),
            ("module_output_name", "other", "but mlxbert reads"),
            ("transformer_task", "fill-mask", "but mlxbert reads 'feature-extr"),
            ("query_expansion", {"length": 32}, "but mlxbert does not expand queries"),
        )
    ),
    (
        FIRST,
        {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
        "modality_config is .*pooler_output.*expected only the modality",
    ),
]  # fmt: skip


@together(("file", "settings", "message"), NONSENSE)
def test_settings_that_make_no_sense_are_refused(
    file: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folders = [write_modules(tmp_path / "modules", [pooling("mean")]), tmp_path / "none"]
    for folder in folders if file == MODEL else folders[:1]:
        write_json(folder / MODEL, {"model_type": "SentenceTransformer"})
        write_json(folder / FIRST, {})
        read_embedder(folder, D)
        write_json(folder / file, settings)
        with pytest.raises(mlxbert.ConfigError, match=message) as caught:
            read_embedder(folder, D)
        assert str(folder) in caught.value.message and ("dimensions" in message or file in caught.value.message)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_without_room_for_a_text_is_refused(limit: int, tmp_path: Path) -> None:
    folder = save_st(tmp_path, pooling("mean"), transformer={"max_seq_length": limit})
    model = mlxbert.load(folder)  # for other tasks
    for use in (lambda: mlxbert.embed(model, "a"), lambda: mlxbert.load(folder, task="embed")):
        with pytest.raises(mlxbert.TokenizerError, match=f"input.*{limit}.*2"):
            use()


@pytest.mark.parametrize(
    "name", [MODEL, FIRST, "modules.json", *(f"{n}_{kind}/config.json" for n, kind in enumerate(KINDS) if n)]
)
def test_damaged_and_missing_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    norm = layer_norm(mx.ones((7,)), mx.ones((7,)))
    folder = write_modules(tmp_path, [pooling("mean"), dense(ONES), norm, NORMALIZE])
    read_embedder(folder, D)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    for damage in ("", "{", "[1", '"text"', "\x00", "[" * 100_000):
        path.write_text(damage, encoding="utf-8")
        with pytest.raises(mlxbert.ConfigError, match=r"not valid JSON|expected a JSON") as caught:
            read_embedder(folder, D)
        assert str(path) in caught.value.message
    path.unlink()
    if name.startswith(("1_", "2_", "3_")):  # without the others, defaults are used
        with pytest.raises(mlxbert.ConfigError, match="cannot be read") as caught:
            read_embedder(folder, D)
        assert str(path) in caught.value.message
    else:
        read_embedder(folder, D)


def test_an_adapter_beside_the_weights_is_refused(tmp_path: Path) -> None:
    folder = save_st(tmp_path / "model", pooling("mean"))
    write_json(folder / "adapter_config.json", {})
    with pytest.raises(mlxbert.CheckpointError, match=r"adapter_config\.json"):
        mlxbert.load(folder)
