"""Models of the hub whose weights are not safetensors: which files are fetched, and what of them can be inspected."""

import json
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx
from mlxbert.weights.hub.needed_files import needed_files
from tests.helpers import torch_files
from tests.helpers.fake_hub import Files, files_of
from tests.helpers.hub_machine import FILL, NAME, Machine
from tests.helpers.rooms import needs
from tests.helpers.st_folder import dense, pooling, save_st
from tests.helpers.tf_files import STEM, copy_checkpoint, source

BIN, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SHARDS = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
SMALL = {"config.json", "vocab.txt"}
TF = {"m.ckpt.index", "m.ckpt.data-00000-of-00002", "m.ckpt.data-00001-of-00002"}


def chosen(*listed: str, here: set[str] | None = None, **tables: Any) -> set[str]:
    """The weights that are chosen of a repository; `tables` by the first letter of the file's name."""
    listed = ("config.json", *listed)
    found = needed_files(NAME, listed, lambda file: tables[file[0]], lambda file: file in (here or set()))
    return set(found) - {"config.json", "modules.json"}


def never(file: str) -> Any:
    raise AssertionError(file)


@pytest.fixture(scope="module")
def files(tiny: Path) -> Files:
    """The tiny model as it was published before safetensors."""
    rest = files_of(tiny)
    rest.pop("model.safetensors")
    return rest | {BIN: torch_files.saved(arrays(tiny / "model.safetensors")), "training_args.bin": b"never"}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (["model.safetensors", BIN, "a.npz", *TF], {"model.safetensors"}),
        (["tf_model.h5", BIN, "a.npz", *TF, "other.bin"], {BIN}),
        (["a.npz", *TF, "sub/b.npz"], {"a.npz"}),
        ([*TF, "m.ckpt.meta", "other.index", "other.data-00000-of-00001.txt"], TF),
        (["a.npz", "b.npz", BIN], {BIN}),
    ],
)
def test_weights_of_one_format_are_chosen(listed: list[str], expected: set[str]) -> None:
    assert chosen(*listed) == expected
    assert chosen(*reversed(listed)) == expected


def test_an_index_is_chosen_with_its_shards() -> None:
    table = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}}
    assert chosen(INDEX, *SHARDS, "other.bin", p=table) == {INDEX, *SHARDS}
    assert chosen(INDEX, *SHARDS, BIN, p=table) == {BIN}


@pytest.mark.parametrize(
    ("shard", "said"),
    [
        ("../x.bin", "plain file name"),
        ("sub/x.bin", "plain file name"),
        ("none.bin", "which is not in the repository"),
    ],
)
def test_an_index_that_names_what_is_not_beside_it_is_refused(shard: str, said: str) -> None:
    with pytest.raises(mlxbert.HubError, match=f"{INDEX}.*'{shard}'.*{said}"):
        chosen(INDEX, "sub/x.bin", p={"weight_map": {"a": shard}})


@pytest.mark.parametrize(
    "listed", [["tf_model.h5"], ["a.npz", "b.npz"], ["a.index"], ["a.data-00000-of-00001"], ["model.onnx"], []]
)
def test_without_weights_that_are_read_those_that_are_there_are_named(listed: list[str]) -> None:
    with pytest.raises(mlxbert.HubError) as caught:
        chosen(*listed)
    assert f"found {', '.join(listed) or 'no weights'}" in caught.value.message
    assert "pytorch_model.bin" in caught.value.message and caught.value.hint


@pytest.mark.parametrize("kind", ["bert", "albert", "electra"])
def test_what_google_calls_a_configuration_is_one(kind: str) -> None:
    config = f"{kind}_config_small.json"
    listed = [config, "vocab.txt", *TF, "other_config.json"]
    assert set(needed_files(NAME, listed, never)) == {config, "vocab.txt", *TF}
    assert config not in needed_files(NAME, [*listed, "config.json"], never)
    with pytest.raises(mlxbert.HubError, match=r"no folder has config\.json"):
        needed_files(NAME, ["other_config.json", "vocab.txt", *TF], never)


def test_weights_of_torch_in_the_cache_are_as_good_as_safetensors_and_others_are_not() -> None:
    both = ("model.safetensors", BIN, "a.npz")
    assert chosen(*both, here={BIN}) == {BIN}
    assert chosen(*both, here={BIN, "model.safetensors"}) == {"model.safetensors"}
    assert chosen(*both, here={"a.npz"}) == {"model.safetensors"}


def test_weights_at_the_root_are_no_part_of_a_model_in_a_folder() -> None:
    modules = [{"path": "0_Transformer", "type": "x.Transformer"}, {"path": "1_Dense", "type": "x.Dense"}]
    inside = {f"0_Transformer/{BIN}", "0_Transformer/config.json", f"1_Dense/{BIN}"}
    assert chosen("modules.json", "a.npz", *inside, m=modules) == inside
    assert chosen("modules.json", BIN, f"1_Dense/{BIN}", m=modules) == {BIN, f"1_Dense/{BIN}"}


def test_a_model_of_torch_is_fetched_and_used(machine: Machine, tiny: Path) -> None:
    outcome = machine.run(*FILL)
    assert machine.hub.fetched() == SMALL | {BIN}
    assert outcome.lines == machine.run("fill-mask", "the [MASK]", "--top-k", "2", "--model", str(tiny)).lines
    machine.hub.forget()
    assert (machine.run(*FILL).err, machine.run("models", "path", NAME).err, machine.hub.requests) == ("", "", [])
    (listed,) = machine.run("models", "list").lines
    assert [revision["complete"] for revision in listed["models"][1]["revisions"]] == [True]


