"""rerank: one score per text, as the files of a cross-encoder say, the best window of a long text, and errors."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, InputError
from mlxbert.labels.labels import Labels
from tests.helpers.classifiers import EMOTIONS, save_classifier, save_saturated

SCORE = Labels(("LABEL_0",), None)
QUERY, TEXTS = "the cat", ["a dog sat", "paris , tokyo", "the cat sat on the mat", "a dog sat"]


def cross_encoder(folder: Path, settings: dict[str, Any] | None = None, **config: Any) -> mlxbert.Model:
    save_classifier(folder, SCORE, **config)
    if settings is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return mlxbert.load(folder, task="classify", dtype="float32")


def logits(model: mlxbert.Model, text: str) -> float:
    found = mlxbert.classify(model, (QUERY, text))
    assert isinstance(found, mlxbert.Classification)
    [label] = found.labels
    return math.log(label.score / (1 - label.score))


def test_texts_are_ranked_and_equal_ones_keep_their_order(tmp_path: Path) -> None:
    model = cross_encoder(tmp_path / "m")
    found = mlxbert.rerank(model, QUERY, TEXTS)
    assert [one.rank for one in found] == [1, 2, 3, 4]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert {one.index: one.text for one in found} == dict(enumerate(TEXTS))
    first, second = (one for one in found if one.text == "a dog sat")
    assert (first.index, second.index) == (0, 3) and first.score == second.score
    assert mlxbert.rerank(model, QUERY, iter(TEXTS), top_k=2) == found[:2]
    assert found[0].query == QUERY and found[0].score == pytest.approx(
        1 / (1 + math.exp(-logits(model, found[0].text)))
    )


@pytest.mark.parametrize(("bias", "score"), [(40.0, 1.0), (-200.0, 0.0)])
def test_texts_are_ranked_by_what_their_equal_probabilities_are_made_of(
    bias: float, score: float, tmp_path: Path
) -> None:
    plain = mlxbert.rerank(cross_encoder(tmp_path / "m"), QUERY, TEXTS)
    model = mlxbert.load(save_saturated(tmp_path / "saturated", bias), task="classify", dtype="float32")
    found = mlxbert.rerank(model, QUERY, TEXTS)
    assert [one.score for one in found] == [score] * 4
    assert [one.index for one in found] == [one.index for one in plain] != [0, 1, 2, 3]
    assert [one.logit for one in found] == pytest.approx([one.logit + bias for one in plain], abs=1e-4)
    assert mlxbert.rerank(model, QUERY, TEXTS, top_k=2) == found[:2]
    animals, places = "a dog sat on the mat . " * 9, "paris tokyo " * 9
    for text in (animals + places, places + animals):
        [window] = mlxbert.rerank(model, QUERY, [text], overflow="window")
        [expected] = mlxbert.rerank(cross_encoder(tmp_path / "m"), QUERY, [text], overflow="window")
        assert window.logit == pytest.approx(expected.logit + bias, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "config", "probabilities"),
    [
        (None, {}, True),
        ({"activation_fn": None}, {}, True),
        ({"activation_fn": "torch.nn.modules.activation.Sigmoid"}, {}, True),
        ({"activation_fn": "torch.nn.modules.linear.Identity"}, {}, False),
        (None, {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        (None, {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        ({"activation_fn": "torch.nn.Sigmoid"}, {"sbert_ce_default_activation_function": "torch.nn.Identity"}, True),
    ],
)
def test_scores_are_what_the_files_say(
    settings: dict[str, Any] | None, config: dict[str, Any], probabilities: bool, tmp_path: Path
) -> None:
    model = cross_encoder(tmp_path / "m", settings, **config)
    [found] = mlxbert.rerank(model, QUERY, ["a dog"])
    logit = logits(model, "a dog")
    assert found.score == pytest.approx(1 / (1 + math.exp(-logit)) if probabilities else logit, abs=1e-5)


def test_a_long_text_has_the_score_of_its_best_window(tmp_path: Path) -> None:
    model = cross_encoder(tmp_path / "m")
    text = "a dog sat on the mat . " * 9 + "paris tokyo " * 9
    [cut] = mlxbert.rerank(model, QUERY, [text])
    [best] = mlxbert.rerank(model, QUERY, [text], overflow="window")
    windows = model.tokenizer.windows(QUERY, text, stride=0)
    assert len(windows) == 3 and cut.truncated and not best.truncated
    places = [[at for at, owner in zip(one.offsets, one.sequence_ids, strict=True) if owner == 1] for one in windows]
    texts = [text[at[0][0] : at[-1][1]] for at in places]
    alone = [one.score for one in mlxbert.rerank(model, QUERY, texts)]
    assert best.score == pytest.approx(max(alone), abs=1e-6) and max(alone) - min(alone) > 1e-5
    with pytest.raises(InputError):
        mlxbert.rerank(model, QUERY, [text], overflow="error")
    [short, failure] = mlxbert.rerank(model, QUERY, [text, "a dog"], overflow="error", on_error="return")
    assert isinstance(short, mlxbert.Reranked) and isinstance(failure, mlxbert.Failure)
    assert (short.index, failure.index) == (1, 0)


def test_what_is_no_cross_encoder_is_refused(tmp_path: Path) -> None:
    several = mlxbert.load(save_classifier(tmp_path / "several", EMOTIONS), task="classify")
    with pytest.raises(CheckpointError, match="4 scores"):
        mlxbert.rerank(several, QUERY, TEXTS)
    other = cross_encoder(tmp_path / "other", {"activation_fn": "evil.module.Run"})
    with pytest.raises(CheckpointError, match=r"evil\.module\.Run"):
        mlxbert.rerank(other, QUERY, TEXTS)
    settings = {"model_type": "CrossEncoder", "prompts": {"q": "query: "}, "default_prompt_name": "q"}
    with pytest.raises(CheckpointError, match="default_prompt_name"):  # not dropped
        mlxbert.rerank(cross_encoder(tmp_path / "prompt", settings), QUERY, TEXTS)
    model = cross_encoder(tmp_path / "m")
    wrong: list[tuple[Any, Any]] = [(QUERY, "a text"), (["a"], TEXTS), (QUERY, 5)]
    for query, texts in wrong:
        with pytest.raises((InputError, ArgumentError)):
            mlxbert.rerank(model, query, texts)
    with pytest.raises(ArgumentError):
        mlxbert.rerank(model, QUERY, TEXTS, top_k=0)
    with pytest.raises(InputError):
        mlxbert.rerank(model, QUERY, ["a", 5])  # type: ignore[list-item]


def test_a_long_query_is_truncated_unless_windows_repeat_it(tmp_path: Path) -> None:
    model = cross_encoder(tmp_path / "m")
    [found] = mlxbert.rerank(model, "the cat " * 200, ["a dog"])
    assert found.truncated
    for overflow in ("window", "error"):
        with pytest.raises(InputError, match="400 tokens"):
            mlxbert.rerank(model, "the cat " * 200, ["a dog"], overflow=overflow)
