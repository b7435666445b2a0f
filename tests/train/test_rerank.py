"""Cross-encoders from data to a folder: scores next to their definitions, training, resuming, evaluation."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, ConfigError, InputError, MissingHeadError
from mlxbert.text.batch import make_batch
from mlxbert.train.data.relevance import JudgedPair
from mlxbert.train.data.retrieval import read_retrieval
from mlxbert.train.loop.events import Finished, Started
from mlxbert.train.scores.metrics import RETRIEVAL, retrieval_scores
from mlxbert.train.scores.reranking_scores import (
    average_precision,
    best_accuracy,
    best_f1,
    metrics_of,
    rerank_metrics,
    reranking,
)
from tests.helpers.cases import fast, together
from tests.helpers.classifiers import SENTIMENT, save_classifier, save_saturated
from tests.helpers.tiny import WORDS
from tests.tasks.test_rerank import SCORE
from tests.train.data.test_retrieval import beir
from tests.train.test_finetune import begun, one

ANIMALS, PLACES = ("cat", "dog"), ("paris", "tokyo")
SMALL = [word for word in WORDS.split() if word.isalpha()]


def pairs(count: int, seed: int = 0, graded: bool = False) -> list[dict[str, Any]]:
    """Texts about animals are the right ones."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        right = number % 2 == 0
        query = " ".join(rng.choices(SMALL, k=4))
        text = " ".join([rng.choice(ANIMALS if right else PLACES), *rng.choices(SMALL[10:], k=2)])
        label = rng.choice((3.5, 4.0, 5.0) if right else (0.0, 1.0)) if graded else float(right)
        found.append({"query": query, "text": text, "label": label})
    return found


def groups(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "query": f"{animal} {' '.join(rng.choices(SMALL[5:], k=4))}",
            "positives": [f"{rng.choice(ANIMALS)} {rng.choice(SMALL)}"],
            "negatives": [f"{place} {rng.choice(SMALL)}" for place in PLACES],
        }
        for animal in rng.choices(ANIMALS, k=count)
    ]


def run(data: Any, base: Path, output: Path, **options: Any) -> list[Any]:
    usual = {"epochs": 1, "lr": 1e-2, "batch_size": 16}
    return [*mlxbert.finetune("rerank", train=data, model=base, output=output, **usual | options)]


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("trained") / "model"
    return folder, run(pairs(64), base, folder, epochs=3, batch_size=8)


def test_a_model_learns_to_score_pairs(trained: tuple[Path, list[Any]]) -> None:
    folder, events = trained
    started, finished = one(events, Started), one(events, Finished)
    assert started.new_head and started.report.columns == {"query": "query", "text": "text", "label": "label"}
    assert finished.metric == "average_precision" and finished.score > 0.8
    assert finished.evaluation.score == finished.score
    assert {*finished.summary.baselines} == {"cosine of vectors"} and "rerank --model" in finished.summary.command
    config = json.loads((folder / "config.json").read_text())
    assert config["sentence_transformers"]["activation_fn"] == "torch.nn.modules.activation.Sigmoid"
    assert config["id2label"] == {"0": "LABEL_0"} and "problem_type" not in config
    model = mlxbert.load(folder, task="classify")
    best = mlxbert.rerank(model, "cat sat", ["the paris", "the dog", "the tokyo"])
    assert best[0].text == "the dog" and 0 <= best[-1].score < best[0].score <= 1
    assert "LABEL_0" not in (folder / "README.md").read_text()
    assert not begun("rerank", train=pairs(60), model=folder, output=folder.with_name("on")).new_head


def test_evaluation_gives_the_scores_of_rerank(trained: tuple[Path, list[Any]]) -> None:
    model = mlxbert.load(trained[0], task="classify", dtype="float32")
    data = pairs(60, seed=5)
    found = mlxbert.evaluate("rerank", model, data=data)
    records = [JudgedPair(one["query"], one["text"], one["label"], "") for one in data]
    scores = np.array([mlxbert.rerank(model, one.text, [one.pair or ""])[0].score for one in records])
    assert found.metrics == pytest.approx(rerank_metrics(records, scores), abs=1e-5)
    assert found.metric == "average_precision" and found.interval[0] <= found.score <= found.interval[1]
    assert found.numeric and len(found.mistakes) == 10 and found.mistakes[0].score >= found.mistakes[-1].score
    assert mlxbert.evaluate("rerank", model, data=data, metric="f1").metric == "f1"


