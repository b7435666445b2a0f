"""Weights in MLX's quantized layout: written as MLX does, read expanded and packed, and refused where damaged."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, ConfigError, MlxbertError
from mlxbert.export.compare.compared_model import open_model
from mlxbert.export.convert import LayerInputs
from mlxbert.goldens.golden_outputs import outputs
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import HEADS, Network
from mlxbert.text.sample_texts import sample
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.families.registry import family_of
from mlxbert.weights.formats import quantized, rounding
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.formats.quantized import Quantization, quantizable
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.save import plan
from tests.conftest import agreement
from tests.export.test_convert import check_manifest
from tests.helpers.cases import fast, together
from tests.helpers.families import FAMILIES
from tests.helpers.frozen import add_vocabulary, change_config, read_config, tensors_in, write_tensors
from tests.helpers.program import call
from tests.helpers.tiny import tiny_config, to_theirs
from tests.weights.test_traps_names import Arrays, parameters

WIDE = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 192, "num_hidden_layers": 1}
DISTIL = {"dim": 64, "n_heads": 2, "hidden_dim": 96, "n_layers": 1}
NARROW: Any = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96, "num_hidden_layers": 1}
MODEL_TYPES = {
    **{name: name for name in ("bert", "distilbert", "albert", "electra", "mpnet", "modernbert", "gte", "deberta-v2")},
    "nomic": "nomic_bert",
}
QUERY, PARTS = "bert.encoder.layer.0.attention.self.query", ("weight", "scales", "biases")


def wide(folder: Path, family: str = "bert", **changes: Any) -> Path:
    """A random model whose widths are 128 and 192, with a masked-LM head."""
    facts = FAMILIES[family].facts | (DISTIL if family == "distilbert" else WIDE)
    facts |= ({"embedding_size": 64} if "embedding_size" in facts else {}) | changes
    facts |= {"model_type": MODEL_TYPES[family], "architectures": [f"{FAMILIES[family].classes}ForMaskedLM"]}
    config_json = ConfigJson(folder / "config.json", facts)
    kind = family_of(config_json)[1]
    config = replace(kind.read_config(config_json), pooler=False)
    network = Network(config, ("masked_lm",))
    mx.random.seed(6)
    drawn = nn.utils.tree_map(lambda array: mx.random.normal(array.shape) * 0.05, network.parameters())
    network.update(drawn)
    folder.mkdir(parents=True)
    tensors = to_theirs(kind, config, dict(nn.utils.tree_flatten(network.parameters())))
    norms = {name for name in tensors if "norm" in name.lower() and name.endswith(".weight")}
    write_tensors(folder, {name: array + 1 if name in norms else array for name, array in tensors.items()})
    (folder / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    return add_vocabulary(folder)


def network(folder: Path, *, packed: bool = False, dtype: mx.Dtype = mx.float32) -> Network:
    checkpoint = open_checkpoint(folder)
    return build_network(checkpoint, checkpoint.parts, dtype, packed=packed)


def apart(one: Network, other: Network, family: str) -> float:
    """The largest difference of hidden states and logits, as a share of the largest value."""
    case = FAMILIES[family].cases["padding"]
    a, b = outputs(one, case), outputs(other, case)
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max() / max(1.0, np.abs(b[name]).max())) for name in a)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A model, and the same in 4 bits."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlxbert.export.convert.verify", lambda source, result: agreement(tiny_folder))
        patch.setattr("mlxbert.export.convert.sample", lambda: sample()[:16])
        mlxbert.convert(wide(folder / "a"), folder / "b", quantize=4)
    return folder


@pytest.fixture
def a(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "a", tmp_path / "a")


@pytest.fixture
def b(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "b", tmp_path / "b")


def is_near(one: mx.array, other: mx.array, how: Quantization) -> bool:
    """Whether a quantized matrix is within a step of what it was made of: each number, or in 4 bits each row's mean."""
    error, step = mx.abs(one - other), how.rounding_error(other)
    if how.carries_errors:
        error, step = (mx.sqrt(mx.square(each).mean(axis=1)) for each in (error, step))
    return bool((error <= step).all().item())


