"""TensorFlow checkpoints: what is in them is read exactly, under today's names, and what is damaged is refused."""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import CheckpointError, ConfigError
from mlxbert.export.tensorflow import reader
from mlxbert.export.tensorflow.names import translate
from mlxbert.export.tensorflow.table import MAGIC, checksum, read_bundle
from mlxbert.goldens.golden_outputs import load_network, outputs
from mlxbert.machine.device import mx
from mlxbert.weights.formats.config_json import ConfigJson, google_config
from mlxbert.weights.formats.headers import BYTES, Header, TensorInfo
from mlxbert.weights.model_source import local_folder
from tests.helpers.cases import together
from tests.helpers.parity import assert_equal
from tests.helpers.tf_files import (
    HEADER,
    NETWORKS,
    STEM,
    block,
    copy_checkpoint,
    entry,
    frozen,
    frozen_case,
    table,
    varint,
    write_index,
    write_model,
    write_table,
)
from tests.helpers.vocabularies import field

REAL = os.environ.get("MLXBERT_TEST_TF1", "")  # a folder of real indexes, each with a list of what it says
SQUAD = "bert-squad"
SECONDS = 60  # for a process that takes two, and took minutes


def header(folder: Path, *classes: str) -> Header:
    found = reader.read_headers(folder, classes)
    assert found is not None and len(found) == 1
    return found[next(iter(found))]


def load(folder: Path, *classes: str) -> Mapping[str, mx.array]:
    return reader.load_arrays(folder / f"{STEM}.index", header(folder, *classes))


def flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.unlink()  # a file that is overwritten is flushed to the disk, which takes long
    path.write_bytes(content)


@pytest.mark.parametrize("network", NETWORKS)
def test_names_shapes_and_numbers_are_those_of_the_model(tmp_path: Path, network: str) -> None:
    copy_checkpoint(network, tmp_path)
    wanted = frozen(network, "tensors")
    said, found = header(tmp_path, NETWORKS[network][1]), load(tmp_path, NETWORKS[network][1])
    assert said.tensors.keys() == wanted.keys() == set(found)
    for name, array in wanted.items():
        assert (said.tensors[name].dtype, said.tensors[name].shape) == ("F32", array.shape)
        assert np.array_equal(np.array(found[name]), array), name
    assert said.size == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert said.tensors.keys().isdisjoint(said.skipped) and "global_step" in said.skipped


def test_what_the_optimizer_needs_and_the_network_that_is_not_asked_for_are_skipped(tmp_path: Path) -> None:
    copy_checkpoint("bert-classifier", tmp_path)
    said = header(tmp_path)
    names = [info.stored_as for info in said.tensors.values()]
    assert sorted(said.skipped) == sorted([*(f"{name}/adam_{slot}" for name in names for slot in "mv"), "global_step"])
    others = (
        *("beta1_power", "bert/x/Adam", "bert/x/Adam_1", "bert/x/lamb_m", "loss_scale", "bad_steps"),
        "bert/x/LAMB_1",
    )
    write_index(tmp_path / "other", {name: entry(offset=8 * at) for at, name in enumerate(others)}, b"\0" * 8 * 7)
    assert header(tmp_path / "other").skipped == tuple(sorted(others))
    copy_checkpoint("electra-pretraining", tmp_path)
    for classes, other in (((), "generator"), (("ElectraForMaskedLM",), "discriminator_predictions")):
        said = header(tmp_path, *classes)
        assert not any(info.stored_as and info.stored_as.startswith(other) for info in said.tensors.values())
        assert any(name.startswith(other) for name in said.skipped)
    stored = {info.stored_as for info in header(tmp_path, "ElectraForMaskedLM").tensors.values()}
    assert "electra/embeddings/word_embeddings" in stored and "electra/embeddings_project/kernel" not in stored


@together(("theirs", "ours"), [
    ("module/bert/pooler/dense/kernel", "bert.pooler.dense.weight"),
    ("bert/embeddings/token_type_embeddings", "bert.embeddings.token_type_embeddings.weight"),
    ("bert/encoder/layer_11/output/LayerNorm/beta", "bert.encoder.layer.11.output.LayerNorm.bias"),
    ("output_weights", "classifier.weight"), ("cls/squad/output_bias", "qa_outputs.bias"),
    ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight"),
    ("task_specific/mrpc/dense/kernel", "task_specific.mrpc.dense.weight"),  # no head of transformers
    ("some/other/name", "some.other.name"),
])  # fmt: skip
def test_a_name_becomes_that_of_today_or_stays(theirs: str, ours: str) -> None:
    assert translate([theirs]) == ({ours: theirs}, ())


