"""Question answering through Python, next to the scores of all spans."""

import os
import random
import shutil
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
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
from tests.helpers.families import FAMILIES, make_model
from tests.helpers.frozen import add_vocabulary
from tests.helpers.libraries import Library
from tests.text.test_spans import all_spans, made_up

QUESTION, CONTEXT = "who sat ?", "the cat sat on the mat . a man went to the store , he bought milk"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_answering(tmp_path_factory.mktemp("answering"))


@pytest.fixture
def model(folder: Path) -> mlxbert.Model:
    return mlxbert.load(folder, task="answer", dtype="float32")


Found = tuple[dict[tuple[int, int], float], float]


def best_of(windows: Iterable[tuple[Any, Any]], context: str, max_words: int) -> Found:
    """Every span of every window, given as logits and encoding, with its best score; the lowest score of no answer."""
    found: dict[tuple[int, int], float] = {}
    no_answer = 1.0
    for logits, encoding in windows:
        spans, none = all_spans(logits, encoding, context, max_words)
        no_answer = min(no_answer, none)
        for place, score in spans.items():
            found[place] = max(score, found.get(place, 0.0))
    return found, no_answer


def logits_of(model: mlxbert.Model, encoding: Encoding) -> Any:
    batch = Batch(mx.array([encoding.ids]), None, mx.array([encoding.token_type_ids]))
    return np.array(model.network.logits("question_answering", batch))[0].astype(np.float64)


@together("context", [
    CONTEXT, CONTEXT.replace(" ", "  "), CONTEXT * 5, made_up(150, 3), "😀 the cat 😀😀 sat", "שלום the cat עולם",
    "北京 cat 東京 the dog", "ca\u0301t\u200d dog", "\u3000cat\u00a0dog",
])  # fmt: skip
def test_answers_are_the_best_of_all_spans_of_all_windows(model: mlxbert.Model, context: str) -> None:
    windows = model.tokenizer.windows(QUESTION, context, stride=10)
    spans, no_answer = best_of([(logits_of(model, one), one) for one in windows], context, 4)
    wanted = sorted(spans.items(), key=lambda item: -item[1])
    found = mlxbert.answer(model, (QUESTION, context), top_k=6, max_words=4, no_answer_threshold=1)
    assert [(span.start, span.end) for span in found.spans] == [place for place, _ in wanted[:6]]
    assert [span.score for span in found.spans] == pytest.approx([score for _, score in wanted[:6]], rel=1e-4)
    assert found.no_answer_score == pytest.approx(no_answer, rel=1e-4)
    for span in found.spans:
        assert context[span.start : span.end] == span.answer == span.answer.strip() != ""
        assert len(span.answer.split()) <= 4
    best = found.spans[0]
    assert (found.answer, found.start, found.end, found.score) == (best.answer, best.start, best.end, best.score)
    assert (found.question, found.context, found.truncated) == (QUESTION, context, False)
    written = found.to_dict()
    assert list(written) == ["question", "answer", "start", "end", "score", "no_answer_score", "spans"]
    assert list(written["spans"][0]) == ["answer", "start", "end", "score"]


@pytest.mark.weekly
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
    assert usual.answer is not None and "spans" not in usual.to_dict()
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
    "name,value",
    [("top_k", 0), ("max_words", 0), ("stride", -1), ("stride", 1.5), ("max_length", 4), ("max_length", 33)],
)
def test_arguments_that_make_no_sense_are_refused(model: mlxbert.Model, name: str, value: Any) -> None:
    with pytest.raises(mlxbert.ArgumentError):
        mlxbert.answer(model, (QUESTION, CONTEXT), **{name: value})


def test_a_long_context_can_be_cut_or_refused(model: mlxbert.Model) -> None:
    long = CONTEXT * 4
    cut = mlxbert.answer(model, (QUESTION, long), overflow="truncate", no_answer_threshold=1)
    kept = model.tokenizer.encode(QUESTION, long, overflow="truncate").offsets[-2][1]
    assert cut.truncated and cut.end is not None and cut.end <= kept < len(long)
    with pytest.raises(mlxbert.InputError, match="at most 32"):
        mlxbert.answer(model, (QUESTION, long), overflow="error")
    assert not mlxbert.answer(model, (QUESTION, "a dog"), overflow="error").truncated


torch, transformers = Library("torch"), Library("transformers")