@pytest.mark.sampled
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.usefixtures("measurement")
def test_the_layout_is_that_of_mlx(bits: int, group: int, a: Path, tmp_path: Path) -> None:
    found = mlxbert.convert(a, tmp_path / "b", quantize=bits, group_size=group)
    assert check_manifest(found)["left_out"] == []
    assert read_config(tmp_path / "b")["quantization"] == {"group_size": group, "bits": bits}
    header = (tmp_path / "b" / "model.safetensors").read_bytes()[8:400]
    assert b'"format":"mlx"' in header.replace(b" ", b"")
    ours, theirs = tensors_in(tmp_path / "b"), tensors_in(a)
    quantized = {name.removesuffix(".scales") for name in ours if name.endswith(".scales")}
    for stem in quantized:
        weight = theirs.pop(f"{stem}.weight")
        layer = nn.Embedding(1, 1) if "embeddings" in stem else nn.Linear(1, 1, bias=False)
        layer.weight = weight
        twin = nn.Module()
        twin.layer = layer
        nn.quantize(twin, group, bits)  # what any program of MLX would write
        for name, array in parameters(twin.layer).items():
            mine = ours.pop(f"{stem}.{name}")
            assert (mine.dtype, mine.shape) == (array.dtype, array.shape), (stem, name)
            assert bits == 4 or mx.array_equal(mine, array).item(), (stem, name)
    assert ours.keys() == theirs.keys()
    assert all(mx.array_equal(ours[name], array).item() for name, array in theirs.items())
    assert {"bert.embeddings.word_embeddings", QUERY} <= quantized
    assert "bert.embeddings.position_embeddings" not in quantized
    fits = group != 128  # rows of 192 numbers
    assert ("bert.encoder.layer.0.output.dense" in quantized) is fits
    assert apart(network(tmp_path / "b", packed=True), network(tmp_path / "b"), "bert") <= 1e-3


