"""Which parts of a corpus become examples, and in which order they come."""

import numpy as np
import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.pretraining.chunks import apart_from, document_ends, full_sentences, held_out, sentence_pairs
from mlxbert.pretraining.phases import Phase, Phases, read_lengths
from tests.pretraining.corpora import corpus, random_corpus

ROOM = 60


def test_full_sentences_cover_every_token_once_and_end_with_sentences() -> None:
    found = random_corpus(200)
    chunks = full_sentences(found, ROOM)
    assert chunks.starts[0] == 0 and chunks.stops[-1] == len(found.ids)
    assert (chunks.starts[1:] == chunks.stops[:-1]).all()
    assert (chunks.stops - chunks.starts).max() <= ROOM
    assert np.isin(chunks.stops, found.sentences).all()
    borders = document_ends(found)
    assert (np.searchsorted(borders, chunks.starts, "right") == chunks.documents).all()
    assert (np.searchsorted(borders, chunks.stops - 1, "right") == chunks.documents).all()
    # No further sentence would fit.
    following = np.searchsorted(found.sentences, chunks.stops, "right")
    open_ended = ~np.isin(chunks.stops, borders)
    assert (found.sentences[following[open_ended]] - chunks.starts[open_ended] > ROOM).all()


def test_a_long_sentence_is_divided_before_a_word() -> None:
    found = corpus([[500]])
    chunks = full_sentences(found, ROOM)
    assert len(chunks) > 8 and (chunks.stops - chunks.starts).max() <= ROOM
    assert not any(found.continues(start, start + 1)[0] for start in chunks.starts[1:].tolist())


def test_across_documents_chunks_are_fuller_and_leave_room_for_separators() -> None:
    found = corpus([[10]] * 100)
    within, across = full_sentences(found, ROOM), full_sentences(found, ROOM, across=True)
    assert len(within) == 100 and len(across) < 25
    borders = document_ends(found)
    for start, stop in zip(across.starts, across.stops, strict=True):
        assert stop - start + ((borders > start) & (borders < stop)).sum() <= ROOM


def test_pairs_have_two_sentences_of_one_document_and_lose_none() -> None:
    found = random_corpus(300)
    chunks = sentence_pairs(found, ROOM, seed=0)
    assert (chunks.stops - chunks.starts).max() <= ROOM
    borders = document_ends(found)
    assert (np.searchsorted(borders, chunks.stops - 1, "right") == chunks.documents).all()
    covered = np.zeros(len(found.ids), bool)
    for start, stop in zip(chunks.starts, chunks.stops, strict=True):
        covered[start:stop] = True
    single = [number for number, count in enumerate(np.diff(found.documents, prepend=0)) if count == 1]
    for number, (start, stop) in enumerate(zip(np.concatenate([[0], borders[:-1]]), borders, strict=True)):
        assert covered[start:stop].all() or (number in single and stop - start <= ROOM // 2)
    sizes = chunks.stops - chunks.starts
    assert (sizes < ROOM // 3).mean() > 0.02  # some are shorter on purpose


def test_many_documents_are_held_out_whole() -> None:
    chunks = full_sentences(random_corpus(300), ROOM)
    held = held_out(chunks, 0.05, 1000, seed=1)
    train = apart_from(chunks, held)
    assert len(train) + len(held) == len(chunks)
    assert 0 < len(held) <= 0.08 * len(chunks)
    assert not {*train.documents.tolist()} & {*held.documents.tolist()}
    again = held_out(chunks, 0.05, 1000, seed=1)
    assert (again.starts == held.starts).all()


def test_of_few_documents_chunks_are_held_out() -> None:
    chunks = full_sentences(corpus([[20] * 100, [20] * 100]), ROOM)
    held = held_out(chunks, 0.1, 1000, seed=0)
    assert len(held) == round(0.1 * len(chunks)) and len(apart_from(chunks, held)) + len(held) == len(chunks)


def test_one_chunk_cannot_be_divided() -> None:
    with pytest.raises(InputError, match="1 examples"):
        held_out(full_sentences(corpus([[5]]), ROOM), 0.01, 10, 0)


def test_nothing_that_is_held_out_is_trained_on_in_examples_of_other_lengths() -> None:
    found = corpus([[20] * 100, [20] * 100])
    held = held_out(sentence_pairs(found, ROOM, 0), 0.1, 1000, seed=0)
    hidden = np.zeros(len(found.ids), bool)
    for start, stop in zip(held.starts, held.stops, strict=True):
        hidden[start:stop] = True
    for chunks in (sentence_pairs(found, ROOM, 0), full_sentences(found, 300), full_sentences(found, 30)):
        rest = apart_from(chunks, held)
        assert 0 < len(rest) < len(chunks)
        assert not any(hidden[start:stop].any() for start, stop in zip(rest.starts, rest.stops, strict=True))
        overlapping = [hidden[start:stop].any() for start, stop in zip(chunks.starts, chunks.stops, strict=True)]
        assert len(rest) + sum(overlapping) == len(chunks)


def test_every_chunk_comes_once_in_a_pass_in_another_order() -> None:
    chunks = full_sentences(random_corpus(50), ROOM)
    order = Phases([Phase(chunks, ROOM, 1.0, 4, chunks)], steps=None, epochs=2, accumulate=1, seed=3)
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
    short, long = full_sentences(found, 30), full_sentences(found, 120)
    phases = [Phase(short, 32, 0.9, 16, short), Phase(long, 128, 0.1, 4, long)]
    order = Phases(phases, steps=50, epochs=1, accumulate=2, seed=0)
    assert [order.place(order.batches(step)[0][0]).phase for step in range(50)] == [0] * 45 + [1] * 5
    assert len(order.batches(0)) == 2
    numbers = [number for step in range(50) for batch in order.batches(step) for number in batch]
    assert len({*numbers}) == len(numbers)  # within a pass none comes twice, and passes are told apart
    assert order.tokens(order.batches(0)[0]) <= 16 * 30


@pytest.mark.parametrize("text", ["", "x", "128:", "128:0.5", "128:0.5,512:0.6", "4", "1000", "128:-1,512:2", "0:1"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(ArgumentError):
        read_lengths(text, 512)


def test_lengths() -> None:
    assert [(one.tokens, one.share) for one in read_lengths("128:0.9, 512:0.1", 512)] == [(128, 0.9), (512, 0.1)]
    assert read_lengths(64, 512)[0].tokens == 64


def test_one_large_document_is_not_held_out_whole() -> None:
    chunks = full_sentences(corpus([[20] * 3000, *([[20]] * 30)]), ROOM)
    for seed in range(10):
        assert len(held_out(chunks, 0.01, 1000, seed)) <= round(0.01 * len(chunks))


def test_tiny_documents_fill_a_chunk_across_borders() -> None:
    found = corpus([[1]] * 500)
    across = full_sentences(found, ROOM, across=True)
    assert (across.stops - across.starts)[:-1].tolist() == [30] * (len(across) - 1)  # and 29 separators
