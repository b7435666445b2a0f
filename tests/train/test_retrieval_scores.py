"""nDCG, MAP, MRR and recall next to formulas written from their definitions, on random rankings and on known ones."""

import math
import random

import numpy as np
import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.train.scores.metrics import RETRIEVAL, retrieval_scores

Ranked = dict[str, list[str]]
Judged = dict[str, dict[str, float]]


def made_up(seed: int, grades: tuple[int, ...]) -> tuple[Ranked, Judged]:
    """Rankings of 130 documents, parts of some, and sparse judgements."""
    rng = random.Random(seed)
    documents = [f"d{number}" for number in range(130)]
    ranked, judged = {}, {}
    for number in range(12):
        query = f"q{number}"
        ranked[query] = rng.sample(documents, rng.choice([3, 60, 130]))
        judged[query] = {
            document: float(rng.choice(grades)) for document in rng.sample(documents, rng.choice([1, 9, 120]))
        }
        judged[query]["d0"] = 1.0
    return ranked, judged


def second(ranked: list[str], judged: dict[str, float]) -> dict[str, float]:
    """The metrics, one document at a time."""
    relevant = [document for document in judged if judged[document] > 0]
    gain = sum(max(judged.get(one, 0), 0) / math.log2(place + 1) for place, one in enumerate(ranked[:10], 1))
    best = sorted((judged[one] for one in relevant), reverse=True)[:10]
    ideal = sum(grade / math.log2(place + 1) for place, grade in enumerate(best, 1))
    precisions = [
        sum(other in relevant for other in ranked[:place]) / place
        for place, one in enumerate(ranked, 1)
        if one in relevant
    ]
    first = [place for place, one in enumerate(ranked[:10], 1) if one in relevant]
    return {
        "ndcg@10": gain / ideal,
        "map": sum(precisions) / len(relevant),
        "mrr@10": 1 / first[0] if first else 0.0,
        "recall@10": len({*ranked[:10]} & {*relevant}) / len(relevant),
        "recall@100": len({*ranked[:100]} & {*relevant}) / len(relevant),
    }


@pytest.mark.parametrize("grades", [(0, 1), (-1, 0, 1, 2, 3, 4)])
@pytest.mark.parametrize("seed", range(2))
def test_scores_are_those_of_the_definitions(seed: int, grades: tuple[int, ...]) -> None:
    ranked, judged = made_up(seed, grades)
    found = retrieval_scores(ranked, judged)
    for number, query in enumerate(found.queries):
        for name, value in second(ranked[query], judged[query]).items():
            assert found.values[name][number] == pytest.approx(value, abs=1e-12), name
    assert tuple(found.means()) == RETRIEVAL
    low, high = found.interval("map")
    assert low < found.means()["map"] < high


def test_known_rankings() -> None:
    judged = {"q": {"a": 2.0, "b": 1.0, "c": 0.0}}
    assert set(retrieval_scores({"q": ["a", "b", "c"]}, judged).means().values()) == {1.0}
    found = retrieval_scores({"q": ["c", "b", "a"]}, judged).means()
    assert found["ndcg@10"] == pytest.approx((1 / math.log2(3) + 2 / 2) / (2 + 1 / math.log2(3)))
    assert found["map"] == pytest.approx((1 / 2 + 2 / 3) / 2) and found["mrr@10"] == 0.5
    assert set(retrieval_scores({"q": []}, judged).means().values()) == {0.0}
    late = retrieval_scores({"q": [*map(str, range(10)), "a"]}, judged).means()
    assert (late["mrr@10"], late["recall@10"], late["recall@100"]) == (0.0, 0.0, 0.5)


def test_queries_without_relevant_documents_are_left_out_and_those_without_a_ranking_score_0() -> None:
    judged = {"q": {"a": 1.0}, "none": {"a": 0.0}, "missing": {"a": 1.0}}
    found = retrieval_scores({"q": ["a"], "none": ["a"], "unjudged": ["a"]}, judged)
    assert found.queries == ("q", "missing")
    assert np.array_equal(found.values["map"], [1.0, 0.0])
    with pytest.raises(InputError):
        retrieval_scores({"q": ["a"]}, {"q": {"a": 0.0}})
    with pytest.raises(ArgumentError):
        retrieval_scores({"q": ["a", "a"]}, judged)