@pytest.mark.sampled
# Matrices that are one in the file and several here (a fused q, k, v), a decoder that is the word embeddings.
@pytest.mark.parametrize("family", MODEL_TYPES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.usefixtures("measurement")
def test_packed_and_expanded_give_the_same_numbers(bits: int, family: str, tmp_path: Path) -> None:
    a = wide(tmp_path / "a", family, **({} if family == "distilbert" else NARROW))
    check_manifest(mlxbert.convert(a, tmp_path / "b", quantize=bits, group_size=32))
    whole, expanded, packed = network(a), network(tmp_path / "b"), network(tmp_path / "b", packed=True)
    kinds = {type(module).__name__ for _, module in packed.named_modules()}
    assert {"QuantizedLinear", "QuantizedEmbedding"} <= kinds
    assert not any("Quantized" in type(module).__name__ for _, module in expanded.named_modules())
    assert apart(packed, expanded, family) <= 1e-3
    assert 0 < apart(expanded, whole, family) <= (0.5 if bits == 4 else 0.05)
    how = Quantization(bits, 32)
    ours, theirs = parameters(expanded), parameters(whole)
    for name, array in theirs.items():
        if array.ndim == 2 and array.shape[1] % 32 == 0:
            assert is_near(ours[name], array, how), name
        elif array.ndim != 2:
            assert mx.array_equal(ours[name], array).item(), name


@pytest.mark.parametrize("dtype", fast(["float16", "bfloat16"], "float16"))
@pytest.mark.usefixtures("measurement")
def test_scales_have_the_dtype_that_is_asked_for(dtype: str, a: Path, tmp_path: Path) -> None:
    check_manifest(mlxbert.convert(a, tmp_path / "b", quantize=8, dtype=dtype))
    found = {array.dtype for array in tensors_in(tmp_path / "b").values()}
    assert found == {mx.uint32, getattr(mx, dtype)}
    assert read_config(tmp_path / "b")["dtype"] == dtype
    wide, once = (parameters(network(tmp_path / "b", dtype=kind)) for kind in (mx.float32, getattr(mx, dtype)))
    assert all(mx.array_equal(once[name], array.astype(getattr(mx, dtype))).item() for name, array in wide.items())
    half = network(tmp_path / "b", packed=True, dtype=getattr(mx, dtype))
    assert apart(half, network(a), "bert") <= 0.1


@pytest.mark.usefixtures("measurement")
def test_what_is_quantized_can_be_expanded_again_and_not_quantized_twice(b: Path, tmp_path: Path) -> None:
    for bits, group in ((4, 64), (8, 32)):
        with pytest.raises(CheckpointError, match=r"4 bits.*64"):
            mlxbert.convert(b, tmp_path / "c", quantize=bits, group_size=group)
    assert not (tmp_path / "c").exists()
    plain = mlxbert.convert(b, tmp_path / "plain")
    check_manifest(plain)
    assert "quantization" not in read_config(tmp_path / "plain")
    assert apart(network(tmp_path / "plain"), network(b), "bert") == 0
    half = mlxbert.convert(b, tmp_path / "half", dtype="float16")
    check_manifest(half)
    assert {array.dtype for array in tensors_in(tmp_path / "half").values()} == {mx.float16}


def test_rows_of_8_bits_can_be_quantized(a: Path, tmp_path: Path) -> None:
    """The built-in model is stored so; there is no other file of it."""
    tensors = quantized.pack(tensors_in(a))
    (a / "model.safetensors").unlink()
    mx.save_safetensors(str(a / "model.safetensors"), tensors, {quantized.STORAGE_KEY: quantized.STORAGE})
    planned = plan(open_checkpoint(a), None, Quantization(4, 64))
    assert any(tensor.quantization for tensor in planned)


@pytest.mark.usefixtures("measurement")
def test_a_quantized_model_in_shards_is_the_same(a: Path, tmp_path: Path) -> None:
    b = mlxbert.convert(a, tmp_path / "b", quantize=8).folder
    check_manifest(mlxbert.convert(a, tmp_path / "c", quantize=8, max_shard_size="30KB"))
    shards = list((tmp_path / "c").glob("model-*.safetensors"))
    assert len(shards) > 3 and max(path.stat().st_size for path in shards) < 36_000
    assert sorted(path.name for path in shards)[0] == f"model-00001-of-{len(shards):05}.safetensors"
    index, whole = json.loads((tmp_path / "c" / "model.safetensors.index.json").read_text()), tensors_in(b)
    assert index["weight_map"].keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in whole.values())
    for folder in (b, tmp_path / "c"):
        assert apart(network(folder, packed=True), network(b, packed=True), "bert") == 0


def test_what_is_further_away_than_a_step_differs(a: Path, b: Path) -> None:
    tensors = tensors_in(b)
    tensors[f"{QUERY}.biases"] = tensors[f"{QUERY}.biases"] + mx.eye(128, 2) * 0.2
    write_tensors(b, tensors)
    for one, other in ((a, b), (b, a)):
        (difference,) = mlxbert.verify(one, other).differences
        assert difference.name == "encoder.layers.0.attention.query.weight"


@pytest.mark.parametrize("bits", [2, 3, 6])
def test_other_widths_are_read(bits: int, a: Path) -> None:
    how, whole, tensors = Quantization(bits), network(a), tensors_in(a)
    array = tensors.pop(f"{QUERY}.weight")
    write_tensors(a, tensors | how.pack(f"{QUERY}.weight", array))
    change_config(a, quantization={"bits": bits})  # groups of 64, if nothing is said
    found = parameters(network(a))
    for name, other in parameters(whole).items():
        near = how.rounding_error(other) if name.endswith("layers.0.attention.query.weight") else mx.array(0.0)
        assert (mx.abs(found[name] - other) <= near).all().item(), name
    assert apart(network(a, packed=True), network(a), "bert") <= 1e-3


def test_tables_and_layers_that_give_scores_stay_wide() -> None:
    found = quantizable(Network(replace(tiny_config(), pooler=True), HEADS))
    transforms = {name for name in found if name.startswith("heads.")}
    assert transforms and all(".transform." in name for name in transforms)
    assert not any("position" in name or "token_type" in name for name in found)
    assert {"encoder.embeddings.word.weight", "encoder.layers.0.attention.query.weight"} <= found


