"""nDCG, MAP, MRR and recall next to sentence-transformers' InformationRetrievalEvaluator, for relevance of 0 and 1."""

import warnings

import pytest

from mlxbert.train.scores.metrics import retrieval_scores
from tests.train.test_retrieval_scores import made_up

pytest.importorskip("sentence_transformers", reason="parity needs sentence-transformers")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_sentence_transformers(seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from sentence_transformers.evaluation import InformationRetrievalEvaluator
    ranked, judged = made_up(seed, (0, 1))
    relevant = {query: {one for one, grade in found.items() if grade} for query, found in judged.items()}
    documents = {one for found in (*ranked.values(), *judged.values()) for one in found}
    theirs = InformationRetrievalEvaluator(
        {query: query for query in ranked}, {one: one for one in documents}, relevant,
        ndcg_at_k=[10], map_at_k=[1000], mrr_at_k=[10], precision_recall_at_k=[10, 100],
    )  # fmt: skip
    hits: list[object] = [
        [{"corpus_id": one, "score": -place} for place, one in enumerate(ranked[query])] for query in theirs.queries_ids
    ]
    expected = theirs.compute_metrics(hits)
    found = retrieval_scores(ranked, judged).means()
    assert found["ndcg@10"] == pytest.approx(expected["ndcg@k"][10], abs=1e-12)
    assert found["mrr@10"] == pytest.approx(expected["mrr@k"][10], abs=1e-12)
    for depth in (10, 100):
        assert found[f"recall@{depth}"] == pytest.approx(expected["recall@k"][depth], abs=1e-12)
    # Theirs divides by all relevant documents, as ours does, where no more than 1,000 are relevant.
    assert found["map"] == pytest.approx(expected["map@k"][1000], abs=1e-12)
