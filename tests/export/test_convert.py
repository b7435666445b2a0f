"""`mlxbert convert`: what is written is what was read, and nothing is lost, deleted, or finished before it is."""

import fcntl
import hashlib
import json
import os
import re
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Conversion
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError, TokenizerError
from mlxbert.export import card, convert, verify
from mlxbert.export.compare.compared_model import OpenedModel
from mlxbert.export.compare.reports import Difference, OutputDifferences, TensorCounts, Verification
from mlxbert.goldens.golden_outputs import arrays, load_network, outputs
from mlxbert.machine.device import mx
from mlxbert.weights import save
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.formats import safetensors
from tests.conftest import MEASURED, UNMEASURED
from tests.helpers import tiny
from tests.helpers.cases import together
from tests.helpers.families import FROZEN, FROZEN_CELLS, walked, walked_slowly
from tests.helpers.frozen import (
    add_vocabulary,
    change_config,
    prefix_in,
    read_config,
    tensors_in,
    words_in,
    write_config,
    write_model,
    write_tensors,
)
from tests.helpers.program import call, change_weights, names, snapshot, tiny_model
from tests.helpers.st_folder import FLAGS, NORMALIZE, Spec, dense, layer_norm, pooling, save_st, write_json
from tests.helpers.tf_files import NETWORKS, frozen as frozen_tf, source as tf_source, write_model as write_tf_model
from tests.helpers.torch_files import archive
from tests.weights.test_traps_names import MASKED_LM, OLD_ENOUGH, POOLED, TIED, Arrays, assert_loads_as

pytestmark = pytest.mark.usefixtures("measurement")

BIAS = "bert.encoder.layer.0.output.dense.bias"


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "a")


@pytest.mark.parametrize("value", [65_520.0, -1e6, 3e38])
def test_a_number_that_float16_does_not_hold_is_refused(value: float, a: Path, tmp_path: Path) -> None:
    change_weights(a, lambda tensors: tensors.update({BIAS: mx.full(tensors[BIAS].shape, value)}))
    said = f"model.safetensors: tensor {BIAS!r} holds {abs(value):g}, more than float16 can hold"
    with pytest.raises(CheckpointError, match=re.escape(said)) as caught:
        mlxbert.convert(a, tmp_path / "b", dtype="float16")
    assert caught.value.hint is not None and "bfloat16" in caught.value.hint
    assert names(tmp_path) == ["a"]
    assert mlxbert.convert(a, tmp_path / "b", dtype="bfloat16").difference.agree


@pytest.mark.parametrize(("value", "kept"), [(65_519.0, 65_504), (mx.inf, mx.inf)])
def test_the_largest_numbers_that_float16_holds_are_kept(value: float, kept: float, a: Path, tmp_path: Path) -> None:
    change_weights(a, lambda tensors: tensors.update({BIAS: mx.full(tensors[BIAS].shape, value)}))
    mlxbert.convert(a, tmp_path / "b", dtype="float16")
    assert (arrays(tmp_path / "b" / "model.safetensors")[BIAS] == kept).all().item()


def test_modules_are_converted_too(tmp_path: Path) -> None:
    six = mx.ones((6,))
    a = save_st(tmp_path / "a", pooling("mean"), dense(mx.ones((6, 24)), six), layer_norm(six, six), NORMALIZE)
    found = mlxbert.convert(a, tmp_path / "b", dtype="float16")
    for name in ("2_Dense", "3_LayerNorm"):
        stored = safetensors.read_header(tmp_path / "b" / name / "model.safetensors").tensors
        assert {info.dtype for info in stored.values()} == {"F16"}
        assert f"{name}: dtype F32 → F16" in found.changed
    again = mlxbert.convert(tmp_path / "b", tmp_path / "c", dtype="float16")
    assert again.changed == () and again.difference.tensors.rounded == 0
    large = [pooling("mean"), dense(mx.full((6, 24), 1e5))]
    with pytest.raises(CheckpointError, match=r"2_Dense.*tensor.*'linear\.weight'.*100000.*float16"):
        mlxbert.convert(save_st(tmp_path / "large", *large), tmp_path / "d", dtype="float16")


def test_what_was_read_is_in_the_manifest(tmp_path: Path) -> None:
    a = save_st(tmp_path / "a", pooling("mean"), dense(mx.ones((6, 24))), settings={"prompts": {}})
    (a / "LICENSE.txt").write_text("terms")
    read = mlxbert.convert(a, tmp_path / "b").read
    assert {str(path.relative_to(a)) for path in a.rglob("*") if path.is_file()} == read.keys()
    tensorflow = add_vocabulary(write_tf_model("bert-squad", tmp_path / "tf"))
    read = mlxbert.convert(tensorflow, tmp_path / "c").read
    assert {path.name for path in tensorflow.iterdir()} == read.keys() and len(read) > 4


