"""`finetune` with adapters: the folder, what opens it, how it resumes, and what is refused."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, ConfigError, MlxbertError
from mlxbert.machine.device import mx, nn
from mlxbert.nn.lora import merged
from mlxbert.train.loop.events import Event, Finished, Started, Step
from mlxbert.train.nn.lora_layers import LoraSettings, adapt
from mlxbert.weights.build import parameters
from tests.conftest import UNMEASURED
from tests.helpers.cases import fast, together
from tests.helpers.program import call
from tests.helpers.tiny import CONFIG, random_network, save, tiny_config
from tests.train.test_finetune import rows

PLACE = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = mlxbert.new_model(
        {**CONFIG, "initializer_range": 0.15, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1},
        save(folder / "vocabulary"), heads={"masked_lm": None},
    )  # fmt: skip
    return mlxbert.save(model, folder / "tiny")


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "adapter"
    list(_run(base, out, epochs=5, eval_every=35))
    return out


def _records(count: int = 64) -> list[dict[str, str]]:
    return [{"text": text, "label": label} for text, label in rows(count)]


def _run(base: Path, output: Path, task: str = "classify", **options: Any) -> Iterator[Event]:
    usual: dict[str, Any] = {"train": _records(), "epochs": 2, "batch_size": 8, "lora": 4, "lr": 2e-2}
    return iter(mlxbert.finetune(task, model=base, output=output, **usual | options))


def _tensors(folder: Path) -> dict[str, mx.array]:
    arrays = mx.load(str(folder / "adapter_model.safetensors"))
    assert isinstance(arrays, dict)
    return arrays


def test_the_folder_is_an_adapter_of_peft(base: Path, adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    assert (config["peft_type"], config["task_type"], config["r"], config["lora_alpha"]) == ("LORA", "SEQ_CLS", 4, 8)
    assert config["modules_to_save"] == ["classifier", "pooler.dense"]  # both are fresh
    assert Path(config["base_model_name_or_path"]) == base.resolve()
    tensors = _tensors(adapter)
    assert len(tensors) == 2 * 2 + 4 and tensors[PLACE].shape == (4, 32)
    assert not (adapter / "model.safetensors").exists() and (adapter / "vocab.txt").is_file()
    record = json.loads((adapter / "training.json").read_text(encoding="utf-8"))
    assert record["options"]["lora"] == 4 and record["options"]["lora_layers"] == "query,value"
    card = (adapter / "README.md").read_text(encoding="utf-8")
    assert "library_name: peft" in card and "adapter" in card


def test_it_learns_and_opens_alone_and_with_its_base(base: Path, adapter: Path, tmp_path: Path) -> None:
    labels = ("animal", "place")
    for model in (mlxbert.load(adapter), mlxbert.load(base, adapter=adapter)):
        assert model.labels is not None and model.labels.names == labels
        assert [*model.network.heads] == ["sequence_classifier"]
        assert mlxbert.evaluate("classify", model, data=_records()).score > 0.9
    record = json.loads((adapter / "training.json").read_text(encoding="utf-8"))
    assert record["runs"][0]["score"] == pytest.approx(record["metrics"]["accuracy"])
    events = list(_run(adapter, tmp_path / "out", lora=None, lr=1e-9, epochs=1))  # continues with all weights
    assert next(event for event in events if isinstance(event, Finished)).score > 0.9
    assert (tmp_path / "out/model.safetensors").is_file()


def test_another_base_is_said(base: Path, adapter: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(base, tmp_path / "copies" / base.name)
    mlxbert.load(base, adapter=adapter)
    mlxbert.load(tmp_path / "copies" / base.name, adapter=adapter)
    assert not caplog.records
    shutil.copytree(base, tmp_path / "other")
    mlxbert.load(tmp_path / "other", adapter=adapter)  # the same weights under another name
    assert not caplog.records
    path = tmp_path / "other/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(ConfigError) as caught:
        mlxbert.load(tmp_path / "other", adapter=adapter)
    assert str(base) in caught.value.message and str(tmp_path / "other") in caught.value.message
    shutil.copytree(adapter, tmp_path / "adapter")
    _edit(tmp_path / "adapter", base_model_name_or_path="/another/machine")
    mlxbert.load(base, adapter=tmp_path / "adapter")
    assert "/another/machine" in caplog.text and str(base) in caplog.text


def test_a_merged_folder_computes_the_same(base: Path, adapter: Path, tmp_path: Path) -> None:
    conversion = mlxbert.convert(base, tmp_path / "merged", adapter=adapter)
    assert any("adapter" in sentence for sentence in conversion.changed)
    mlxbert.save(mlxbert.load(adapter, dtype="float32"), tmp_path / "saved")
    assert mlxbert.verify(adapter, tmp_path / "merged") and mlxbert.verify(tmp_path / "merged", tmp_path / "saved")
    assert not (tmp_path / "merged/adapter_config.json").exists()
    assert (tmp_path / "merged/training.json").read_bytes() == (adapter / "training.json").read_bytes()
    card = (tmp_path / "merged/README.md").read_text(encoding="utf-8")
    assert "library_name: transformers\n" in card and "adapter in PEFT's format" not in card
    assert "pipeline_tag: text-classification" in card and 'mlxbert.load("merged")' in card
    assert "sequence_classifier" in dict(mlxbert.inspect(adapter).parts)
    facts, size = mlxbert.inspect(adapter).adapter, (adapter / "adapter_model.safetensors").stat().st_size
    assert facts is not None and (facts.folder, facts.base, facts.bytes) == (adapter, base, size)
    assert facts.changed == 2  # the queries and values
    assert mlxbert.inspect(tmp_path / "merged").adapter is None


def test_ranks_can_be_swept_and_say_what_is_trained(base: Path, tmp_path: Path) -> None:
    events = list(_run(base, tmp_path / "out", lora=None, sweep={"lora": [2, 3]}, epochs=1))
    one, other = (event for event in events if isinstance(event, Started))
    ranks = [one.parameters, other.parameters]
    assert ranks[1] - ranks[0] == 2 * 2 * 32
    finished = next(event for event in events if isinstance(event, Finished))
    config = json.loads((tmp_path / "out/adapter_config.json").read_text(encoding="utf-8"))
    assert config["r"] == [2, 3][finished.run] and config["lora_alpha"] == 2 * config["r"]
    adapters, pooler, classifier = 2 * 2 * 2 * 32, 32 * 32 + 32, 2 * 32 + 2
    assert ranks[0] == adapters + pooler + classifier
    whole = sum(array.size for array in parameters(mlxbert.load(base, task="embed").network).values())
    assert one.frozen == whole  # the masked-LM head is not loaded


@UNMEASURED
@pytest.mark.usefixtures("measurement")
@pytest.mark.parametrize("dtype", fast(["bfloat16", "float16"], "bfloat16"))
def test_a_quantized_base_is_trained_on(base: Path, tmp_path: Path, dtype: str) -> None:
    mlxbert.convert(base, tmp_path / "small", quantize=4, group_size=32)
    events = list(_run(tmp_path / "small", tmp_path / "out", dtype=dtype, epochs=5, eval_every=35))
    losses = [event.loss for event in events if isinstance(event, Step)]
    assert sum(losses[-7:]) < 0.7 * sum(losses[:7])
    model = mlxbert.load(tmp_path / "out")
    assert mlxbert.evaluate("classify", model, data=_records()).score > 0.8


def test_tags_with_a_crf_and_vectors_are_trained_through_adapters(base: Path, tmp_path: Path) -> None:
    data = [{"words": text.split(), "tags": ["B-X" if word in ("cat", "dog") else "O" for word in text.split()]}
            for text, _ in rows(30)]  # fmt: skip
    list(_run(base, tmp_path / "out", "tag", train=data, crf=True, epochs=1))
    assert (tmp_path / "out/crf.safetensors").is_file()
    model = mlxbert.load(tmp_path / "out")
    assert model.labels is not None and model.labels.crf
    mlxbert.convert(tmp_path / "out", tmp_path / "merged")
    assert mlxbert.verify(tmp_path / "out", tmp_path / "merged")
    pairs = [{"text": f"the {word} sat", "pair": f"a {word} went"} for word in ("cat", "dog", "paris", "tokyo") * 10]
    with pytest.raises(ArgumentError, match="`pooling` is 'cls'"):
        list(_run(base, tmp_path / "vectors", "embed", train=pairs, pooling="cls"))
    list(_run(base, tmp_path / "vectors", "embed", train=pairs))
    assert not any(name.startswith("base_model.model.bert.") for name in _tensors(tmp_path / "vectors"))
    found, plain = (mlxbert.embed(mlxbert.load(path, task="embed"), "the cat") for path in (tmp_path / "vectors", base))
    assert mx.abs(mx.array(found - plain)).max().item() > 1e-4  # type: ignore[operator]


@together(
    ("options", "said"),
    [
        ({"lora": 0}, "`lora` is 0"),
        ({"lora": 2.5}, "`lora` is 2.5"),
        ({"lora_alpha": 0}, "`lora_alpha` is 0"),
        ({"lora_dropout": 1}, "`lora_dropout` is 1"),
        ({"lora_layers": "query,keys"}, r"`lora_layers` names 'keys'.*all-linear.*query \(attention\.self\.query\)"),
        ({"lora_layers": ""}, "`lora_layers` is ''"),
        ({"lora_layers": ["query"]}, "`lora_layers` is"),
        ({"lora": None, "dora": True}, "`dora` is True"),
        ({"freeze": 1}, "`freeze` is 1, but `lora`"),
        ({"check": True}, "`check` and `lora` cannot be combined"),
    ],
)
def test_what_cannot_be_trained_is_refused(base: Path, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        list(_run(base, tmp_path / "out", **options))
    assert not (tmp_path / "out.partial").exists()


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


@together(
    ("changes", "said"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern"),
        ({"base_model_name_or_path": "/nowhere/at/all"}, "is an adapter for /nowhere/at/all"),
        # What contradicts the tensors; PEFT fails, computes something else, or warns.
        ({"r": 5}, r"shape.*rank|rank.*shape|r is 5|\b5\b"),
        ({"target_modules": ["query"]}, "target_modules"),
        ({"target_modules": ["query", "value", "key"]}, "key"),
        ({"layers_to_transform": [1]}, "layers_to_transform"),
        ({"layers_to_transform": [0], "target_modules": ".*query"}, "layers_to_transform"),
        ({"exclude_modules": ".*layer.0.*"}, "exclude_modules"),
        ({"modules_to_save": ["attention"]}, "modules_to_save|attention"),
        ({"use_dora": True}, "magnitude"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
    ],
)
def test_settings_not_computed_are_refused(changes: dict[str, Any], said: str, adapter: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter, tmp_path / "other", dirs_exist_ok=True)
    _edit(tmp_path / "other", **changes)
    with pytest.raises(MlxbertError, match=said):
        mlxbert.load(tmp_path / "other")


@together(
    "change",
    [
        lambda tensors: tensors | {PLACE: mx.zeros((4, 31))},
        lambda tensors: tensors | {PLACE: mx.zeros((5, 32))},
        lambda tensors: tensors | {PLACE: mx.zeros((0, 32))},
        lambda tensors: tensors | {PLACE: mx.zeros((4, 32), dtype=mx.int32)},
        lambda tensors: tensors | {PLACE.replace("layer.0", "layer.7"): mx.zeros((4, 32))},
        lambda tensors: tensors | {"base_model.model.bert.embeddings.lora_embedding_A": mx.zeros((4, 32))},
        lambda tensors: tensors | {"base_model.model.classifier.weight": mx.zeros((2, 31))},
        lambda tensors: {name: array for name, array in tensors.items() if name != PLACE},
        lambda tensors: tensors | {PLACE.replace("lora_A.weight", "lora_magnitude_vector"): mx.ones(32)},
    ],
)
def test_tensors_that_do_not_fit_the_base_are_refused(adapter: Path, tmp_path: Path, change: Any) -> None:
    shutil.copytree(adapter, tmp_path / "other", dirs_exist_ok=True)
    mx.save_safetensors(str(tmp_path / "other/adapter_model.safetensors"), change(_tensors(adapter)))
    with pytest.raises((CheckpointError, ConfigError)):
        mlxbert.load(tmp_path / "other")


def test_other_adapters_and_damaged_or_missing_weights_are_refused(adapter: Path, tmp_path: Path, base: Path) -> None:
    with pytest.raises(ConfigError, match="base_model_name_or_path"):
        mlxbert.load("builtin", adapter=adapter)
    shutil.copytree(adapter, tmp_path / "adapter")
    _edit(tmp_path / "adapter", base_model_name_or_path=None)
    with pytest.raises(CheckpointError, match=r"in the base model has shape|no place"):
        mlxbert.load("builtin", adapter=tmp_path / "adapter")
    shutil.copytree(adapter, tmp_path / "other")
    path = tmp_path / "other/adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        mlxbert.load(tmp_path / "other")
    path.unlink()
    with pytest.raises(CheckpointError, match=r"no adapter_model\.safetensors"):
        mlxbert.load(tmp_path / "other")
    with pytest.raises(ArgumentError, match="is an adapter"):
        list(_run(adapter, tmp_path / "out"))
    with pytest.raises(ArgumentError, match="is an adapter"):
        mlxbert.load(adapter, adapter=adapter)
    with pytest.raises(ConfigError, match=r"no adapter_config\.json"):
        mlxbert.load(base, adapter=base)


def test_the_command_line_takes_adapters(base: Path, adapter: Path, tmp_path: Path) -> None:
    for where in (["--model", str(adapter)], ["--model", str(base), "--adapter", str(adapter)]):
        result = call("classify", "the cat sat on mat", *where, "--json")
        assert result.status == 0 and json.loads(result.out)["labels"][0]["label"] == "animal"
    result = call("convert", str(base), str(tmp_path / "merged"), "--adapter", str(adapter))
    assert result.status == 0 and (tmp_path / "merged/model.safetensors").is_file()
    result = call("classify", "the cat", "--model", str(base), "--adapter", str(base))
    assert result.status != 0 and "adapter_config.json" in result.err


PATHS = [("encoder.layers.0.attention.query",), ("encoder.layers.1.feed_forward.down",)]
FUSED = [("encoder.layers.0.attention.query", "encoder.layers.0.attention.value")]


def _network(groups: Any = PATHS, *, seed: int = 0, **settings: Any) -> tuple[Any, set[str]]:
    network = random_network(tiny_config())
    return network, adapt(network, groups, LoraSettings(**{"rank": 4, "alpha": 8} | settings), seed)


def _hidden(network: Any) -> mx.array:
    found: mx.array = network(mx.array([[2, 9, 12, 3], [2, 7, 30, 3]])).last_hidden_state
    return found


def _set(network: Any, names: set[str], ends: str) -> None:
    mx.random.seed(1)
    found = [(name, mx.random.normal(parameters(network)[name].shape) * 0.3) for name in sorted(names)]
    network.load_weights([(name, array) for name, array in found if name.endswith(ends)], strict=False)


@together("dora", [False, True])
def test_a_new_adapter_changes_nothing(dora: bool) -> None:
    network, names = _network(dora=dora)
    assert mx.allclose(_hidden(network), _hidden(random_network(tiny_config())), atol=1e-5).item()
    own = {"lora_a", "lora_b", "magnitude"} if dora else {"lora_a", "lora_b"}
    assert names == {f"{path}.{name}" for (path,) in PATHS for name in own}
    bound = 1 / 24**0.5
    drawn = parameters(network)["encoder.layers.0.attention.query.lora_a"]
    assert 0.8 * bound < mx.abs(drawn).max().item() <= bound and drawn.shape == (4, 24)  # type: ignore[operator]


def test_first_values_depend_on_the_seed_and_the_place_alone() -> None:
    name = "encoder.layers.1.feed_forward.down.lora_a"
    first, again, other = (
        parameters(_network(groups, seed=seed)[0])[name] for groups, seed in ((PATHS, 0), (PATHS[1:], 0), (PATHS, 1))
    )
    assert mx.array_equal(first, again).item() and not mx.array_equal(first, other).item()


@together("settings", [{}, {"dora": True}, {"rslora": True, "alpha": 3}])
def test_an_adapted_layer_computes_with_the_merged_matrix(settings: dict[str, Any]) -> None:
    network, names = _network(**settings)
    _set(network, names, "lora_b")
    found, arrays = _hidden(network), parameters(network)
    scale = 3 / 4**0.5 if "rslora" in settings else 8 / 4
    plain = random_network(tiny_config())
    for (path,) in PATHS:
        update = scale * (arrays[f"{path}.lora_b"] @ arrays[f"{path}.lora_a"])
        whole = merged(arrays[f"{path}.weight"], update, arrays.get(f"{path}.magnitude"))
        plain.load_weights([(f"{path}.weight", whole)], strict=False)
    assert mx.allclose(found, _hidden(plain), atol=1e-5).item()


def test_layers_of_a_group_share_a() -> None:
    network, names = _network(FUSED)
    assert names == {f"{FUSED[0][0]}.lora_a", f"{FUSED[0][0]}.lora_b", f"{FUSED[0][1]}.lora_b"}
    _set(network, names, "lora_b")
    before = network.encoder.layers[0].attention.value(mx.ones((1, 24)))
    _set(network, names, "lora_a")
    assert not mx.allclose(before, network.encoder.layers[0].attention.value(mx.ones((1, 24)))).item()


@together("dora", [False, True])
def test_a_quantized_layer_computes_as_the_expanded_one(dora: bool) -> None:
    mx.random.seed(0)
    plain = nn.Linear(64, 8)
    packed = nn.QuantizedLinear.from_linear(plain, 32, 4)
    plain.weight = mx.dequantize(packed.weight, packed.scales, packed.biases, group_size=32, bits=4)
    outputs = []
    for layer in (plain, packed):
        holder = nn.Module()
        holder.query = layer
        holder.eval()
        names = adapt(holder, [("query",)], LoraSettings(rank=2, alpha=4, dora=dora))
        _set(holder, names, "lora_b")
        outputs.append(holder.query(mx.arange(64, dtype=mx.float32)[None] / 64))
    assert mx.allclose(outputs[0], outputs[1], atol=1e-4).item()


@together("dora", [False, True])
def test_dropout_of_adapters_drops_in_training_alone(dora: bool) -> None:
    network, names = _network(dora=dora, dropout=0.5)
    _set(network, names, "lora_b")
    assert mx.array_equal(_hidden(network), _hidden(network)).item()
    layer = network.encoder.layers[0].attention.query
    network.train()
    assert not mx.array_equal(layer(mx.ones((1, 24))), layer(mx.ones((1, 24)))).item()


@together("dora", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(dora: bool) -> None:
    network, names = _network([*FUSED, *PATHS[1:]], dora=dora)
    _set(network, names, "lora_b")
    network.train()
    arrays = {name: array for name, array in parameters(network).items() if name in names}

    def loss(parameters: dict[str, mx.array]) -> mx.array:
        network.load_weights(list(parameters.items()), strict=False)
        return mx.square(_hidden(network)).sum()

    found = []
    for network.encoder.checkpointing in (False, True):
        found.append(mx.grad(loss)(dict(arrays)))
        mx.eval(found[-1])
    assert all(mx.allclose(found[0][name], found[1][name], atol=1e-5).item() for name in names)
    assert all(mx.abs(array).max().item() > 0 for array in found[0].values())  # type: ignore[operator]
