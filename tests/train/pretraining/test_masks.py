"""What is hidden, how often, and that it is a function of seed, pass and example."""

import functools
from collections import Counter

import numpy as np
import pytest

from mlxbert.errors import InputError
from mlxbert.train.pretraining.chunks import full_sentences, sentence_pairs
from mlxbert.train.pretraining.corpus.token_store import Corpus
from mlxbert.train.pretraining.examples import PretrainingExample
from tests.train.pretraining.corpora import CLS, MASK, SEP, corpus, examples, random_corpus


@functools.cache
def documents() -> Corpus:
    return random_corpus(300, seed=5)


def _shares(given: list[PretrainingExample]) -> tuple[float, Counter[str]]:
    kinds: Counter[str] = Counter()
    usable = 0
    for one in given:
        usable += int((one.clean > MASK).sum())
        for place in one.places.tolist():
            now, before = one.ids[place], one.clean[place]
            assert before > MASK, "a special token is hidden"
            kinds["masked" if now == MASK else "same" if now == before else "other"] += 1
            assert now == MASK or now > MASK
        others = np.ones(len(one), bool)
        others[one.places] = False
        assert (one.ids[others] == one.clean[others]).all()
    return kinds.total() / usable, kinds


@pytest.mark.parametrize("whole_words", [False, True])
def test_shares_of_hidden_tokens(whole_words: bool) -> None:
    found, _ = examples(documents(), full_sentences(documents(), 60), whole_words=whole_words)
    share, kinds = _shares([*found])
    assert share == pytest.approx(0.15, abs=0.005)
    for kind, part in (("masked", 0.8), ("other", 0.1), ("same", 0.1)):
        assert kinds[kind] / kinds.total() == pytest.approx(part, abs=0.015), kind


def test_whole_words_are_hidden_whole() -> None:
    chunks = [*full_sentences(documents(), 60)]
    found, _ = examples(documents(), chunks, whole_words=True)
    split = 0
    for number, one in enumerate(found):
        continues = documents().continues(*chunks[number][:2])
        hidden = np.zeros(len(one), bool)
        hidden[one.places] = True
        inside = hidden[1:-1]
        split += int((inside[1:] != inside[:-1])[continues[1:]].sum())
    assert split == 0


def test_masks_differ_in_every_pass_and_are_the_same_again() -> None:
    chunks = [*full_sentences(documents(), 60)]
    found, order = examples(documents(), chunks)
    count = len(order.phases[0].chunks)
    first, second = found[3], found[3 + count]
    assert order.place(3 + count).chunk == 3 and order.place(3 + count).epoch == 1
    assert (first.clean == second.clean).all()
    assert sum((found[n].places.tolist() != found[n + count].places.tolist()) for n in range(50)) > 40
    again, _ = examples(documents(), chunks)
    assert (again[3].ids == first.ids).all() and (again[3].places == first.places).all()
    other, _ = examples(documents(), chunks, seed=1)
    assert any((other[n].places.tolist() != found[n].places.tolist()) for n in range(5))


def test_static_masks_repeat() -> None:
    chunks = [*full_sentences(documents(), 60)]
    found, _ = examples(documents(), chunks, copies=2)
    count = len(chunks)
    for number in range(20):
        assert (found[number].ids == found[number + 2 * count].ids).all()
    assert any(found[n].ids.tolist() != found[n + count].ids.tolist() for n in range(20))


def test_half_of_the_second_texts_are_from_another_document() -> None:
    chunks = [*sentence_pairs(documents(), 60, seed=0)]
    found, _ = examples(documents(), chunks, pairs="next")
    labels = [one.label == 1 for one in found]
    assert np.mean(labels) == pytest.approx(0.5, abs=0.04)
    for number in range(300):
        one = found[number]
        ends = np.flatnonzero(one.clean == SEP)
        assert one.clean[0] == CLS and len(ends) == 2 and ends[1] == len(one) - 1
        assert (one.segments == (np.arange(len(one)) > ends[0])).all()
        assert ends[0] - 1 >= 1 and ends[1] - ends[0] > 1
        own = documents().tokens(*chunks[number][:2])
        texts = [*one.clean[1 : ends[0]].tolist(), *one.clean[ends[0] + 1 : ends[1]].tolist()]
        assert (texts == own.tolist()) == (one.label == 0)
        assert len(one) <= 64


def test_half_of_the_pairs_are_swapped() -> None:
    chunks = [*sentence_pairs(documents(), 60, seed=0)]
    found, _ = examples(documents(), chunks, pairs="order")
    assert np.mean([one.label == 1 for one in found]) == pytest.approx(0.5, abs=0.04)
    for number in range(300):
        one = found[number]
        first, second = (part.tolist() for part in np.split(one.clean[1:-1], np.flatnonzero(one.clean[1:-1] == SEP)))
        own = documents().tokens(*chunks[number][:2]).tolist()
        assert own == (second[1:] + first if one.label else first + second[1:])


def test_separators_stand_between_documents() -> None:
    found = corpus([[10]] * 50)
    examples_, _ = examples(found, full_sentences(found, 60, across=True))
    one = examples_[0]
    assert np.flatnonzero(one.clean == SEP).tolist() == [11, 22, 33, 44, 55]
    assert SEP not in one.originals


def test_pairs_need_two_documents() -> None:
    found = corpus([[10] * 100])
    with pytest.raises(InputError):
        examples(found, sentence_pairs(found, 60, 0), pairs="next")
    assert len(examples(found, sentence_pairs(found, 60, 0), pairs="order")[0]) > 5