def test_a_copy_beside_quantized_words_is_left_out(tmp_path: Path) -> None:
    a = tiny_model(tmp_path / "a", hidden_size=32, tie_word_embeddings=False)
    copy = "cls.predictions.decoder.weight"
    change_weights(a, lambda tensors: tensors.update({copy: tensors["bert.embeddings.word_embeddings.weight"] + 0}))
    found = mlxbert.convert(a, tmp_path / "b", quantize=8, group_size=32)
    assert found.difference.agree and copy in found.left_out
    assert "config.json: tie_word_embeddings removed" in found.changed
    assert mlxbert.load(tmp_path / "b", task="fill-mask").folder == tmp_path / "b"


@MEASURED
def test_what_would_be_another_model_is_not_written(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kind = "config"

    def differing(*sides: object) -> Verification:
        said = Difference(kind, "x", 1, 2, "x: 1 and 2")
        outputs = OutputDifferences(texts=9, tolerance=1e-4)
        return Verification(False, "a", "b", (said,), ("a note",), TensorCounts(0, 0, 0, 0), outputs)

    monkeypatch.setattr(convert, "verify", differing)
    with pytest.raises(CheckpointError, match=r"different model \(x: 1 and 2\)"):
        mlxbert.convert(a, tmp_path / "b")
    assert names(tmp_path) == ["a"] and not caplog.records
    kind = "output"
    found = mlxbert.convert(a, tmp_path / "b")
    assert not found.difference.agree and found.difference.notes == ("a note",)
    assert [record.getMessage() for record in caplog.records] == [f"{a}: the outputs of the result differ: x: 1 and 2"]


@MEASURED
def test_nothing_looks_finished_while_it_is_measured(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(source: OpenedModel, result: Path) -> Verification:
        partial = tmp_path / "b.partial"
        with pytest.raises(MlxbertError, match=r"no config\.json"):
            mlxbert.load(partial)
        assert mlxbert.load(result, task="fill-mask") and not (partial / "conversion.json").exists()
        seen.append(result)
        return verify.verify(source, result)

    monkeypatch.setattr(convert, "verify", look)
    mlxbert.convert(a, tmp_path / "b")
    (view,) = seen
    assert not view.exists() and not any(path.is_symlink() for path in (tmp_path / "b").rglob("*"))
    assert names(tmp_path / "b") == ["README.md", "config.json", "conversion.json", "model.safetensors", "vocab.txt"]


def test_what_another_run_has_finished_is_not_replaced(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = save.plan

    def late(*arguments: object) -> object:
        monkeypatch.setattr(save, "plan", plan)
        mlxbert.convert(a, tmp_path / "b", dtype="float16")
        return plan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(save, "plan", late)
    with pytest.raises(ArgumentError, match="already exists"):
        mlxbert.convert(a, tmp_path / "b")
    assert names(tmp_path) == ["a", "b"]
    stored = safetensors.read_header(tmp_path / "b" / "model.safetensors").tensors
    assert {info.dtype for info in stored.values()} == {"F16"}


def test_too_little_room_and_missing_files_are_told_first(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(tensor.nbytes for tensor in arrays(a / "model.safetensors").values())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=size - 1))
    call("convert", str(a), str(tmp_path / "x" / "b")).fails(1, f"{size:,} bytes", f"{size - 1:,} bytes are free")
    assert names(tmp_path) == ["a"]
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=size))
    assert call("convert", str(a), str(tmp_path / "x" / "b")).status == 0
    (a / "vocab.txt").unlink()
    monkeypatch.setattr(save, "write_weights", None)
    with pytest.raises(TokenizerError):
        mlxbert.convert(a, tmp_path / "b")