def test_equal_probabilities_are_evaluated_in_the_order_of_the_logits(unit: mlxbert.Model, tmp_path: Path) -> None:
    save_classifier(tmp_path / "plain", SCORE)
    plain = mlxbert.load(tmp_path / "plain", task="classify", dtype="float32")
    model = mlxbert.load(save_saturated(tmp_path / "saturated"), task="classify", dtype="float32")
    for data, metrics in ((groups(12), ("ndcg@10", "map", "average_precision", "f1")), (pairs(40), ("spearman",))):
        expected, found = (mlxbert.evaluate("rerank", one, data=data).metrics for one in (plain, model))
        assert {name: found[name] for name in metrics} == pytest.approx(
            {name: expected[name] for name in metrics}, abs=1e-6
        )
    expected, found = (mlxbert.evaluate_reranking(one, unit, data=groups(8)).metrics for one in (plain, model))
    assert found == pytest.approx(expected, abs=1e-9)


def test_squared_error_trains_scores_that_are_no_probabilities(base: Path, tmp_path: Path) -> None:
    events = run(pairs(60, graded=True), base, tmp_path / "out", loss="mse", max_score=5)
    assert events[-1].metric == "spearman"
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["sentence_transformers"]["activation_fn"] == "torch.nn.modules.linear.Identity"
    model = mlxbert.load(tmp_path / "out", task="classify", dtype="float32")
    data = pairs(30, seed=5, graded=True)
    found = mlxbert.evaluate("rerank", model, data=data, max_score=5)
    scores = [mlxbert.rerank(model, one["query"], [one["text"]])[0].score for one in data]
    labels = [one["label"] for one in data]
    assert found.metrics["pearson"] == pytest.approx(np.corrcoef(scores, labels)[0, 1], abs=1e-4)
    record = json.loads((tmp_path / "out/training.json").read_text())
    assert record["options"]["loss"] == "mse" and record["options"]["max_score"] == 5


def test_texts_of_a_query_stay_together_and_rankings_are_scored(base: Path, tmp_path: Path) -> None:
    events = run(groups(40), base, tmp_path / "out", metric="ndcg@10", epochs=3)
    started = one(events, Started)
    assert sum(split.examples for split in started.report.splits) == 120
    assert all(split.examples % 3 == 0 for split in started.report.splits) and started.report.leaked == 0
    assert started.report.split_off == pytest.approx(started.report.splits[1].examples / 120)
    assert started.report.columns["positives"] == "positives" and started.report.unused == ()
    assert events[-1].metric == "ndcg@10" and events[-1].score > 0.9
    model = mlxbert.load(tmp_path / "out", task="classify")
    assert mlxbert.evaluate("rerank", model, data=groups(9, 3)).metrics.keys() >= {"map", "mrr@10", "f1"}
    assert "ndcg@10" not in mlxbert.evaluate("rerank", model, data=pairs(20, 3)).metrics


@together(
    ("data", "options", "error"),
    [
        (pairs(40, graded=True), {}, InputError),
        ([{**one, "label": 1} for one in pairs(40)], {}, InputError),
        ([{**one, "text": " "} for one in pairs(40)], {}, InputError),
        ([{"query": "cat", "text": f"dog {number}", "label": number % 2} for number in range(40)], {}, InputError),
        (pairs(40, graded=True), {"max_score": 5, "metric": "f1"}, InputError),
        (pairs(40), {"metric": "ndcg@10"}, InputError),
        (pairs(40), {"loss": "hinge"}, ArgumentError),
        (pairs(40), {"max_score": 0}, ArgumentError),
        (pairs(40), {"max_score": True}, ArgumentError),
        (pairs(40), {"metric": "recall@10"}, ArgumentError),
        (pairs(40), {"pair_column": "text"}, ArgumentError),
    ],
)
def test_data_and_options_that_make_no_sense_are_refused(
    data: Any, options: dict[str, Any], error: type[Exception], base: Path, tmp_path: Path
) -> None:
    with pytest.raises(error):
        run(data, base, tmp_path / "out", **options)