@pytest.mark.parametrize("listing", [True, False])
def test_a_cache_of_torch_is_not_fetched_anew(machine: Machine, tiny: Path, files: Files, listing: bool) -> None:
    assert machine.run(*FILL).status == 0
    commit = machine.repository.references["main"]
    machine.repository.commits[commit] = files | files_of(tiny)  # as if an older program had fetched what it reads
    for path in machine.folder.glob("trees/*"):
        tree = json.loads(path.read_bytes())
        tree["files"]["model.safetensors"] = next(iter(tree["files"].values()))
        path.write_text(json.dumps(tree), encoding="utf-8")
    if not listing:
        machine.forget_listing()
    machine.hub.forget()
    offline = machine.run(*FILL, "--offline")
    assert offline.status == 0 and ("may be incomplete" in offline.err) != listing
    assert machine.run_anew(*FILL).status == 0
    assert machine.run("inspect", NAME).lines[0]["weights"]["format"] == "PyTorch"
    assert machine.run("models", "download", NAME).status == 0
    assert machine.hub.fetched() == set()
    (machine.snapshot / "vocab.txt").unlink()
    machine.run(*FILL, "--offline").fails(1, "vocab.txt", "cache")


@needs("export")
def test_googles_files_are_fetched_and_used(machine: Machine, tmp_path: Path) -> None:
    google = copy_checkpoint("bert-pretraining", tmp_path / "google").parent
    config = (source("bert-pretraining") / "bert_config.json").read_bytes()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(ord("a"), ord("z") + 1))]
    vocabulary = "\n".join(words).encode()
    wanted = files_of(google) | {"bert_config.json": config, "vocab.txt": vocabulary}
    machine.repository.commit(wanted | {f"{STEM}.meta": b"never", "graph.pbtxt": b"never"})
    machine.run("inspect", NAME).fails(1, f"{STEM}.", "is not in the cache", f"`mlxbert models download {NAME}`")
    assert machine.run("embed", "a b", "--model", NAME).status == 0
    assert machine.hub.fetched() == set(wanted)
    assert machine.run("inspect", NAME).lines[0]["weights"]["format"] == "TensorFlow 1"
    (listed,) = machine.run("models", "list").lines
    assert [model["family"] for model in listed["models"]] == ["bert", "bert"]


def test_a_conversion_says_of_which_commit(machine: Machine, files: Files, tmp_path: Path) -> None:
    first = machine.repository.references["main"]
    second = machine.repository.commit(files | {"vocab.txt": files["vocab.txt"].replace(b"paris", b"padua")})
    machine.run("convert", NAME, str(tmp_path / "none"), "--offline").fails(
        1, "org/tiny: the model is not in the cache"
    )
    assert machine.hub.requests == []
    for number, (commit, options) in enumerate(((first, ("--revision", first)), (second, ()))):
        done = machine.run("convert", NAME, str(tmp_path / str(number)), *options)
        assert done.status == 0, done.err
        assert (done.lines[0]["source"], done.lines[0]["revision"]) == (NAME, commit)
        vocabulary = (tmp_path / str(number) / "vocab.txt").read_bytes()
        assert vocabulary == machine.repository.commits[commit]["vocab.txt"] and (b"padua" in vocabulary) == number


def test_a_module_of_torch_is_fetched_and_used(machine: Machine, tmp_path: Path) -> None:
    matrix = mx.arange(7 * 24).reshape(7, 24) / 100
    folder = save_st(tmp_path / "st", pooling("mean"), dense(matrix, mx.ones(7)))
    expected = machine.run("embed", "the cat", "--model", str(folder)).lines
    weights = folder / "2_Dense" / "model.safetensors"
    (folder / "2_Dense" / BIN).write_bytes(torch_files.saved(arrays(weights)))
    weights.unlink()
    machine.repository.commit(files_of(folder) | {"2_Dense/other.bin": b"never"})
    machine.run("inspect", NAME).fails(1, f"2_Dense/{BIN}", "cache", "hint: ")
    machine.hub.forget()
    assert machine.run("embed", "the cat", "--model", NAME).lines == expected
    assert f"2_Dense/{BIN}" in machine.hub.fetched() and "2_Dense/other.bin" not in machine.hub.fetched()
    assert machine.run("inspect", NAME).lines[0]["parameters"]["2_Dense"] == 175


def test_what_is_no_safetensors_is_not_inspected_before_it_is_fetched(machine: Machine) -> None:
    at = ("--revision", machine.repository.references["main"])
    outcome = machine.run("inspect", NAME, *at)
    outcome.fails(1, f"{NAME}", f"{BIN}", "cache", f"`mlxbert models download {NAME} --revision {at[1]}`")
    assert (outcome.out, machine.hub.served) == ("", [])
    assert machine.run("models", "download", NAME, *at).status == 0
    found = machine.run("inspect", NAME, *at).lines[0]["weights"]
    assert (found["format"], found["here"], list(found["files"])) == ("PyTorch", True, [BIN])


def test_names_are_told_apart_by_case_and_stars_stand_for_no_slash() -> None:
    assert chosen("a[1].npz", "A.NPZ") == {"a[1].npz"}
    stem = "m[x]"
    assert chosen(f"{stem}.index", f"{stem}.data-00000-of-00001", "mx.data-00000-of-00001") == {
        f"{stem}.index",
        f"{stem}.data-00000-of-00001",
    }
