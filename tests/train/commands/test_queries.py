"""`finetune rerank` and `evaluate rerank`: what reaches the library, and what does not go together."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import events
from tests.helpers.program import call
from tests.train.commands.test_finetune import Library, library

__all__ = ["library"]
MODEL = ("--model", "some/model")


def test_pairs_are_evaluated_with_the_classifier(library: Library, tmp_path: Path) -> None:
    data = tmp_path / "pairs.csv"
    data.touch()
    outcome = call("evaluate", "rerank", "--data", str(data), *MODEL, "--max-score", "5")
    assert outcome.status == 0 and outcome.lines == json.loads(json.dumps([events.evaluation().to_dict()]))
    assert (library.given["task"], library.given["model"]) == ("rerank", "classify of some/model")
    assert library.given["max_score"] == 5.0 and "top_k" not in library.given


def test_an_embedder_makes_it_retrieval(library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def evaluate_reranking(model: object, embedder: object, **given: Any) -> object:
        seen.update(given, model=model, embedder=embedder)
        return events.evaluation()

    module = SimpleNamespace(evaluate_reranking=evaluate_reranking)
    monkeypatch.setitem(__import__("sys").modules, "mlxbert.train.scores.search_evaluation", module)
    typed = (
        *("evaluate", "rerank", "--data", str(tmp_path), *MODEL, "--embedder", "builtin", "--top-k", "7"),
        *("--split", "dev"),
    )
    assert call(*typed, "--metric", "map").status == 0
    assert (seen["model"], seen["embedder"]) == ("classify of some/model", "embed of builtin")
    assert (seen["data"], seen["top_k"], seen["split"], seen["metric"]) == (str(tmp_path), 7, "dev", "map")
    for option in (("--max-score", "5"), ("--query-column", "q"), ("--max-length", "9"), ("--data", "other")):
        outcome = call(*typed, *option)
        assert outcome.status == 2 and option[0] in outcome.err
    assert call("evaluate", "rerank", "--data", "pairs.csv", *MODEL, "--top-k", "0").status == 2


def test_a_folder_needs_an_embedder(library: Library, tmp_path: Path) -> None:
    outcome = call("evaluate", "rerank", "--data", str(tmp_path), *MODEL)
    assert outcome.status == 2 and "--embedder" in outcome.err
