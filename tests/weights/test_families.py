"""Configurations: what families say in their several dialects, which part of a checkpoint is which, what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.config import (
    Absolute,
    Alibi,
    Biases,
    Dropout,
    EncoderConfig,
    HeadFacts,
    PostNorm,
    PreNorm,
    Rotary,
    Rotation,
    Transform,
)
from mlxbert.errors import ArgumentError, CheckpointError, ConfigError
from mlxbert.goldens.golden_outputs import load_network, outputs
from mlxbert.labels.labels import Labels
from mlxbert.machine import device
from mlxbert.machine.device import mx
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.heads import masked_lm, sequence_classifier
from mlxbert.nn.positions import Context
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.families.registry import FAMILIES, family_of
from mlxbert.weights.formats import config_json
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.sentence_transformers import read_embedder
from tests.helpers.cases import together
from tests.helpers.families import FROZEN, walked_slowly
from tests.helpers.frozen import (
    add_vocabulary,
    change_config,
    frozen_outputs,
    read_config,
    tensors_in,
    write_config,
    write_model,
    write_tensors,
)
from tests.helpers.parity import assert_equal
from tests.helpers.rooms import needs
from tests.helpers.st_folder import write_json
from tests.helpers.tiny import CONFIG, save, tiny_config, tiny_tensors

PATH = Path("some/model/config.json")


def parse(values: dict[str, Any]) -> EncoderConfig:
    config = ConfigJson(PATH, values)
    return family_of(config)[1].read_config(config)


def config_of(family: str, folder: Path) -> dict[str, Any]:
    return read_config(write_model(family, "Model", folder))


def without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def renamed(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    assert names.keys() <= values.keys()
    return {names.get(key, key): value for key, value in values.items()}


@together("every", [1, 2, 3, 4])
def test_both_dialects_of_modernbert_say_the_same(every: int, tmp_path: Path) -> None:
    kinds = ["sliding_attention" if layer % every else "full_attention" for layer in range(5)]
    rope = {"full_attention": {"rope_theta": 300.0}, "sliding_attention": {"rope_theta": 20.0}}
    new = config_of("modernbert", tmp_path) | {"layer_types": kinds, "rope_parameters": rope}
    old = without(new, "layer_types", "rope_parameters")
    old |= {"global_attn_every_n_layers": every, "global_rope_theta": 300.0, "local_rope_theta": 20.0}
    near, far = Rotation(20.0, window=4), Rotation(300.0)
    assert parse(old) == parse(new)
    assert parse(new).positions == Rotary(27, tuple(near if layer % every else far for layer in range(5)))


def test_what_modernbert_leaves_out_is_what_its_authors_chose(tmp_path: Path) -> None:
    keys = ("layer_types", "rope_parameters", "local_attention", "norm_eps", "decoder_bias", "classifier_activation")
    found = parse(without(config_of("modernbert", tmp_path), *keys))
    far, near = Rotation(160_000.0), Rotation(10_000.0, window=64)
    assert found.positions == Rotary(27, (far, near, near, far, near))
    assert found.layer_norm_eps == 1e-5
    assert found.heads["masked_lm"] == masked_lm.MaskedLMFacts(Transform("gelu", norm=True, bias=False), bias=True)


NOMIC = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions", "layer_norm_eps": "layer_norm_epsilon",
    "hidden_dropout_prob": "resid_pdrop", "attention_probs_dropout_prob": "attn_pdrop",
}  # fmt: skip


def nomic_of_its_authors(values: dict[str, Any]) -> dict[str, Any]:
    """The configuration as the authors' own files have it."""
    return renamed(without(values, "hidden_act", "rope_parameters", "head_dim"), NOMIC) | {
        "activation_function": "swiglu", "rotary_emb_base": 50, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "prenorm": False, "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
    }  # fmt: skip


def test_both_dialects_of_nomic_say_the_same_but_for_biases_of_a_head(tmp_path: Path) -> None:
    changes = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.5}
    new = config_of("nomic", tmp_path) | changes
    own, wanted = nomic_of_its_authors(new), parse(new)
    assert wanted.heads["masked_lm"] == masked_lm.MaskedLMFacts(Transform("silu", norm=True))
    bare = masked_lm.MaskedLMFacts(Transform("silu", norm=True, bias=False), bias=False)
    assert parse(own) == replace(wanted, heads={**wanted.heads, "masked_lm": bare})
    assert parse(own).positions == Rotary(27, (Rotation(50.0),) * 3)
    assert parse(without(new, "rope_parameters")).positions == Rotary(27, (Rotation(1000.0),) * 3)
    for key in ("rotary_emb_base", "rotary_emb_fraction"):
        with pytest.raises(ConfigError, match=f"{key} is missing"):
            parse(without(own, key))
    assert parse(own | {"activation_function": "geglu"}).hidden_act == "gelu"


