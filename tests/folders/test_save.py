"""`mlxbert.save`: a model in memory becomes a folder that says the same; new heads and new models as well."""

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Labels
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import HEADS, Network
from mlxbert.weights.families.registry import FAMILIES
from tests.helpers.cases import together
from tests.helpers.families import FROZEN, FROZEN_CELLS
from tests.helpers.frozen import add_vocabulary, change_config, read_config, tensors_in, write_model, write_tensors
from tests.helpers.rooms import needs
from tests.helpers.st_folder import NORMALIZE, dense, pooling, save_st
from tests.helpers.tiny import CONFIG, VOCAB, tiny_config

LABELS = Labels(("no", "maybe", "yes"), "single_label_classification")


def parameters(model: mlxbert.Model) -> dict[str, mx.array]:
    return dict(nn.utils.tree_flatten(model.network.parameters()))


def assert_same_parameters(a: mlxbert.Model, b: mlxbert.Model) -> None:
    """Bit for bit."""
    one, other = parameters(a), parameters(b)
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert mx.array_equal(array, other[name]).item(), name


def golden(family: str, head: str, folder: Path) -> Path:
    return add_vocabulary(write_model(family, head, folder), FROZEN[family].facts["vocab_size"])


@pytest.mark.sampled
@pytest.mark.usefixtures("measurement")
@pytest.mark.parametrize(("family", "head"), FROZEN_CELLS, ids=str)
def test_save_and_convert_write_equal_files(family: str, head: str, tmp_path: Path) -> None:
    source = golden(family, head, tmp_path / "source")
    model = mlxbert.load(source, dtype="float32")
    saved = mlxbert.save(model, tmp_path / "saved")
    mlxbert.convert(source, tmp_path / "converted")
    for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer_config.json"):
        assert (saved / name).read_bytes() == (tmp_path / "converted" / name).read_bytes(), name
    assert_same_parameters(model, mlxbert.load(saved, dtype="float32"))


