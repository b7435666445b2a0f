"""Sparse vectors: the weights of tokens, their options, results and output files."""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.results.embed import SparseEmbedding
from mlxbert.tasks.sparse_scores import SparseMatrix, sparse_score
from tests.helpers.cases import together
from tests.helpers.libraries import Library
from tests.helpers.rooms import needs
from tests.helpers.sparse_folder import TEXTS, change_json, save_routed, save_splade
from tests.helpers.tiny import CONFIG, VOCAB, random_network, save, tensors_of, tiny_config

FROZEN = Path(__file__).with_name("sparse_goldens.json")  # numbers of sentence-transformers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_splade(tmp_path_factory.mktemp("splade") / "model")


@pytest.fixture
def model(folder: Path) -> mlxbert.Model:
    return mlxbert.load(folder, task="embed", dtype="float32", device="cpu")


@pytest.mark.parametrize("name", ["max", "sum", "routed"])
def test_weights_are_those_that_sentence_transformers_computed(name: str, tmp_path: Path) -> None:
    folder = save_routed(tmp_path / "m") if name == "routed" else save_splade(tmp_path / "m", pooling_strategy=name)
    model = mlxbert.load(folder, task="embed", dtype="float32", device="cpu")
    golden = json.loads(FROZEN.read_text(encoding="utf-8"))[name]
    for kind, expected in golden.items():
        found = mlxbert.embed_sparse(model, TEXTS[0], kind=kind)
        assert found.ids.tolist() == [int(number) for number in expected]
        np.testing.assert_allclose(found.values, [*expected.values()], atol=1e-4)