def test_a_generator_alone_is_read_without_being_asked_for() -> None:
    names = ("electra/embeddings/LayerNorm/beta", "generator/encoder/layer_0/output/dense/bias")
    assert [*translate(names).names] == [
        "electra.embeddings.LayerNorm.bias",
        "electra.encoder.layer.0.output.dense.bias",
    ]
    own = translate((*names, "generator/embeddings/LayerNorm/beta"))
    assert own.names["electra.embeddings.LayerNorm.bias"] == "generator/embeddings/LayerNorm/beta"
    assert own.skipped == names[:1]


@pytest.mark.skipif(not REAL, reason="MLXBERT_TEST_TF1 names no folder of real indexes")
def test_real_indexes_are_read_as_they_are_listed() -> None:
    paths = sorted(Path(REAL).rglob("*.index"))
    assert paths
    for path in paths:
        count, *lines = path.with_name(f"{path.name}.tensors.txt").read_text(encoding="utf-8").splitlines()
        found = read_bundle(path).entries
        listed = [
            f"{name} {one.dtype} {list(one.shape)} {one.offset} {one.size}"
            for name, one in found.items()
            if not name.endswith(("/adam_m", "/adam_v"))  # the lists leave them out
        ]
        assert len(found) == int(count) and listed == lines, path


def test_a_checksum_is_that_of_the_format() -> None:
    crc = 0xE3069283  # CRC-32C of these digits, RFC 3720
    assert checksum(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_a_changed_number_is_found_when_it_is_read(tmp_path: Path) -> None:
    copy_checkpoint(SQUAD, tmp_path)
    name = "bert.encoder.layer.0.output.dense.weight"
    whole = load(tmp_path)[name]
    place = read_bundle(tmp_path / f"{STEM}.index").entries["bert/encoder/layer_0/output/dense/kernel"].offset
    flip(tmp_path / f"{STEM}.data-00000-of-00001", place + 17, 3)
    found, said = load(tmp_path), r".* damaged, .*'bert/encoder/layer_0/output/dense/kernel'.*checksum"
    with pytest.raises(CheckpointError, match=f"data-00000-of-00001: {said}"):
        found[name]
    assert whole.shape == (12, 20) and found["bert.encoder.layer.0.output.dense.bias"].shape == (12,)


def test_an_index_that_is_cut_or_changed_anywhere_is_refused_or_the_same(tmp_path: Path) -> None:
    path = copy_checkpoint(SQUAD, tmp_path)
    whole, content = header(tmp_path), path.read_bytes()
    harmless = []
    for at in range(len(content)):
        flip(path, at, at % 8)
        try:
            assert header(tmp_path) == whole
            harmless.append(at)
        except CheckpointError:
            pass
        path.unlink()
        path.write_bytes(content)
    assert all(len(content) - 48 < at < len(content) - 8 for at in harmless)  # what fills the footer up
    path = copy_checkpoint(SQUAD, tmp_path)
    content = path.read_bytes()
    for size in range(len(content)):
        path.unlink()
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError):
            header(tmp_path)