def test_terms_that_lie_elsewhere_are_nobodys_to_publish(a: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (a / "here").write_text("terms")
    for link, place in {"NOTICE": "../secret", "README.md": "../secret", "LICENSE": "here"}.items():
        os.symlink(place, a / link)
    mlxbert.convert(a, tmp_path / "b")
    assert "NOTICE" not in names(tmp_path / "b") and (tmp_path / "b" / "LICENSE").read_text() == "terms"
    assert all(b"mine" not in content for content in snapshot(tmp_path / "b").values())


def test_a_card_tells_of_the_last_conversion_only(tmp_path: Path) -> None:
    a = tiny_model(tmp_path / "a", hidden_size=32)
    front, text = "---\nlicense: mit\nlibrary_name: transformers\n---", "\n\n# A model\n\nIts text.\n"
    (a / "README.md").write_text(front + text)
    ways: tuple[dict[str, Any], ...] = ({"dtype": "float16"}, {"quantize": 8, "group_size": 32}, {"dtype": "float32"})
    fronts = (front, front.replace("transformers", "mlx"), "---\nlicense: mit\n---")
    for source, target, way, said in zip("abc", "bcd", ways, fronts, strict=True):
        mlxbert.convert(tmp_path / source, tmp_path / target, **way)
        card = (tmp_path / target / "README.md").read_text()
        assert card.startswith(f"{said}\n\n") and text in card and card.count("Converted from") == 1
        assert f"Converted from {source} by mlxbert" in card and str(tmp_path) not in card
        assert ("cannot open them" in card) == ("quantize" in way)


@UNMEASURED
def test_arguments_of_another_type_are_refused(a: Path, tmp_path: Path) -> None:
    sources: tuple[Any, ...] = (None, 3, b"a", ["a"], mlxbert.load(a))
    for source in sources:
        with pytest.raises(ArgumentError, match=f"source.*{type(source).__name__}"):
            mlxbert.convert(source, tmp_path / "b")
    nowhere: Any = None
    with pytest.raises(ArgumentError, match="`folder` is None"):
        mlxbert.convert(a, nowhere)


@MEASURED
def test_files_put_into_a_folder_meanwhile_stay(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = tmp_path / "b"
    mlxbert.convert(a, b)

    def look(source: OpenedModel, result: Path) -> Verification:
        (b / "notes.txt").write_text("mine")
        return verify.verify(source, result)

    monkeypatch.setattr(convert, "verify", look)
    before = snapshot(b)
    with pytest.raises(ArgumentError, match=r"'notes\.txt'"):
        mlxbert.convert(a, b, dtype="float16", overwrite=True)
    assert snapshot(b) == before | {"notes.txt": b"mine"} and names(tmp_path) == ["a", "b"]


def test_a_lock_that_another_run_let_go_of_is_none(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial, flock = tmp_path / "b.partial", fcntl.flock

    def late(*arguments: Any) -> None:
        """Behind its back one conversion ends and another begins."""
        shutil.rmtree(partial)
        partial.mkdir()
        (partial / ".unfinished").touch()
        (partial / "theirs").touch()
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ArgumentError, match=r"b\.partial.*another"):
        mlxbert.convert(a, tmp_path / "b")
    assert names(partial) == [".unfinished", "theirs"]


def test_what_was_edited_or_is_linked_to_is_not_replaced_and_what_a_killed_run_left_is(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = tmp_path / "b"
    (tmp_path / "b.partial").mkdir()
    mlxbert.convert(a, b)
    assert names(tmp_path) == ["a", "b"]
    (b / ".unfinished").touch()
    (b / ".DS_Store").write_bytes(b"a Mac's")
    mlxbert.convert(a, b, overwrite=True)
    assert ".unfinished" not in names(b)
    mlxbert.convert(a, tmp_path / "c")
    (a / "model.safetensors").unlink()
    (a / "model.safetensors").symlink_to(b / "model.safetensors")
    with pytest.raises(ArgumentError, match=r"model\.safetensors.*link"):
        mlxbert.convert(a, b, overwrite=True, dtype="float16")
    assert mlxbert.load(a, task="fill-mask")
    (tmp_path / "c" / "README.md").write_text("my card")
    monkeypatch.setattr(save, "write_weights", None)  # it is told before anything is done
    with pytest.raises(ArgumentError, match=r"'README\.md'.*changed"):
        mlxbert.convert(a, tmp_path / "c", overwrite=True)
    assert (tmp_path / "c" / "README.md").read_text() == "my card" and names(tmp_path) == ["a", "b", "c"]


def test_a_module_without_a_folder_of_its_own_and_a_transformer_in_one(tmp_path: Path) -> None:
    a = save_st(tmp_path / "a", pooling("mean"), NORMALIZE)
    modules = json.loads((a / "modules.json").read_text())
    modules[2]["path"] = ""
    (a / "modules.json").write_text(json.dumps(modules))
    assert mlxbert.convert(a, tmp_path / "b").difference.agree
    (inner := a / "0_T").mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (a / name).rename(inner / name)
    (inner / "LICENSE").write_text("terms")  # they go along
    modules[0]["path"] = "0_T"
    (a / "modules.json").write_text(json.dumps(modules))
    mlxbert.convert(a, tmp_path / "c")
    assert (tmp_path / "c" / "0_T" / "LICENSE").read_text() == "terms"


def test_numbers_in_8_bits_that_float16_does_not_hold_are_refused(tmp_path: Path) -> None:
    a = tiny_model(tmp_path / "a", hidden_size=32)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    change_weights(a, lambda tensors: tensors.update({name: mx.full((32, 32), 80_000.0)}))
    mlxbert.convert(a, tmp_path / "q", quantize=8, group_size=32)
    said = rf"model\.safetensors: tensor {name!r} holds 80000, more than float16 can hold"
    for source in ("a", "q"):
        with pytest.raises(CheckpointError, match=said):
            mlxbert.convert(tmp_path / source, tmp_path / "b", dtype="float16")
    assert names(tmp_path) == ["a", "q"]


CARDS = (
    "Plain description without any heading.", "Usage\n=====\n\nText.", "```\n# code\n```\n\nText.",
    "# T\n\n### Conversion\n\nConverted from x by y.\n\n## Conversion\n\nMine.", "# T\n\na\n\n---\n\nb\n\n---\n", "",
)  # fmt: skip
FRONTS = (
    "", "---\nlicense: mit\n---\n\n", "---  \r\nlicense: mit\r\n---\r\n", "\ufeff---\nlicense: mit\n---\n",
)  # fmt: skip


@UNMEASURED
@together(("front", "text"), product(FRONTS, CARDS))
def test_no_line_of_a_card_is_lost(front: str, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("cards")
    for name in "abcd":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "README.md").write_bytes((front + text).encode())
    for old, new in ("ab", "bc", "cd"):
        opener = "mlx" if new == "b" else None
        note = card.describe(old, ("weights",), opener)
        card.write(tmp_path / old, tmp_path / new, new, note, opener or "transformers", opener)
        if new == "c":
            with (tmp_path / "c" / "README.md").open("a") as file:
                file.write("\nMy last line.\n")
    found = (tmp_path / "d" / "README.md").read_text()
    assert found.count("by mlxbert ") == 1 and "Converted from c by mlxbert" in found
    assert found.startswith("---\nlicense: mit\n---\n") == bool(front)
    assert text.strip() in found and "My last line." in found


@UNMEASURED
@pytest.mark.parametrize(("opener", "ours", "theirs"), [
    (None, True, True), ("mlx", True, False), ("onnx", False, False),
])  # fmt: skip
def test_examples_of_a_card_are_those_that_hold(opener: str | None, ours: bool, theirs: bool, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    lines = card.examples("classify", "a", "transformers")
    front = "---\nlanguage: en\nlibrary_name: peft\nlicense: mit\n---"
    note = "This is an adapter in PEFT's format, for x: it needs that model."
    (tmp_path / "a" / "README.md").write_text("\n".join([front, "", "# a", "", note, "", *lines, "The end."]))
    card.write(tmp_path / "a", tmp_path / "b", "b", "NOTE", opener or "transformers", opener)
    found = (tmp_path / "b" / "README.md").read_text()
    assert ('mlxbert.load("b")' in found, 'model="b"' in found, '"a"' in found) == (ours, theirs, False)
    assert f"language: en\nlibrary_name: {opener or 'transformers'}\nlicense: mit\n---\n" in found
    assert "NOTE" in found and "The end." in found and "PEFT" not in found


@UNMEASURED
def test_the_card_of_a_merged_adapter_states_the_license_of_its_base(tmp_path: Path) -> None:
    for name, front in (("a", "language: en"), ("b", "language: de\nlicense: mit\ndatasets: [x]"), ("c", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(f"---\n{front}\n---\n\n# {name}")
    card.write(tmp_path / "a", tmp_path / "c", "c", "NOTE", "transformers", None, tmp_path / "b")
    assert (tmp_path / "c" / "README.md").read_text().startswith('---\nlanguage: en\nlicense: "mit"\n---\n\n# a')


@MEASURED
def test_a_model_without_numbers_is_told(a: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_weights(a, lambda tensors: tensors.update({BIAS: tensors[BIAS] * mx.nan}))
    found = mlxbert.convert(a, tmp_path / "b")
    assert "NaN in the weights encoder.layers.0" in caplog.text and found.difference.outputs.texts is None


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return tmp_path / "b"


def model(family: str, head: str, folder: Path) -> Path:
    return add_vocabulary(write_model(family, head, folder))


def assert_equal(found: Arrays, wanted: Arrays) -> None:
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and mx.array_equal(found[name], array).item(), name


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_manifest(found: Conversion) -> dict[str, Any]:
    """The manifest lists the files as they are, all of them."""
    written: dict[str, Any] = json.loads((found.folder / "conversion.json").read_text(encoding="utf-8"))
    files = {path.relative_to(found.folder).as_posix(): path for path in found.folder.rglob("*") if path.is_file()}
    assert written["written"] == {name: sha256(path) for name, path in files.items() if name != "conversion.json"}
    assert found.bytes == sum(path.stat().st_size for name, path in files.items() if name != "conversion.json")
    assert not list(found.folder.parent.glob("*.partial")) and not list(found.folder.rglob(".unfinished"))
    assert written["difference"]["agree"], written["difference"]["differences"]
    return written


@pytest.mark.parametrize(("family", "head"), walked_slowly(FROZEN_CELLS), ids=str)
@MEASURED
def test_a_converted_model_is_the_model(family: str, head: str, tmp_path: Path, b: Path) -> None:
    a = model(family, head, tmp_path / "a")
    written = check_manifest(mlxbert.convert(a, b))
    assert written["read"] == {path.name: sha256(path) for path in a.iterdir()}
    assert written["left_out"] == written["changed"] == []
    assert_equal(tensors_in(b), tensors_in(a))
    assert list(read_config(b).items()) == list(read_config(a).items())
    assert open_checkpoint(b).config.labels == open_checkpoint(a).config.labels
    here, there = load_network(b), load_network(a)
    case = FROZEN[family].cases["pairs"]
    ours, theirs = outputs(here, case), outputs(there, case)
    assert all(np.array_equal(ours[name], array) for name, array in theirs.items())


def test_labels_and_what_nobody_here_knows_stay_in_the_configuration(tmp_path: Path, b: Path) -> None:
    a = model("roberta", "ForSequenceClassification", tmp_path / "a")
    labels = {"0": "sehr gut", "1": "gut", "2": "naja", "3": "schl\u00e4cht"}
    facts: dict[str, Any] = {"id2label": labels, "task_specific_params": {"x": [1, None, 2.5]}, "\u00e4": "\u2028"}
    change_config(a, **facts, label2id={label: int(number) for number, label in labels.items()})
    mlxbert.convert(a, b)
    assert list(read_config(b).items()) == list(read_config(a).items())
    mlxbert.convert(a, tmp_path / "c", dtype="bfloat16")
    changed = {key: value for key, value in read_config(tmp_path / "c").items() if read_config(a).get(key) != value}
    assert changed in ({"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"})


@pytest.mark.parametrize("cased", [True, False])
def test_case_is_told_where_only_the_vocabulary_tells_it(cased: bool, tmp_path: Path, b: Path) -> None:
    a = model("bert", "Model", tmp_path / "a")
    words, (before, after) = (
        (a / "vocab.txt").read_text(encoding="utf-8"),
        [f / "tokenizer_config.json" for f in (a, b)],
    )
    assert "paris" in words and "do_lower_case" not in (settings := json.loads(before.read_text()))
    (a / "vocab.txt").write_text(words.replace("paris", "Paris") if cased else words, encoding="utf-8")
    said = ["tokenizer_config.json: do_lower_case is false, because the vocabulary is cased"] * cased
    assert check_manifest(mlxbert.convert(a, b))["changed"] == said
    assert json.loads(after.read_text()) == settings | ({"do_lower_case": False} if cased else {})


@pytest.mark.sampled
@pytest.mark.parametrize("family", walked(FROZEN))
def test_the_prefix_is_the_one_that_transformers_expects(family: str, tmp_path: Path, b: Path) -> None:
    a = model(family, FROZEN[family].heads[1], tmp_path / "a")
    wanted = tensors_in(a)
    prefix = prefix_in(wanted)
    write_tensors(a, {name.removeprefix(prefix): array for name, array in wanted.items()})
    assert check_manifest(mlxbert.convert(a, b))["changed"][0].startswith("names of ")
    assert_equal(tensors_in(b), wanted)
    encoder = model(family, "Model", tmp_path / "encoder")
    bare = tensors_in(encoder)
    write_tensors(encoder, {prefix + name: array for name, array in bare.items()})
    mlxbert.convert(encoder, tmp_path / "c")
    assert_equal(tensors_in(tmp_path / "c"), bare)


@pytest.mark.parametrize("family", walked(OLD_ENOUGH))
def test_old_spellings_become_those_of_today(family: str, tmp_path: Path, b: Path) -> None:
    a = model(family, "ForMaskedLM", tmp_path / "a")
    wanted = tensors_in(a)
    pattern = re.compile(r"((?:layer_?norm|full_layer_layer_norm)\.)(weight|bias)$", flags=re.IGNORECASE)
    spelling = {"weight": "gamma", "bias": "beta"}
    old = {pattern.sub(lambda found: found[1] + spelling[found[2]], name): array for name, array in wanted.items()}
    buffers = {f"{prefix_in(wanted)}embeddings.{name}" for name in ("position_ids", "token_type_ids")}
    write_tensors(a, old | dict.fromkeys(buffers, mx.arange(8)[None]))
    assert {*check_manifest(mlxbert.convert(a, b))["left_out"]} == buffers
    assert_equal(tensors_in(b), wanted)


@pytest.mark.parametrize("family", ["modernbert", "nomic", "gte"])
def test_frequencies_of_rotations_are_left_out(family: str, tmp_path: Path, b: Path) -> None:
    a, frequencies = model(family, "Model", tmp_path / "a"), "encoder.rotary_emb.inv_freq"
    wanted = tensors_in(a)
    write_tensors(a, wanted | {frequencies: mx.ones(4)})
    assert check_manifest(mlxbert.convert(a, b))["left_out"] == [frequencies]
    assert_equal(tensors_in(b), wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("family", walked(MASKED_LM))
def test_a_copy_of_the_decoder_goes_along_where_the_config_unties_it(family: str, tmp_path: Path, b: Path) -> None:
    a = model(family, "ForMaskedLM", tmp_path / "a")
    tensors, decoder = tensors_in(a), TIED[family][0]
    copied = tensors | {decoder: tensors[words_in(tensors)]}
    write_tensors(a, copied)
    assert check_manifest(mlxbert.convert(a, b))["left_out"] == [decoder]
    assert_equal(tensors_in(b), tensors)
    change_config(a, tie_word_embeddings=False)
    assert check_manifest(mlxbert.convert(a, tmp_path / "c"))["left_out"] == []
    assert_equal(tensors_in(tmp_path / "c"), copied)
    write_tensors(a, copied | {decoder: copied[decoder] + mx.eye(43, copied[decoder].shape[1])})
    for untied in (True, False):
        change_config(a, tie_word_embeddings=not untied)
        mlxbert.convert(a, tmp_path / f"own {untied}")
        assert mx.array_equal(tensors_in(tmp_path / f"own {untied}")[decoder], tensors_in(a)[decoder]).item()
    write_tensors(a, tensors)
    change_config(a, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match="is missing"):
        mlxbert.convert(a, tmp_path / "d")


@pytest.mark.parametrize("family", walked(POOLED))
def test_a_pooler_that_is_absent_stays_so(family: str, tmp_path: Path, b: Path) -> None:
    a = model(family, "Model", tmp_path / "a")
    tensors = {name: array for name, array in tensors_in(a).items() if not name.startswith("pooler.")}
    mlxbert.convert(write_tensors(a, tensors), b)
    assert_equal(tensors_in(b), tensors)


SUMMARY = {"sequence_summary.summary.weight": (30, 30), "sequence_summary.summary.bias": (30,)}
MASKS = {"mask_predictions.dense.weight": (30, 30), "mask_predictions.classifier.bias": (1,)}
CARRIED: list[tuple[str, str, dict[str, tuple[int, ...]]]] = [
    ("bert", "BertForMultipleChoice", {"classifier.weight": (1, 30), "classifier.bias": (1,)}),
    ("electra", "ElectraForMultipleChoice", SUMMARY | {"classifier.weight": (1, 30)}),
    ("deberta-v3", "DebertaV2Model", MASKS),
    ("deberta-v3", "DebertaV2Model", {"deberta.embeddings.position_embeddings.weight": (27, 30)}),
]


@pytest.mark.parametrize(("family", "kind", "shapes"), CARRIED, ids=str)
def test_other_heads_go_along(
    family: str, kind: str, shapes: dict[str, tuple[int, ...]], tmp_path: Path, b: Path
) -> None:
    a = model(family, "Model", tmp_path / "a")
    change_config(a, architectures=[kind])
    prefix = prefix_in(tensors_in(write_model(family, "ForMaskedLM", tmp_path / "head")))
    inside = all(name.startswith(prefix) for name in shapes)
    mx.random.seed(4)
    tensors = {prefix + name: array for name, array in tensors_in(a).items()}
    tensors |= {name: mx.random.normal(shape) for name, shape in shapes.items()}
    assert check_manifest(mlxbert.convert(write_tensors(a, tensors), b))["left_out"] == []
    wanted = {name.removeprefix(prefix): array for name, array in tensors.items()} if inside else tensors
    assert_equal(tensors_in(b), wanted)
    assert_loads_as(b, load_network(a))
    mlxbert.convert(a, tmp_path / "half", dtype="float16")
    assert {array.dtype for array in tensors_in(tmp_path / "half").values()} == {mx.float16}


@pytest.mark.parametrize("legacy", [None, True, False])
def test_the_head_of_deberta_3_has_the_name_that_its_config_says(legacy: bool | None, tmp_path: Path, b: Path) -> None:
    a = model("deberta-v3", "ForMaskedLM", tmp_path / "a")
    tensors = tensors_in(a)
    new = {
        re.sub(r"^cls\.predictions\.(transform\.)?", "lm_predictions.lm_head.", name): t for name, t in tensors.items()
    }
    assert new.keys() != tensors.keys()
    config = {key: value for key, value in read_config(a).items() if key != "legacy"}
    write_config(a, config if legacy is None else config | {"legacy": legacy})
    mlxbert.convert(write_tensors(a, new), b)
    assert_equal(tensors_in(b), new if legacy is False else tensors)
    assert read_config(b) == read_config(a)
    assert_loads_as(b, load_network(a))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_checkpoint_of_tensorflow_becomes_safetensors(network: str, tmp_path: Path, b: Path) -> None:
    a = add_vocabulary(write_tf_model(network, tmp_path / "a"))
    written = check_manifest(mlxbert.convert(a, b))
    assert written["changed"][0] == "weights: TensorFlow 1 \u2192 safetensors"
    wanted = {name: mx.array(array) for name, array in frozen_tf(network, "tensors").items()}
    ties = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    ties |= {"predictions.decoder.weight", "predictions.decoder.bias", "generator_lm_head.weight"}
    assert "global_step" in written["left_out"]
    found = tensors_in(b)
    assert_equal(found, {name: array for name, array in wanted.items() if name not in ties})
    assert any(name.startswith(("bert.", "albert.", "electra.")) for name in found)


def test_a_folder_of_google_is_complete_afterwards(tmp_path: Path, b: Path) -> None:
    a = shutil.copytree(tf_source("bert-classifier"), tmp_path / "a")
    (a / "bert.safetensors").unlink()
    add_vocabulary(a)
    said = check_manifest(mlxbert.convert(a, b))["changed"]
    assert 'config.json: architectures is ["BertForSequenceClassification"]' in said
    config = read_config(b)
    assert config["model_type"] == "bert" and config["architectures"] == ["BertForSequenceClassification"]
    assert len(config["id2label"]) == len(config["label2id"]) == tensors_in(b)["classifier.weight"].shape[0]
    assert not (b / "bert_config.json").exists()
    assert_loads_as(b, load_network(a))


def test_an_archive_of_numpy_becomes_safetensors(tmp_path: Path, b: Path) -> None:
    a = model("bert", "ForPreTraining", tmp_path / "a")
    tensors = tensors_in(a)
    mx.savez(str(a / "weights.npz"), **tensors)
    (a / "model.safetensors").unlink()
    assert check_manifest(mlxbert.convert(a, b))["format"] == "NumPy archive"
    assert_equal(tensors_in(b), tensors)


TEXTS = ["the cat sat on the mat .", "a dog in the store , he bought milk .", "", "play ##ing"]
mx.random.seed(9)
WEIGHT, OFFSET = mx.random.normal((7, 24)) * 0.3, mx.random.normal((7,))
STACKS: dict[str, list[Spec]] = {
    **{f"{mode}, old {old}": [pooling(mode, old=old)] for mode in FLAGS for old in (True, False)},
    "two poolings": [pooling("cls", "mean"), dense(mx.concatenate([WEIGHT, WEIGHT], axis=1), OFFSET)],
    "Dense": [pooling("mean"), dense(WEIGHT, OFFSET)],
    "Dense in half precision": [pooling("mean"), dense(WEIGHT.astype(mx.float16), OFFSET.astype(mx.float16))],
    "Dense without bias": [pooling("mean"), dense(WEIGHT, activation="GELU")],
    "LayerNorm": [pooling("mean"), layer_norm(mx.arange(24) / 7, mx.ones(24))],
    "all": [pooling("mean", include_prompt=False), dense(WEIGHT, OFFSET), layer_norm(OFFSET, OFFSET), NORMALIZE],
}
SETTINGS = {"prompts": {"query": "man is : ", "passage": "in "}, "default_prompt_name": "query"}


def assert_same(a: Path, b: Path) -> None:
    one, other = (mlxbert.embed(mlxbert.load(folder, task="embed", dtype="float32"), TEXTS) for folder in (a, b))
    assert np.array_equal(one, other) and np.isfinite(one).all()


@pytest.mark.sampled
@pytest.mark.parametrize("stack", STACKS)
def test_every_module_goes_along(stack: str, tmp_path: Path) -> None:
    a, b = save_st(tmp_path / "a", *STACKS[stack]), tmp_path / "b"
    check_manifest(mlxbert.convert(a, b))
    assert_same(a, b)
    for path in a.rglob("*.json"):
        assert json.loads((b / path.relative_to(a)).read_text()) == json.loads(path.read_text())
    for path in a.rglob("*.safetensors"):
        ours, theirs = (mx.load(str(folder / path.relative_to(a))) for folder in (b, a))
        assert isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys()
        assert all(mx.array_equal(ours[name], array).item() for name, array in theirs.items())
        assert all(ours[name].dtype == array.dtype for name, array in theirs.items())
    check_manifest(mlxbert.convert(b, tmp_path / "c"))
    for path in b.rglob("*"):
        if path.is_file() and path.name not in ("conversion.json", "README.md"):
            assert (tmp_path / "c" / path.relative_to(b)).read_bytes() == path.read_bytes(), path


def test_a_module_for_training_alone_changes_nothing_and_stays_behind(tmp_path: Path) -> None:
    plain, own = [pooling("mean"), dense(WEIGHT, OFFSET)], ("Dropout", {"dropout": 0.9}, None)
    save_st(tmp_path / "b", *plain, NORMALIZE)
    mlxbert.convert(save_st(tmp_path / "a", *plain, own, NORMALIZE), tmp_path / "c")
    vectors = [mlxbert.embed(mlxbert.load(tmp_path / name, dtype="float32"), "the cat") for name in "abc"]
    assert (vectors[0] == vectors[1]).all() and (vectors[0] == vectors[2]).all()
    kinds = [module["type"] for module in json.loads((tmp_path / "c" / "modules.json").read_text())]
    assert not any("Dropout" in kind for kind in kinds) and len(kinds) == 4


@pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_distilbert_config.json"])
def test_settings_go_along(name: str, tmp_path: Path) -> None:
    a = save_st(tmp_path / "a", *STACKS["all"], settings=SETTINGS)
    write_json(a / name, {"max_seq_length": 7, "do_lower_case": True})
    check_manifest(mlxbert.convert(a, tmp_path / "b"))
    assert_same(a, tmp_path / "b")
    assert mlxbert.load(tmp_path / "b").embedder.config.max_length == 7
    assert (tmp_path / "b" / name).read_bytes() == (a / name).read_bytes()


@pytest.mark.parametrize("how", [{}, {"dtype": "float16"}, {"max_shard_size": "4KB"}], ids=str)
def test_a_transformer_in_a_folder_of_its_own_stays_there(how: dict[str, Any], tmp_path: Path) -> None:
    a, b = save_st(tmp_path / "a", *STACKS["all"]), tmp_path / "b"
    inner = tiny.save(a / "0_Transformer")
    for path in inner.iterdir():
        (a / path.name).unlink()
    write_json(inner / "sentence_bert_config.json", {"max_seq_length": 9})
    write_json(a / "config.json", {"__version__": "0.4.1"})
    entries = json.loads((a / "modules.json").read_text())
    write_json(a / "modules.json", [entries[0] | {"path": "0_Transformer"}, *entries[1:]])
    check_manifest(mlxbert.convert(a, b, **how))
    missing = {path.name for path in inner.iterdir()} - {path.name for path in (b / "0_Transformer").iterdir()}
    assert missing <= {"model.safetensors"}
    assert not list(b.glob("*.safetensors")) and json.loads((b / "config.json").read_text()) == {"__version__": "0.4.1"}
    if "dtype" not in how:
        assert_same(a, b)


def test_terms_and_card_go_along_and_nothing_that_nobody_asked_for(tmp_path: Path) -> None:
    a, b = save_st(tmp_path / "a", *STACKS["all"]), tmp_path / "b"
    (a / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# A model\n\nSch\u00f6n.\n", encoding="utf-8")
    (a / "LICENSE").write_text("Terms.")
    (a / "NOTICE.txt").write_text("Names.")
    for name in ("optimizer.pt", "training_args.bin", "notes.md", ".git", "model.onnx"):
        (a / name).write_bytes(b"x")
    found = mlxbert.convert(a, b)
    check_manifest(found)
    card = (b / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlicense: apache-2.0\n---\n\n# A model\n\nSch\u00f6n.\n") and "## Conversion" in card
    assert str(tmp_path) not in card
    assert (b / "LICENSE").read_text() == "Terms." and (b / "NOTICE.txt").read_text() == "Names."
    names = {path.name for path in b.iterdir()}
    assert not names & {"optimizer.pt", "training_args.bin", "notes.md", ".git", "model.onnx"}


@pytest.mark.parametrize("damage", ["missing", "torn", "pickle"])
def test_a_module_that_cannot_be_read_is_an_error_and_leaves_nothing(damage: str, tmp_path: Path) -> None:
    a = save_st(tmp_path / "a", *STACKS["Dense"])
    weights = a / "2_Dense" / "model.safetensors"
    if damage == "torn":
        weights.write_bytes(weights.read_bytes()[:-8])
    else:
        weights.unlink()
    if damage == "pickle":
        weights.with_name("pytorch_model.bin").write_bytes(archive(b"\x80\x02cos\nsystem\n."))
    with pytest.raises(MlxbertError) as caught:
        mlxbert.convert(a, tmp_path / "b")
    assert "2_Dense" in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