def test_batches_and_chunks_of_a_batch_change_nothing(model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [mlxbert.embed_sparse(model, text) for text in TEXTS]
    monkeypatch.setattr("mlxbert.nn.sparse_embedder._MAX_SCORES", 1)
    for one, other in zip(alone, mlxbert.embed_sparse(model, TEXTS), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(one.values, other.values, atol=1e-5)


def test_a_result_names_its_tokens_and_survives_json(model: mlxbert.Model) -> None:
    result = mlxbert.embed_sparse(model, TEXTS[0])
    assert result.names == tuple(VOCAB[number] for number in result.ids)
    assert (np.diff(result.ids) > 0).all() and (result.values > 0).all()
    written = result.to_dict()
    weights = [*written["embedding"].values()]
    assert weights == sorted(weights, reverse=True)
    assert [VOCAB[number] for number in written["ids"]] == [*written["embedding"]]
    again = SparseEmbedding.from_dict(json.loads(json.dumps(written)))
    assert again.ids.tolist() == result.ids.tolist() and again.names == result.names
    np.testing.assert_allclose(again.values, result.values, rtol=1e-6)
    some = mlxbert.embed_sparse(model, TEXTS[0], top_k=3)
    assert [*some.weights()] == [*result.weights()][:3] and len(result.ids) > 3


def test_windows_give_each_token_its_largest_weight(model: mlxbert.Model) -> None:
    text = "cat sat on mat " * 20
    result = mlxbert.embed_sparse(model, text, overflow="window")
    parts = [
        mlxbert.embed_sparse(model, text[window.offsets[1][0] : window.offsets[-2][1]])
        for window in model.sparse_tokenizer.windows(text, stride=0)
    ]
    assert len(parts) > 1 and not result.truncated
    for number, value in zip(result.ids.tolist(), result.values.tolist(), strict=True):
        largest = max(float(part.values[part.ids == number].max(initial=0)) for part in parts)
        assert value == pytest.approx(largest, abs=1e-5)
    assert mlxbert.embed_sparse(model, text).truncated
    with pytest.raises(mlxbert.InputError, match="at most 32"):
        mlxbert.embed_sparse(model, text, overflow="error")


def test_a_kind_selects_static_weights(tmp_path: Path) -> None:
    model = mlxbert.load(save_routed(tmp_path / "m", json_weights=True, root=True), task="embed", device="cpu")
    query = mlxbert.embed_sparse(model, "the cat cat xyz", kind="query")
    assert query.weights() == {"cat": 2.5, "[UNK]": 0.5, "the": 0.125}
    assert len(mlxbert.embed_sparse(model, "the cat").ids) > 3  # a document by default
    long = mlxbert.embed_sparse(model, "dog " * 100 + "cat", kind="query")
    assert long.truncated and "cat" not in long.weights()
    assert "cat" in mlxbert.embed_sparse(model, "dog " * 100 + "cat", kind="query", overflow="window").weights()
    with pytest.raises(mlxbert.InputError, match="101 tokens"):
        mlxbert.embed_sparse(model, "dog " * 100 + "cat", kind="query", overflow="error")


def test_a_plain_model_makes_sparse_vectors_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = mlxbert.load(save(tmp_path / "m"), task="embed-sparse", device="cpu")
    assert model.vectors == ("dense",) and mlxbert.embed(model, "the cat").shape == (24,)
    assert len(mlxbert.embed_sparse(model, "the cat").ids)
    assert "trained for sparse vectors" in caplog.text


def test_a_model_says_which_vectors_it_makes(model: mlxbert.Model, tmp_path: Path) -> None:
    assert model.vectors == ("sparse",)
    assert "sparse vectors" in getattr(mlxbert.inspect(model.folder).embedding, "problem", "")
    with pytest.raises(mlxbert.CheckpointError, match="makes sparse vectors, not dense vectors") as caught:
        mlxbert.embed(model, "the cat")
    assert caught.value.hint and "mlxbert.embed_sparse(model, texts) makes sparse vectors" in caught.value.hint
    plain = mlxbert.load(save(tmp_path / "m"), task="embed", device="cpu")
    with pytest.raises(mlxbert.CheckpointError, match="loaded for another task") as caught:
        mlxbert.embed_sparse(plain, "the cat")
    assert "embed-sparse" in (caught.value.hint or "")
    bare = mlxbert.load(save(tmp_path / "bare", tensors_of(random_network(tiny_config(), ()))), device="cpu")
    with pytest.raises(mlxbert.MissingHeadError, match="masked-LM head"):
        mlxbert.embed_sparse(bare, "the cat")
    for use in (lambda: mlxbert.fill_mask(bare, "[MASK]"), lambda: mlxbert.load(bare.folder, task="fill-mask")):
        with pytest.raises(mlxbert.CheckpointError, match="no masked-LM head"):
            use()


def _dense(vector: SparseEmbedding) -> np.ndarray[Any, Any]:
    full = np.zeros(CONFIG["vocab_size"])
    full[vector.ids] = vector.values
    return full


@together("similarity", ["dot", "cosine", "euclidean", "manhattan"])
def test_similarities_are_those_of_dense_vectors(similarity: str, model: mlxbert.Model) -> None:
    query, *others = mlxbert.embed_sparse(model, TEXTS)
    a, rows = _dense(query), np.stack([_dense(other) for other in others])
    expected = {
        "dot": rows @ a,
        "cosine": rows @ a / np.linalg.norm(rows, axis=1) / np.linalg.norm(a),
        "euclidean": -np.linalg.norm(rows - a, axis=1),
        "manhattan": -np.abs(rows - a).sum(1),
    }[similarity]
    found = SparseMatrix.of(others, CONFIG["vocab_size"]).scores(similarity, query)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert sparse_score(similarity, query, others[0]) == pytest.approx(expected[0], rel=1e-5, abs=1e-5)


def test_similarity_ranks_by_dot_product(model: mlxbert.Model) -> None:
    vectors = [*mlxbert.embed_sparse(model, TEXTS[:3])]
    scores = {vector.text: sparse_score("dot", vectors[0], vector) for vector in vectors}
    ranked = mlxbert.similarity(model, TEXTS[0], TEXTS[:3])
    assert [result.text for result in ranked] == sorted(scores, key=lambda text: -scores[text])
    assert [result.score for result in ranked] == pytest.approx(sorted(scores.values(), reverse=True))
    pair = mlxbert.similarity_pairs(model, (TEXTS[0], TEXTS[1]))
    assert pair.score == pytest.approx(scores[TEXTS[1]])
    with pytest.raises(mlxbert.ArgumentError, match="sparse"):
        mlxbert.similarity(model, TEXTS[0], TEXTS[:3], dimensions=5)


POOLING, TRANSFORMER, WHOLE = (
    "1_SpladePooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
ROUTER, IDF, STATIC = "router_config.json", "query_0_SparseStaticEmbedding/idf.json", "SparseStaticEmbedding"
OUTSIDE = {"../query": f"sentence_transformers.sparse_encoder.models.{STATIC}"}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # the file, its changes, what the message has
    (POOLING, {"pooling_strategy": "mean"}, "pooling_strategy is 'mean', expected"),
    (POOLING, {"activation_function": "gelu"}, "activation_function is 'gelu'"),
    (POOLING, {"embedding_dimension": 7}, "embedding_dimension is 7, but the model has"),
    (TRANSFORMER, {"transformer_task": "feature-extraction"}, "transformer_task is 'feature"),
    (TRANSFORMER, {"module_output_name": "x"}, "module_output_name is 'x'"),
    (TRANSFORMER, {"max_seq_length": 0}, "max_seq_length is 0"),
    (WHOLE, {"model_type": "SentenceTransformer"}, "model_type is 'Sentence"),
    (WHOLE, {"max_active_dims": -1}, "max_active_dims is -1"),
    (WHOLE, {"prompts": ["a"]}, r"prompts is \['a'\]"),
    (ROUTER, {"structure": {}}, "a structure with"),
    (ROUTER, {"structure": {"query": "a", "document": []}}, "a structure with"),
    (ROUTER, {"structure": {"query": ["x"], "document": []}}, "names the module 'x'"),
    (ROUTER, {"structure": {"query": [3], "document": []}}, "names the module 3"),
    (ROUTER, {"structure": {"query": [], "document": []}}, "modules are none"),
    (ROUTER, {"types": {f"query_0_{STATIC}": "os.system"}}, "type 'os.system'"),
    (ROUTER, {"parameters": {"default_route": "image"}}, "default_route is 'image'"),
    (
        ROUTER, {"types": OUTSIDE, "structure": {"query": [*OUTSIDE], "document": [*OUTSIDE]}},
        "expected a path inside the model folder",
    ),
    (IDF, {"cat": "x"}, "the weight of 'cat' is 'x', expected a number"),
    (IDF, {"cat": 1e39}, "expected a number"),
    (IDF, {"zebra": 1.0}, "the token 'zebra' is not in the vocabulary"),
]  # fmt: skip


@together("file,changes,message", REFUSED)
def test_settings_that_make_no_sense_are_refused(
    file: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path)) / "m"
    save_routed(folder, json_weights=file == IDF) if file in (ROUTER, IDF) else save_splade(folder)
    change_json(folder / file, **changes)
    with pytest.raises(mlxbert.ConfigError, match=message) as caught:
        mlxbert.load(folder, task="embed", device="cpu")
    assert str(folder) in caught.value.message


def test_a_damaged_layer_of_bge_m3_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "m")
    (folder / "sparse_linear.pt").write_bytes(b"not a pickle")
    with pytest.raises(mlxbert.CheckpointError, match=r"sparse_linear\.pt"):
        mlxbert.load(folder, task="embed", device="cpu")


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "max": save_splade,
    "sum": lambda folder: save_splade(folder, pooling_strategy="sum"),
    "two logarithms": lambda folder: save_splade(folder, activation_function="log1p_relu"),
    "sum of two logarithms": lambda folder: save_splade(
        folder, pooling_strategy="sum", activation_function="log1p_relu"
    ),
    "older dialect": lambda folder: save_splade(folder, old=True),
    "top k": lambda folder: save_splade(folder, settings={"max_active_dims": 5}),
    "prompts": lambda folder: save_splade(folder, settings={"prompts": {"query": "the ", "document": "a "}}),
    "default prompt": lambda folder: save_splade(
        folder, settings={"prompts": {"query": "the ", "document": ""}, "default_prompt_name": "query"}
    ),
    "routed": save_routed,
    "routed, JSON": lambda folder: save_routed(folder, json_weights=True),
    "routed, queries by default": lambda folder: save_routed(folder, default_route="query"),
    "routed, first by default": lambda folder: save_routed(folder, default_route=None),
}


