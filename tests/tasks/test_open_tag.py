"""Tagging with any labels: the numbers of the package gliner, windows, groups of labels, and bad models."""

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, ConfigError, InputError, MlxbertError, TokenizerError
from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.tasks import open_tag
from mlxbert.tasks.options import TagOptions
from tests.helpers import gliner_models
from tests.helpers.cases import together
from tests.helpers.gliner_models import FROZEN, LABELS, TEXTS, THRESHOLDS
from tests.helpers.rooms import needs

GOLDENS = Path(__file__).parent / "gliner_goldens"
LONG = " ".join(TEXTS) * 12


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {kind: mlxbert.load(GOLDENS / kind, dtype="float32", device="cpu") for kind in FROZEN}


def _found(model: Model, text: Any, **options: Any) -> list[tuple[str, int, int, float]]:
    result = mlxbert.tag(model, text, **{"labels": LABELS, **options})
    return [(entity.label, entity.start, entity.end, entity.score) for entity in result.entities]


@pytest.mark.parametrize("kind", FROZEN)
def test_entities_are_those_of_gliner(models: dict[str, Model], kind: str) -> None:
    expected = json.loads((GOLDENS / kind / "entities.json").read_text(encoding="utf-8"))
    for threshold in THRESHOLDS:
        for nested in (False, True):
            rows = expected[f"{threshold} {nested}"]
            assert sum(map(len, rows)) or threshold == 0.5
            results = mlxbert.tag(models[kind], [*TEXTS], labels=LABELS, threshold=threshold, nested=nested)
            for result, row in zip(results, rows, strict=True):
                assert [(one.label, one.start, one.end) for one in result.entities] == [(*one[:3],) for one in row]
                assert [one.score for one in result.entities] == pytest.approx([one[3] for one in row], abs=1e-5)


@pytest.mark.parametrize("kind", FROZEN)
def test_results_do_not_depend_on_the_batch(models: dict[str, Model], kind: str) -> None:
    alone = [_found(models[kind], text, threshold=0.35) for text in TEXTS]
    together = mlxbert.tag(models[kind], [*TEXTS, "", "  "], labels=LABELS, threshold=0.35, batch_tokens=400)
    for found, result in zip([*alone, [], []], together, strict=True):
        assert [each[:3] for each in found] == [(entity.label, entity.start, entity.end) for entity in result.entities]
        assert [each[3] for each in found] == pytest.approx([entity.score for entity in result.entities], abs=1e-5)


def test_offsets_count_in_the_text_and_words_are_joined_by_spaces(models: dict[str, Model]) -> None:
    result = mlxbert.tag(models["bert"], TEXTS[0], labels=LABELS, threshold=0.35)
    assert all(TEXTS[0][entity.start : entity.end] == entity.text for entity in result.entities)
    words = mlxbert.tag(models["bert"], ("Ada Lovelace", "met", "Babbage"), labels=LABELS, threshold=0)
    assert words.text == "Ada Lovelace met Babbage"
    assert {entity.start for entity in words.entities} <= {0, 13, 17}
    with pytest.raises(InputError, match="ENT"):  # it marks labels
        mlxbert.tag(models["bert"], ("Ada", "<<ENT>>"), labels=LABELS)
    assert mlxbert.tag(models["bert"], "Ada <<ENT>> Lovelace", labels=LABELS).text


def test_each_span_of_a_long_text_is_judged_once(models: dict[str, Model]) -> None:
    model = models["bert"]  # spans of 4 words, 40 words in an input
    task = open_tag.OpenTagTask(model, TagOptions(labels=("person",), threshold=0.0))
    job = task.prepare(LONG)
    assert len(job.windows) > 3
    starts = [place for window in job.windows for place in range(*window.judged)]
    assert starts == [*range(len(job.words))]
    widest = model.config.heads["open_entities"].max_width  # type: ignore[attr-defined]
    for window in job.windows:
        assert window.first <= window.judged[0]
        assert min(window.judged[1] - 1 + widest, len(job.words)) <= window.end
        assert window.end - window.first <= 40
    assert max(map(len, job.encodings)) <= model.tokenizer.max_length
    spans = [(first, last) for output in next(task.outputs([job])) for _, first, last, _ in output]
    assert len(spans) == len({*spans}) == sum(min(widest, len(job.words) - word) for word in range(len(job.words)))
    result = mlxbert.tag(model, LONG, labels=LABELS, overflow="truncate", threshold=0.0)
    assert result.truncated and max(entity.end for entity in result.entities) < len(LONG) / 2
    with pytest.raises(InputError, match="40"):
        mlxbert.tag(model, LONG, labels=LABELS, overflow="error")


def test_many_labels_are_split_into_groups_that_leave_room(models: dict[str, Model]) -> None:
    model = models["bert"]
    labels = [f"label {number}" for number in range(60)]
    task = open_tag.OpenTagTask(model, TagOptions(labels=tuple(labels)))
    job = task.prepare(TEXTS[0])
    assert [label for group in dict.fromkeys(map(tuple, job.labels)) for label in group] == labels
    assert len({*map(tuple, job.labels)}) > 1
    assert max(map(len, job.encodings)) <= model.tokenizer.max_length
    found = _found(model, TEXTS[0], labels=labels, threshold=0.0, nested=True)
    assert len({each[0] for each in found}) > 1


