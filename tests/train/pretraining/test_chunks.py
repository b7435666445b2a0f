"""Which parts of a corpus become examples, and in which order they come."""

import itertools
import tracemalloc
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
from mlxbert.train.pretraining.pretraining_settings import Settings
from tests.train.pretraining.corpora import corpus, in_memory, random_corpus
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


def test_a_long_sentence_is_divided_before_a_word() -> None:
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


def test_many_documents_are_held_out_whole() -> None:
    chunks = in_memory(full_sentences(random_corpus(300), ROOM))
    held = held_out(chunks, 0.05, 1000, seed=1)
    train = [*without_overlap(chunks, held)]
    assert len(train) + len(held) == len(chunks)
    assert 0.02 * len(chunks) < len(held) <= round(0.05 * len(chunks))
    assert not {chunk.document for chunk in train} & {chunk.document for chunk in held}
    assert [*held_out(chunks, 0.05, 1000, seed=1)] == [*held] != [*held_out(chunks, 0.05, 1000, seed=2)]


def test_of_few_documents_chunks_are_held_out() -> None:
    chunks = in_memory(full_sentences(corpus([[20] * 100, [20] * 100]), ROOM))
    held = held_out(chunks, 0.1, 1000, seed=0)
    assert len(held) == round(0.1 * len(chunks)) and len([*without_overlap(chunks, held)]) + len(held) == len(chunks)


@pytest.mark.parametrize(
    "chunks",
    [
        lambda: full_sentences(corpus([[5]] * 20_000), 200, across=True),  # most documents have no chunk of their own
        lambda: full_sentences(corpus([[20] * 300] * 30 + [[20]]), ROOM),  # one document is short enough
        lambda: full_sentences(corpus([[20] * 3000, *([[20]] * 30)]), ROOM),  # one is most of all
    ],
)
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


def test_one_chunk_cannot_be_divided() -> None:
    with pytest.raises(InputError, match="the number of examples in the corpus is 1"):
        held_out(in_memory(full_sentences(corpus([[5]]), ROOM)), 0.01, 10, 0)


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


@pytest.mark.parametrize("count", [1, 2, 3, 17, 1000])
def test_a_random_order_has_every_number_once(count: int) -> None:
    orders = [[*FeistelPermutation(count, str(seed))] for seed in range(3)]
    assert all(sorted(order) == [*range(count)] for order in orders)
    assert count < 17 or orders[0] != orders[1] != orders[2]


def test_every_place_has_every_number_equally_often() -> None:
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


@pytest.mark.parametrize("text", ["", "x", "128:", "128:0.5", "128:0.5,512:0.6", "4", "1000", "128:-1,512:2", "0:1"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(ArgumentError):
        read_lengths(text, 512)


def test_lengths_of_phases() -> None:
    assert [(one.tokens, one.share) for one in read_lengths("128:0.9, 512:0.1", 512)] == [(128, 0.9), (512, 0.1)]
    assert read_lengths(64, 512)[0].tokens == 64


def test_tiny_documents_fill_a_chunk_across_borders() -> None:
    found = corpus([[1]] * 500)
    sizes = [chunk.size for chunk in full_sentences(found, ROOM, across=True)]
    assert sizes[:-1] == [30] * (len(sizes) - 1)  # and 29 separators
