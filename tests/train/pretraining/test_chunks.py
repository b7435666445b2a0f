"""Which parts of a corpus become examples, in which order they come, and what is hidden in them."""

import functools
import itertools
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, InputError
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.pretraining.chunks import (
    CorpusChunk,
    FeistelPermutation,
    Phase,
    Phases,
    full_sentences,
    held_out,
    read_lengths,
    sentence_pairs,
    without_overlap,
)
from mlxbert.train.pretraining.corpus import token_store
from mlxbert.train.pretraining.corpus.token_store import Corpus
from mlxbert.train.pretraining.corpus_material import ExampleMaker
from mlxbert.train.pretraining.examples import Pairs, PretrainingExample
from mlxbert.train.pretraining.pretraining_settings import Settings
from tests.train.pretraining.corpora import CLS, MASK, SEP, corpus, examples, in_memory, random_corpus
from tests.train.pretraining.files import model_folder, text_file

ROOM = 60


def _columns(found: Iterable[CorpusChunk]) -> Any:
    """Where chunks start and stop, and their documents."""
    return np.array([*found]).T


def _borders(found: Corpus) -> Any:
    """Where each document ends, in tokens."""
    return found.sentences[:][found.documents[:] - 1]


def test_full_sentences_cover_every_token_once_and_end_with_sentences() -> None:
    found = random_corpus(200)
    starts, stops, documents = _columns(full_sentences(found, ROOM))
    assert starts[0] == 0 and stops[-1] == len(found.ids)
    assert (starts[1:] == stops[:-1]).all()
    assert (stops - starts).max() <= ROOM
    assert np.isin(stops, found.sentences[:]).all()
    borders = _borders(found)
    assert (np.searchsorted(borders, starts, "right") == documents).all()
    assert (np.searchsorted(borders, stops - 1, "right") == documents).all()
    # No further sentence would fit.
    following = np.searchsorted(found.sentences[:], stops, "right")
    open_ended = ~np.isin(stops, borders)
    assert (found.sentences[:][following[open_ended]] - starts[open_ended] > ROOM).all()
    # A long sentence is divided before a word.
    found = corpus([[500]])
    starts, stops, _ = _columns(full_sentences(found, ROOM))
    assert len(starts) > 8 and (stops - starts).max() <= ROOM
    assert not any(found.continues(start, start + 1)[0] for start in starts[1:].tolist())


def test_across_documents_chunks_are_fuller_and_leave_room_for_separators() -> None:
    found = corpus([[10]] * 100)
    within, across = [*full_sentences(found, ROOM)], [*full_sentences(found, ROOM, across=True)]
    assert len(within) == 100 and len(across) < 25
    borders = _borders(found)
    for start, stop, document in across:
        inside = borders[(borders > start) & (borders < stop)]
        assert stop - start + len(inside) <= ROOM and document == np.searchsorted(borders, start, "right")
        assert found.borders(document, stop) == inside.tolist()
    sizes = [chunk.size for chunk in full_sentences(corpus([[1]] * 500), ROOM, across=True)]
    assert sizes[:-1] == [30] * (len(sizes) - 1)  # and 29 separators
    one = examples(found, full_sentences(found, ROOM, across=True))[0][0]
    assert np.flatnonzero(one.clean == SEP).tolist() == [11, 22, 33, 44, 55] and SEP not in one.originals