def test_a_model_of_nomics_authors_is_that_of_transformers_with_biases_of_zero(tmp_path: Path) -> None:
    folder = write_model("nomic", "ForMaskedLM", tmp_path)
    tensors, case = tensors_in(folder), FROZEN["nomic"].cases["padding"]
    head = [f"cls.predictions.{name}" for name in ("bias", "transform.dense.bias")]
    zeros = {name: mx.zeros_like(tensors[name]) for name in head}
    wanted = outputs(load_network(write_tensors(folder, tensors | zeros)), case)
    own = {name.replace("nomic_bert.", "bert.", 1): array for name, array in tensors.items() if name not in head}
    assert len(own) == len(tensors) - 2 and any(name.startswith("bert.") for name in own)
    copy = {"cls.predictions.decoder.weight": own["bert.embeddings.word_embeddings.weight"]}
    write_tensors(write_config(folder, nomic_of_its_authors(read_config(folder))), own | copy)
    found = outputs(load_network(folder), case)
    assert found.keys() == wanted.keys() and "masked_lm" in found
    assert all(np.abs(found[name] - array).max() < 1e-5 for name, array in wanted.items())


DISTILBERT = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size", "activation": "hidden_act", "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}  # fmt: skip


def test_both_dialects_of_distilbert_say_the_same(tmp_path: Path) -> None:
    own = config_of("distilbert", tmp_path) | {"dropout": 0.25, "attention_dropout": 0.5}
    other = renamed(own, DISTILBERT)
    assert parse(own) == parse(other) and parse(own).dropout.feed_forward == 0.25
    # An error tells the name that the file has.
    for values, name in ((own | {"dim": "x"}, "dim"), (other | {"hidden_size": "x"}, "hidden_size")):
        with pytest.raises(ConfigError, match=f"config.json: {name} is 'x'"):
            parse(values)
    assert parse(own | {"layer_norm_eps": 0.1}).layer_norm_eps == 1e-12


def test_both_dialects_of_deberta_say_the_same(tmp_path: Path) -> None:
    values = config_of("deberta-v3", tmp_path)
    for kinds in (["c2p", "p2c"], ["p2c", "c2p"], "c2p|p2c", "P2C | C2P"):
        assert parse(values | {"pos_att_type": kinds}) == parse(values)
    assert parse(values | {"pos_att_type": []}) == parse(values | {"pos_att_type": ""}) != parse(values)


