"""The best spans of windows, next to all spans computed one by one; windows over long texts block by block."""

import itertools
import random
import re
import time
import unicodedata
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.text.answer_spans import Candidate, Spans, window_spans
from mlxbert.text.encoding import Encoding
from mlxbert.text.text_windows import pair_blocks
from mlxbert.text.tokenizer import Tokenizer
from tests.helpers.cases import together
from tests.helpers.tiny import VOCAB, save


def window(offsets: list[tuple[int, int]]) -> Encoding:
    """`[CLS] q [SEP] … [SEP]` with a token of the context at each of the offsets."""
    count = len(offsets)
    sequences: list[int | None] = [None, 0, None, *[1] * count, None]
    places = [(0, 0), (0, 1), (0, 0), *offsets, (0, 0)]
    return Encoding([0] * len(places), [0] * len(places), places, sequences, sequences, [*range(len(places))], False)


def within(text: str, place: int) -> bool:
    """Whether a place is in the middle of a letter, a digit or a symbol and its marks, or between letters of a word."""
    marks = [unicodedata.category(text[at]) in ("Mn", "Mc", "Me", "Cf", "Sk") for at in (place - 1, place)]
    letters = [bool(re.fullmatch(r"[^\W_\u4e00-\u9fff]", text[at])) for at in (place - 1, place)]
    return marks[1] or (letters[1] and (letters[0] or (marks[0] and text[place - 1] not in "\u200b\u200e\u200f\ufeff")))


