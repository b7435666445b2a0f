"""How near texts are to a query: ranks, ties, prompts; pairs and matrices; vectors in fewer bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, ConfigError
from mlxbert.nn.vector_settings import SIMILARITIES
from mlxbert.results.result import Failure
from mlxbert.results.text_relations import Similarity
from mlxbert.tasks.query_ranking import nearest, scores_of_all, scores_of_pairs
from tests.helpers.cases import together
from tests.helpers.libraries import Library
from tests.helpers.program import call
from tests.helpers.rooms import needs
from tests.helpers.st_folder import pooling, save_st

QUERY = "the cat sat on the mat"
TEXTS = ["a dog", "paris , tokyo !", QUERY, "", "he bought milk in the largest store", "the cat sat", "cat " * 40]


def _found(model: mlxbert.Model, texts: Any = TEXTS, **options: Any) -> Any:
    return mlxbert.similarity(model, QUERY, texts, **options)


COSINES: list[tuple[str, dict[str, Any]]] = [("tiny", {}), ("unit", {}), ("tiny", {"pooling": "cls"})]


@pytest.mark.parametrize(("name", "options"), [*COSINES, ("unit", {"dimensions": 5}), ("unit", {"normalize": False})])
def test_scores_are_the_cosines_of_the_vectors(
    name: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(name)
    query, vectors = (mlxbert.embed(model, texts, prompt="", **options) for texts in (QUERY, TEXTS))
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    found = _found(model, prompt="", **options)
    for result in found:
        assert abs(result.score - cosines[result.index]) < 1e-5
        assert (result.query, result.text) == (QUERY, TEXTS[result.index])
        assert result.truncated is (result.index == len(TEXTS) - 1)
    assert [result.rank for result in found] == list(range(1, len(TEXTS) + 1))
    assert [result.index for result in found] == sorted(range(len(TEXTS)), key=lambda index: -cosines[index])
    assert found[0].index == 2 and abs(found[0].score - 1) < 1e-6 and found[0].score <= 1


def test_of_texts_equally_near_the_first_comes_first(tiny: mlxbert.Model) -> None:
    texts = ["a dog", QUERY, "a dog", QUERY, "a dog", QUERY]
    assert [result.index for result in _found(tiny, texts, batch_tokens=1)] == [1, 3, 5, 0, 2, 4]
    assert [result.index for result in _found(tiny, texts, batch_tokens=1, top_k=2)] == [1, 3]
    for top_k in (1, 4, 100):
        assert _found(tiny, iter(TEXTS), top_k=top_k) == _found(tiny)[:top_k] and _found(tiny, [], top_k=top_k) == []
    (result,) = _found(tiny, [QUERY])
    assert result.to_dict() == {"query": QUERY, "rank": 1, "index": 0, "score": result.score, "text": QUERY}


def test_texts_that_cannot_be_used_come_last_or_raise(tiny: mlxbert.Model) -> None:
    texts: list[Any] = [None, "a dog", "half \ud800", QUERY, 5]
    found = mlxbert.similarity(tiny, QUERY, texts, on_error="return", top_k=1)
    assert isinstance(found[0], Similarity) and (found[0].rank, found[0].index) == (1, 3)
    assert [failure.index for failure in found[1:] if isinstance(failure, Failure)] == [0, 2, 4]
    with pytest.raises(mlxbert.InputError, match="expected a text, found NoneType"):
        mlxbert.similarity(tiny, QUERY, texts)
    with pytest.raises(mlxbert.ArgumentError, match="`on_error` is 'skip'"):
        mlxbert.similarity(tiny, QUERY, texts, on_error="skip")  # type: ignore[call-overload]


@together("query", [None, 3, ["a"], b"a", "\ud800"])
def test_a_query_that_is_no_text_is_refused(tiny: mlxbert.Model, query: Any) -> None:
    with pytest.raises(mlxbert.InputError, match="surrogate" if isinstance(query, str) else type(query).__name__):
        mlxbert.similarity(tiny, query, TEXTS, on_error="return")


SAT, OTHERS = "the cat sat", ["a dog", "he bought milk", "paris , tokyo !"]
OF_QUERIES, OF_TEXTS = "man is : ", "in "  # the prompts of the model `unit`


def near(a: object, b: object) -> bool:
    return np.allclose(np.asarray(a, float), np.asarray(b, float), atol=1e-5)


def test_a_kind_is_the_prompt_that_the_model_has_for_it(
    unit: mlxbert.Model, tiny: mlxbert.Model, caplog: pytest.LogCaptureFixture
) -> None:
    assert near(mlxbert.embed(unit, OTHERS, kind="query"), mlxbert.embed(unit, OTHERS, prompt=OF_QUERIES))
    assert near(mlxbert.embed(unit, OTHERS, kind="document"), mlxbert.embed(unit, OTHERS, prompt=OF_TEXTS))
    assert not near(mlxbert.embed(unit, OTHERS, kind="query"), mlxbert.embed(unit, OTHERS))
    assert not caplog.text
    assert near(mlxbert.embed(tiny, OTHERS, kind="query"), mlxbert.embed(tiny, OTHERS))
    assert "`kind='query'` changes nothing" in caplog.text
    wrong: list[dict[str, Any]] = [{"kind": "passage"}, {"kind": "query", "prompt": "a"}]
    for options in [*wrong, {"kind": "query", "prompt_name": "query"}]:
        with pytest.raises(mlxbert.ArgumentError, match="kind"):
            mlxbert.embed(unit, OTHERS, **options)


@pytest.mark.parametrize(
    ("options", "first", "others"),
    [
        ({}, OF_QUERIES, OF_TEXTS),
        ({"prompt": ""}, "", ""),
        ({"prompt_name": "passage"}, OF_TEXTS, OF_TEXTS),
        ({"query_prompt": "the "}, "the ", OF_TEXTS),
        ({"query_prompt_name": "query", "prompt": "a "}, OF_QUERIES, "a "),
    ],
)
def test_queries_and_texts_get_their_prompts(
    options: dict[str, Any], first: str, others: str, unit: mlxbert.Model
) -> None:
    query, texts = mlxbert.embed(unit, SAT, prompt=first), mlxbert.embed(unit, OTHERS, prompt=others)
    expected = texts @ query
    found = {result.index: result.score for result in mlxbert.similarity(unit, SAT, OTHERS, **options)}
    assert near([found[number] for number in range(len(OTHERS))], expected)
    pairs = [(SAT, text) for text in OTHERS]
    assert near([result.score for result in mlxbert.similarity_pairs(unit, pairs, **options)], expected)
    assert near(mlxbert.similarity_matrix(unit, [SAT], OTHERS, **options), expected[None])


@together(
    "options,said",
    [
        ({"query_prompt": "a", "query_prompt_name": "query"}, "the `query_prompt` 'a' and the `query_prompt_name` 'qu"),
        ({"query_prompt_name": "doc"}, "`query_prompt_name` is 'doc', but the model has only the prompts 'query'"),
    ],
)
def test_prompts_that_contradict_each_other_are_named(unit: mlxbert.Model, options: dict[str, Any], said: str) -> None:
    with pytest.raises(mlxbert.ArgumentError, match=said):
        mlxbert.similarity(unit, SAT, OTHERS, **options)
    with pytest.raises(mlxbert.ArgumentError, match="needs `texts`"):
        mlxbert.similarity_matrix(unit, OTHERS, query_prompt="a")


def test_a_matrix_of_texts_with_themselves_is_symmetric(unit: mlxbert.Model) -> None:
    vectors = mlxbert.embed(unit, OTHERS)
    found = mlxbert.similarity_matrix(unit, OTHERS)
    assert found.dtype == np.float32 and near(found, vectors @ vectors.T) and near(np.diag(found), 1)
    broken: list[Any] = ["a dog", None]
    assert np.isnan(mlxbert.similarity_matrix(unit, OTHERS, broken, on_error="return")).tolist() == [[False, True]] * 3


def test_one_pair_is_a_tuple_and_bad_ones_keep_their_places(tiny: mlxbert.Model) -> None:
    one = mlxbert.similarity_pairs(tiny, (SAT, "a dog"))
    pairs: list[Any] = [(SAT, "a dog"), "text", (SAT, None), [SAT, "cat " * 40]]
    found = list(mlxbert.similarity_pairs(tiny, pairs, on_error="return"))
    assert [type(result) for result in found] == [type(one), mlxbert.Failure, mlxbert.Failure, type(one)]
    assert one.to_dict().keys() == {"a", "b", "score"} and (one.truncated, found[3].truncated) == (False, True)  # type: ignore[union-attr]
    with pytest.raises(mlxbert.InputError, match="input 1"):
        list(mlxbert.similarity_pairs(tiny, pairs))


def test_vectors_in_fewer_bits_are_what_the_formulas_say(unit: mlxbert.Model) -> None:
    vectors = mlxbert.embed(unit, OTHERS)
    binary = mlxbert.embed(unit, OTHERS, output_dtype="binary")
    expected = (np.packbits(vectors > 0).reshape(len(vectors), -1) - 128).astype(np.int8)  # quantize_embeddings
    assert binary.dtype == np.int8 and (binary == expected).all() and binary.shape == (3, 3)
    whole: Any = mlxbert.embed(unit, OTHERS, output_dtype="int8")
    scaled = np.rint(127 * vectors / np.abs(vectors).max(axis=1, keepdims=True))
    assert whole.dtype == np.int8 and (whole == scaled).all() and (np.abs(whole.astype(int)).max(axis=1) == 127).all()
    (result,) = mlxbert.embed_stream(unit, OTHERS[:1], output_dtype="int8")
    assert result.to_dict()["embedding"] == whole[0].tolist()
    broken: list[Any] = [None, "a"]
    assert (mlxbert.embed(unit, broken, output_dtype="int8", on_error="return")[0] == 0).all()
    with pytest.raises(mlxbert.ArgumentError, match="20 values, expected a multiple of 8") as caught:
        mlxbert.embed(unit, OTHERS, output_dtype="binary", dimensions=20)
    assert caught.value.hint is not None and "dimensions=16" in caught.value.hint
    with pytest.raises(mlxbert.ArgumentError, match="`output_dtype` is 'uint4', expected one of float32, "):
        mlxbert.embed(unit, OTHERS, output_dtype="uint4")  # type: ignore[arg-type]


SEVERAL, DOCUMENTS = ["the cat sat", "he bought milk"], ["a dog", "paris , tokyo !", "the cat sat on the mat", "milk"]
EXPECTED: dict[str, Callable[[Any, Any], float]] = {
    "cosine": lambda a, b: float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
    "dot": lambda a, b: float(a @ b),
    "euclidean": lambda a, b: -float(np.sqrt(np.square(a - b).sum())),
    "manhattan": lambda a, b: -float(np.abs(a - b).sum()),
}


@pytest.fixture(scope="module", params=SIMILARITIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"similarity_fn_name": request.param, "prompts": {"query": "in ", "document": "a "}}
    return save_st(tmp_path_factory.mktemp("model") / request.param, pooling("mean"), settings=settings)


OTHER = pytest.mark.parametrize("folder", ["manhattan"], indirect=True)  # where each would take cosines


def _expected(model: mlxbert.Model, name: str) -> Any:
    queries, texts = mlxbert.embed(model, SEVERAL, kind="query"), mlxbert.embed(model, DOCUMENTS, kind="document")
    return np.array([[EXPECTED[name](query.astype(float), text) for text in texts] for query in queries])


def test_every_function_of_the_library_compares_as_the_files_say(folder: Path) -> None:
    model = mlxbert.load(folder, task="embed", dtype="float32")
    expected = _expected(model, folder.name)
    assert np.allclose(mlxbert.similarity_matrix(model, SEVERAL, DOCUMENTS), expected, atol=1e-4)
    pairs = [(query, text) for query in SEVERAL for text in DOCUMENTS]
    assert np.allclose([one.score for one in mlxbert.similarity_pairs(model, pairs)], expected.ravel(), atol=1e-4)
    for query, row in zip(SEVERAL, expected, strict=True):
        found = mlxbert.similarity(model, query, DOCUMENTS)
        assert [one.index for one in found] == np.argsort(-row).tolist()
        assert np.allclose([one.score for one in found], np.sort(row)[::-1], atol=1e-4)


@needs("train")
@OTHER
def test_vectors_of_length_one_are_mined(folder: Path) -> None:
    model = mlxbert.load(folder, task="embed", dtype="float32")
    anchors = [*SEVERAL, "man", "store"]
    pairs = [{"anchor": query, "positive": text} for query, text in zip(anchors, DOCUMENTS, strict=True)]
    kinds: list[tuple[str, Any]] = [("anchor", "query"), ("positive", "document")]
    queries, texts = (
        mlxbert.embed(model, [pair[key] for pair in pairs], kind=kind, normalize=True) for key, kind in kinds
    )
    mined = mlxbert.mine(model, pairs, negatives=3, margin=0.01)
    for number, (query, found) in enumerate(zip(queries, mined, strict=True)):
        scores = {text: EXPECTED[folder.name](query, vector) for text, vector in zip(DOCUMENTS, texts, strict=True)}
        allowed = {text: score for text, score in scores.items() if score <= scores[DOCUMENTS[number]] - 0.01}
        assert [*found.negatives] == sorted(allowed, key=lambda text: -allowed[text])
    with pytest.raises(ArgumentError, match="margin"):
        mlxbert.mine(model, pairs, margin=2 * 24**0.5 + 0.1)


@needs("train")
@OTHER
def test_evaluations_compare_as_the_files_say(folder: Path) -> None:
    model = mlxbert.load(folder, task="embed", dtype="float32")
    scored: list[dict[str, Any]] = [
        {"sentence1": query, "sentence2": text, "score": number % 5}
        for number, (query, text) in enumerate((query, text) for query in SEVERAL for text in DOCUMENTS)
    ]
    found = mlxbert.evaluate("embed", model, data=scored)
    first, second = (mlxbert.embed(model, [one[key] for one in scored]) for key in ("sentence1", "sentence2"))
    scores = [EXPECTED[folder.name](a, b) for a, b in zip(first, second, strict=True)]
    expected = np.corrcoef(np.array(scores), np.array([number % 5 for number in range(len(scored))]))[0, 1]
    assert found.metrics["pearson"] == pytest.approx(expected, abs=1e-3)
    search = [
        {"query": query, "positives": [text], "negatives": DOCUMENTS[2:]}
        for query, text in zip(SEVERAL, DOCUMENTS[:2], strict=True)
    ]
    place = [1 + (row > row[number]).sum() for number, row in enumerate(_expected(model, folder.name))]
    assert mlxbert.evaluate_search(model, data=search).metrics["mrr@10"] == pytest.approx(np.mean(1 / np.array(place)))


@needs("train", "export")
@OTHER
def test_what_is_written_names_the_function(folder: Path, tmp_path: Path) -> None:
    data = [{"anchor": f"the {word}", "positive": f"a {word}"} for word in ("cat", "dog", "milk", "store")]
    for _ in mlxbert.finetune("embed", train=data, model=folder, output=tmp_path / "trained", epochs=1):
        pass
    mlxbert.save(mlxbert.load(folder, task="embed"), tmp_path / "saved")
    mlxbert.convert(folder, tmp_path / "converted")
    for written in ("trained", "saved", "converted"):
        settings = json.loads((tmp_path / written / "config_sentence_transformers.json").read_text(encoding="utf-8"))
        assert settings["similarity_fn_name"] == folder.name
        assert mlxbert.load(tmp_path / written, task="embed").embedder.config.similarity == folder.name


def test_other_functions_are_refused_and_cosine_is_meant_where_nothing_is_said(tmp_path: Path) -> None:
    for number, name in enumerate(("maxsim", "Cosine", "dot_product", 1, ["cosine"], {"a": 1})):
        folder = save_st(tmp_path / str(number), pooling("mean"), settings={"similarity_fn_name": name})
        with pytest.raises(ConfigError, match=r"similarity_fn_name is .*expected one of cosine, dot"):
            mlxbert.load(folder, task="embed")
    for settings in ({}, {"similarity_fn_name": None}):
        folder = save_st(tmp_path / f"none {len(settings)}", pooling("mean"), settings=settings)
        assert mlxbert.load(folder, task="embed").embedder.config.similarity == "cosine"


def test_the_command_line_says_what_the_scores_are(folder: Path) -> None:
    outcome = call("similarity", "--model", str(folder), "--prompt", "", SEVERAL[0], *DOCUMENTS)
    pair = call("similarity", "--pairs", "--model", str(folder), "--prompt", "", SEVERAL[0], DOCUMENTS[0], "--json")
    names = {"cosine": "", "dot": "dot product", "euclidean": "Euclidean distance", "manhattan": "Manhattan distance"}
    assert names[folder.name] in outcome.err and ("scores are" in outcome.err) == (folder.name != "cosine")
    model = mlxbert.load(folder, task="embed")
    expected = EXPECTED[folder.name](*mlxbert.embed(model, [SEVERAL[0], DOCUMENTS[0]], prompt=""))
    assert json.loads(pair.out)["score"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_all_scores_are_those_of_the_pairs(similarity: str) -> None:
    rng = np.random.default_rng(3)
    queries, documents = (rng.normal(size=(count, 16)).astype(np.float32) * 3 for count in (70, 90))
    documents[5] = queries[7]
    if similarity == "cosine":
        queries, documents = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, documents))
    every = scores_of_all(similarity, queries, documents)
    assert np.allclose(every, scores_of_pairs(similarity, queries[:, None], documents), rtol=1e-5, atol=1e-4)
    numbers, scores = nearest(similarity, queries, documents, 4)
    assert (numbers == np.argsort(-every, axis=1, kind="stable")[:, :4]).all() and (np.diff(scores, axis=1) <= 0).all()
    assert nearest(similarity, queries[:0], documents, 4)[0].shape == (0, 4)


st = Library("sentence_transformers", "6.0")


FROM_TEXTS = 3e-6  # vectors differ in their last bits, and distances sum these
WORDS = ["the", "cat", "sat", "on", "mat", "a", "dog", "in", "store", "he", "bought", "milk", "paris", "tokyo", "man"]
MANY = [" ".join(np.random.default_rng(n).choice(WORDS, 3 + n % 9)) for n in range(48)]
MANY_QUERIES, MANY_DOCUMENTS = MANY[:20], MANY[20:]


@pytest.fixture(scope="module", params=[*SIMILARITIES, None], ids=str)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[mlxbert.Model, Any]:
    from tests.weights.test_sentence_transformers_live import D, save_bert

    folder = tmp_path_factory.mktemp("model")
    parts = st.sentence_transformer.modules
    modules = [
        parts.Transformer(str(save_bert(folder / "bert"))),
        parts.Pooling(D, pooling_mode="mean"),
        parts.Dense(D, 12),
    ]
    prompts = {"query": "the man ", "document": "a store "}
    theirs = st.SentenceTransformer(modules=modules, prompts=prompts, similarity_fn_name=request.param, device="cpu")
    theirs.save(str(folder / "st"))
    if request.param is None:
        path = folder / "st/config_sentence_transformers.json"
        path.write_text(path.read_text(encoding="utf-8").replace('"cosine"', "null"), encoding="utf-8")
    opened = st.SentenceTransformer(str(folder / "st"), device="cpu")
    assert opened.similarity_fn_name == (request.param or "cosine")
    return mlxbert.load(folder / "st", task="embed", dtype="float32", device="cpu"), opened


def _apart(ours: Any, theirs: Any) -> float:
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    return float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))


def _theirs(theirs: Any, queries: Any, documents: Any) -> Any:
    """Their scores row by row: of more than 25 vectors torch.cdist takes differences of squares, which cost digits."""
    return np.stack([theirs.similarity_pairwise(np.tile(query, (len(documents), 1)), documents) for query in queries])


@pytest.mark.slow
def test_scores_of_a_matrix_of_a_ranking_and_of_pairs(models: tuple[mlxbert.Model, Any]) -> None:
    model, theirs = models
    queries, documents = theirs.encode_query(MANY_QUERIES), theirs.encode_document(MANY_DOCUMENTS)
    expected = _theirs(theirs, queries, documents)
    assert _apart(theirs.similarity(queries, documents), expected) < FROM_TEXTS
    assert _apart(mlxbert.similarity_matrix(model, MANY_QUERIES, MANY_DOCUMENTS), expected) < FROM_TEXTS
    ranked = {one.index: one.score for one in mlxbert.similarity(model, MANY_QUERIES[0], MANY_DOCUMENTS)}
    assert _apart([ranked[number] for number in range(len(MANY_DOCUMENTS))], expected[0]) < FROM_TEXTS
    pairs = mlxbert.similarity_pairs(model, zip(MANY_QUERIES, MANY_DOCUMENTS, strict=False))
    assert _apart([one.score for one in pairs], np.diag(expected)) < FROM_TEXTS


@pytest.mark.slow
def test_the_same_negatives_are_mined(models: tuple[mlxbert.Model, Any]) -> None:
    datasets = pytest.importorskip("datasets", reason="sentence-transformers mines in these")
    model, theirs = models
    pairs = list(zip(MANY_QUERIES, MANY_DOCUMENTS, strict=False))
    data = datasets.Dataset.from_dict({"query": MANY_QUERIES, "answer": MANY_DOCUMENTS[: len(MANY_QUERIES)]})
    how: dict[str, Any] = {"num_negatives": 3, "absolute_margin": 0.01, "output_format": "triplet", "verbose": False}
    mined = st.util.mine_hard_negatives(data, theirs, **how)
    expected: dict[str, list[str]] = {query: [] for query in MANY_QUERIES}
    for row in mined:
        expected[row["query"]].append(row["negative"])
    found = mlxbert.mine(model, [{"query": a, "positive": b} for a, b in pairs], negatives=3, margin=0.01)
    assert {one.query: [*one.negatives] for one in found} == expected
    assert sum(map(len, expected.values())) > 20