def test_hard_data_are_trained_on(base: Path, tmp_path: Path) -> None:
    """A text hundreds of times, texts without a known word or much too long, a query without a positive."""
    data = [{"query": "cat", "positives": ["dog " * 500], "negatives": ["😀", "\u200b x"]}]
    data += [{"query": "the dog", "positives": "of", "negatives": []}] * 300
    data += [{"query": f"tokyo {word}", "positives": [], "negatives": ["sat"]} for word in SMALL]
    report = one(run(data, base, tmp_path / "out", batch_size=64), Started).report
    train, valid = report.splits
    assert train.duplicates + valid.duplicates >= 298 and train.conflicts == 0
    assert str(len(SMALL)) in report.warnings[0]


@together("seed", range(2))
def test_scores_of_pairs_are_those_of_all_thresholds_and_of_one_sided_labels_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    expected = rng.integers(2, size=40).astype(np.float64)
    scores = (rng.integers(12, size=40) / 12).astype(np.float32)  # some are equal
    precisions, f1, before, right = 0.0, 0.0, 0.0, [float(np.mean(expected == 0))]
    for threshold in sorted({*scores.tolist()}, reverse=True):
        chosen = scores >= np.float32(threshold)
        hits = float(expected[chosen].sum())
        precisions += (hits - before) / expected.sum() * hits / chosen.sum()
        f1 = max(f1, 2 * hits / (chosen.sum() + expected.sum()))
        right.append(float(np.mean(chosen == expected)))
        before = hits
    assert average_precision(expected, scores) == pytest.approx(precisions)
    assert best_f1(expected, scores) == pytest.approx(f1)
    assert best_accuracy(expected, scores) == pytest.approx(max(right))
    equal, nothing, everything = np.array([0.1, 0.7, 0.7], np.float32), np.zeros(3), np.ones(3)
    metrics = average_precision, best_f1, best_accuracy
    assert [metric(nothing, equal) for metric in metrics] == [0, 0, 1]
    assert [metric(everything, equal) for metric in metrics] == [1, 1, 1]


def test_metrics_are_those_that_the_labels_have() -> None:
    binary = [JudgedPair("a", str(number), float(number % 2), "here") for number in range(4)]
    graded = [JudgedPair(str(number), "x", number / 4, "here") for number in range(4)]
    assert metrics_of(binary)[0] == "average_precision" and "ndcg@10" in metrics_of(binary)
    assert metrics_of(graded) == ("spearman", "pearson")
    scores = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    assert reranking(graded, scores, metric="spearman", model="m", data=()).score == 1.0
    with pytest.raises(InputError, match="here"):
        reranking(graded, scores, metric="f1", model="m", data=())
    ranked = reranking(binary, scores, metric="ndcg@10", model="m", data=())
    assert ranked.interval == (ranked.score, ranked.score)  # one query