def all_spans(
    logits: np.ndarray, encoding: Any, text: str, max_words: int
) -> tuple[dict[tuple[int, int], float], float]:
    """Every span with its probability, and that of no answer, by the definition."""
    inside = [number for number, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
    powers = np.exp(logits[[0, *inside]] - logits[[0, *inside]].max(axis=0))
    shares = dict(zip([0, *inside], powers / powers.sum(axis=0), strict=True))
    found: dict[tuple[int, int], float] = {}
    for first, last in itertools.combinations_with_replacement(inside, 2):
        start, end = encoding.offsets[first][0], encoding.offsets[last][1]
        part = text[start:end]
        words = re.sub("([\u4e00-\u9fff])", r" \1 ", part).split()  # each ideograph is one
        if not all(text[slice(*encoding.offsets[one])].strip() for one in (first, last)) or len(words) > max_words:
            continue
        start, end = start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
        while start > 0 and within(text, start):
            start -= 1  # the first word whole
        while end < len(text) and unicodedata.category(text[end]).startswith("M"):
            end += 1  # the last letter whole
        found[start, end] = max(found.get((start, end), 0.0), float(shares[first][0] * shares[last][1]))
    return found, float(shares[0][0] * shares[0][1])


@pytest.mark.parametrize("seed", range(8))
def test_the_best_spans_are_those_of_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    words = [rng.choice(("a", "bc", "d,", "😀", " ", "\n", "עברית")) for _ in range(rng.randint(1, 30))]
    text = " ".join(words)
    offsets: list[tuple[int, int]] = []
    place = 0
    for word in words:
        cut = rng.randint(0, len(word))  # some words are two tokens, some begin with the space before them
        early = place - (place > 0 and rng.random() < 0.5)
        ends = [early, place + cut, place + len(word)] if 0 < cut < len(word) else [early, place + len(word)]
        offsets += itertools.pairwise(ends)
        place += len(word) + 1
    encoding = window(offsets)
    logits = np.random.default_rng(seed).normal(0, 3, (len(encoding) + 2, 2))  # two of padding
    max_words = rng.randint(1, 6)
    wanted, no_answer = all_spans(logits, encoding, text, max_words)
    best = sorted(wanted.items(), key=lambda item: -item[1])[:5]
    for block in (10**6, 100):  # a wide window is scored a part at a time
        monkeypatch.setattr("mlxbert.text.answer_spans._BLOCK", block)
        found = window_spans(logits, encoding, text, count=5, max_words=max_words)
        assert found.no_answer == pytest.approx(no_answer)
        assert [(start, end) for start, end, _ in found.best] == [place for place, _ in best]
        assert [score for _, _, score in found.best] == pytest.approx([score for _, score in best])


@together(
    "text,offsets,found",
    [
        ("met Jose\u0301 here", [(0, 3), (4, 8), (10, 14)], "Jose\u0301"),  # the accent has no token
        ("met Jose\u0301 here", [(0, 3), (4, 9), (10, 14)], "Jose\u0301"),
        ("a te\u0302te\u0301", [(0, 1), (2, 7)], "te\u0302te\u0301"),  # at the end of the text
        ("a e\u0301 b", [(0, 1), (3, 4), (5, 6)], "e\u0301"),  # a token that holds nothing but the accent
        ("a हिन्दी b", [(0, 1), (2, 7), (9, 10)], "हिन्दी"),
        ("a \u2764\ufe0f b", [(0, 1), (2, 3), (5, 6)], "\u2764\ufe0f"),
        ("a e" + "\u0301" * 99, [(0, 1), (2, 3)], "e" + "\u0301" * 30),  # not over all marks
    ],
)
def test_a_mark_stays_with_its_letter(text: str, offsets: list[tuple[int, int]], found: str) -> None:
    encoding = window(offsets)
    logits = np.zeros((len(encoding), 2))
    logits[encoding.offsets.index(offsets[1]), :] = 9
    [best] = window_spans(logits, encoding, text, count=1, max_words=3).best
    assert text[best.start : best.end] == found


def test_a_span_of_several_windows_counts_once_with_its_best_score() -> None:
    spans = Spans(2)
    spans.add([Candidate(3, 5, 0.2), Candidate(0, 1, 0.1)], 0.5)
    spans.add([Candidate(3, 5, 0.4), Candidate(7, 9, 0.3)], 0.2)
    spans.add([Candidate(7, 9, 0.1)], 0.9)
    assert spans.best == [(3, 5, 0.4), (7, 9, 0.3)]
    assert spans.no_answer == 0.2 and spans.no_answer_share == pytest.approx(0.2 / 0.6)
    assert Spans(1).best == [] and Spans(1).no_answer_share == 1


def test_many_spans_of_many_windows_take_time_that_grows_with_the_windows() -> None:
    spans, wanted, random_scores = Spans(10**6), dict[Any, float](), np.random.default_rng(1)
    begun = time.process_time()
    for start in range(20):
        found = [Candidate(70 * start + n // 50, n, s) for n, s in enumerate(random_scores.random(1500), 9999)]
        spans.add(found, 0.5)
        for *place, score in found:
            wanted[tuple(place)] = max(score, wanted.get(tuple(place), 0.0))
    assert {(start, end): score for start, end, score in spans.best} == wanted
    assert time.process_time() - begun < 1.5


@together("count", [1, 2, 7, 40])
def test_what_is_forgotten_between_windows_is_not_among_the_best(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.text.answer_spans._BUFFER", 0)
    spans, all_of_them, rng = Spans(count), dict[Any, float](), random.Random(count)
    for _ in range(30):
        some = [Candidate(rng.randrange(9), rng.randrange(9, 15), rng.randrange(12) / 8) for _ in range(10)]
        spans.add(some, 0.5)
        for *place, score in some:
            all_of_them[tuple(place)] = max(score, all_of_them.get(tuple(place), 0.0))
    ranked = sorted(all_of_them.items(), key=lambda item: (-item[1], item[0]))
    assert spans.best == [(*place, score) for place, score in ranked[:count]]


@together(
    "text,max_words,longest",
    [
        ("New York is big", 2, "New York"),
        ("New  York,\n is", 2, "New  York,"),
        ("東京は大きい city", 3, "東京は"),
        ("한국어 단어 x", 2, "한국어 단어"),
        ("x" * 50, 1, "x" * 50),  # one word of many tokens
    ],
)
def test_words_are_separated_by_whitespace_and_ideographs_stand_alone(text: str, max_words: int, longest: str) -> None:
    encoding = window([(number, number + 1) for number in range(len(text))])
    logits = np.zeros((len(encoding), 2))
    logits[3, 0] = 50
    logits[3 + len(longest) - 1 :, 1] = np.linspace(10, 11, len(logits) - 2 - len(longest))
    (best,) = window_spans(logits, encoding, text, count=1, max_words=max_words).best
    assert text[: best.end] == longest


def test_a_window_without_text_has_no_span() -> None:
    found = window_spans(np.zeros((5, 2)), window([(0, 1)]), " ", count=3, max_words=5)
    assert found.best == [] and found.no_answer == 0.25
    assert window_spans(np.zeros((4, 2)), window([]), "", count=3, max_words=5).no_answer == 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return mlxbert.load(save(tmp_path_factory.mktemp("blocks"))).tokenizer


def made_up(count: int, seed: int) -> str:
    rng = random.Random(seed)
    words = [word.replace("##", "") for word in VOCAB[5:]] + ["playing", "catbcdef", "😀", "ž"]
    return "".join(rng.choice(words) + rng.choice((" ", "  ", "\n", " ", "")) for _ in range(count))


@pytest.mark.parametrize(("seed", "stride"), [(0, 0), (1, 5), (2, 11)])
def test_blocks_cover_a_text_as_the_windows_of_the_whole_do(tokenizer: Tokenizer, seed: int, stride: int) -> None:
    text = made_up(400, seed)
    (whole,) = ([*block] for block in [tokenizer.windows("the cat", text, stride=0)])
    blocks = list(pair_blocks(tokenizer, "the cat", text, stride=stride, size=200))
    assert len(blocks) > 3 and blocks[0][0] == 0

    def tokens(windows: list[Encoding], before: int) -> set[tuple[int, int, int]]:
        return {
            (number, before + start, before + end)
            for encoding in windows
            for number, (start, end), sequence in zip(
                encoding.ids, encoding.offsets, encoding.sequence_ids, strict=True
            )
            if sequence == 1
        }

    found = set().union(*(tokens(windows, before) for before, windows in blocks))
    assert found == tokens(whole, 0)
    # Every run of as many tokens as windows share is within one window.
    ordered = sorted(tokens(whole, 0), key=lambda token: token[1])
    within = [{token[1] for token in tokens([encoding], before)} for before, windows in blocks for encoding in windows]
    for place in range(len(ordered) - stride):
        run = {token[1] for token in ordered[place : place + stride]}
        assert any(run <= one for one in within)


@together("text", ["", "cat", "the cat " * 20, " " * 1000, "x" * 700, "\n\ncat" + " " * 900 + "dog"])
def test_blocks_of_odd_texts_end(tokenizer: Tokenizer, text: str) -> None:
    blocks = list(pair_blocks(tokenizer, "the", text, stride=5, size=50))
    assert list(pair_blocks(tokenizer, "the", text, stride=5)) == [(0, tokenizer.windows("the", text, stride=5))]
    starts = [before for before, _ in blocks]
    assert starts == sorted(set(starts)) and starts[0] == 0
    assert any(text[before + start : before + end] == "dog" for before, windows in blocks for encoding in windows
               for start, end in encoding.offsets) == ("dog" in text)  # fmt: skip