@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_the_scaled_rotation_of_gte_is_that_of_its_authors(factor: float, tmp_path: Path) -> None:
    """The base is s times as large, base', and every speed base'^(-2i/d) divided by s^(2/d)."""
    folder, case = write_model("gte", "ForMaskedLM", tmp_path), FROZEN["gte"].cases["padding"]
    tensors = {name.replace("gte.", "new.", 1): array for name, array in tensors_in(folder).items()}
    plain = outputs(load_network(folder), case)["hidden 3"]
    values = without(read_config(folder), "rope_parameters") | {"model_type": "new", "rope_theta": 50.0}
    write_tensors(write_config(folder, values), tensors)
    assert np.array_equal(outputs(load_network(folder), case)["hidden 3"], plain)
    network = load_network(change_config(folder, rope_scaling={"type": "ntk", "factor": factor}))
    (rotated,) = network.encoder.positions(Context(None), 27, mx.float32).rotated.values()
    size, found = 10, np.array(rotated.cosines)
    for number in range(size // 2):
        speed = (50.0 * factor) ** (-2 * number / size) / factor ** (2 / size)
        assert np.allclose(found[:, number], [math.cos(place * speed) for place in range(27)], atol=2e-5)
    assert (np.abs(outputs(network, case)["hidden 3"] - plain).max() > 1e-3) == (factor > 1)


def test_labels(tmp_path: Path) -> None:
    values = without(config_of("roberta", tmp_path), "id2label", "label2id")
    assert parse(values).labels == Labels()
    assert parse(values | {"num_labels": 3}).labels == Labels(("LABEL_0", "LABEL_1", "LABEL_2"))
    many = {str(number): f"L{number}" for number in range(11)}
    assert parse(values | {"id2label": dict(reversed(many.items()))}).labels == Labels(tuple(many.values()))
    assert parse(values | {"problem_type": "regression"}).labels == Labels(problem_type="regression")
    assert parse(values | {"problem_type": None}).labels == Labels()


# Families whose classifiers of texts and of tokens share names, and what else the files of the former hold.
ALIKE = (
    *("bert", "distilbert", "albert", "nomic", "gte", "modernbert", "deberta-v3", "roberta", "electra", "mpnet"),
    "jina-v2",
)
SEQUENCE, TOKENS = "sequence_classifier", "token_classifier"


@pytest.mark.parametrize("family", ALIKE)
@pytest.mark.parametrize(
    ("head", "part"), [("ForSequenceClassification", SEQUENCE), ("ForTokenClassification", TOKENS)]
)
def test_the_class_tells_which_classifier_it_is(family: str, head: str, part: str, tmp_path: Path) -> None:
    folder = write_model(family, head, tmp_path)
    assert {SEQUENCE, TOKENS} & set(open_checkpoint(folder).parts) == {part}
    own = [name for name in tensors_in(folder) if name.startswith("classifier.")]
    for classes in (None, ["OtherForImageGeneration"]):
        checkpoint = open_checkpoint(change_config(folder, architectures=classes))
        unsure = {SEQUENCE, TOKENS} & set(checkpoint.parts)
        # Where no tensor stands out, none is guessed.
        if family in ("bert", "albert", "nomic", "gte", "modernbert", "jina-v2"):
            assert not unsure and set(own) <= {checkpoint.names[name] for name in checkpoint.ignored}
        else:
            # What a classifier of tokens has is part of that of texts, unless that has two layers of one beginning.
            stands_out = part == SEQUENCE or family in ("roberta", "electra", "mpnet")
            assert unsure == ({part} if stands_out else set())
    if part == SEQUENCE:  # one number for each choice, under the names of a classifier of texts
        choices = change_config(folder, architectures=[f"{FROZEN[family].classes}ForMultipleChoice"])
        assert not {SEQUENCE, TOKENS} & set(open_checkpoint(choices).parts) and not load_network(choices).heads


def test_a_classifier_of_texts_without_its_pooler_is_refused(tmp_path: Path) -> None:
    folder = write_model("bert", "ForSequenceClassification", tmp_path)
    tensors = {name: array for name, array in tensors_in(folder).items() if "pooler" not in name}
    checkpoint = open_checkpoint(write_tensors(folder, tensors))
    with pytest.raises(CheckpointError, match="sequence_classifier needs the pooler"):
        build_network(checkpoint, checkpoint.parts, mx.float32)


def test_the_longest_input_of_nomic_is_the_least_that_its_file_tells(tmp_path: Path) -> None:
    own = nomic_of_its_authors(config_of("nomic", tmp_path)) | {"n_positions": 8192}
    for key, value, longest in (
        ("n_positions", 8192, 8192), ("max_trained_positions", 2048, 2048), ("max_position_embeddings", 512, 512),
        ("rotary_scaling_factor", 2.0, 2048),
    ):  # fmt: skip
        assert parse(own | {key: value}).max_length == longest


def test_a_family_is_asked_only_where_model_type_does_not_say_it() -> None:
    alike = {"position_embedding_type": "alibi", "auto_map": {"AutoConfig": "a--b.XLMRobertaFlashConfig"}}
    titles = {name: family_of(ConfigJson(PATH, {"model_type": name, **alike}))[1].title for name in FAMILIES}
    others = {name: title for name, title in titles.items() if title != FAMILIES[name].title}
    assert others == {"bert": "JinaBERT", "xlm-roberta": "Jina's XLM-RoBERTa"}
    for unknown in ({}, {"model_type": "xlm-roberta-flash"}):
        assert family_of(ConfigJson(PATH, {**unknown, **alike}))[0] == "jina_embeddings_v3"


def test_null_is_a_key_that_is_not_there(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("pad_token_id", "layer_norm_eps", "type_vocab_size", "hidden_act"))
    assert parse(CONFIG | nothing) == parse({key: CONFIG[key] for key in CONFIG if key not in nothing})
    own = nomic_of_its_authors(config_of("nomic", tmp_path))
    assert parse(own | {"n_inner": None}).intermediate_size == 256
    with pytest.raises(ConfigError, match="model_type is missing") as caught:
        parse({})
    assert caught.value.hint is not None and '"model_type": "bert"' in caught.value.hint


@pytest.mark.parametrize("labels", [["A"], {"0": 5}, {"1": "A"}, {}])
def test_bad_labels_stop_classifiers_only(labels: Any, tmp_path: Path) -> None:
    config = CONFIG | {"id2label": labels}
    assert "masked_lm" in mlxbert.load(save(tmp_path, config=config)).network.heads
    more = {"classifier.weight": mx.ones((2, 24)), "classifier.bias": mx.ones(2)}
    save(tmp_path, {**tiny_tensors(), **more}, config | {"architectures": ["BertForSequenceClassification"]})
    with pytest.raises(CheckpointError, match="id2label") as caught:
        mlxbert.load(tmp_path)
    assert caught.value.hint is not None and "task='fill-mask'" in caught.value.hint
    assert "id2label" in str(mlxbert.inspect(tmp_path).parts["sequence_classifier"].problem)


def test_a_tied_copy_of_another_shape_is_told_by_inspect(tmp_path: Path) -> None:
    save(tmp_path, {**tiny_tensors(), "cls.predictions.decoder.weight": mx.ones((3, 24))})
    assert "differs from" in str(mlxbert.inspect(tmp_path).parts["masked_lm"].problem)


def test_unknown_tensors_come_with_what_may_be_the_matter(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    for found, said in (
        ({f"module.{name}": array for name, array in tensors.items()}, "without the prefix 'module.'"),
        ({**tensors, "other.weight": mx.ones(3)}, "a head that mlxbert does not know"),
        ({**tensors, "bert.encoder.layer.7.output.dense.bias": mx.ones(3)}, "may belong to another model"),
    ):
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(save(tmp_path, found))
        assert caught.value.hint is not None and said in caught.value.hint
    with pytest.raises(ConfigError, match="quantization_config"):
        open_checkpoint(save(tmp_path, config=CONFIG | {"quantization_config": {"bits": 4}}))


# As it was published.
NEOBERT: dict[str, Any] = {
    "architectures": ["NeoBERTLMHead"],
    "auto_map": {"AutoConfig": "model.NeoBERTConfig", "AutoModel": "model.NeoBERT"},
    "classifier_init_range": 0.02, "decoder_init_range": 0.02, "dim_head": 64, "embedding_init_range": 0.02,
    "hidden_size": 768, "intermediate_size": 3072,
    "kwargs": {"classifier_init_range": 0.02, "pretrained_model_name_or_path": "google-bert/bert-base-uncased"},
    "max_length": 4096, "model_type": "neobert", "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 28,
    "pad_token_id": 0, "torch_dtype": "float32", "trust_remote_code": True, "vocab_size": 30522,
}  # fmt: skip


def test_neobert_as_it_was_published() -> None:
    found = parse(NEOBERT)
    assert (found.intermediate_size, found.hidden_act, found.layer_norm_eps) == (2048, "silu", 1e-5)
    assert found.positions == Rotary(4096, (Rotation(10_000.0),) * 28)
    assert (found.block, found.norm, found.embedding_norm, found.type_vocab_size) == (PreNorm(), "rms", False, 0)
    assert found.heads["masked_lm"] == masked_lm.MaskedLMFacts(None, bias=True, tied=False)
    assert parse(without(NEOBERT, "norm_eps", "max_length") | {"hidden_act": "swiglu"}).layer_norm_eps == 1e-6
    for given, real in ((3, 8), (12, 8), (13, 8), (15, 16), (41, 32), (3072, 2048), (4096, 2736)):
        assert parse(NEOBERT | {"intermediate_size": given}).intermediate_size == real


def test_other_models_that_call_themselves_neobert_are_refused(tmp_path: Path) -> None:
    folder = write_model("neobert", "ForMaskedLM", tmp_path)
    tensors, layer = tensors_in(folder), "model.transformer_encoder.0.ffn"
    gate, value = mx.split(tensors[f"{layer}.w12.weight"], 2)
    for changed, said in (
        ({f"{layer}.w1.weight": gate, f"{layer}.w2.weight": value}, "tensor .*w1"),
        ({f"{layer}.in_proj.weight": gate}, "tensor .*in_proj"),
        ({"model.position_embeddings.weight": gate}, "tensor .*position_embeddings"),
        ({"model.transformer_encoder.0.attention_norm.bias": mx.zeros(30)}, "tensor .*norm.bias"),
        ({"decoder.weight": None}, r"'decoder\.weight' is missing"),
        ({"decoder.bias": None}, r"'decoder\.bias' is missing"),
        ({f"{layer}.w12.weight": mx.zeros((82, 30))}, r"\(41, 30\).*\(32, 30\)"),  # as wide as the file states
        ({"model.transformer_encoder.0.qkv.weight": mx.zeros((50, 30))}, "qkv.*splits"),
    ):
        with pytest.raises(CheckpointError, match=said):
            some = {name: array for name, array in (tensors | changed).items() if array is not None}
            load_network(write_tensors(folder, some))


def test_halves_of_our_heads_are_the_pairs_of_neobert(tmp_path: Path) -> None:
    """What is turned together: neighbours in a head of theirs, one of each half in ours."""
    folder = write_model("neobert", "Model", tmp_path)
    fused = np.array(tensors_in(folder)["transformer_encoder.0.qkv.weight"])
    attention, x = load_network(folder).encoder.layers[0].attention, np.linspace(-1, 1, 30)
    for head in range(3):
        for number, ours in enumerate((attention.query, attention.key, attention.value)):
            theirs = fused[30 * head + 10 * number : 30 * head + 10 * number + 10]
            own = np.array(ours.weight)[10 * head : 10 * head + 10]
            if number == 2:
                assert np.array_equal(own, theirs)
            else:
                assert np.allclose(np.stack(np.split(own @ x, 2), axis=1), (theirs @ x).reshape(5, 2), atol=1e-5)


JINA: dict[str, Any] = {
    "_name_or_path": "jinaai/jina-bert-implementation", "model_max_length": 8192,
    "architectures": ["JinaBertForMaskedLM"], "attention_probs_dropout_prob": 0.0,
    "auto_map": {"AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig"},
    "classifier_dropout": None, "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 8192, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12,
    "pad_token_id": 0, "position_embedding_type": "alibi", "type_vocab_size": 2, "use_cache": True,
    "vocab_size": 30528, "feed_forward_type": "geglu", "emb_pooler": "mean",
}  # fmt: skip
_NORMED = "jinaai/jina-bert-v2-qk-post-norm"


def test_which_bert_is_one_of_jina() -> None:
    found, plain = parse(JINA), parse(JINA | {"position_embedding_type": "absolute"})
    assert (found.positions, plain.positions) == (Alibi(8192), Absolute(8192))
    assert found.gated and not plain.gated
    assert (found.block, found.query_key_norm, found.biases) == (PostNorm(), None, Biases(up=False))
    assert found.dropout == Dropout(embeddings=0.1, attention=0.0, attention_output=0.1, activation=0.1)
    assert parse(JINA | {"feed_forward_type": "reglu", "hidden_act": "silu"}).hidden_act == "relu"
    code = {"AutoModel": f"{_NORMED}--modeling_bert.JinaBertModel"}
    for names in ({"_name_or_path": _NORMED}, {"_name_or_path": "mine/finetuned", "auto_map": code}):
        normed = parse(without(JINA, "feed_forward_type") | names)
        assert (normed.block, normed.query_key_norm) == (PostNorm(adds_input_twice=True), "all")


@pytest.mark.parametrize("named", [None, "jinaai/jina-bert-implementation", _NORMED])
@pytest.mark.parametrize("family", ["jina-v2", "jina-v2, normed"])
def test_tensors_tell_the_forms_of_jina_apart_whatever_the_file_says(
    family: str, named: str | None, tmp_path: Path
) -> None:
    folder, case = write_model(family, "ForMaskedLM", tmp_path), FROZEN[family].cases["padding"]
    change_config(folder, _name_or_path=named, auto_map=None)
    assert_equal(outputs(load_network(folder), case), frozen_outputs(family, "ForMaskedLM", "padding"))
    change_config(folder, position_embedding_type="absolute")
    with pytest.raises(CheckpointError, match=r"tensor .*(mlp|layer_norm)"):
        open_checkpoint(folder)


@needs("train")
def test_layers_of_jina_are_left_out_only_where_the_file_tells_their_form(tmp_path: Path) -> None:
    from mlxbert.train.pretraining.initial_model import with_layers

    folder = add_vocabulary(write_model("jina-v2, normed", "ForMaskedLM", tmp_path))
    model = mlxbert.load(folder, dtype="float32")
    assert with_layers(model, (0, 2)).config.num_stored_layers == 2
    with pytest.raises(ArgumentError, match="_name_or_path"):
        with_layers(mlxbert.load(change_config(folder, auto_map=None), dtype="float32"), (0, 2))


def test_jinas_reranker_has_a_pooler_and_one_output(tmp_path: Path) -> None:
    folder = add_vocabulary(write_model("jina-v2", "ForSequenceClassification", tmp_path))
    tensors = tensors_in(folder)
    one = {name: array[:1] if name.startswith("classifier.") else array for name, array in tensors.items()}
    write_tensors(change_config(folder, id2label={"0": "LABEL_0"}), one)
    model = mlxbert.load(folder, dtype="float32")
    ids = mx.array([[3, 9, 5, 40, 6]])
    output = model.network(ids)
    pooled = np.tanh(
        np.array(output.last_hidden_state)[:, 0] @ np.array(tensors["bert.pooler.dense.weight"]).T
        + np.array(tensors["bert.pooler.dense.bias"])
    )
    wanted = pooled @ np.array(one["classifier.weight"]).T + np.array(one["classifier.bias"])
    assert np.array(model.network.logits("sequence_classifier", output)) == pytest.approx(wanted, abs=1e-5)


QWEN: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 43, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 41, "max_position_embeddings": 64,
}  # fmt: skip
GEMMA = QWEN | {"model_type": "gemma3_text", "use_bidirectional_attention": True, "sliding_window": 8}


def test_the_base_of_the_angles_is_read_where_transformers_reads_it(tmp_path: Path) -> None:
    own = without(config_of("jina-v3", tmp_path), "rope_parameters") | {"rope_theta": 500}
    assert {rotation.theta for rotation in parse(own).positions.rotations} == {500}  # type: ignore[union-attr]


def test_a_classifier_does_not_pool_the_token_that_pads_not_even_within_a_text(tmp_path: Path) -> None:
    network = load_network(write_model("qwen3", "ForTokenClassification", tmp_path))
    pad = FROZEN["qwen3"].facts["pad_token_id"]
    facts = network.encoder.config.heads["sequence_classifier"]
    assert facts.skipped == pad  # type: ignore[attr-defined]
    gemma = load_network(write_model("gemma3", "ForSequenceClassification", tmp_path / "gemma"))
    whole = gemma(mx.array([[3, 9, 5, pad]]))
    head: Any = gemma.heads["sequence_classifier"]
    wanted = head.out(whole.last_hidden_state[:, 2])
    assert np.abs(np.array(gemma.logits("sequence_classifier", whole)) - np.array(wanted)).max() < 1e-6


@pytest.mark.parametrize(
    ("changes", "pooling"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "last_token"),
        ({"architectures": ["Qwen3ForCausalLM"], "is_causal": False}, "mean"),
        ({"model_type": "neobert"}, "cls"),
        ({"model_type": "eurobert"}, "mean"),
        ({"architectures": ["Qwen3Model"]}, "mean"),
    ],
)
def test_without_modules_a_model_is_pooled_as_its_family_is(
    changes: dict[str, Any], pooling: str, tmp_path: Path
) -> None:
    write_json(tmp_path / "config.json", QWEN | changes)
    embedder = read_embedder(tmp_path, 24)
    assert embedder.config.poolings == (pooling,) and not embedder.config.stated