KIND, BOUND = "ForQuestionAnswering", 1e-5
ANSWERING = [name for name, compared in FAMILIES.items() if KIND in compared.heads]
TOKENIZERS = Path(os.environ.get("MLXBERT_TEST_TOKENIZERS", "/none"))


def assert_alike(
    folder: Path, theirs: Any, tokenizer: Any, items: list[tuple[str, str]], length: int, stride: int
) -> None:
    """The same best spans as in the models of transformers, by the rule of its former pipeline, but for ties."""
    model = mlxbert.load(folder, task="answer", dtype="float32")
    found = mlxbert.answer(model, items, top_k=3, max_words=7, max_length=length, stride=stride, no_answer_threshold=1)
    for (question, context), answer in zip(items, found, strict=True):
        windows = tokenizer(
            question, context, truncation="only_second", max_length=length, stride=stride,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        outputs = []
        for number, offsets in enumerate(windows["offset_mapping"]):
            with torch.no_grad():
                output = theirs(**{key: torch.tensor([windows[key][number]]) for key in tokenizer.model_input_names})
            logits = torch.stack([output.start_logits[0], output.end_logits[0]], dim=-1).double().numpy()
            outputs.append((logits, SimpleNamespace(sequence_ids=windows.sequence_ids(number), offsets=offsets)))
        wanted, none = best_of(outputs, context, 7)
        assert answer.no_answer_score == pytest.approx(none, abs=BOUND)
        best = sorted(wanted.values(), reverse=True)[:3]
        assert [span.score for span in answer.spans] == pytest.approx(best, abs=BOUND)
        for span in answer.spans:
            assert wanted[span.start, span.end] == pytest.approx(span.score, abs=BOUND)


@pytest.mark.slow
@pytest.mark.parametrize("family", ANSWERING)
def test_answers_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    made = make_model(compared, KIND).eval()
    made.save_pretrained(tmp_path)
    add_vocabulary(tmp_path, min(compared.facts["vocab_size"], 43))
    theirs = type(made).from_pretrained(tmp_path, attn_implementation="eager").eval()
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
    tokenizer.model_input_names = ["input_ids", "attention_mask", *["token_type_ids"] * (compared.segments > 1)]
    rng = random.Random(family)
    items = [("who sat ?", made_up(rng.randint(1, 60), rng.randrange(999)).strip() or "cat") for _ in range(6)]
    assert_alike(tmp_path, theirs, tokenizer, items, min(compared.max_length, 24), 5)


# By the folder of original files: the family's classes in transformers and the files that it expects.
ORIGINAL = {
    "roberta-base": ("Roberta", ("vocab.json", "merges.txt")),
    "bert-base-chinese": ("Bert", ("vocab.txt",)),
    "bert-base-cased": ("Bert", ("vocab.txt",)),
}
TEXTS = (
    "The Eiffel Tower 🗼 was built in 1889. It is 330 m high — café «Paris», said Émile.\n\nIt stands in Paris.",
    "埃菲尔铁塔建于1889年。它高330米。位于法国巴黎。设计师是居斯塔夫·埃菲尔。",
    "برج إيفل بني عام 1889 في باريس. مدينة كبيرة.",
    "👩‍👩‍👧 went   to\tParis\u00a0in 2,019 \u200band back; naïve co-operation.",
)


@pytest.mark.slow
@pytest.mark.skipif(not TOKENIZERS.is_dir(), reason="needs MLXBERT_TEST_TOKENIZERS")
@pytest.mark.parametrize("name", ORIGINAL)
def test_original_vocabularies_and_templates_give_the_same_spans(name: str, tmp_path: Path) -> None:
    classes, files = ORIGINAL[name]
    for file in files:
        shutil.copy(TOKENIZERS / name / file, tmp_path / file)
    tokenizer = getattr(transformers, f"{classes}Tokenizer").from_pretrained(tmp_path, do_lower_case=False)
    config = getattr(transformers, f"{classes}Config")(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        initializer_range=0.5, pad_token_id=tokenizer.pad_token_id, max_position_embeddings=70,
        type_vocab_size=1 if classes == "Roberta" else 2,
    )  # fmt: skip
    torch.manual_seed(5)
    theirs = getattr(transformers, f"{classes}{KIND}")(config).eval()
    theirs.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    items = [("When was the tower built?", text * 3) for text in TEXTS]
    assert_alike(tmp_path, theirs, tokenizer, items, 48, 11)
