"""Question answering through Python, next to the scores of all spans."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.text.encoding import Encoding
from mlxbert.text.token_blocks import SIZE
from tests.helpers.answering import save_answering
from tests.helpers.cases import together
from tests.text.test_spans import all_spans, made_up

QUESTION, CONTEXT = "who sat ?", "the cat sat on the mat . a man went to the store , he bought milk"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_answering(tmp_path_factory.mktemp("answering"))


@pytest.fixture
def model(folder: Path) -> mlxbert.Model:
    return mlxbert.load(folder, task="answer", dtype="float32")


def logits_of(model: mlxbert.Model, encoding: Encoding) -> Any:
    batch = Batch(mx.array([encoding.ids]), None, mx.array([encoding.token_type_ids]))
    return np.array(model.network.logits("question_answering", batch))[0].astype(np.float64)


def by_hand(
    model: mlxbert.Model, question: str, context: str, stride: int, max_words: int
) -> tuple[list[tuple[tuple[int, int], float]], float]:
    """All spans of all windows, the best first, and the score of no answer."""
    found: dict[tuple[int, int], float] = {}
    no_answer = 1.0
    for encoding in model.tokenizer.windows(question, context, stride=stride):
        spans, none = all_spans(logits_of(model, encoding), encoding, context, max_words)
        no_answer = min(no_answer, none)
        for place, score in spans.items():
            found[place] = max(score, found.get(place, 0.0))
    return sorted(found.items(), key=lambda item: -item[1]), no_answer


@together("context", [CONTEXT, CONTEXT.replace(" ", "  "), CONTEXT * 5, made_up(150, 3)])
def test_answers_are_the_best_of_all_spans_of_all_windows(model: mlxbert.Model, context: str) -> None:
    wanted, no_answer = by_hand(model, QUESTION, context, 10, 4)
    found = mlxbert.answer(model, (QUESTION, context), top_k=6, max_words=4, no_answer_threshold=1)
    assert [(span.start, span.end) for span in found.spans] == [place for place, _ in wanted[:6]]
    assert [span.score for span in found.spans] == pytest.approx([score for _, score in wanted[:6]], rel=1e-4)
    assert found.no_answer_score == pytest.approx(no_answer, rel=1e-4)
    for span in found.spans:
        assert context[span.start : span.end] == span.answer == span.answer.strip()
        assert len(span.answer.split()) <= 4
    best = found.spans[0]
    assert (found.answer, found.start, found.end, found.score) == (best.answer, best.start, best.end, best.score)
    assert (found.question, found.context, found.truncated) == (QUESTION, context, False)


@pytest.mark.parametrize("counts", [(5500,), pytest.param((20_000, 60_000), marks=pytest.mark.slow)])
def test_a_long_text_is_answered_block_by_block_in_no_more_memory(model: mlxbert.Model, counts: Any) -> None:
    peaks = []
    for count in counts:
        context = made_up(count, 7)
        assert len(context) > SIZE
        if len(counts) > 1:
            tracemalloc.start()
        found = mlxbert.answer(model, (QUESTION, context), top_k=3, no_answer_threshold=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(found.spans) == 3
        assert all(context[span.start : span.end] == span.answer for span in found.spans)
    assert peaks[-1] <= 1.2 * peaks[0]


def test_the_threshold_decides_whether_there_is_an_answer(model: mlxbert.Model, tmp_path: Path) -> None:
    usual = mlxbert.answer(model, (QUESTION, CONTEXT), no_answer_threshold=1)
    share = usual.no_answer_score / (usual.no_answer_score + usual.score)
    assert usual.answer is not None
    silent = mlxbert.answer(model, (QUESTION, CONTEXT), no_answer_threshold=share - 1e-6)
    assert (silent.answer, silent.start, silent.end) == (None, None, None)
    assert (silent.score, silent.spans) == (usual.score, usual.spans)
    assert mlxbert.answer(model, (QUESTION, CONTEXT), no_answer_threshold=share + 1e-6).answer == usual.answer
    for threshold, answer in ((share - 1e-6, None), (share + 1e-6, usual.answer)):
        own = mlxbert.load(save_answering(tmp_path / str(threshold), no_answer_threshold=threshold), dtype="float32")
        assert mlxbert.answer(own, (QUESTION, CONTEXT)).answer == answer
    either = mlxbert.answer(model, (QUESTION, CONTEXT))
    assert either.answer == (usual.answer if share <= 0.5 else None)


@together("threshold", [-0.1, 1.5, "high", True, [0.5]])
def test_a_threshold_that_is_no_share_is_refused(model: mlxbert.Model, threshold: Any, tmp_path: Path) -> None:
    with pytest.raises(mlxbert.ArgumentError, match="no_answer_threshold"):
        mlxbert.answer(model, (QUESTION, CONTEXT), no_answer_threshold=threshold)
    with pytest.raises(mlxbert.MlxbertError, match="no_answer_threshold"):
        mlxbert.load(save_answering(tmp_path, no_answer_threshold=threshold), task="answer")


def test_one_context_serves_many_questions_and_bad_ones_fail_in_their_place(model: mlxbert.Model) -> None:
    questions: list[Any] = [QUESTION, (QUESTION, "a dog"), "", "where ?", ("who ?", " \n"), "cat " * 40, 3]
    found = list(mlxbert.answer(model, questions, context=CONTEXT, on_error="return"))
    failures = [place for place, one in enumerate(found) if isinstance(one, mlxbert.Failure)]
    assert failures == [2, 4, 5, 6]
    assert [one.error.message for one in found if isinstance(one, mlxbert.Failure)] == [
        "the question is empty, expected a text",
        "the context is empty, expected a text",
        "the question has 40 tokens, expected at most 16, half of a window",
        "expected a question and its context, found 3",
    ]
    assert found[0].context == found[3].context == CONTEXT and found[1].context == "a dog"  # type: ignore[union-attr]
    with pytest.raises(mlxbert.InputError, match="no context"):
        mlxbert.answer(model, QUESTION)


@together(
    "options",
    [
        {"top_k": 0},
        {"max_words": 0},
        {"stride": -1},
        {"stride": 1.5},
        {"max_length": 4},
        {"max_length": 33},
        {"overflow": "cut"},
    ],
)
def test_arguments_that_make_no_sense_are_refused(model: mlxbert.Model, options: dict[str, Any]) -> None:
    with pytest.raises(mlxbert.ArgumentError):
        mlxbert.answer(model, (QUESTION, CONTEXT), **options)


def test_a_long_context_can_be_cut_or_refused(model: mlxbert.Model) -> None:
    long = CONTEXT * 4
    cut = mlxbert.answer(model, (QUESTION, long), overflow="truncate", no_answer_threshold=1)
    kept = model.tokenizer.encode(QUESTION, long, overflow="truncate").offsets[-2][1]
    assert cut.truncated and cut.end is not None and cut.end <= kept < len(long)
    with pytest.raises(mlxbert.InputError, match="at most 32"):
        mlxbert.answer(model, (QUESTION, long), overflow="error")
    assert not mlxbert.answer(model, (QUESTION, "a dog"), overflow="error").truncated


@together(
    "context",
    ["😀 the cat 😀😀 sat", "שלום the cat עולם", "北京 cat 東京 the dog", "ca\u0301t\u200d dog", "\u3000cat\u00a0dog"],
)
def test_offsets_are_code_points_of_the_text_whatever_the_script(model: mlxbert.Model, context: str) -> None:
    found = mlxbert.answer(model, (QUESTION, context), top_k=50, no_answer_threshold=1)
    assert len({(span.start, span.end) for span in found.spans}) == len(found.spans) >= 3
    for span in found.spans:
        assert context[span.start : span.end] == span.answer != "" and span.answer == span.answer.strip()


def test_its_json_is_that_of_the_contract(model: mlxbert.Model) -> None:
    found = mlxbert.answer(model, (QUESTION, CONTEXT)).to_dict()
    assert list(found) == ["question", "answer", "start", "end", "score", "no_answer_score"]
    several = mlxbert.answer(model, (QUESTION, CONTEXT), top_k=2).to_dict()
    assert [list(span) for span in several["spans"]] == [["answer", "start", "end", "score"]] * 2