@pytest.mark.parametrize(("start", "loss"), fast([("bce", "mse"), ("mse", "bce")], ("mse", "bce")))
def test_an_adapter_keeps_its_scores_whatever_the_base_says(start: str, loss: str, base: Path, tmp_path: Path) -> None:
    def train(model: Path, output: str, **options: Any) -> None:
        run(pairs(20), model, tmp_path / output, lr=2e-5, device="cpu", **options)

    train(base, "base", loss=start)
    train(tmp_path / "base", "adapter", loss=loss, lora=4)
    mlxbert.convert(tmp_path / "base", tmp_path / "merged", adapter=tmp_path / "adapter")
    scores = []
    for folder in ("adapter", "merged"):
        model = mlxbert.load(tmp_path / folder, task="classify", device="cpu")
        outputs = {one.text: one.score for one in mlxbert.rerank(model, "cat sat", ["dog", "tokyo"])}
        encodings = [model.tokenizer.encode("cat sat", text) for text in ("dog", "tokyo")]
        raw = model.network.logits("sequence_classifier", make_batch(encodings, model.network.encoder.config))
        expected = np.array(raw)[:, 0] if loss == "mse" else 1 / (1 + np.exp(-np.array(raw)[:, 0]))
        assert [outputs["dog"], outputs["tokyo"]] == pytest.approx(expected.tolist(), abs=1e-5)
        scores.append(outputs)
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_a_folder_of_todays_cross_encoder_is_trained_and_written(tmp_path: Path) -> None:
    start = save_classifier(tmp_path / "m", SCORE)
    module = {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    (start / "modules.json").write_text(json.dumps([module]))
    [*_] = run(pairs(20), start, tmp_path / "out")
    mlxbert.load(start, task="classify").save(tmp_path / "saved")
    mlxbert.convert(start, tmp_path / "converted")
    for folder in ("saved", "converted"):
        model = mlxbert.load(tmp_path / folder, dtype="float32")
        assert mlxbert.rerank(model, "a", ["b"]) == mlxbert.rerank(mlxbert.load(start, dtype="float32"), "a", ["b"])
        with pytest.raises(ConfigError, match="expected Transformer, Pooling"):
            mlxbert.embed(model, "a")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, unit_folder: Path) -> tuple[mlxbert.Model, mlxbert.Model]:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "m", SCORE)
    return mlxbert.load(folder, task="classify", dtype="float32"), mlxbert.load(unit_folder, dtype="float32")


def test_scores_are_those_of_the_steps_by_hand(models: tuple[mlxbert.Model, mlxbert.Model]) -> None:
    model, embedder = models
    told: list[tuple[int, int]] = []
    data = groups(4)
    found = mlxbert.evaluate_reranking(
        model, embedder, data=data, top_k=5, on_progress=lambda done, total: told.append((done, total))
    )
    retrieval = read_retrieval(data)
    names = [*retrieval.documents]
    before, after = {}, {}
    for query, text in retrieval.queries.items():
        nearest = mlxbert.similarity(embedder, text, [*retrieval.documents.values()], top_k=5)
        before[query] = [names[one.index] for one in nearest]
        after[query] = [before[query][one.index] for one in mlxbert.rerank(model, text, [one.text for one in nearest])]
    first, second = (retrieval_scores(ranked, retrieval.judgements).means() for ranked in (before, after))
    assert found.metrics == pytest.approx(second | {f"before_{name}": value for name, value in first.items()}, abs=1e-6)
    assert (found.task, found.metric, found.examples) == ("rerank", RETRIEVAL[0], len(retrieval.queries))
    assert found.interval[0] <= found.score <= found.interval[1] and told[-1] == (4, 4)
    assert found.metrics["recall@100"] == found.metrics["before_recall@100"]


def test_folders_and_metrics(models: tuple[mlxbert.Model, mlxbert.Model], tmp_path: Path) -> None:
    folder = beir(tmp_path / "set")
    found = mlxbert.evaluate_reranking(*models, data=folder, metric="map")
    assert found.metric == "map" and found.examples == 2 and found.metrics["recall@10"] == 1.0
    assert np.isfinite([*found.metrics.values()]).all() and len(found.data) == 3


def test_other_models_data_and_options_are_refused(models: tuple[mlxbert.Model, mlxbert.Model], tmp_path: Path) -> None:
    model, embedder = models
    several = mlxbert.load(save_classifier(tmp_path / "m", SENTIMENT), task="classify")
    with pytest.raises(CheckpointError):
        mlxbert.evaluate("rerank", several, data=pairs(10))
    calls: list[tuple[Any, Any, Any, dict[str, Any], type[Exception]]] = [
        (several, embedder, groups(3), {}, CheckpointError),
        (embedder, embedder, groups(3), {}, MissingHeadError),
        (model, "builtin", groups(3), {}, ArgumentError),
        (model, embedder, [{"query": "a", "negatives": "x"}], {}, InputError),
        (model, embedder, groups(3), {"top_k": 0}, ArgumentError),
        (model, embedder, groups(3), {"metric": "f1"}, ArgumentError),
    ]
    for reranker, vectors, data, options, error in calls:
        with pytest.raises(error):
            mlxbert.evaluate_reranking(reranker, vectors, data=data, **options)