@together(
    "labels,expected",
    [
        *((("a", "a"), "twice"), (("",), "empty"), (("person", " "), "empty"), (("a<<ENT>>b",), "ENT")),
        *((("<<SEP>>",), "SEP"), (("long " * 200,), "tokens"), (("\x00\x01",), "tokens")),
    ],
)
def test_bad_labels_are_refused(models: dict[str, Model], labels: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ArgumentError, match=expected):
        mlxbert.tag(models["bert"], TEXTS[0], labels=labels)


def test_a_gliner_model_needs_labels_and_a_tagger_refuses_them(models: dict[str, Model]) -> None:
    with pytest.raises(ArgumentError) as error:
        mlxbert.tag(models["bert"], TEXTS[0])
    assert error.value.hint is not None and "labels=" in error.value.hint
    with pytest.raises(ArgumentError, match="aggregation"):
        mlxbert.tag(models["bert"], TEXTS[0], labels=LABELS, aggregation="first")
    tagger = mlxbert.load(new_heads={"token_classifier": mlxbert.Labels(("O", "B-PER"))})
    for options in ({"labels": LABELS}, {"threshold": 0.3}, {"nested": True}):
        with pytest.raises(ArgumentError, match="GLiNER"):
            mlxbert.tag(tagger, TEXTS[0], **options)


def test_nested_spans_lie_inside_each_other_and_flat_ones_do_not_overlap() -> None:
    found = [(0.9, 2, 5, "a"), (0.8, 3, 4, "b"), (0.7, 4, 7, "c"), (0.6, 8, 8, "d"), (0.5, 2, 5, "e"), (0.4, 0, 9, "f")]
    assert open_tag.choose(found, nested=False) == [found[0], found[3]]
    assert open_tag.choose(found, nested=True) == [found[5], found[0], found[1], found[3]]