def test_models_whose_values_float16_cannot_hold_have_another_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert (device.choose_dtype(), device.choose_dtype(wide_range=True)) == (mx.float16, mx.bfloat16)
    assert device.choose_dtype("float16", wide_range=True) == mx.float16
    wide = {"gemma3": True, "qwen3": True, "eurobert": False}
    assert {name: parse(config_of(name, tmp_path / name)).wide_range for name in wide} == wide
    assert parse(without(QWEN, "head_dim") | {"model_type": "qwen2"}).wide_range
    assert parse(QWEN | {"model_type": "jina_embeddings_v5", "use_sliding_window": False}).wide_range


def test_gemma_has_two_bases_in_older_files() -> None:
    """The window, which is stated as that of both sides, is half of it and one."""
    older = GEMMA | {"rope_theta": 7, "rope_local_base_freq": 5, "sliding_window_pattern": 2}
    for stated in (8, 5):
        positions: Any = parse(older | {"sliding_window": stated}).positions
        assert [(rotation.theta, rotation.window) for rotation in positions.rotations] == [(5, 4), (7, None)]


VAST = 10**400  # JSON may hold it, a float may not


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What transformers wrote for each family, and what the authors of two of them do."""
    folder = tmp_path_factory.mktemp("written")
    found = {family: config_of(family, folder / family) for family in FROZEN}
    found["new"] = without(found["gte"], "rope_parameters") | {"model_type": "new", "rope_theta": 50.0}
    return found | {"nomic's": nomic_of_its_authors(found["nomic"])}


def assert_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(values)
    assert str(caught.value).startswith(f"{PATH}: ") and said in str(caught.value)


@together(
    "name",
    [
        *("ernie", "ernie_m", "megatron-bert", "roberta-prelayernorm", "xlm-roberta-xl", "nezha", "roformer"),
        *("deberta", "convbert", "rembert", "mobilebert", "squeezebert", "ibert"),
    ],
)
def test_families_that_look_like_ours_are_refused_with_the_difference(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json: model_type is '{name}' \(.{{10,}}\)") as caught:
        parse({"model_type": name})
    assert caught.value.hint is not None and all(family in caught.value.hint for family in FAMILIES)


# Each family and keys of which each by itself makes it another one.
_ALIKE: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"use_task_id": True, "is_decoder": True, "position_embedding_type": "rotary"}),
    ("jina-v2", {"feed_forward_type": "original"}),
    ("neobert", {
        "ngpt": True, "rms_norm": False, "rope": False, "hidden_act": "gelu", "rope_theta": 160_000.0,
        "encoder_init_range": 0.02, "expert_sizes": "0,1536,3072", "head_dim": 8, "num_attention_heads": 2,
        "rope_scaling": {"factor": 2.0}, "num_key_value_heads": 1,
    }),
    *((name, {"position_embedding_type": "relative_key"}) for name in ("roberta", "electra", "camembert")),
    ("albert", {"position_embedding_type": "relative_key"}),
    *(("xlm-roberta", {"position_embedding_type": kind}) for kind in ("alibi", "rotary")),
    ("distilbert", {"position_embedding_type": "relative_key_query"}),
    ("albert", {"inner_group_num": 2}), ("mpnet", {"relative_attention_num_buckets": 64}),
    ("modernbert", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "is_decoder": True}),
    ("nomic", {
        "num_experts": 8, "moe_every_n_layers": 2, "prenorm": True, "parallel_block": True, "use_rms_norm": True,
        "causal": True, "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True,
        "rotary_emb_interleaved": True, "rotary_emb_fraction": 0.5, "rotary_emb_scale_base": 512,
        "rotary_scaling_factor": 0.5, "rotary_head_dim": True, "register_tokens": 4, "head_dim": 8,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }),
    ("nomic's", {"num_heads_kv": 1, "rotary_other": 3, "mlp_other": 1, "hidden_size": 48}),
    ("nomic moe", {
        "moe_normalize_expert_weights": 1, "expert_choice_router": 1, "num_shared_experts": 1, "num_experts": 1,
        "moe_top_k": 6, "moe_x": 1, "activation_function": "swiglu", "moe_resid_pdrop": 0.1,
    }),
    ("nomic moe", {"moe_top_k": None, "activation_function": "gelu_new"}),
    ("gte", {"head_dim": 8}),
    ("new", {
        "rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}, "layer_norm_type": "rms_norm",
        "position_embedding_type": "absolute", "pack_qkv": False, "logn_attention_scale": True,
        "logn_attention_clip1": True,
    }),
    ("new", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}),
    ("deberta-v3", {
        "relative_attention": False, "attention_head_size": 12, "pooler_hidden_size": 12,
        "pos_att_type": "c2p|p2p", "norm_rel_ebd": "batch_norm",
    }),
    *((name, {"pruned_heads": {"0": [1]}}) for name in FROZEN),
]  # fmt: skip
LOOK_ALIKES: list[tuple[str, dict[str, Any]]] = [
    *((family, {key: value}) for family, changes in _ALIKE for key, value in changes.items()),
    ("bert", {"feed_forward_type": None, "position_embedding_type": "alibi"}),
    ("gte", {"rope_scaling": {"type": "ntk", "factor": 2.0}, "rope_parameters": {"rope_theta": 3.0}}),
]


@together(("family", "changes"), LOOK_ALIKES)
def test_variants_that_are_not_computed_are_refused_by_name(
    family: str, changes: dict[str, Any], written: dict[str, dict[str, Any]]
) -> None:
    assert_refused(written[family] | changes, next(iter(changes)).removesuffix("_parameters"))


# What the error says where that is more than the key.
HOSTILE: list[tuple[str, str, Any, str]] = [
    *(("bert", "model_type", value, f"model_type is {value!r}") for value in ("gpt2", "BERT", ["bert"])),
    *(("bert", "hidden_act", value, f"is {value!r}") for value in ("gelu_accurate", "GELU", {"name": "gelu"})),
    ("bert", "hidden_act", "mish", "expected one of gelu, gelu_python, gelu_new"),
    ("bert", "position_embedding_type", ["absolute"], "absolute"),
    ("bert", "is_decoder", "no", "is_decoder is 'no'"),
    ("bert", "add_cross_attention", True, "add_cross_attention is True"),
    *(
        ("bert", "layer_norm_eps", value, f"layer_norm_eps is {value!r}")
        for value in ("1e-12", -1e-5, float("nan"), float("inf"), True, 0.0)
    ),
    *(
        ("bert", key, value, f"{key} is {value}")
        for key, values in {
            "num_attention_heads": (7, 60), "hidden_dropout_prob": (1.5, 1.0), "attention_probs_dropout_prob": (1, -1),
            "pad_token_id": (10**6, -1), "num_hidden_layers": (10**9, 10**6), "hidden_size": (3 * 2**40,),
            "vocab_size": (2**31,), "type_vocab_size": (0,),
        }.items()
        for value in values
    ),
    *(
        (family, key, value, key)
        for family, key, value in (
            ("bert", "problem_type", ["regression"]), ("bert", "problem_type", "ranking"),
            ("roberta", "max_position_embeddings", 8), ("roberta", "max_position_embeddings", VAST),
            ("distilbert", "dim", 0), ("distilbert", "n_heads", 7), ("albert", "embedding_size", "x"),
            ("albert", "num_hidden_groups", 0), ("albert", "num_hidden_groups", 4), ("electra", "embedding_size", [17]),
            ("mpnet", "relative_attention_num_buckets", "32"), ("mpnet", "max_position_embeddings", 2),
            ("modernbert", "layer_types", ["full_attention"]), ("modernbert", "layer_types", "full_attention"),
            ("modernbert", "layer_types", ["full_attention"] * 4 + ["linear_attention"]),
            ("modernbert", "rope_parameters", {"rope_theta": 5.0}), ("modernbert", "local_attention", 0),
            ("modernbert", "global_attn_every_n_layers", 0), ("modernbert", "global_rope_theta", VAST),
            ("modernbert", "sliding_window", 9), ("modernbert", "classifier_pooling", ["cls"]),
            ("modernbert", "decoder_bias", "yes"), ("modernbert", "num_attention_heads", 2),
            ("nomic", "activation_function", "glu"), ("nomic", "rope_theta", -10), ("nomic", "num_attention_heads", 10),
            ("neobert", "max_length", 0), ("neobert", "norm_eps", 0), ("neobert", "intermediate_size", "3072"),
            ("neobert", "decoder_init_range", -1), ("neobert", "classifier_dropout", 1.5),
            ("jina-v2", "feed_forward_type", ["geglu"]), ("jina-v2", "feed_forward_type", "swiglu"),
            ("jina-v2", "max_position_embeddings", 0), ("jina-v2", "num_attention_heads", 7),
            ("new", "num_attention_heads", 60), ("new", "type_vocab_size", -1),
            ("deberta-v3", "pos_att_type", 5), ("deberta-v3", "pos_att_type", ["c2p", None]),
            ("deberta-v3", "position_buckets", 3), ("deberta-v3", "position_buckets", 40),
            ("deberta-v3", "max_relative_positions", "20"), ("deberta-v3", "share_att_key", "true"),
            ("deberta-v2, no buckets", "max_relative_positions", 2**30),
            ("deberta-v2, no buckets", "max_position_embeddings", 2**30),
            ("deberta-v2", "conv_groups", 0), ("deberta-v2", "conv_groups", 4), ("deberta-v2", "conv_kernel_size", 4),
            ("deberta-v2", "conv_act", ["gelu"]), ("deberta-v2", "embedding_size", True),
            ("deberta-v2", "pooler_hidden_act", "x"), ("qwen3", "num_key_value_heads", 4),
            ("qwen3", "rope_parameters", {"full_attention": {"rope_type": "yarn", "factor": 4}}),
            ("qwen3", "rope_scaling", {"rope_type": "yarn", "factor": 4}),
            ("qwen3", "layer_types", ["full_attention", "sliding_attention"]),
            ("gemma3", "rope_parameters", {"rope_type": "linear", "factor": 8.0}),
            ("gemma3", "layer_types", ["full_attention"]), ("jina-v3", "rotary_emb_interleaved", True),
            ("jina-v3", "rotary_emb_scale_base", 512),
            ("jina-v3", "rope_scaling", {"rope_type": "linear", "factor": 4}),
        )
    ),
    ("modernbert", "rope_parameters", {"full_attention": []}, "rope_parameters.full_attention"),
    ("modernbert", "rope_parameters", {"full_attention": {"rope_theta": VAST}}, "full_attention.rope_theta"),
    ("modernbert", "rope_parameters", {"sliding_attention": {"rope_type": ["x"]}}, "sliding_attention.rope_type"),
    ("nomic", "rotary_emb_fraction", 0.0, "rotary_emb_fraction"),
    ("nomic", "rope_parameters", {"rope_theta": VAST}, "rope_parameters.rope_theta"),
    ("nomic", "rope_parameters", {"type": "linear"}, "rope_parameters.type"),
    ("gte", "rope_parameters", {"rope_theta": float("nan")}, "rope_parameters.rope_theta"),
    ("new", "rope_scaling", {"type": "ntk", "factor": VAST}, "rope_scaling.factor"),
    ("new", "rope_scaling", {"type": "ntk", "factor": 0.5}, "rope_scaling.factor"),
    ("new", "rope_scaling", {"type": "ntk"}, "rope_scaling.factor is missing"),
    ("new", "rope_scaling", {"type": ["ntk"], "factor": 2.0}, "rope_scaling.type"),
    ("qwen3", "auto_map", {"AutoModel": "modeling.Bidirectional"}, "is_causal"),
    ("gemma3", "rope_parameters", {"full_attention": {"rope_type": "linear", "factor": 8.0}}, "rope_type"),
]  # fmt: skip


@together(("family", "key", "value", "said"), HOSTILE)
def test_hostile_values_are_refused_by_name(
    family: str, key: str, value: Any, said: str, written: dict[str, dict[str, Any]]
) -> None:
    assert_refused(written[family] | {key: value}, said)


@pytest.mark.parametrize("family", walked_slowly([*FROZEN, "new"]))
def test_no_value_of_any_key_raises_anything_else(family: str, written: dict[str, dict[str, Any]]) -> None:
    """Every key that any family knows, with values of every kind: read, or refused with a ConfigError."""
    keys = {key for values in written.values() for key in values} | {key for _, key, *_ in HOSTILE}
    keys |= {key for _, changes in LOOK_ALIKES for key in changes}
    numbers: tuple[Any, ...] = (0, 1, -1, 1.5, VAST, -VAST, float("inf"), float("nan"))
    kinds: tuple[Any, ...] = (*numbers, True, None, "", "x", [], [5], [[]], [None], {}, {"x": 1})
    refused = 0
    for key in keys:
        for value in kinds:
            try:
                parse(written[family] | {key: value})
            except ConfigError as problem:
                refused += 1
                assert str(problem).startswith(f"{PATH}: ")
    assert refused > 100


def test_more_heads_than_the_model_is_wide_are_refused_before_anything_is_divided(written: dict[str, Any]) -> None:
    scaled = {"rope_scaling": {"type": "ntk", "factor": 2.0}, "num_attention_heads": 60}
    assert_refused(written["new"] | scaled, "num_attention_heads is 60, expected a divisor of the hidden size (30)")


def test_every_fact_is_read() -> None:
    heads = {
        "masked_lm": masked_lm.MaskedLMFacts(), "next_sentence": HeadFacts(), "question_answering": HeadFacts(),
        "sequence_classifier": sequence_classifier.ClassifierFacts(dropout=0.25),
        "token_classifier": HeadFacts(dropout=0.25),
    }  # fmt: skip
    rates = Dropout(embeddings=0.25, attention=0.5, attention_output=0.25, feed_forward=0.25)
    wanted = tiny_config(dropout=rates, heads=heads, type_vocab_size=3, pad_token_id=5)
    dropout = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.5}
    found = parse(CONFIG | dropout | {"type_vocab_size": 3, "pad_token_id": 5})
    assert found == wanted
    assert found.max_length == 32 and found.head_size == 8 and found.num_stored_layers == 2


def test_what_is_left_out_has_the_defaults_of_the_family() -> None:
    found = parse(without(CONFIG, "layer_norm_eps", "type_vocab_size", "pad_token_id"))
    assert (found.layer_norm_eps, found.type_vocab_size, found.pad_token_id) == (1e-12, 2, 0)
    assert found.positions == Absolute(32, 0)
    assert (found.dropout.feed_forward, found.dropout.attention) == (0.1, 0.1)


def test_values_that_change_nothing_are_taken() -> None:
    for key, value in (
        ("position_embedding_type", "absolute"), ("position_embedding_type", None), ("is_decoder", False),
        ("add_cross_attention", False), ("pruned_heads", {}), ("architectures", ["BertModel"]), ("use_cache", True),
        ("transformers_version", "5.23.0"),
    ):  # fmt: skip
        assert parse(CONFIG | {key: value}) == parse(CONFIG)
    assert all(parse(CONFIG | {"hidden_act": name}).hidden_act == name for name in ACTIVATIONS)


NUMBERS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size"),
)


@together("value", ["24", 24.0, True, False, None, 0, -24, [24], {}])
@together("key", NUMBERS)
def test_sizes_must_be_whole_numbers_above_zero(key: str, value: object) -> None:
    if value is not None or key in NUMBERS[:-1]:  # null is the default where there is one
        assert_refused(CONFIG | {key: value}, f"{key} is {value!r}, expected a whole number")


@together("key", ["model_type", *NUMBERS[:-1]])
def test_a_missing_key_is_named(key: str) -> None:
    assert_refused(without(CONFIG, key), f"{key} is missing, expected")


@together(
    ("content", "said"),
    [
        (b"[]", "expected a JSON object, found list"), (b'"bert"', "expected a JSON object, found str"),
        (b"null", "expected a JSON object, found NoneType"), (b"", "not valid JSON"), (b"{", "not valid JSON"),
        (b'{"model_type": bert}', "not valid JSON"), (b"\xff\xfe{\x00}\x00", "not valid JSON"),
        (b'{"a":' * 100_000, "not valid JSON"), (b'{"vocab_size": ' + b"1" * 5000 + b"}", "5,000 digits"),
        (b'{"vocab_size": ' + b"1" * 61 + b"}", "a number has 61 digits, expected at most 60"),
    ],
)  # fmt: skip
def test_what_is_no_object_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json: ") as caught:
        config_json.read_config(tmp_path)
    assert said in str(caught.value)


def test_a_byte_order_mark_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8-sig")
    assert config_json.read_config(tmp_path).values == CONFIG


def test_a_folder_without_a_configuration_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match=r"the folder has no config\.json") as caught:
            config_json.read_config(folder)
        assert caught.value.hint is not None
