"""Answers in the passages of a search: which passage wins, where its answer stands, and when there is none."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import InputError, MissingHeadError
from mlxbert.nn.encoder import Batch
from mlxbert.results.text_results import Answer, Span
from mlxbert.search.answers import _margin, answer_from
from mlxbert.search.hit import Hit, SimilarPassage
from mlxbert.search.index import open_index
from mlxbert.tasks.answer import HEAD, AnswerTask
from mlxbert.text.batch import make_batch
from tests.helpers.answering import save_answering

TEXTS = ("the cat sat on the mat\n\nthe largest city", "dog milk\nman", "paris is a city in the land of milk")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_answering(tmp_path_factory.mktemp("answering"))


@pytest.fixture(scope="module")
def model(folder: Path) -> mlxbert.Model:
    return mlxbert.load(folder, task="answer", dtype="float32")


def hits_of(*texts: str) -> list[Hit]:
    """Hits with these texts, which begin on line 10 of their files."""
    return [
        Hit("q", rank, 1.0, f"/{rank}.md", "", 10, 20, None, "", text, {}, chunk=100 + rank)
        for rank, text in enumerate(texts, 1)
    ]


def answering(monkeypatch: pytest.MonkeyPatch, scores: dict[str, tuple[float, float]]) -> None:
    """Makes the model answer each text with its second word; the scores are those of that span and of "no answer"."""

    def run(task: AnswerTask, items: Iterable[tuple[str, str]]) -> Iterator[Answer]:
        for question, text in items:
            score, none = scores[text]
            start = text.index(" ") + 1 if " " in text else 0
            span = Span(text[start:].split()[0], start, start + len(text[start:].split()[0]), score)
            found = (span.answer, span.start, span.end) if none / (none + score) <= 0.5 else (None, None, None)
            yield Answer(question, *found, score, none, (span,), text)

    monkeypatch.setattr(AnswerTask, "run", run)


def test_passages_are_compared_by_the_raw_scores(model: mlxbert.Model) -> None:
    """The margin of a passage is the best sum of two logits above that of "no answer", whatever the other spans get."""
    for text in TEXTS:
        answer = mlxbert.answer(model, "the city", context=text)
        encoding = model.tokenizer.encode("the city", text, overflow="error")
        batch: Batch = make_batch([encoding], model.config)
        first, last = np.array(model.network.logits(HEAD, batch))[0].astype(np.float64).T
        inside = [place for place, part in enumerate(encoding.sequence_ids) if part == 1]
        best = max(first[start] + last[end] for start in inside for end in inside if start <= end)
        assert _margin(answer) == pytest.approx(best - first[0] - last[0], abs=1e-3)


def test_the_passage_that_is_surest_has_the_answer(model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"one two": (0.9, 0.09), "a\n\n b": (0.3, 0.001), "x": (0.0, 1.0)})
    answer = answer_from(hits_of("one two", "x", "a\n\n b"), "who?", model)
    assert (answer.answer, answer.rank, answer.path, answer.line, answer.chunk) == ("b", 3, "/3.md", 12, 103)
    assert answer.hits[2].text[answer.start : answer.end] == "b" and answer.score == pytest.approx(300 / 301)
    assert "hits" not in answer.to_dict() and answer.to_dict()["line"] == 12
    answering(monkeypatch, {"one two": (0.5, 0.1), "three four": (0.5, 0.1)})  # of equally sure ones, the first
    assert answer_from(hits_of("one two", "three four"), "who?", model).answer == "two"


def test_the_copies_of_a_passage_are_read(model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"one two": (0.5, 0.4), "One\nTwo x": (0.9, 0.01), "three four": (0.6, 0.4)})
    texts = enumerate(("one two", "One\nTwo x"))
    copies = tuple(SimilarPassage(f"/copy{n}.md", "", 7, None, n, text) for n, text in texts)
    first, second = hits_of("one two", "three four")
    answer = answer_from([replace(first, duplicates=copies), second], "who?", model)
    assert (answer.answer, answer.rank, answer.path, answer.line, answer.chunk) == ("x", 1, "/copy1.md", 8, 1)
    answering(monkeypatch, {"one two": (0.5, 0.4), "One\nTwo x": (0.1, 0.8), "three four": (0.3, 0.4)})
    answer = answer_from([replace(first, duplicates=copies), second], "who?", model)
    assert (answer.answer, answer.path, answer.line) == ("two", "/1.md", 10)  # of equal texts, the hit itself


def test_there_is_no_answer_if_no_passage_has_one(model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"one two": (0.1, 0.3), "x": (0.0, 1e-9), "a b": (1e-200, 1.0)})
    answer = answer_from(hits_of("one two", "a b"), "who?", model)
    assert (answer.answer, answer.rank, answer.line) == (None, None, None) and answer.score == pytest.approx(0.25)
    assert [hit.rank for hit in answer.hits] == [1, 2]
    assert answer_from(hits_of("a b"), "who?", model).score < 1e-100
    assert answer_from([], "who?", model).answer is None and answer_from(hits_of(" \n"), "who?", model).score == 0
    assert math.isfinite(answer_from(hits_of("x"), "who?", model).score)


def test_an_index_answers_with_the_span_and_its_place(folder: Path, tiny_folder: Path, tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text)
    with open_index(tmp_path / "i.db", model=str(tiny_folder), paths=[*tmp_path.glob("*.txt")]) as index:
        assert [*index.update()]
        answer = index.answer("the city", model=str(folder))
        assert answer.answer is not None and answer.rank is not None and answer.line is not None
        hit = answer.hits[answer.rank - 1]
        assert hit.text[answer.start : answer.end] == answer.answer
        assert (hit.path, hit.chunk) == (answer.path, answer.chunk)
        assert answer.answer.split("\n")[0] in Path(hit.path or "").read_text().split("\n")[answer.line - 1]
        others = [replace(hit, text="dog milk") for hit in index.search("milk", top_k=1)]
        assert len(index.answer("the city", model=str(folder), hits=others).hits) == 1
        with pytest.raises(MissingHeadError):
            index.answer("the city", model=str(tiny_folder))
        for query in ("", " ", "city " * 400):
            with pytest.raises(InputError):
                index.answer(query, model=str(folder), hits=others)
