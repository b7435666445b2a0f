"""Token vectors from the folders of four projects, next to stored numbers of PyLate and sentence-transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import CheckpointError, ConfigError, MlxbertError
from mlxbert.folders.inspection import NoEmbedding, TokenVectorFacts
from mlxbert.machine.device import mx
from mlxbert.nn.token_embedder import MEAN_MAXSIM
from mlxbert.text.token_inputs import TokenInputs
from tests.helpers import token_folders, torch_files
from tests.helpers.frozen import tensors_in, write_tensors
from tests.helpers.rooms import needs
from tests.helpers.st_folder import write_json

TOLERANCE = 1e-5
LAYOUTS = [(peer, name) for peer, layouts in token_folders.PEERS.items() for name in layouts]
TEXTS: dict[Any, tuple[str, ...]] = {"query": token_folders.QUERIES, "document": token_folders.DOCUMENTS}


def assert_inspect_agrees(folder: Path, model: mlxbert.Model) -> None:
    """`inspect` describes the vectors without the weights of their layers."""
    facts, config = mlxbert.inspect(folder).token_vectors, model.token_embedder.config
    assert isinstance(facts, TokenVectorFacts)
    assert (facts.size, facts.similarity) == (model.token_embedder.size, config.similarity)
    for side, found in ((config.query, facts.query_tokens), (config.document, facts.text_tokens)):
        assert found == TokenInputs(model.tokenizer, side).tokenizer.max_length


@pytest.mark.parametrize(("peer", "name"), LAYOUTS)
def test_vectors_are_those_of_the_peer(peer: str, name: str, tmp_path: Path) -> None:
    folder = token_folders.PEERS[peer][name](tmp_path / "model")
    model = mlxbert.load(folder, task="embed")
    assert_inspect_agrees(folder, model)
    for kind, texts in TEXTS.items():
        expected = token_folders.golden(peer)[name][kind]
        for found, numbers in zip(mlxbert.embed_tokens(model, texts, kind=kind), expected, strict=True):
            theirs = np.array(numbers, np.float32).reshape(-1, token_folders.SIZE)
            assert found.shape == theirs.shape and np.abs(found - theirs).max(initial=0) < TOLERANCE


def test_bge_m3_leaves_out_the_first_token_and_divides_by_the_tokens_of_the_query(tmp_path: Path) -> None:
    weight = mx.array(np.random.default_rng(2).normal(size=(8, token_folders.WIDTH)).astype(np.float32))
    layer = {"weight": weight, "bias": mx.arange(8) / 10}
    token_folders.encoder(tmp_path)
    (tmp_path / "colbert_linear.pt").write_bytes(torch_files.saved(layer))
    model = mlxbert.load(tmp_path)
    encoding = model.tokenizer.encode("the cat sat")
    hidden = model.network(mx.array([encoding.ids])).last_hidden_state[0, 1:]
    projected = np.array(hidden @ layer["weight"].T + layer["bias"])
    expected = projected / np.linalg.norm(projected, axis=1, keepdims=True)
    query = mlxbert.embed_tokens(model, "the cat sat", kind="query")
    assert len(expected) == len(encoding) - 1 and np.abs(query - expected).max() < TOLERANCE
    assert model.token_embedder.config.similarity == MEAN_MAXSIM
    score = (expected @ expected.T).max(axis=1).mean()
    assert mlxbert.rerank(model, "the cat sat", ["the cat sat"])[0].score == pytest.approx(score, abs=1e-5)


SETTINGS = "config_sentence_transformers.json"


def _changed(folder: Path, file: str, **changes: Any) -> Path:
    write_json(folder / file, json.loads((folder / file).read_text()) | changes)
    return folder


BROKEN: list[tuple[str, str, dict[str, Any], str]] = [
    *(
        ("usual", SETTINGS, {key: value}, key)
        for key, value in (
            *(("query_length", "long"), ("query_length", 2**20), ("query_prefix", 7), ("skiplist_words", "abc")),
            *(("do_query_expansion", "yes"), ("similarity_fn_name", "evil")),
        )
    ),
    ("stanford", "artifact.metadata", {"similarity": "l2"}, "similarity"),
    ("usual", "1_Dense/config.json", {"in_features": token_folders.WIDTH + 1}, "shape|values"),
]


@pytest.mark.parametrize(("layout", "file", "changes", "named"), BROKEN)
def test_wrong_settings_are_named(layout: str, file: str, changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = _changed(token_folders.PYLATE[layout](tmp_path / "model"), file, **changes)
    with pytest.raises(MlxbertError, match=named):
        mlxbert.load(folder, task="embed")
    if changes == {"query_length": "long"}:
        about = mlxbert.inspect(folder)
        assert isinstance(about.token_vectors, NoEmbedding) and "query_length" in about.token_vectors.problem
        assert "embed-tokens" not in about.tasks and mlxbert.inspect("builtin").token_vectors is None


def test_a_prefix_that_is_no_token_is_refused(tmp_path: Path) -> None:
    folder = _changed(token_folders.PYLATE["usual"](tmp_path / "model"), SETTINGS, query_prefix="[nothing]")
    model = mlxbert.load(folder, task="embed")
    with pytest.raises(MlxbertError, match=r"\[nothing\]"):
        mlxbert.embed_tokens(model, "the cat", kind="query")


def test_stanfords_layer_has_to_be_there(tmp_path: Path) -> None:
    folder = token_folders.PYLATE["stanford"](tmp_path / "model")
    write_tensors(folder, tensors_in(folder) | {"linear.weight": mx.zeros((8, 3))})
    with pytest.raises(CheckpointError, match=r"linear\.weight"):
        mlxbert.load(folder, task="embed")


def test_a_module_from_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = token_folders.PYLATE["usual"](tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "os.system.Dense"
    write_json(folder / "modules.json", modules)
    with pytest.raises(ConfigError, match=r"os\.system"):
        mlxbert.load(folder, task="embed")


def test_a_model_of_texts_gives_no_token_vectors() -> None:
    with pytest.raises(MlxbertError, match="token vectors"):
        mlxbert.embed_tokens(mlxbert.load(), "a text")


@pytest.mark.parametrize("write", [token_folders.PYLATE["usual"], token_folders.bge_m3])
def test_inspect_heeds_the_limit_of_the_tokenizer(write: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = _changed(write(tmp_path / "model"), "tokenizer_config.json", model_max_length=9)
    assert_inspect_agrees(folder, mlxbert.load(folder, task="embed-tokens"))


@needs("export")
def test_verify_compares_the_settings_and_the_layers_of_token_vectors(tmp_path: Path) -> None:
    a = token_folders.PYLATE["usual"](tmp_path / "a")
    same = mlxbert.verify(a, a)
    assert same and same.notes == () and same.tensors.compared == same.tensors.equal
    changed = token_folders.PYLATE["attending"](tmp_path / "b")
    write_tensors(changed / "1_Dense", {name: array + 1 for name, array in tensors_in(changed / "1_Dense").items()})
    for folder, names in (
        (changed, {"tokens.query.attend", "token_embedder.layers.0.linear.weight"}),
        (token_folders.PYLATE["chained"](tmp_path / "c"), {"tokens.layers"}),
        (token_folders.encoder(tmp_path / "d"), {"tokens"}),
    ):
        found = {difference.name for difference in mlxbert.verify(a, folder).differences}
        assert found == names or (names == {"tokens"} and names <= found)


@needs("export")
def test_a_converted_folder_makes_the_same_token_vectors(tmp_path: Path) -> None:
    source, half = token_folders.PYLATE["chained"](tmp_path / "source"), tmp_path / "half"
    assert mlxbert.convert(source, half, dtype="float16").difference
    first, second = (np.asarray(mlxbert.embed_tokens(mlxbert.load(one), "the cat sat")) for one in (source, half))
    assert first.shape == second.shape and 0 < np.abs(first - second).max() < 0.01
    with pytest.raises(MlxbertError, match="token vectors"):
        mlxbert.convert_to_gguf(source, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