def test_what_mlx_lm_writes_is_read_and_told_and_missing_settings_are_refused(b: Path) -> None:
    (found,) = call("inspect", "--json", str(b)).lines
    assert found["weights"]["storage"] == "4 bits in groups of 64"
    query = next(tensor for tensor in found["tensors"] if tensor["name"] == f"{QUERY}.weight")
    assert (query["dtype"], query["shape"]) == ("Q4", [128, 128])
    assert not any(tensor["name"].endswith((".scales", ".biases")) for tensor in found["tensors"])
    assert call("inspect", str(b)).status == 0
    settings = read_config(b)["quantization"] | {"mode": "affine"}
    change_config(b, quantization=settings, quantization_config=settings)
    assert mlxbert.load(b, dtype="float32").tokenizer.vocab_size > 0
    config = {key: value for key, value in read_config(b).items() if "quantization" not in key}
    (b / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"is not a weight|dtype U32"):
        network(b)


def test_no_matrix_that_fits_is_an_error(tmp_path: Path) -> None:
    a = wide(tmp_path / "a", hidden_size=36, num_attention_heads=3, intermediate_size=40)
    with pytest.raises(ArgumentError, match="no matrix of"):
        mlxbert.convert(a, tmp_path / "b", quantize=4, group_size=32)
    assert not (tmp_path / "b").exists()


@together(("how", "said"), [
    *(({"quantize": bits}, "expected 4 or 8 bits") for bits in (3, 0, True, "4", 4.0, [4])),
    *(({"quantize": 4, "group_size": size}, "one of 32, 64, 128") for size in (64.0, 48, [64])),
    *(({"dtype": dtype}, "one of float32") for dtype in ("int8", ["float16"])),
])  # fmt: skip
def test_arguments_are_checked(how: dict[str, Any], said: str, a: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=said):
        mlxbert.convert(a, tmp_path / "b", **how)
    assert not (tmp_path / "b").exists()


