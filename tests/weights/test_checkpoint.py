"""Model folders as they are found: spellings, parts, shards, dtypes; what does not fit is refused by name."""

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import CheckpointError, ConfigError
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import Network
from mlxbert.weights import build
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.formats import quantized
from tests.helpers.cases import together
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config, to_theirs
from tests.helpers.torch_files import saved

NETWORK = random_network(tiny_config())
TENSORS = tensors_of(NETWORK)
WORDS = "bert.embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder"
Arrays = dict[str, mx.array]


def load(folder: Path, dtype: mx.Dtype = mx.float32) -> Network:
    checkpoint = open_checkpoint(folder)
    return build_network(checkpoint, checkpoint.parts, dtype)


def arrays_of(network: Network) -> Arrays:
    return dict(nn.utils.tree_flatten(network.parameters()))


def assert_same(found: Mapping[str, mx.array], wanted: Mapping[str, mx.array]) -> None:
    """The same names, and exactly the same numbers in the same dtype."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and mx.array_equal(found[name], array).item(), name


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_weights_in_another_dtype_take_little_more_memory_while_they_are_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_GROUP", 2**17, raising=False)
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}
    facts = tiny_config(**sizes, embedding_size=128, layer_schedule=tuple(range(8)))
    tensors = tensors_of(random_network(facts, ()))
    save(tmp_path, tensors, {**CONFIG, **sizes, "num_hidden_layers": 8})
    if kind == "torch":
        (tmp_path / "model.safetensors").unlink()
        (tmp_path / "pytorch_model.bin").write_bytes(saved(tensors))
    del tensors
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    weights = sum(array.nbytes for array in arrays_of(load(tmp_path, mx.float16)).values())
    assert weights > 3_000_000 and mx.get_peak_memory() - before < 1.3 * weights


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def shards(folder: Path, *, both: bool = False, words: str | None = None, index: str | None = None) -> Path:
    """A folder of two files and their index; both have the words, or these are said to be in another file."""
    save(folder, {})
    (folder / "model.safetensors").unlink()
    weight_map = {name: (FIRST, SECOND)[number % 2] for number, name in enumerate(TENSORS)}
    for file in (FIRST, SECOND):
        tensors = {name: TENSORS[name] for name in TENSORS if weight_map[name] == file or (both and name == WORDS)}
        mx.save_safetensors(str(folder / file), tensors, {"format": "pt"})
    weight_map[WORDS] = words or weight_map[WORDS]
    index = index or json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return folder


@pytest.mark.parametrize("spelling", ["prefix", "bare", "old", "old and bare"])
def test_every_spelling_of_the_names_loads_the_same_weights(tmp_path: Path, spelling: str) -> None:
    tensors = TENSORS
    if "old" in spelling:  # as in the first checkpoints
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        tensors = {functools.reduce(lambda n, one: n.replace(*one), old.items(), n): tensors[n] for n in tensors}
    if "bare" in spelling:
        tensors = {name.removeprefix("bert."): array for name, array in tensors.items()}
    save(tmp_path, tensors)
    assert_same(arrays_of(load(tmp_path)), arrays_of(NETWORK))
    assert open_checkpoint(tmp_path).parts == ("pooler", "masked_lm", "next_sentence")


@pytest.mark.parametrize(
    ("left_out", "parts"),
    [
        (("bert.pooler", "cls."), ()),
        (("bert.pooler", "cls.seq_relationship"), ("masked_lm",)),
        (("cls.seq_relationship",), ("pooler", "masked_lm")),
        (("cls.predictions",), ("pooler", "next_sentence")),
    ],
)
def test_parts_that_are_not_there_are_not_built(
    tmp_path: Path, left_out: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    tensors = {name: array for name, array in TENSORS.items() if not name.startswith(left_out)}
    checkpoint, network = open_checkpoint(save(tmp_path, tensors)), load(tmp_path)
    assert checkpoint.parts == parts and checkpoint.config.pooler == ("pooler" in parts)
    assert tuple(network.heads) == tuple(part for part in parts if part != "pooler")
    wanted, found = arrays_of(NETWORK), arrays_of(network)
    assert ("encoder.pooler.dense.weight" in found) == ("pooler" in parts)
    assert_same(found, {name: wanted[name] for name in found})
    prefix = "" if network.heads else "bert."
    assert {prefix + name for name in to_theirs(checkpoint.family, checkpoint.config, found)} <= tensors.keys()


def test_buffers_and_heads_of_other_tasks_are_listed_as_not_used(tmp_path: Path) -> None:
    extra = {
        "bert.embeddings.position_ids": mx.arange(32)[None],
        "classifier.weight": mx.ones((3, 24)),
        "classifier.bias": mx.ones(3),
    }
    checkpoint = open_checkpoint(save(tmp_path, TENSORS | extra))
    assert sorted(checkpoint.names[name] for name in checkpoint.ignored) == sorted(extra)
    assert_same(arrays_of(load(tmp_path)), arrays_of(NETWORK))


@pytest.mark.parametrize(("copy", "original"), [("weight", WORDS), ("bias", "cls.predictions.bias")])
def test_a_decoder_that_differs_is_run(tmp_path: Path, copy: str, original: str) -> None:
    """Next to transformers in tests/nn/test_parity_live.py."""
    changed = TENSORS[original] + 0
    changed[-1] += 1
    save(tmp_path, TENSORS | {f"{DECODER}.{copy}": changed})
    head: Any = mlxbert.load(tmp_path, task="fill-mask", dtype="float32").network.heads["masked_lm"]
    assert mx.array_equal(head.decoder.weight if copy == "weight" else head.bias, changed).item()


def test_shards_load_as_one_file_does(tmp_path: Path) -> None:
    assert_same(arrays_of(load(shards(tmp_path))), arrays_of(NETWORK))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({"words": name}, "shard") for name in ("../x", "/x.safetensors", "inner/x.safetensors", ".", "..")),
        ({"words": "missing.safetensors"}, "'missing.safetensors'"),
        ({"both": True}, f"{WORDS}' is also in "),
        *(
            ({"index": content}, r"model\.safetensors\.index\.json")
            for content in ('{"weight_map": {}}', '{"weight_map": []}', "{}", "[]", "{")
        ),
    ],
)
def test_shards_that_do_not_fit_their_index_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    mx.save_safetensors(str(tmp_path / "x.safetensors"), {WORDS: TENSORS[WORDS]})
    (tmp_path / "x.safetensors").rename(tmp_path / "x")
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(shards(tmp_path / "model", **changes))


@together("computed", [mx.float32, mx.float16, mx.bfloat16])
@together("stored", [mx.float32, mx.float16, mx.bfloat16])
def test_every_dtype_loads_as_every_other(tmp_path: Path, stored: mx.Dtype, computed: mx.Dtype) -> None:
    save(tmp_path, {name: array.astype(stored) for name, array in TENSORS.items()})
    wanted = {name: array.astype(stored).astype(computed) for name, array in arrays_of(NETWORK).items()}
    assert_same(arrays_of(load(tmp_path, computed)), wanted)


# By what is the matter: tensors that are changed, added or (None) left out, keys of config.json, and what is said.
REFUSED: dict[str, tuple[dict[str, mx.array | None], dict[str, Any], str]] = {
    "two spellings": ({WORDS.removeprefix("bert."): TENSORS[WORDS]}, {}, f"{WORDS}.* two names of the same tensor"),
    **{
        str(dtype): ({"bert.pooler.dense.bias": mx.zeros(24, dtype)}, {}, r"'bert\.pooler\.dense\.bias' has dtype")
        for dtype in (mx.int64, mx.int8, mx.uint8, mx.bool_)
    },
    **{
        f"without {name}": ({name: None}, {}, rf"'{name.removeprefix('bert.')}' is missing")
        for name in sorted(TENSORS)[:: max(1, len(TENSORS) // 12)]
    },
    **{
        f"with {name}": ({name: mx.zeros(24)}, {}, f"tensor '{name}'")
        for name in (
            "bert.encoder.layer.0.attention.self.distance_embedding.weight",
            *("bert.encoder.layer.2.output.dense.weight", "bert.embeddings.word_embeddings.bias"),
            *("cls.predictions.weight", "bert.embeddings.LayerNorm.running_mean", "module.bert.pooler.dense.weight"),
        )
    },
    **{
        f"another shape of {name}": ({name: mx.zeros((*shape[:-1], 7))}, {}, rf"'{name}' .*7.*{re.escape(str(shape))}")
        for name in (WORDS, "bert.pooler.dense.weight", "cls.predictions.bias")
        for shape in (TENSORS[name].shape,)
    },
    "a layer too few": ({}, {"num_hidden_layers": 1}, r"tensor 'bert\.encoder\.layer\.1\..*with 1 layers"),
    "a layer too many": ({}, {"num_hidden_layers": 3}, r"'encoder\.layer\.2\..*is missing"),
    **{
        f"{key} of 3 * 2**{power}": ({}, {key: 3 * 2**power}, "shape" if power == 20 else f"shape|{key}")
        for key in ("hidden_size", "vocab_size", "intermediate_size", "max_position_embeddings")
        for power in (20, 40)
    },
}


@together("matter", REFUSED)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, matter: str) -> None:
    changed, config, message = REFUSED[matter]
    tensors = {name: array for name, array in {**TENSORS, **changed}.items() if array is not None}
    with pytest.raises((CheckpointError, ConfigError), match=message):
        load(save(tmp_path, tensors, CONFIG | config))


def test_more_layers_than_tensors_are_refused_before_a_network_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path, config=CONFIG | {"num_hidden_layers": 1000})
    monkeypatch.setattr("mlxbert.weights.checkpoint.Network", lambda *_: pytest.fail("made"))
    with pytest.raises(CheckpointError, match=r"1000 layers.*config\.json") as caught:
        open_checkpoint(folder)
    assert caught.value.message.startswith(f"{tmp_path}: ")


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("tf_model.h5", r"tf_model\.h5 is a Keras file, which mlxbert does not read", "from_tf"),
        ("flax_model.msgpack", r"flax_model\.msgpack is a Flax file, which mlxbert does not read", "from_flax"),
        ("notes.txt", r"the folder has no weights, expected model\.safetensors", ""),
    ],
)
def test_a_folder_without_weights_that_are_read_is_refused(tmp_path: Path, name: str, message: str, hint: str) -> None:
    (save(tmp_path) / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(tmp_path)
    assert hint in (caught.value.hint or "")


def _packed(folder: Path, tensors: Mapping[str, mx.array], storage: str = quantized.STORAGE) -> Path:
    save(folder, {})
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tensors), {quantized.STORAGE_KEY: storage})
    return folder


def test_eight_bits_are_right_to_half_a_step(tmp_path: Path) -> None:
    wide = TENSORS | {WORDS: TENSORS[WORDS].at[0].multiply(0.0).at[1].multiply(1e4)}
    checkpoint = open_checkpoint(_packed(tmp_path, quantized.pack(wide)))
    assert isinstance(checkpoint.storage, quantized.Int8Rows) and len(checkpoint.names) == len(TENSORS)
    found = to_theirs(checkpoint.family, checkpoint.config, arrays_of(load(tmp_path)))
    for name, array in wide.items():
        step = mx.abs(array).max(axis=-1, keepdims=True) / 127 if array.ndim == 2 else mx.abs(array) * 2**-10
        assert mx.all(mx.abs(found[name] - array) <= step * (0.5 + 1e-4)).item(), name


NORM = "bert.embeddings.LayerNorm.weight"


@together(
    ("changed", "message"),
    [
        ({f"{WORDS}_scale": None}, f"'{WORDS}' are missing"),
        ({f"{WORDS}_scale": mx.ones((2,))}, f"'{WORDS}' are F32 \\(2,\\)"),
        ({f"{WORDS}_scale": mx.ones(TENSORS[WORDS].shape[:1], mx.uint8)}, f"'{WORDS}' are U8"),
        ({NORM: mx.ones((12,), mx.int8), f"{NORM}_scale": mx.ones((12,))}, f"'{NORM}' has shape .* a matrix"),
        ({NORM: mx.array(1, mx.int8), f"{NORM}_scale": mx.array(1.0)}, f"'{NORM}' has shape .* a matrix"),
        ({f"{NORM}_scale": mx.ones((12,))}, f"tensor '{NORM}_scale'"),
        ({}, "stored as 'int3'"),
    ],
)
def test_eight_bits_without_fitting_scales_are_refused(
    tmp_path: Path, changed: Mapping[str, mx.array | None], message: str
) -> None:
    packed: dict[str, mx.array | None] = {**quantized.pack(TENSORS), **changed}
    tensors = {name: array for name, array in packed.items() if array is not None}
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(_packed(tmp_path, tensors, quantized.STORAGE if changed else "int3"))


def test_a_decoder_that_is_said_not_to_be_tied_must_be_there(tmp_path: Path) -> None:
    config = {**CONFIG, "tie_word_embeddings": False}
    with pytest.raises(CheckpointError, match=r"decoder\.weight' is missing.*tie_word_embeddings is false"):
        load(save(tmp_path / "without", TENSORS, config))
    same = {**TENSORS, f"{DECODER}.weight": TENSORS[WORDS]}
    assert "masked_lm" in load(save(tmp_path / "same", same, config)).heads
