"""The functions that compare vectors, next to sentence-transformers: its scores, its negatives, its evaluations."""

from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.nn.vector_settings import SIMILARITIES
from mlxbert.tasks.query_ranking import scores_of_all, scores_of_pairs

pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
st = pytest.importorskip("sentence_transformers", minversion="6.0", reason="live parity needs sentence-transformers")
from sentence_transformers.base.modules import Dense, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer import evaluation  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402
from sentence_transformers.util import mine_hard_negatives  # noqa: E402

from tests.weights.test_sentence_transformers_live import D, save_bert  # noqa: E402

pytestmark = [pytest.mark.slow]

BOUND = 1e-6  # of the same vectors
FROM_TEXTS = 3e-6  # vectors differ in their last bits, and distances sum these
WORDS = ["the", "cat", "sat", "on", "mat", "a", "dog", "in", "store", "he", "bought", "milk", "paris", "tokyo", "man"]
TEXTS = [" ".join(np.random.default_rng(n).choice(WORDS, 3 + n % 9)) for n in range(48)]
QUERIES, DOCUMENTS = TEXTS[:20], TEXTS[20:]


@pytest.fixture(scope="module", params=[*SIMILARITIES, None], ids=str)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[mlxbert.Model, Any]:
    """The same model here and there."""
    folder = tmp_path_factory.mktemp("model")
    transformer = Transformer(str(save_bert(folder / "bert")))
    modules = [transformer, Pooling(D, pooling_mode="mean"), Dense(D, 12)]
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


def test_scores_of_a_matrix_of_a_ranking_and_of_pairs(models: tuple[mlxbert.Model, Any]) -> None:
    model, theirs = models
    queries, documents = theirs.encode_query(QUERIES), theirs.encode_document(DOCUMENTS)
    expected = _theirs(theirs, queries, documents)
    assert _apart(theirs.similarity(queries, documents), expected) < FROM_TEXTS
    assert _apart(mlxbert.similarity_matrix(model, QUERIES, DOCUMENTS), expected) < FROM_TEXTS
    ranked = {one.index: one.score for one in mlxbert.similarity(model, QUERIES[0], DOCUMENTS)}
    assert _apart([ranked[number] for number in range(len(DOCUMENTS))], expected[0]) < FROM_TEXTS
    pairs = mlxbert.similarity_pairs(model, zip(QUERIES, DOCUMENTS, strict=False))
    assert _apart([one.score for one in pairs], np.diag(expected)) < FROM_TEXTS


def test_scores_of_the_same_vectors(models: tuple[mlxbert.Model, Any]) -> None:
    _, theirs = models
    name = theirs.similarity_fn_name
    queries, documents = theirs.encode_query(QUERIES), theirs.encode_document(DOCUMENTS)
    expected = _theirs(theirs, queries, documents)
    a, b = (unit_length(x) if name == "cosine" else x for x in (queries, documents))
    assert _apart(scores_of_all(name, a, b), expected) < BOUND
    assert _apart(scores_of_pairs(name, a, b[: len(a)]), np.diag(expected)) < BOUND


def test_the_same_negatives_are_mined(models: tuple[mlxbert.Model, Any]) -> None:
    datasets = pytest.importorskip("datasets", reason="sentence-transformers mines in these")
    model, theirs = models
    pairs = list(zip(QUERIES, DOCUMENTS, strict=False))
    data = datasets.Dataset.from_dict({"query": QUERIES, "answer": DOCUMENTS[: len(QUERIES)]})
    mined = mine_hard_negatives(
        data, theirs, num_negatives=3, absolute_margin=0.01, output_format="triplet", verbose=False
    )
    expected: dict[str, list[str]] = {query: [] for query in QUERIES}
    for row in mined:
        expected[row["query"]].append(row["negative"])
    found = mlxbert.mine(model, [{"query": a, "positive": b} for a, b in pairs], negatives=3, margin=0.01)
    assert {one.query: [*one.negatives] for one in found} == expected
    assert sum(map(len, expected.values())) > 20


def test_evaluations_are_the_same(models: tuple[mlxbert.Model, Any]) -> None:
    model, theirs = models
    name, scores = theirs.similarity_fn_name, [(7 * number) % 5 for number in range(len(QUERIES))]
    scored = [
        {"sentence1": a, "sentence2": b, "score": score}
        for a, b, score in zip(QUERIES, DOCUMENTS, scores, strict=False)
    ]
    ours = mlxbert.evaluate("embed", model, data=scored).metrics
    found = evaluation.EmbeddingSimilarityEvaluator(QUERIES, DOCUMENTS[: len(QUERIES)], scores)(theirs)
    for metric in ("spearman", "pearson"):
        assert ours[metric] == pytest.approx(found[f"{metric}_{name}"], abs=FROM_TEXTS)
    anchors, positives, negatives = QUERIES[:10], DOCUMENTS[:10], DOCUMENTS[10:20]
    rows = [{"anchor": a, "positive": b, "negative": c} for a, b, c in zip(anchors, positives, negatives, strict=True)]
    ours = mlxbert.evaluate("embed", model, data=rows).metrics
    triplets = evaluation.TripletEvaluator(anchors, positives, negatives)(theirs)
    assert ours["triplet_accuracy"] == pytest.approx(triplets[f"{name}_accuracy"], abs=BOUND)
    searched = evaluation.InformationRetrievalEvaluator(
        dict(zip(anchors, anchors, strict=True)),
        {text: text for text in (*positives, *negatives)},
        {a: {b} for a, b in zip(anchors, positives, strict=True)},
        show_progress_bar=False, write_csv=False,
    )(theirs)  # fmt: skip
    search = [
        {"query": a, "positives": [b], "negatives": [c]} for a, b, c in zip(anchors, positives, negatives, strict=True)
    ]
    for one in (ours, mlxbert.evaluate_search(model, data=search).metrics):
        for metric, there in (("ndcg@10", "ndcg@10"), ("mrr@10", "mrr@10"), ("recall@10", "recall@10")):
            assert one[metric] == pytest.approx(searched[f"{name}_{there}"], abs=BOUND)