def test_all_files_of_data_must_be_there_and_whole(tmp_path: Path) -> None:
    path = copy_checkpoint("bert-pretraining", tmp_path)
    last = tmp_path / f"{STEM}.data-00002-of-00003"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"00002-of-00003: the file is truncated, .* of \d+ bytes"):
        header(tmp_path)
    last.unlink()
    with pytest.raises(CheckpointError, match=r"data-00002-of-00003 .one of 3"):
        header(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{STEM}\.index is missing"):
        header(tmp_path)


def test_a_file_that_changes_behind_our_back_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": entry()})
    said = header(tmp_path)
    found = reader.load_arrays(tmp_path / f"{STEM}.index", said)
    (tmp_path / f"{STEM}.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(CheckpointError, match="tensor 'a' cannot be read"):
        found["a"]
    write_index(tmp_path, {"a": entry((2, 1))})
    with pytest.raises(CheckpointError, match="changed since"):
        reader.load_arrays(tmp_path / f"{STEM}.index", said)["a"]


@together(("entries", "message"), [
    ({"a": entry(), "b": entry(offset=7)}, "of 8 bytes"),
    ({"a": entry(), "b": entry((1,), b"\0" * 4, offset=4)}, "'a' and 'b' overlap"),
    ({"a": entry(offset=2**63)}, "truncated"), ({"a": entry(shard=1)}, "data file 1, expected 0 to 0"),
    ({"a": entry((3,))}, r"has 8 bytes of data, expected 12"), ({"a": entry((2**40, 0))}, "has the invalid shape"),
    ({"a": entry((1,) * 255)}, "255 axes"), ({"a": entry(dtype=2, shape=(1,))}, "TensorFlow dtype number 2"),
    ({"a": entry(dtype=7)}, "TensorFlow dtype number 7"), ({"a": entry() + field(7, b"")}, "'a' is stored in slices"),
    ({"a": field(2, field(3, 1))}, "unknown rank"), ({"a": b"\x08" + b"\xff" * 11}, "the varint at byte"),
    ({"a": b"\x0b"}, "the field at byte"),
    ({"a.b": entry(), "a/b": entry(offset=8)}, "two names of the same tensor"),
    ({"x" * 1100: entry()}, "the entry at byte"), ({"dense_3/kernel": entry()}, "has a number from Keras"),
    ({"layer_normalization/gamma": entry()}, "has a number from Keras"),
    ({"model/w/.ATTRIBUTES/VARIABLE_VALUE": entry()}, "TensorFlow 2"),
    ({"_CHECKPOINTABLE_OBJECT_GRAPH": entry(dtype=7)}, "TensorFlow 2"),
    ({"bert/encoder/layer_shared/output/dense/bias": entry()}, "first ALBERT of albert_zh"),
])  # fmt: skip
def test_impossible_tensors_fail(
    entries: dict[str, bytes], message: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("made")
    write_index(folder, entries, b"\0" * (16 if "two names" in message else 8))
    with pytest.raises(CheckpointError, match=message):
        header(folder)


@together(("content", "message"), [
    (table(block([(b"", field(1, 1) + field(2, 1))])), "big-endian"),
    (table(block([(b"", HEADER + field(3, field(2, 2)))])), "version 2"),
    (table(block([(b"", field(1, 10**9))])), "1000000000 data files"), (table(block([(b"", b"")])), "0 data files"),
    (table(), "the index is empty"), (table(block([(b"a", entry())])), "not sorted"),
    (table(block([(b"", HEADER), (b"b", entry()), (b"a", entry())])), "not sorted"),
    (table(block([(b"", HEADER), (b"a", entry()), (b"a", entry())])), "not sorted"),
    (table(block([(b"", HEADER), (b"\xff", entry())])), "not UTF-8"), (table(b"\0\0\0"), "a block has 3 bytes"),
    (table(struct.pack("<I", 2**32 - 1)), "list of restart points"),
    (table(block([(b"", HEADER)]), kind=2), "the unknown type 2"),
    (table(varint(2**32) + b"\0" * 8, kind=1), "cannot expand to 4294967296"),
    (table(varint(5) + b"\x00a", kind=1), "holds 1 bytes, expected 5"),
    (table(varint(1) + b"\x08abc", kind=1), "extends past its declared"),
    (table(varint(4) + b"\x00a\x01\x02", kind=1), "2 bytes back"),
    (table(varint(4) + b"\xf0", kind=1), "extends past its declared"),
    (b"\xff" * 40 + MAGIC, "the varint at byte"), (b"\0" * 48, "does not end"),
])  # fmt: skip
def test_other_files_are_refused(content: bytes, message: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("made")
    write_table(folder, content)
    with pytest.raises(CheckpointError, match=rf"model\.ckpt-7\.index: .*{message}"):
        header(folder)


def test_blocks_that_are_read_twice_and_an_index_of_no_possible_size_are_refused(tmp_path: Path) -> None:
    data = block([])
    whole = data + b"\0" + struct.pack("<I", checksum(data + b"\0"))
    handle = b"\0" + varint(len(data))
    index = block([(b"a", handle), (b"b", handle)]) + b"\0"
    footer = handle + varint(len(whole)) + varint(len(index) - 1)
    write_table(tmp_path, whole + index + struct.pack("<I", checksum(index)) + footer.ljust(40, b"\0") + MAGIC)
    with pytest.raises(CheckpointError, match="overlaps the previous"):
        header(tmp_path)
    path = write_index(tmp_path, {"a": entry()})
    os.truncate(path, 2**40)
    with pytest.raises(CheckpointError, match="1099511627776 bytes, expected at most"):
        header(tmp_path)


def test_compressed_blocks_are_read(tmp_path: Path) -> None:
    values = np.arange(70, dtype=np.float32).tobytes()
    plain = block([(b"", HEADER), (b"a", entry((70,), values)), (b"b" * 90, entry((0,), b"", offset=280))])
    at = plain.index(b"b" * 90) + 1
    literal = plain[:at]
    ahead = b"\xf0" + bytes([len(literal) - 1]) + literal  # a length in a byte of its own
    repeated = bytes([63 << 2 | 2, 1, 0]) + bytes([20 << 2 | 3, 1, 0, 0, 0]) + bytes([0 << 2 | 1, 4])
    rest = plain[at + 89 :]
    written = varint(len(plain)) + ahead + repeated + bytes([len(rest) - 1 << 2]) + rest
    write_table(tmp_path, table(written, kind=1), values)
    found = load(tmp_path)
    assert np.array_equal(np.array(found["a"]), np.arange(70)) and found["b" * 90].shape == (0,)


@pytest.mark.slow
def test_a_block_that_repeats_what_is_far_behind_takes_seconds(tmp_path: Path) -> None:
    """Each of its copies would be of all that came before: minutes."""
    copies = [bytes([63 << 2 | 3]) + struct.pack("<I", 60 + 64 * count) for count in range(200_000)]
    written = varint(60 + 64 * len(copies)) + bytes([59 << 2]) + b"\xff" * 60 + b"".join(copies)
    write_table(tmp_path, table(written, kind=1))
    module = "mlxbert.export.tensorflow.reader"
    code = f"from pathlib import Path\nfrom {module} import read_headers\nread_headers(Path.cwd())"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert "list of restart points" in ran.stderr


def test_every_dtype_is_read_as_it_is(tmp_path: Path) -> None:
    names = {1: "F32", 3: "I32", 4: "U8", 5: "I16", 6: "I8", 9: "I64", 10: "BOOL", 14: "BF16", 17: "U16", 19: "F16"}
    names |= {22: "U32", 23: "U64"}
    entries, place = {}, b""
    for number, name in names.items():
        data = bytes([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])[: 2 * BYTES[name]]
        entries[name], place = entry((2,), data, dtype=number, offset=len(place)), place + data
    write_index(tmp_path, entries, place)
    said, found = header(tmp_path), load(tmp_path)
    for name in names.values():
        assert said.tensors[name].dtype == name and found[name].nbytes == 2 * BYTES[name]
    assert found["I16"].tolist() == [1, 0] and found["BOOL"].tolist() == [True, False]


def test_of_several_checkpoints_the_named_one_is_read(tmp_path: Path) -> None:
    for number in (5, 7):
        write_index(tmp_path / "made", {f"of/{number}": entry()})
        for path in list((tmp_path / "made").iterdir()):
            shutil.move(path, tmp_path / path.name.replace("-7.", f"-{number}."))
    with pytest.raises(
        CheckpointError, match=r"2 TensorFlow checkpoints \(model.ckpt-5.index, .* no file 'checkpoint'"
    ):
        header(tmp_path)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/their/own/model.ckpt-5"\nall: "x"\n')
    assert header(tmp_path).tensors.keys() == {"of.5"}
    for name in ("model.ckpt-5", "model.ckpt-5.index"):
        assert local_folder(str(tmp_path / name)) == tmp_path
    with pytest.raises(CheckpointError, match=r"names another checkpoint, model\.ckpt-5\.index") as caught:
        local_folder(str(tmp_path / "model.ckpt-7"))
    assert caught.value.hint and '"model.ckpt-7"' in caught.value.hint
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "../model.ckpt-9"\n')
    with pytest.raises(CheckpointError, match=r"names 'model.ckpt-9.index'"):
        header(tmp_path)


def test_other_files_are_no_checkpoints_and_old_ones_are_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "words.index").write_bytes(b"something else")
    (tmp_path / "last.ckpt").write_bytes(b"of another program")
    assert reader.read_headers(tmp_path) is None and reader.read_headers(tmp_path / "none") is None
    (tmp_path / "model.ckpt").write_bytes(table(block([])))
    with pytest.raises(CheckpointError, match=r"model\.ckpt: is a single-file TensorFlow checkpoint \(version 1"):
        header(tmp_path)


def test_googles_configuration_stands_in_for_one(tmp_path: Path) -> None:
    assert google_config(tmp_path) is None
    (tmp_path / "albert_config_tiny.json").write_text("{}")
    assert google_config(tmp_path) == (tmp_path / "albert_config_tiny.json", "albert")
    (tmp_path / "bert_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"bert_config.json, albert_config_tiny.json, expected one"):
        google_config(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert google_config(tmp_path) is None


@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_of_what_tensorflow_wrote_are_those_of_transformers(tmp_path: Path, network: str) -> None:
    loaded = load_network(write_model(network, tmp_path))
    reference = frozen(network, "outputs")
    assert len(reference) >= 2
    assert_equal(outputs(loaded, frozen_case(network)), reference)


TENSORS = {"classifier.weight": TensorInfo("F32", (3, 24), Path("x"))}
SAID: dict[str, Any] = {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}
SAID |= {"label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}}


@pytest.mark.parametrize(("values", "more"), [
    ({}, {"architectures": ["BertForSequenceClassification"], **SAID}),
    ({"id2label": {"0": "no"}}, {"architectures": ["BertForSequenceClassification"]}),
    ({"num_labels": 3}, {"architectures": ["BertForSequenceClassification"]}),
    ({"architectures": ["BertModel"]}, {}),
    ({"model_type": "roberta"}, {}),
], ids=str)  # fmt: skip
def test_what_google_leaves_unsaid_is_told_and_nothing_else(values: dict[str, Any], more: dict[str, Any]) -> None:
    said = {"model_type": "bert"} | values
    assert reader.with_google_defaults(ConfigJson(Path("config.json"), said), TENSORS).values == said | more