def test_pairs_have_two_sentences_of_one_document_and_lose_none() -> None:
    found = random_corpus(300)
    starts, stops, documents = _columns(sentence_pairs(found, ROOM, seed=0))
    sizes = stops - starts
    assert sizes.max() <= ROOM
    borders = _borders(found)
    assert (np.searchsorted(borders, stops - 1, "right") == documents).all()
    covered = np.zeros(len(found.ids), bool)
    for start, stop in zip(starts, stops, strict=True):
        covered[start:stop] = True
    single = [number for number, count in enumerate(np.diff(found.documents[:], prepend=0)) if count == 1]
    for number, (start, stop) in enumerate(zip(np.concatenate([[0], borders[:-1]]), borders, strict=True)):
        assert covered[start:stop].all() or (number in single and stop - start <= ROOM // 2)
    assert (sizes < ROOM // 3).mean() > 0.02  # some are shorter on purpose


def test_documents_are_held_out_whole_if_there_are_many() -> None:
    chunks = in_memory(full_sentences(random_corpus(300), ROOM))
    held = held_out(chunks, 0.05, 1000, seed=1)
    train = [*without_overlap(chunks, held)]
    assert len(train) + len(held) == len(chunks)
    assert 0.02 * len(chunks) < len(held) <= round(0.05 * len(chunks))
    assert not {chunk.document for chunk in train} & {chunk.document for chunk in held}
    assert [*held_out(chunks, 0.05, 1000, seed=1)] == [*held] != [*held_out(chunks, 0.05, 1000, seed=2)]
    chunks = in_memory(full_sentences(corpus([[20] * 100, [20] * 100]), ROOM))  # of few documents, chunks are
    held = held_out(chunks, 0.1, 1000, seed=0)
    assert len(held) == round(0.1 * len(chunks)) and len([*without_overlap(chunks, held)]) + len(held) == len(chunks)
    with pytest.raises(InputError, match="the number of examples in the corpus is 1"):
        held_out(in_memory(full_sentences(corpus([[5]]), ROOM)), 0.01, 10, 0)


@pytest.mark.parametrize("chunks", [
    lambda: full_sentences(corpus([[5]] * 6_000), 200, across=True),  # most documents have no chunk of their own
    lambda: full_sentences(corpus([[20] * 300] * 10 + [[20]]), ROOM),  # one document is short enough
    lambda: full_sentences(corpus([[20] * 1000, *([[20]] * 10)]), ROOM),  # one is most of all
])  # fmt: skip
def test_about_as_many_are_held_out_as_asked_for(chunks: Callable[[], Iterable[CorpusChunk]]) -> None:
    found = in_memory(chunks())
    for seed in range(3):
        held = held_out(found, 0.05, 1000, seed=seed)
        assert 0.5 * 0.05 * len(found) < len(held) <= round(0.05 * len(found))


def test_a_stored_corpus_that_became_shorter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(1000, dtype="<i8").tobytes())
    with path.open("r+b") as file:
        found = token_store.Stored(file, np.dtype("<i8"), (1000,))
        assert found[990:].tolist() == [*range(990, 1000)]
        file.truncate(8 * 995)
        with pytest.raises(CheckpointError, match=r"7,960 bytes, expected 8,000"):
            found[990:]


def test_nothing_that_is_held_out_is_trained_on_in_examples_of_other_lengths() -> None:
    found = corpus([[20] * 100, [20] * 100])
    held = held_out(in_memory(sentence_pairs(found, ROOM, 0)), 0.1, 1000, seed=0)
    hidden = np.zeros(len(found.ids), bool)
    for start, stop, _ in held:
        hidden[start:stop] = True
    for chunks in (sentence_pairs(found, ROOM, 0), full_sentences(found, 300), full_sentences(found, 30)):
        whole = in_memory(chunks)
        rest = [*without_overlap(whole, held)]
        assert 0 < len(rest) < len(whole)
        assert not any(hidden[start:stop].any() for start, stop, _ in rest)
        assert len(rest) + sum(hidden[start:stop].any() for start, stop, _ in whole) == len(whole)


def test_a_random_order_has_every_number_once_and_equally_often_in_every_place() -> None:
    for count in (1, 2, 3, 17, 1000):
        orders = [[*FeistelPermutation(count, str(seed))] for seed in range(3)]
        assert all(sorted(order) == [*range(count)] for order in orders)
        assert count < 17 or orders[0] != orders[1] != orders[2]
    orders = [[*FeistelPermutation(10, str(seed))] for seed in range(2000)]
    counts = np.array([np.bincount(column, minlength=10) for column in np.array(orders).T])
    assert ((counts - 200) ** 2 / 200).sum() < 130  # chi-squared, 81 degrees of freedom: once in 2,000 times
    ahead = sum(b > a for order in orders for a, b in itertools.pairwise(order))
    assert ahead / 18_000 == pytest.approx(0.5, abs=0.02)


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither chunks nor their order are kept in memory, nor what is read of the corpus."""
    monkeypatch.setattr(token_store, "_BLOCK", 256)
    monkeypatch.setattr("mlxbert.durable_files._BLOCK", 256)  # of what is hashed
    tokenizer = mlxbert.load(model_folder(tmp_path / "model")).tokenizer
    peaks = []
    for documents in (150, 1500):
        folder = tmp_path / str(documents)
        maker = ExampleMaker(Settings(corpus=(text_file(tmp_path / f"{documents}.txt", documents),), length="16"),
                      tokenizer, None, 16)  # fmt: skip
        maker.make(folder, TrainingOptions(), 1, 1, None)  # reads the corpus, in parts
        tracemalloc.start()
        found = maker.make(folder, TrainingOptions(), 1, 1, None)
        assert len(found.train) > 3 * documents
        assert [len(found.train[number]) for batch in found.order.batches(0) for number in batch]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], peaks  # of ten times the text


def test_every_chunk_comes_once_in_a_pass_in_another_order() -> None:
    chunks = in_memory(full_sentences(random_corpus(50), ROOM))
    order = Phases([Phase(chunks, ROOM, 1.0, 4, chunks)], steps=None, epochs=2, gradient_accumulation=1, seed=3)
    per_pass = order.phases[0].batches
    assert order.steps == 2 * per_pass and order.epochs(order.steps) == 2
    passes = [
        [order.place(number) for step in range(start, start + per_pass) for number in order.batches(step)[0]]
        for start in (0, per_pass)
    ]
    for epoch, places in enumerate(passes):
        assert sorted(place.chunk for place in places) == list(range(len(chunks)))
        assert {place.epoch for place in places} == {epoch}
    assert [place.chunk for place in passes[0]] != [place.chunk for place in passes[1]]


def test_phases_share_the_updates_and_the_tokens() -> None:
    found = random_corpus(100)
    short, long = (in_memory(full_sentences(found, room)) for room in (30, 120))
    phases = [Phase(short, 32, 0.9, 16, short), Phase(long, 128, 0.1, 4, long)]
    order = Phases(phases, steps=50, epochs=1, gradient_accumulation=2, seed=0)
    assert [order.place(order.batches(step)[0][0]).phase for step in range(50)] == [0] * 45 + [1] * 5
    assert len(order.batches(0)) == 2
    numbers = [number for step in range(50) for batch in order.batches(step) for number in batch]
    assert len({*numbers}) == len(numbers)  # within a pass none comes twice, and passes are told apart
    assert order.tokens(order.batches(0)[0]) <= 16 * 30


def test_lengths_of_phases() -> None:
    assert [(one.tokens, one.share) for one in read_lengths("128:0.9, 512:0.1", 512)] == [(128, 0.9), (512, 0.1)]
    assert read_lengths(64, 512)[0].tokens == 64
    for text in ("", "x", "128:", "128:0.5", "128:0.5,512:0.6", "4", "1000", "128:-1,512:2", "0:1"):
        with pytest.raises(ArgumentError):
            read_lengths(text, 512)


@functools.cache
def documents() -> Corpus:
    return random_corpus(200, seed=5)


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
    chunks = [*full_sentences(documents(), ROOM)]
    found = [*examples(documents(), chunks, whole_words=whole_words)[0]]
    share, kinds = _shares(found)
    assert share == pytest.approx(0.15, abs=0.005)
    for kind, part in (("masked", 0.8), ("other", 0.1), ("same", 0.1)):
        assert kinds[kind] / kinds.total() == pytest.approx(part, abs=0.015), kind
    split = 0  # words of which only some pieces are hidden
    for one, chunk in zip(found, chunks, strict=True):
        hidden = np.isin(np.arange(1, len(one) - 1), one.places)
        split += int((hidden[1:] != hidden[:-1])[documents().continues(*chunk[:2])[1:]].sum())
    assert (split == 0) == whole_words


def test_masks_differ_in_every_pass_and_are_the_same_again() -> None:
    chunks = [*full_sentences(documents(), ROOM)]
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
    static, _ = examples(documents(), chunks, copies=2)
    assert all((static[n].ids == static[n + 2 * count].ids).all() for n in range(20))
    assert any(static[n].ids.tolist() != static[n + count].ids.tolist() for n in range(20))


@pytest.mark.parametrize("pairs", ["next", "order"])
def test_half_of_the_second_texts_are_from_another_document_or_swapped(pairs: Pairs) -> None:
    chunks = [*sentence_pairs(documents(), ROOM, seed=0)]
    found = [*examples(documents(), chunks, pairs=pairs)[0]]
    assert np.mean([one.label == 1 for one in found]) == pytest.approx(0.5, abs=0.04)
    for one, chunk in zip(found[:300], chunks, strict=False):
        own = documents().tokens(*chunk[:2]).tolist()
        ends = np.flatnonzero(one.clean == SEP)
        assert one.clean[0] == CLS and len(ends) == 2 and ends[1] == len(one) - 1 < 64
        assert (one.segments == (np.arange(len(one)) > ends[0])).all()
        first, second = one.clean[1 : ends[0]].tolist(), one.clean[ends[0] + 1 : ends[1]].tolist()
        assert first and second
        if pairs == "order":
            assert own == (second + first if one.label else first + second)
        else:
            assert (first + second == own) == (one.label == 0)


def test_pairs_need_two_documents() -> None:
    found = corpus([[10] * 100])
    with pytest.raises(InputError):
        examples(found, sentence_pairs(found, ROOM, 0), pairs="next")
    assert len(examples(found, sentence_pairs(found, ROOM, 0), pairs="order")[0]) > 5
