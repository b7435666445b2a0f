"""Models of the hub whose weights are not safetensors: which files are fetched, and what of them can be inspected."""

import json
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.goldens.golden_outputs import arrays
from mlxbert.weights.hub.needed_files import needed_files
from tests.helpers import torch_files
from tests.helpers.cases import together
from tests.helpers.fake_hub import Files, files_of
from tests.helpers.hub_machine import FILL, NAME, Machine
from tests.helpers.rooms import needs
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


SHARDED = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}}
MODULES = [{"path": "0_Transformer", "type": "x.Transformer"}, {"path": "1_Dense", "type": "x.Dense"}]
INSIDE = {f"0_Transformer/{BIN}", "0_Transformer/config.json", f"1_Dense/{BIN}"}
ROUTER = [{"path": "", "type": "x.Router"}]
ROUTES = {"types": {"query_0_Static": "x.SparseStaticEmbedding", "document_0_Encoder": "x.MLMTransformer"}}
BEHIND = {f"{folder}/{file}" for folder in ROUTES["types"] for file in ("config.json", "model.safetensors")}
BOTH = ["model.safetensors", BIN, "a.npz"]
ODD = {"m[x].index", "m[x].data-00000-of-00001"}


@pytest.mark.parametrize(
    ("listed", "options", "expected"),
    [
        ([*BOTH, *TF], {}, {"model.safetensors"}),
        (["tf_model.h5", BIN, "a.npz", *TF, "other.bin"], {}, {BIN}),
        (["a.npz", *TF, "sub/b.npz"], {}, {"a.npz"}),
        ([*TF, "m.ckpt.meta", "other.index", "other.data-00000-of-00001.txt"], {}, TF),
        (["a.npz", "b.npz", BIN], {}, {BIN}),
        ([INDEX, *SHARDS, "other.bin"], {"p": SHARDED}, {INDEX, *SHARDS}),
        ([INDEX, *SHARDS, BIN], {"p": SHARDED}, {BIN}),
        # Weights of PyTorch in the cache are as good as safetensors, and others are not.
        (BOTH, {"here": {BIN}}, {BIN}),
        (BOTH, {"here": {BIN, "model.safetensors"}}, {"model.safetensors"}),
        (BOTH, {"here": {"a.npz"}}, {"model.safetensors"}),
        # Weights at the root do not belong to a model in a folder.
        (["modules.json", "a.npz", *INSIDE], {"m": MODULES}, INSIDE),
        (["modules.json", BIN, f"1_Dense/{BIN}"], {"m": MODULES}, {BIN, f"1_Dense/{BIN}"}),
        (["modules.json", "router_config.json", *BEHIND], {"m": ROUTER, "r": ROUTES}, {*BEHIND, "router_config.json"}),
        # Names are told apart by case, and their brackets stand for themselves.
        (["a[1].npz", "A.NPZ"], {}, {"a[1].npz"}),
        ([*ODD, "mx.data-00000-of-00001"], {}, ODD),
    ],
)
def test_weights_of_one_format_are_chosen(listed: list[str], options: dict[str, Any], expected: set[str]) -> None:
    assert chosen(*listed, **options) == expected
    assert chosen(*reversed(listed), **options) == expected


@together(
    ("listed", "shard", "said"),
    [
        *(([INDEX, "sub/x.bin"], shard, "plain file name") for shard in ("../x.bin", "sub/x.bin")),
        ([INDEX], "none.bin", "which is not in the repository"),
        *(([name], "", f"found {name}") for name in ("tf_model.h5", "a.index", "a.data-00000-of-00001", "model.onnx")),
        (["a.npz", "b.npz"], "", "found a.npz, b.npz"),
        ([], "", "found no weights"),
    ],
)
def test_weights_that_are_not_whole_or_not_read_are_refused(listed: list[str], shard: str, said: str) -> None:
    with pytest.raises(mlxbert.HubError, match=f"(pytorch_model.bin|{INDEX}.*'{shard}').*{said}"):
        chosen(*listed, p={"weight_map": {"a": shard}})


def test_what_google_calls_a_configuration_is_one() -> None:
    for kind in ("bert", "albert", "electra"):
        config = f"{kind}_config_small.json"
        listed = [config, "vocab.txt", *TF, "other_config.json"]
        assert set(needed_files(NAME, listed, never)) == {config, "vocab.txt", *TF}
        assert config not in needed_files(NAME, [*listed, "config.json"], never)
    with pytest.raises(mlxbert.HubError, match=r"no folder has config\.json"):
        needed_files(NAME, ["other_config.json", "vocab.txt", *TF], never)


def test_a_model_of_torch_is_fetched_and_used(machine: Machine, tiny: Path) -> None:
    at = ("--revision", machine.commit)
    refused = machine.run("inspect", NAME, *at)
    refused.fails(1, NAME, BIN, "cache", f"`mlxbert models download {NAME} --revision {at[1]}`")
    assert (refused.out, machine.hub.served) == ("", [])
    outcome = machine.run(*FILL)
    assert machine.hub.fetched() == SMALL | {BIN}
    assert outcome.lines == machine.run("fill-mask", "the [MASK]", "--top-k", "2", "--model", str(tiny)).lines
    machine.hub.forget()
    assert (machine.run(*FILL).err, machine.run("models", "path", NAME).err, machine.hub.requests) == ("", "", [])
    (listed,) = machine.run("models", "list").lines
    assert [revision["complete"] for revision in listed["models"][1]["revisions"]] == [True]
    found = machine.run("inspect", NAME, *at).lines[0]["weights"]
    assert (found["format"], found["here"], list(found["files"])) == ("PyTorch", True, [BIN])


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