@pytest.mark.parametrize(
    ("name", "convert"),
    [
        *((name, False) for name in ("max", "top k", "prompts", "routed")),
        *(pytest.param(name, True, marks=needs("export")) for name in ("prompts", "routed, JSON")),
    ],
)
def test_a_copy_makes_the_same_vectors(name: str, convert: bool, tmp_path: Path) -> None:
    source = LAYOUTS[name](tmp_path / "source")
    model = mlxbert.load(source, dtype="float32", device="cpu")
    if convert:
        mlxbert.convert(source, tmp_path / "copy")
    else:
        mlxbert.save(model, tmp_path / "copy")
    copy = mlxbert.load(tmp_path / "copy", task="embed", dtype="float32", device="cpu")
    assert copy.vectors == model.vectors == ("sparse",)
    for kind in ("query", "document"):
        first, second = (mlxbert.embed_sparse(each, TEXTS[0], kind=kind) for each in (model, copy))
        assert first.ids.tolist() == second.ids.tolist() and len(first.ids)
        np.testing.assert_allclose(first.values, second.values, atol=1e-6)


torch, st = Library("torch"), Library("sentence_transformers")


def _full(model: mlxbert.Model, texts: Sequence[str], **options: Any) -> np.ndarray[Any, Any]:
    rows = np.zeros((len(texts), model.config.vocab_size), np.float32)
    for row, result in zip(rows, mlxbert.embed_sparse(model, texts, **options), strict=True):
        row[result.ids] = result.values
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = LAYOUTS[name](tmp_path / "model")
    if name == "routed, JSON":  # sentence-transformers looks for the file in the current folder
        monkeypatch.chdir(folder / "query_0_SparseStaticEmbedding")
    theirs = st.SparseEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    ours = mlxbert.load(folder, task="embed", dtype="float32", device="cpu")
    for kind, encode in (("query", theirs.encode_query), ("document", theirs.encode_document), (None, theirs.encode)):
        expected = encode([*TEXTS], convert_to_sparse_tensor=False).float().numpy()
        found = _full(ours, TEXTS, kind=kind)
        assert (expected != 0).any(1)[:2].all() and (expected == 0).any()
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_the_layer_of_bge_m3(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    layer = torch.nn.Linear(CONFIG["hidden_size"], 1)
    torch.save(layer.state_dict(), folder / "sparse_linear.pt")
    model = mlxbert.load(folder, task="embed", dtype="float32", device="cpu")
    assert model.vectors == ("sparse",)
    encoder = st.models.Transformer(str(folder)).auto_model.float().eval()
    found = _full(model, TEXTS)
    for text, row in zip(TEXTS, found, strict=True):
        encoding = model.tokenizer.encode(text, overflow="truncate")
        with torch.no_grad():
            states = encoder(torch.tensor([encoding.ids])).last_hidden_state[0]
            weights = torch.relu(layer(states))[:, 0].numpy()
        expected = np.zeros_like(row)
        for number, weight in zip(encoding.ids, weights, strict=True):
            if number not in (0, 1, 2, 3):  # [PAD], [UNK], [CLS], [SEP]
                expected[number] = max(expected[number], weight)
        np.testing.assert_allclose(row, expected, atol=1e-5)
    assert (found[:3] > 0).any(1).any()