# Of the tensors of a matrix, what takes the place of some.
DAMAGES: dict[str, Callable[[Arrays], dict[str, mx.array | None]]] = {
    "no weight": lambda own: {"weight": None}, "no scales": lambda own: {"scales": None},
    "no biases": lambda own: {"biases": None},
    "fewer scales": lambda own: {"scales": own["scales"][:, :1]},
    "scales of a row too few": lambda own: {"scales": own["scales"][1:]},
    "scales of one axis": lambda own: {"scales": own["scales"].flatten()},
    "scales of none": lambda own: {"scales": own["scales"][0, 0]},
    "scales of whole numbers": lambda own: {"scales": own["scales"].astype(mx.int32)},
    "biases transposed": lambda own: {"biases": own["biases"].T},
    "words of another kind": lambda own: {"weight": own["weight"].view(mx.int32)},
    "words of floats": lambda own: {"weight": own["weight"].astype(mx.float32)},
    "fewer words": lambda own: {"weight": own["weight"][:, :8]},
    "words of no axis": lambda own: {"weight": own["weight"][0, 0]},
    "words of three axes": lambda own: {"weight": own["weight"][None]},
    "no words": lambda own: {"weight": own["weight"][:, :0]},
    "another height": lambda own: {part: own[part][:64] for part in PARTS},
    "a vector of its own": lambda own: {"bias": own["weight"]},
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_tensors_are_refused_by_name(damage: str, b: Path) -> None:
    tensors = tensors_in(b)
    changed = DAMAGES[damage]({part: tensors[f"{QUERY}.{part}"] for part in PARTS})
    found = tensors | {f"{QUERY}.{part}": array for part, array in changed.items()}
    write_tensors(b, {name: array for name, array in found.items() if array is not None})
    for task in (lambda: network(b), lambda: network(b, packed=True), lambda: mlxbert.convert(b, b.with_name("c"))):
        with pytest.raises(CheckpointError) as caught:
            task()
        assert QUERY.removeprefix("bert.") in caught.value.message and str(b) in caught.value.message
    assert not b.with_name("c").exists()


OWN: tuple[Any, ...] = (3, "8", [], {"bits": 5}, {"bits": 8, "group_size": 48}, {"group_size": 32})


@pytest.mark.parametrize("settings", [
    {"bits": 8}, {"group_size": 32}, {"bits": 5}, {"bits": 16}, {"bits": "4"}, {"bits": True}, {"bits": None},
    {"bits": 4.0}, {"bits": -4}, {"group_size": 0}, {"group_size": 16}, {"group_size": "64"}, {"group_size": 1e400},
    {"mode": "mxfp4"}, {"mode": 3}, {"encoder.layer.0": {"bits": 8}}, {"embeddings": False},
    *({QUERY: own} for own in OWN), [], "4", 4, True, ["bits"],
], ids=str)  # fmt: skip
def test_settings_that_do_not_belong_to_the_tensors_are_refused(settings: Any, b: Path) -> None:
    change_config(b, quantization={"group_size": 64, "bits": 4} | settings if isinstance(settings, dict) else settings)
    of_config = not isinstance(settings, dict) or QUERY in settings
    for task in (lambda: network(b), lambda: mlxbert.convert(b, b.with_name("c"))):
        with pytest.raises(ConfigError if of_config else MlxbertError, match="quantization" if of_config else str(b)):
            task()


@pytest.mark.parametrize("theirs", [
    {"quant_method": "gptq", "bits": 4, "group_size": 128}, {"quant_method": "bitsandbytes", "load_in_4bit": True},
    {"bits": 4, "group_size": 64, "quant_method": "awq"}, {}, "awq",
], ids=str)  # fmt: skip
@pytest.mark.parametrize("nearby", [False, True])
def test_weights_that_other_programs_quantized_are_refused(theirs: object, nearby: bool, a: Path, b: Path) -> None:
    folder = b if nearby else a
    change_config(folder, quantization_config=theirs)
    with pytest.raises(ConfigError, match="quantization_config"):
        network(folder)


def drawn(rows: int, columns: int, scale: float = 1.0) -> tuple[mx.array, mx.array]:
    """A matrix, and correlated inputs (4 columns, columns) for it."""
    mx.random.seed(3)
    shared = mx.random.normal((4 * columns, 8)) @ mx.random.normal((8, columns))
    return mx.random.normal((rows, columns)) * scale, shared + 0.3 * mx.random.normal(shared.shape)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_4_bits_are_rounded_for_the_inputs(dtype: mx.Dtype) -> None:
    how, (matrix, inputs) = Quantization(4, 32), drawn(48, 128)
    matrix = matrix.astype(dtype)
    unpacked = {}
    for name, products in {"fitted": None, "rounded": np.array(inputs.T @ inputs)}.items():
        packed = how.pack("x.weight", matrix, products)
        assert [part.dtype for part in packed.values()] == [mx.uint32, dtype, dtype]
        unpacked[name] = how.expand(packed, "x.weight", mx.float32)
    plain = mx.dequantize(*mx.quantize(matrix, group_size=32, bits=4), group_size=32, bits=4).astype(mx.float32)
    wide = matrix.astype(mx.float32)
    errors = {name: np.array(one - wide) for name, one in (unpacked | {"plain": plain}).items()}
    numbers = {name: np.square(error).mean() for name, error in errors.items()}
    layers = {name: np.square(np.array(inputs) @ error.T).mean() for name, error in errors.items()}
    assert numbers["fitted"] < 0.9 * numbers["plain"]
    assert layers["rounded"] < 0.2 * layers["fitted"] < 0.2 * layers["plain"]
    assert is_near(unpacked["rounded"], wide, how)


@pytest.mark.parametrize("value", [0.0, 1.0, -3e-8, 6e4])
def test_equal_numbers_stay_what_they_are(value: float) -> None:
    for dtype in (mx.float32, mx.float16):
        matrix = mx.full((4, 64), value).astype(dtype)
        for products in (None, np.eye(64, dtype=np.float32), np.zeros((64, 64), dtype=np.float32)):
            found = Quantization(4, 32).expand(
                Quantization(4, 32).pack("x.weight", matrix, products), "x.weight", dtype
            )
            assert mx.allclose(found, matrix, rtol=1e-3, atol=0.0).item()


def test_a_nan_stays_in_its_group_and_no_row_goes_further_than_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = mx.array(np.random.default_rng(0).normal(size=(16, 64)) * 5e-8).astype(mx.float16)
    how = Quantization(4, 64)
    found = how.expand(how.pack("x.weight", matrix, None), "x.weight", mx.float32)
    assert is_near(found, matrix.astype(mx.float32), how)
    matrix, inputs = drawn(8, 64)
    matrix[3, 5] = mx.nan
    how = Quantization(4, 32)
    found = how.expand(how.pack("x.weight", matrix, np.array(inputs.T @ inputs)), "x.weight", mx.float32)
    assert mx.isfinite(found[:3]).all().item() and mx.isfinite(found[3, 32:]).all().item()
    how, (matrix, inputs) = Quantization(4, 64), drawn(8, 128)
    monkeypatch.setattr(rounding, "round_columns", lambda rows, *others: np.zeros(rows.shape, dtype=np.uint32))
    found = how.expand(how.pack("x.weight", matrix, np.array(inputs.T @ inputs)), "x.weight", mx.float32)
    assert is_near(found, matrix, how)


def test_layers_may_have_other_bits(a: Path, b: Path) -> None:
    """As mlx-lm writes them."""
    before, whole = parameters(network(b)), parameters(network(a))
    tensors = tensors_in(b)
    for part in PARTS:
        del tensors[f"{QUERY}.{part}"]
    write_tensors(b, tensors | Quantization(8, 32).pack(f"{QUERY}.weight", tensors_in(a)[f"{QUERY}.weight"]))
    own = {QUERY: {"group_size": 32, "bits": 8}, "bert.embeddings.position_embeddings": False}
    change_config(b, quantization=read_config(b)["quantization"] | own)
    found = parameters(network(b))
    name = "encoder.layers.0.attention.query.weight"
    assert is_near(found[name], whole[name], Quantization(8, 32))
    assert not mx.array_equal(found[name], before[name]).item()
    assert all(mx.array_equal(found[other], before[other]).item() for other in found if other != name)
    packed = network(b, packed=True)
    assert packed.encoder.layers[0].attention.query.bits == 8 and packed.encoder.layers[0].attention.key.bits == 4
    assert apart(packed, network(b), "bert") <= 1e-3
    (shown,) = call("inspect", "--json", str(b)).lines
    tensor = next(tensor for tensor in shown["tensors"] if tensor["name"] == f"{QUERY}.weight")
    assert (tensor["dtype"], tensor["shape"]) == ("Q8", [128, 128])
    assert mlxbert.verify(a, b).tensors.different == 0


@pytest.mark.usefixtures("measurement")
def test_inputs_of_layers_are_measured_where_they_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = []
    a, take = wide(tmp_path / "a", **NARROW), LayerInputs.take
    monkeypatch.setattr(LayerInputs, "take", lambda inputs, name: asked.append(name) or take(inputs, name))
    mlxbert.convert(a, tmp_path / "b", quantize=8)
    assert not asked
    mlxbert.convert(a, tmp_path / "c", quantize=4)
    assert "encoder.layers.0.attention.query.weight" in asked and len(asked) == len({*asked})


def test_the_inputs_are_those_of_each_layer(a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = sample()[:16]
    monkeypatch.setattr("mlxbert.export.convert.sample", lambda: texts)
    model = open_model(str(a), ModelFolder(a))
    inputs, whole = LayerInputs(model), network(a)
    products = inputs.take("encoder.layers.0.attention.query.weight")
    assert products is not None and np.allclose(products, products.T, atol=1e-3)
    ids = [model.tokenizer.encode(text, overflow="truncate").ids[:64] for text in texts]
    rows = [np.array(whole.encoder.embeddings(mx.array([one]), None))[0] for one in ids]
    expected = sum(row.T @ row for row in rows)
    assert np.allclose(products, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert inputs.take("encoder.layers.0.attention.query.weight") is None  # forgotten
    down, transform = (inputs.take(f"{name}.weight") for name in (
        "encoder.layers.0.feed_forward.down", "heads.masked_lm.transform.dense"
    ))  # fmt: skip
    assert down is not None and down.shape == (192, 192) and transform is not None