@pytest.mark.sampled
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "family",
    [
        *("bert", "distilbert", "modernbert", "gte"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "albert", "electra", "deberta-v3")),
    ],
)
def test_new_heads_on_a_loaded_encoder(family: str, head: str, tmp_path: Path) -> None:
    source = golden(family, "Model", tmp_path / "source")
    heads = {head: LABELS if HEADS[head].labelled else None}
    if head not in FAMILIES[read_config(source)["model_type"]].parts:
        with pytest.raises(ArgumentError, match=head):
            mlxbert.load(source, new_heads=heads)
        return
    model, same, other = (mlxbert.load(source, new_heads=heads, dtype="float32", seed=seed) for seed in (4, 4, 5))
    assert [*model.network.heads] == [head] and model.labels == heads[head]
    plain, drawn = parameters(mlxbert.load(source, dtype="float32")), parameters(model)
    shared = drawn.keys() & plain.keys()
    assert shared and all(mx.array_equal(drawn[name], plain[name]).item() for name in shared)
    for name in drawn.keys() - plain.keys():
        if name.endswith("weight") and "norm" not in name:
            assert mx.array_equal(drawn[name], parameters(same)[name]).item()
            assert not mx.array_equal(drawn[name], parameters(other)[name]).item()
    saved = mlxbert.save(model, tmp_path / "saved")
    again, config = mlxbert.load(saved, dtype="float32"), read_config(saved)
    assert_same_parameters(model, again)
    assert again.labels == heads[head] and config["architectures"][0].endswith(HEADS[head].class_names)
    if heads[head]:
        assert config["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}
        assert config["problem_type"] == "single_label_classification"


def test_a_head_with_other_labels_replaces_the_old_one(tmp_path: Path) -> None:
    source = golden("bert", "ForSequenceClassification", tmp_path / "source")  # four labels
    model = mlxbert.load(source, new_heads={"sequence_classifier": LABELS}, dtype="float32")
    old = mlxbert.load(source, dtype="float32")
    assert old.labels is not None and len(old.labels) == 4
    new, pooler = parameters(model)["heads.sequence_classifier.out.weight"], "encoder.pooler.dense.weight"
    assert new.shape == (3, 30) and np.abs(np.array(new)).max() < 6 * model.config.initialization.std
    assert mx.array_equal(parameters(model)[pooler], parameters(old)[pooler]).item()


TYPE = Labels(("a", "b"), "classes")
WRONG_NAMES: list[Any] = [(), ("a", "a"), "ab", ("a", 2), ("a", "\udc80"), 5, {"a", "b"}]
WRONG_HEADS: list[tuple[Any, str]] = [
    ({"sequence_classifier": None}, "labels"),
    ({"question_answering": LABELS}, "labels"),
    ({"tagger": LABELS}, "'tagger'"),
    ({"sequence_classifier": LABELS, "token_classifier": LABELS}, "'sequence_classifier' and 'token_classifier'"),
    ({"sequence_classifier": TYPE}, "`problem_type` is 'classes'"),
    *(({"sequence_classifier": Labels(names)}, "label names") for names in WRONG_NAMES),
    *((wrong, "head") for wrong in (0, ["sequence_classifier"], {"question_answering": 3})),
]


@together("heads,said", WRONG_HEADS)
def test_heads_that_cannot_be_new(heads: Any, said: str, tiny_folder: Path) -> None:
    with pytest.raises(ArgumentError, match=said):
        mlxbert.load(tiny_folder, new_heads=heads)
    with pytest.raises(ArgumentError, match=said):
        mlxbert.new_model(CONFIG, tiny_folder, heads=heads)


def test_new_heads_that_contradict_other_arguments_or_each_other(tmp_path: Path) -> None:
    source = golden("roberta", "Model", tmp_path / "source")  # the tensors of its classifiers differ in name
    heads = {"sequence_classifier": LABELS}
    options: list[tuple[dict[str, Any], str]] = [
        ({"task": "embed", "new_heads": heads}, "new_heads"),
        ({"new_heads": heads, "seed": -1}, "`seed` is -1"),
        ({"new_heads": heads | {"token_classifier": Labels(("O", "PER"))}}, "labels"),
    ]
    for given, said in options:
        with pytest.raises(ArgumentError, match=said):
            mlxbert.load(source, **given)
    listed = Labels(["ä", "b"])  # type: ignore[arg-type]
    assert mlxbert.load(source, new_heads={"sequence_classifier": listed}).labels == Labels(("ä", "b"))


BOTH = ["sequence_classifier", "token_classifier"]  # whose tensors have the same names in a file


@pytest.mark.parametrize(
    ("place", "change", "said"),
    [
        (
            "heads",
            lambda _: Network(tiny_config(pooler=True, labels=LABELS), BOTH).heads,
            "'sequence_classifier' and 'token_classifier'",
        ),
        ("heads sequence_classifier out", lambda _: nn.Linear(24, 5), r"heads\.sequence_classifier\.out.*5"),
        ("encoder layers", lambda layers: layers[:1], r"encoder\.layers\.1"),
        ("encoder pooler dense bias", lambda bias: bias.astype(mx.int32), "int32"),
        ("encoder embeddings word weight", lambda weight: weight * 1e30, "float16"),
    ],
)
def test_a_network_that_its_configuration_does_not_describe_is_not_saved(
    place: str, change: Callable[[Any], Any], said: str, tmp_path: Path, tiny_folder: Path
) -> None:
    model = mlxbert.load(tiny_folder, new_heads={"sequence_classifier": LABELS}, dtype="float32")
    *path, last = place.split()
    node: Any = functools.reduce(lambda node, name: node[name], path, model.network)
    node[last] = change(node[last])
    with pytest.raises(CheckpointError, match=said):
        mlxbert.save(model, tmp_path / "saved", dtype="float16" if said == "float16" else None)
    assert [*tmp_path.iterdir()] == []


def test_the_card_and_the_labels_of_other_heads_are_not_copied(tmp_path: Path, tiny_folder: Path) -> None:
    source = Path(shutil.copytree(tiny_folder, tmp_path / "source"))
    (source / "README.md").write_text("Fills masks.")
    assert (mlxbert.save(mlxbert.load(source), tmp_path / "same") / "README.md").read_text() == "Fills masks."
    change_config(source, id2label={"0": "a", "1": "b"}, label2id={"x": 0, "y": 1})
    other = mlxbert.load(source, new_heads={"sequence_classifier": Labels(("a", "b"))})
    saved = mlxbert.save(other, tmp_path / "other")
    assert not (saved / "README.md").exists() and read_config(saved)["label2id"] == {"a": 0, "b": 1}


def test_files_that_changed_since_the_model_was_loaded(tmp_path: Path) -> None:
    for name, content in (("vocab.txt", None), ("vocab.txt", "\n".join(reversed(VOCAB))), ("modules.json", None)):
        source = save_st(tmp_path / "source", pooling("cls"))
        model = mlxbert.load(source)
        (source / name).unlink()
        if content:
            (source / name).write_text(content)
        with pytest.raises(CheckpointError, match="changed"):
            mlxbert.save(model, tmp_path / "saved")
        shutil.rmtree(source)
        assert [*tmp_path.iterdir()] == []


def test_a_source_of_links_into_the_target_is_kept(tmp_path: Path, tiny_folder: Path) -> None:
    saved = mlxbert.save(mlxbert.load(tiny_folder), tmp_path / "saved")
    (tmp_path / "links").mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (tmp_path / "links" / name).symlink_to(saved / name)
    model = mlxbert.load(tmp_path / "links", new_heads={"question_answering": None})
    before = (saved / "config.json").read_bytes()
    with pytest.raises(ArgumentError, match="link"):
        mlxbert.save(model, saved, overwrite=True)
    assert (saved / "config.json").read_bytes() == before


def test_a_new_model_of_a_folder_with_modules(tmp_path: Path) -> None:
    moved = save_st(tmp_path / "moved", pooling("mean"))
    modules = json.loads((moved / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (moved / "modules.json").write_text(json.dumps(modules))
    (moved / "0_Transformer").mkdir()
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        (moved / name).rename(moved / "0_Transformer" / name)
    saved = mlxbert.save(mlxbert.new_model(CONFIG, moved), tmp_path / "saved")
    assert mlxbert.load(saved).network.heads == {}


@together("value", [{1, 2}, float("nan"), "\udc80", Path()])
def test_what_a_config_json_cannot_hold(value: object, tiny_folder: Path) -> None:
    with pytest.raises(ArgumentError, match=r"config\.json"):
        mlxbert.new_model(CONFIG | {"other": value}, tiny_folder)


@pytest.mark.parametrize(
    ("heads", "named"),
    [
        ({}, "BertModel"),
        ({"masked_lm": None, "next_sentence": None}, "BertForPreTraining"),
        ({"token_classifier": LABELS}, "BertForTokenClassification"),
    ],
)
def test_a_new_model_from_a_configuration(
    heads: dict[str, Labels | None], named: str, tmp_path: Path, tiny_folder: Path
) -> None:
    model = mlxbert.new_model(CONFIG, tiny_folder, heads=heads, dtype="float32", seed=1)
    drawn = parameters(model)
    words = np.array(drawn["encoder.embeddings.word.weight"])
    assert not words[CONFIG["pad_token_id"]].any() and 0.018 < words[1:].std() < 0.022
    assert not np.array(drawn["encoder.layers.0.attention.query.bias"]).any()
    assert (np.array(drawn["encoder.embeddings.norm.weight"]) == 1).all()
    saved = mlxbert.save(model, tmp_path / "saved")
    again = mlxbert.load(saved, dtype="float32")
    assert_same_parameters(model, again)
    assert [*again.network.heads] == [*heads] and read_config(saved)["architectures"] == [named]
    assert again.tokenizer.encode("the cat").ids == model.tokenizer.encode("the cat").ids


def test_rates_and_widths_of_modernbert(tmp_path: Path) -> None:
    source = golden("modernbert", "Model", tmp_path / "source")
    model = mlxbert.new_model(read_config(source), source, heads={"sequence_classifier": LABELS}, dtype="float32")
    drawn, how = parameters(model), model.config.initialization
    assert how.output_std is not None and how.cutoff == 2.0 and not how.zero_pad
    for name, std in (
        ("encoder.layers.1.feed_forward.down", how.output_std),
        ("encoder.layers.1.feed_forward.up", how.std),
        ("heads.sequence_classifier.transform.dense", how.output_std),
        ("heads.sequence_classifier.out", model.config.hidden_size**-0.5),
    ):
        weight = np.array(drawn[f"{name}.weight"])
        assert np.abs(weight).max() <= 2 * std and 0.75 * std < weight.std() < 1.01 * std, name


def test_dtype_shards_and_what_the_configuration_says(tmp_path: Path, tiny_folder: Path) -> None:
    model = mlxbert.load(tiny_folder, dtype="float32")
    saved = mlxbert.save(model, tmp_path / "half", dtype="float16", max_shard_size="8KB")
    assert len([*saved.glob("model-*.safetensors")]) > 1 and read_config(saved)["dtype"] == "float16"
    again = mlxbert.load(saved, dtype="float16")
    for name, array in parameters(again).items():
        assert mx.array_equal(array, parameters(model)[name].astype(mx.float16)).item()
    stated = change_config(golden("bert", "Model", tmp_path / "stated"), dtype="float16")
    assert read_config(mlxbert.save(mlxbert.load(stated, dtype="float32"), tmp_path / "wide"))["dtype"] == "float32"


@needs("export")
def test_untied_copies_are_written_as_convert_writes_them(tmp_path: Path) -> None:
    source = golden("bert", "ForMaskedLM", tmp_path / "source")
    tensors, decoder = tensors_in(source), "cls.predictions.decoder"
    copies = {f"{decoder}.weight": "bert.embeddings.word_embeddings.weight", f"{decoder}.bias": "cls.predictions.bias"}
    write_tensors(source, tensors | {copy: tensors[name] for copy, name in copies.items()})
    change_config(source, tie_word_embeddings=False)
    saved = mlxbert.save(mlxbert.load(source, dtype="float32"), tmp_path / "saved")
    mlxbert.convert(source, tmp_path / "converted")
    assert tensors_in(saved).keys() == tensors_in(tmp_path / "converted").keys() >= {f"{decoder}.weight"}


@pytest.mark.usefixtures("measurement")
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining", "ForSequenceClassification"])
def test_a_head_that_is_not_there_is_not_claimed(head: str, tmp_path: Path) -> None:
    source = save_st(tmp_path / "source", pooling("mean"))
    write_tensors(source, {name: one for name, one in tensors_in(source).items() if not name.startswith("cls.")})
    labels = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}, "problem_type": "regression"}
    change_config(source, architectures=[f"Bert{head}"], **labels)
    written = [mlxbert.save(mlxbert.load(source), tmp_path / "saved"), tmp_path / "converted"]
    mlxbert.convert(source, written[1])
    if head == "ForMaskedLM":
        pairs = [{"anchor": "the cat", "positive": "a cat"}, {"anchor": "the dog", "positive": "a dog"}]
        how: dict[str, Any] = {"train": pairs, "valid": pairs, "epochs": 1, "lr": 1e-3, "device": "cpu"}
        written.append(tmp_path / "trained")
        mlxbert.finetune("embed", model=source, output=written[-1], **how).run()
    for folder in written:
        config = read_config(folder)
        assert config["architectures"] == ["BertModel"] and not labels.keys() & config.keys(), folder


def test_a_classifier_of_vectors_is_where_only_its_modules_find_it(tmp_path: Path) -> None:
    settings = {"prompts": {"q": "a "}}
    start = save_st(tmp_path / "start", pooling("cls", old=True), NORMALIZE, settings=settings)
    change_config(start, architectures=["BertForPreTraining"])
    texts = ["the cat sat", "a dog"]
    vectors = mlxbert.embed(mlxbert.load(start, task="embed", dtype="float32"), texts)
    own = {"sequence_classifier": replace(LABELS, head_pooling="cls")}
    found = mlxbert.save(mlxbert.load(start, new_heads=own, dtype="float32"), tmp_path / "own")
    assert not (found / "config.json").exists() and (found / "encoder/config.json").is_file()
    assert not [*found.glob("vocab*")] and json.loads((found / "modules.json").read_text())[0]["path"] == "encoder"
    classes: dict[str, Any] = {"new_heads": {"sequence_classifier": LABELS}}
    for name, options in (("classes", classes), ("vectors", {"task": "embed"})):
        at_top = mlxbert.save(mlxbert.load(found, dtype="float32", **options), tmp_path / name)
        assert not (at_top / "encoder").exists() and (at_top / "vocab.txt").is_file()
        assert "vector_classifier" not in read_config(at_top)
        assert json.loads((at_top / "modules.json").read_text())[0]["path"] == ""
    for name in ("own", "classes", "vectors"):
        again = mlxbert.load(tmp_path / name, task="embed", dtype="float32")
        assert again.embedder.config.prompts == settings["prompts"]
        assert np.array_equal(mlxbert.embed(again, texts), vectors)


def test_what_was_trained_is_what_is_saved_and_modules_go_along(tmp_path: Path) -> None:
    module = dense(mx.random.normal((12, 24)), mx.zeros(12))
    source = save_st(tmp_path / "source", pooling("mean"), module, NORMALIZE, settings={"prompts": {"q": "a "}})
    model = mlxbert.load(source, dtype="float32")
    weight = model.network.encoder.layers[0].attention.query.weight
    model.network.encoder.layers[0].attention.query.weight = weight + 1
    again = mlxbert.load(mlxbert.save(model, tmp_path / "saved"), dtype="float32")
    assert mx.array_equal(again.network.encoder.layers[0].attention.query.weight, weight + 1).item()
    manifest = json.loads((tmp_path / "saved" / "saved.json").read_text())
    assert {"model.safetensors", "config.json", "vocab.txt"} <= manifest["written"].keys()
    texts = ["the cat sat", "a dog"]
    assert np.array_equal(mlxbert.embed(model, texts), mlxbert.embed(again, texts))
    assert again.embedder.config.prompts == {"q": "a "}


def test_nothing_is_replaced_by_accident(tmp_path: Path, tiny_folder: Path) -> None:
    model = mlxbert.load(tiny_folder, dtype="float32")
    saved = mlxbert.save(model, tmp_path / "saved")
    with pytest.raises(ArgumentError, match="already exists") as problem:
        mlxbert.save(model, saved)
    assert problem.value.hint is not None and "overwrite" in problem.value.hint
    mlxbert.save(model, saved, overwrite=True)
    (tmp_path / "else").mkdir()
    for path in (saved / "notes.txt", tmp_path / "else" / "file"):
        path.write_text("mine")
    ways = ((saved, r"notes\.txt"), (tiny_folder, tiny_folder.name), (tmp_path / "else", "not written by mlxbert"))
    for target, said in ways:  # the second is its own folder
        with pytest.raises(ArgumentError, match=said):
            mlxbert.save(model, target, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["else", "saved"]


def test_bad_arguments(tmp_path: Path, tiny_folder: Path) -> None:
    model = mlxbert.load(tiny_folder, dtype="float32")
    for key, value in (("dtype", "float64"), ("max_shard_size", "big")):
        with pytest.raises(ArgumentError, match=value):
            mlxbert.save(model, tmp_path / "saved", **{key: value})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"mlxbert\.load"):
        mlxbert.save("builtin", tmp_path / "saved")  # type: ignore[arg-type]
    assert [*tmp_path.iterdir()] == []


def test_labels_know_both_directions() -> None:
    assert [LABELS.encode(name) for name in LABELS.names] == [0, 1, 2]
    assert [LABELS.decode(index) for index in range(3)] == ["no", "maybe", "yes"]
    for wrong in (-1, 3):
        with pytest.raises(ArgumentError, match=str(wrong)):
            LABELS.decode(wrong)
    with pytest.raises(ArgumentError, match="'perhaps'"):
        LABELS.encode("perhaps")


@pytest.mark.parametrize(
    ("family", "name"),
    [("jina-reranker-v2", "XLMRobertaForTokenClassification"), ("jina-v3", "JinaEmbeddingsV3ForTokenClassification")],
)
def test_new_heads_have_the_class_of_the_dialect_that_a_model_stays_in(family: str, name: str, tmp_path: Path) -> None:
    folder = golden(family, "Model", tmp_path / "model")
    model = mlxbert.load(folder, new_heads={"token_classifier": Labels(("A", "B"))}, dtype="float32")
    mlxbert.save(model, tmp_path / "saved")
    assert read_config(tmp_path / "saved")["architectures"] == [name]
    assert [*mlxbert.load(tmp_path / "saved").network.heads] == ["token_classifier"]
