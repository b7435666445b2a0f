"""What a folder of sentence-transformers may not say: each refused with the file, the value and what was expected."""

import json
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.weights.sentence_transformers import read_embedder
from tests.helpers.cases import together
from tests.helpers.st_folder import (
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

D = 24
WEIGHT, BIAS = mx.ones((7, D)), mx.ones((7,))
LEAKY = dense(WEIGHT, BIAS, "LeakyReLU")


def _with(spec: Spec, **settings: Any) -> Spec:
    kind, config, tensors = spec
    return kind, {**(config or {}), **settings}, tensors


def _tensors(spec: Spec, **tensors: mx.array | None) -> Spec:
    kind, config, given = spec
    named = {name.replace("__", "."): array for name, array in tensors.items()}
    return kind, config, {name: array for name, array in {**(given or {}), **named}.items() if array is not None}


STACKS: dict[str, tuple[list[Spec], str]] = {
    "two poolings": ([pooling("mean"), pooling("cls")], "modules are Transformer, Pooling, Pooling, expected"),
    "Dense before Pooling": ([dense(WEIGHT), pooling("mean")], "modules are Transformer, Dense, Pooling, expected"),
    "a second Transformer": ([pooling("mean"), TRANSFORMER], "modules are Transformer, Pooling, Transformer"),
    "an unknown mode": ([pooling("median")], "pooling_mode is 'median', expected one or more of cls"),
    "a mode twice": ([pooling("cls", "mean", "cls")], r"expected one or more of cls, .* without duplicates"),
    "a million modes": ([pooling(*["mean"] * 10**6)], r"pooling_mode is \['mean', .*\.\.\.\], expected one or more"),
    "an unknown mode among others": ([pooling("cls", "median")], r"pooling_mode is \['cls', 'median'\]"),
    "no mode": ([_with(pooling("cls"), pooling_mode=[])], r"pooling_mode is \[\]"),
    "a mode in a list of its own": ([_with(pooling("cls"), pooling_mode=[["cls"]])], r"pooling_mode is \[\['cls'\]\]"),
    "a mode that is not a name": ([_with(pooling("cls"), pooling_mode=3)], "pooling_mode is 3"),
    "an unknown flag": ([pooling("cls", old=True, pooling_mode_median=True)], "pooling_mode_median is True"),
    "a flag that is not one": ([pooling("cls", old=True, pooling_mode_max_tokens="no")], "is 'no', expected true or"),
    "include_prompt": ([pooling("cls", include_prompt="no")], "include_prompt is 'no', expected true or false"),
    "an unknown activation": ([pooling("cls"), LEAKY], "activation_function is 'torch.*LeakyReLU', expected one of"),
    "an activation of somebody's own": (
        [pooling("cls"), _with(dense(WEIGHT), activation_function="custom.Tanh")],
        "activation_function is 'custom.Tanh', expected one of torch's Tanh",
    ),
    "Dense on tokens": (
        [pooling("cls"), _with(dense(WEIGHT), module_input_name="token_embeddings")],
        "module_input_name is 'token_embeddings', but mlxbert reads 'sentence_embedding' only",
    ),
    "Dense into something else": (
        [pooling("cls"), _with(dense(WEIGHT), module_output_name="other")],
        "module_output_name is 'other', but mlxbert writes",
    ),
    "Normalize on tokens": (
        [pooling("cls"), _with(NORMALIZE, module_input_name="token_embeddings")],
        "2_Normalize/config.json: module_input_name is 'token_embeddings'",
    ),
    "Dense of another width": (
        [pooling("cls"), dense(mx.ones((7, 25)))],
        r"modules.json: pooling 'cls' gives 24 values, but layer 1 after the pooling \(Dense\) takes 25",
    ),
    "two poolings need more": ([pooling("cls", "max"), dense(WEIGHT)], r"'cls\+max' gives 48 values.* takes 24"),
    "LayerNorm of another width": (
        [pooling("cls"), dense(WEIGHT), layer_norm(mx.ones((D,)), mx.ones((D,)))],
        r"gives 7 values, but layer 2 after the pooling \(LayerNorm\) takes 24",
    ),
    "in_features": ([pooling("cls"), _with(dense(WEIGHT), in_features="24")], "in_features is '24', expected a whole"),
    "bias": ([pooling("cls"), _with(dense(WEIGHT), bias="yes")], "bias is 'yes', expected true or false"),
    "dimension": ([pooling("cls"), ("LayerNorm", {}, None)], "dimension is missing, expected a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_modules_that_mlxbert_does_not_compute_are_refused(name: str, tmp_path: Path) -> None:
    specs, message = STACKS[name]
    with pytest.raises(mlxbert.ConfigError, match=message) as caught:
        read_embedder(write_modules(tmp_path, specs), D)
    assert str(tmp_path) in caught.value.message


WEIGHTS: dict[str, tuple[Spec, str]] = {
    "none": (("Dense", dense(WEIGHT)[1], None), r"2_Dense: the folder has no weights, .* modules\.json requires"),
    "a bias too few": (_tensors(dense(WEIGHT, BIAS), linear__bias=None), r"linear.bias' is missing, .* shape \(7,"),
    "a bias too many": (_tensors(dense(WEIGHT), linear__bias=BIAS), r"linear.bias' has shape \(7,\), expected no such"),
    "a tensor too many": (_tensors(dense(WEIGHT), other=BIAS), r"'other' has shape \(7,\), expected no such"),
    "another shape": (
        _tensors(dense(WEIGHT), linear__weight=mx.ones((D, 7))),
        r"'linear.weight' has shape \(24, 7\), expected shape \(7, 24\)",
    ),
    "no residual": (dense(WEIGHT, use_residual=True), r"'residual.weight' is missing, expected shape \(7, 24\)"),
    "a residual where the width stays": (
        dense(mx.ones((D, D)), use_residual=True, residual=mx.ones((D, D))),
        r"'residual.weight' has shape \(24, 24\), expected no such tensor",
    ),
    "a norm too few": (
        _tensors(layer_norm(mx.ones((D,)), mx.ones((D,))), norm__bias=None),
        r"'norm.bias' is missing, expected shape \(24,\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_a_module_are_exactly_those_expected(name: str, tmp_path: Path) -> None:
    spec, message = WEIGHTS[name]
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
    folder = write_modules(tmp_path, [pooling("mean"), dense(WEIGHT)])
    path = folder / "2_Dense" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(mlxbert.CheckpointError, match=r"2_Dense/model.safetensors"):
        read_embedder(folder, D)


MODEL, FIRST = "config_sentence_transformers.json", "sentence_bert_config.json"
OUTPUT = {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}}
NONSENSE: list[tuple[str, dict[str, Any], str]] = [
    (MODEL, {"prompts": ["a"]}, r"prompts is \['a'\], expected an object"),
    (MODEL, {"prompts": ""}, "prompts is '', expected an object"),
    (MODEL, {"prompts": {"query": 3}}, "prompts is {'query': 3}, expected an object"),
    (
        *(MODEL, {"prompts": {"query": "q"}, "default_prompt_name": "q"}),
        "default_prompt_name is 'q', expected one of query",
    ),
    (MODEL, {"prompts": {"query": "q"}, "default_prompt_name": ["query"]}, r"default_prompt_name is \['query'\]"),
    (MODEL, {"default_prompt_name": "q"}, "default_prompt_name is 'q'"),
    (MODEL, {"truncate_dim": 25}, "dimensions is 25, .* 24"),
    (MODEL, {"truncate_dim": 0}, "truncate_dim is 0, expected a whole number from 1"),
    (MODEL, {"truncate_dim": "all"}, "truncate_dim is 'all', expected a whole number"),
    (MODEL, {"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'"),
    (FIRST, {"max_seq_length": 0}, "max_seq_length is 0, expected a whole number from 1"),
    (FIRST, {"max_seq_length": "many"}, "max_seq_length is 'many', expected a whole number"),
    (FIRST, {"max_seq_length": True}, "max_seq_length is True"),
    (FIRST, {"do_lower_case": "yes"}, "do_lower_case is 'yes', expected true or false"),
    (FIRST, {"module_output_name": "other"}, "module_output_name is 'other', but mlxbert reads"),
    (FIRST, {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask', but mlxbert reads 'feature-extr"),
    (FIRST, {"query_expansion": {"length": 32}}, "query_expansion is .*, but mlxbert does not expand queries"),
    (FIRST, OUTPUT, "modality_config is .*pooler_output.*expected only the modality"),
]


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


FILES = (
    *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json"),
    *("2_Dense/config.json", "3_LayerNorm/config.json", "4_Normalize/config.json"),
)


@pytest.mark.parametrize("name", FILES)
def test_damaged_and_missing_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    norm = layer_norm(mx.ones((7,)), mx.ones((7,)))
    folder = write_modules(tmp_path, [pooling("mean"), dense(WEIGHT), norm, NORMALIZE])
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