def _edited(folder: Path, **changes: Any) -> Path:
    shutil.copytree(GOLDENS / "bert", folder)
    path = folder / "gliner_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"labels_encoder": "BAAI/bge-small-en-v1.5"}, "bi-encoder"), ({"labels_decoder": "gpt2"}, "writes labels"),
        ({"relations_layer": "gcn"}, "relations"), ({"fuse_layers": True}, "layers"),
        ({"post_fusion_schema": "l2l-l2t"}, "attention"), ({"span_mode": "conv_share"}, "span_mode"),
        ({"model_type": "gliner_streaming_span"}, "gliner_streaming_span"), ({"subtoken_pooling": "mean"}, "first"),
        ({"words_splitter_type": "spacy"}, "spacy"), ({"max_width": 0}, "max_width"),
        ({"hidden_size": "16"}, "hidden_size"),
        ({"class_token_index": 10**6}, "class_token_index"), ({"encoder_config": None}, "encoder_config"),
        ({"encoder_config": {"model_type": "t5"}}, "t5"), ({"dropout": 2}, "dropout"),
    ],
)  # fmt: skip
def test_other_layouts_are_refused_by_name(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    folder = _edited(tmp_path / "model", **change)
    with pytest.raises(ConfigError, match=expected):
        mlxbert.load(folder)


def test_a_wrong_label_token_is_refused(tmp_path: Path) -> None:
    folder = _edited(tmp_path / "model", class_token_index=5)
    with pytest.raises(TokenizerError, match="class_token_index is 5"):
        mlxbert.tag(mlxbert.load(folder), TEXTS[0], labels=LABELS)
    folder = _edited(tmp_path / "other", ent_token="<<X>>")
    with pytest.raises(TokenizerError, match="<<X>>"):
        mlxbert.tag(mlxbert.load(folder), TEXTS[0], labels=LABELS)


@together("missing", ["rnn.lstm.weight_hh_l0_reverse", "span_rep_layer.span_rep_layer.out_project.3.bias"])
def test_missing_and_unknown_tensors_are_refused(tmp_path: Path, missing: str) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    shutil.copytree(GOLDENS / "bert", folder, dirs_exist_ok=True)
    stored = arrays(folder / "model.safetensors")
    mx.save_safetensors(str(folder / "less.safetensors"), {name: a for name, a in stored.items() if name != missing})
    (folder / "less.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"is missing"):
        mlxbert.load(folder, task="tag")
    for key, value, said in (("span_mode", "marker", ""), ("num_rnn_layers", 2, "missing")):
        with pytest.raises(MlxbertError) as caught:
            mlxbert.load(_edited(folder / key, **{key: value}), task="tag")
        assert said in caught.value.message


def test_an_older_folder_gets_the_tokens_and_the_size_of_the_vocabulary(tmp_path: Path) -> None:
    """Older files name the encoder; its config.json and tokenizer are in the same folder, without GLiNER's tokens."""
    expected = _found(mlxbert.load(GOLDENS / "bert", dtype="float32"), TEXTS[0], threshold=0.35)
    folder = _edited(tmp_path / "model")
    config = json.loads((folder / "gliner_config.json").read_text(encoding="utf-8"))
    encoder = config.pop("encoder_config") | {"vocab_size": 7}
    (folder / "config.json").write_text(json.dumps(encoder), encoding="utf-8")
    del config["class_token_index"], config["vocab_size"], config["model_type"]
    (folder / "gliner_config.json").write_text(json.dumps(config), encoding="utf-8")
    path = folder / "tokenizer.json"
    vocabulary = json.loads(path.read_text(encoding="utf-8"))
    vocabulary["added_tokens"] = [token for token in vocabulary["added_tokens"] if "<<" not in token["content"]][:-1]
    path.write_text(json.dumps(vocabulary), encoding="utf-8")
    assert _found(mlxbert.load(folder, dtype="float32"), TEXTS[0], threshold=0.35) == expected


@pytest.mark.parametrize("kind", FROZEN)
def test_saved_and_converted_folders_give_the_same_entities(
    tmp_path: Path, kind: str, models: dict[str, Model]
) -> None:
    expected = _found(models[kind], TEXTS[1], threshold=0.35)
    mlxbert.save(models[kind], tmp_path / "saved")
    assert _found(mlxbert.load(tmp_path / "saved", dtype="float32"), TEXTS[1], threshold=0.35) == expected
    assert not (tmp_path / "saved" / "config.json").exists()
    written = json.loads((tmp_path / "saved" / "gliner_config.json").read_text(encoding="utf-8"))
    stated = json.loads((GOLDENS / kind / "gliner_config.json").read_text(encoding="utf-8"))
    del stated["encoder_config"]
    assert written | stated == written
    shapes = [
        {
            name: a.shape
            for name, a in arrays(folder / "model.safetensors").items()
            if not re.search("pooler|position_ids", name)
        }
        for folder in (tmp_path / "saved", GOLDENS / kind)
    ]
    assert shapes[0] == shapes[1]


@needs("export")
def test_inspect_and_verify_know_the_head() -> None:
    about = mlxbert.inspect(GOLDENS / "deberta-v3-tokens")
    assert "tag" in about.tasks and about.parts["open_entities"].problem is None
    assert about.parameters["open_entities"] > 0
    same = mlxbert.verify(GOLDENS / "bert", GOLDENS / "bert")
    assert same.agree and same.outputs.heads["open_entities"] == 0


def assert_as_in_gliner(folder: Path, theirs: Any, **options: Any) -> int:
    model = mlxbert.load(folder, dtype="float32", device="cpu")
    flat = not options.get("nested", False)
    expected = gliner_models.predicted(theirs, TEXTS, LABELS, threshold=options["threshold"], flat_ner=flat)
    for result, row in zip(mlxbert.tag(model, [*TEXTS], labels=LABELS, **options), expected, strict=True):
        assert [[one.label, one.start, one.end] for one in result.entities] == [one[:3] for one in row]
        assert [one.score for one in result.entities] == pytest.approx([one[3] for one in row], abs=1e-4)
    return sum(map(len, expected))


@pytest.mark.slow
@pytest.mark.parametrize("kind", gliner_models.KINDS)
def test_the_package_gliner_finds_the_same_and_opens_what_was_written(tmp_path: Path, kind: str) -> None:
    """It needs its own versions of torch and transformers."""
    gliner = pytest.importorskip("gliner")
    theirs, folder = gliner_models.make(tmp_path, kind, safe=kind != "bert-marker"), tmp_path / "model"
    ways = [{"threshold": threshold, "nested": nested} for threshold in (0.1, 0.35, 0.5) for nested in (False, True)]
    assert sum(assert_as_in_gliner(folder, theirs, **options) for options in ways) > 20
    for dtype in ("float32", "float16", "bfloat16"):
        saved = mlxbert.save(mlxbert.load(folder, dtype="float32"), tmp_path / f"saved {dtype}", dtype=dtype)
        mlxbert.convert(folder, tmp_path / f"converted {dtype}", dtype=dtype)
        for written in (saved, tmp_path / f"converted {dtype}"):
            assert_as_in_gliner(written, gliner.GLiNER.from_pretrained(written).float(), threshold=0.35)


@pytest.mark.slow
def test_a_trained_model_opens_in_gliner(tmp_path: Path) -> None:
    gliner = pytest.importorskip("gliner")
    spans = [{"start": 0, "end": 3, "label": "person"}, {"start": 13, "end": 18, "label": "city"}]
    data = [{"text": f"{name} lives in Paris now.", "spans": spans} for name in ("Ada", "Bob", "Eve", "Tom")] * 6
    folder = tmp_path / "trained"
    model = mlxbert.finetune("tag", train=data, output=folder, open=True, epochs=1, batch_size=8, lr=1e-4).run()
    assert_as_in_gliner(folder, gliner.GLiNER.from_pretrained(folder), threshold=0.3)
    assert model.labels is None
