"""Text to token ids: known ids, offsets, pairs, truncation, windows; and all of it next to transformers."""

import functools
import random
import string
from itertools import pairwise
from unittest.mock import Mock

import pytest
from hypothesis import given, strategies as st

from mlxbert.config import Absolute
from mlxbert.errors import ArgumentError, InputError, TokenizerError
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.model_source import builtin_folder
from mlxbert.weights.tokenizers.tokenizer_files import TokenizerFiles, read_tokenizer
from tests.helpers.cases import together
from tests.helpers.cells import quick
from tests.helpers.tiny import tiny_config

CLS, SEP, UNK, MASK = 101, 102, 100, 103
ROWS = 30522
WORDS = [
    *("the", "cat", "sat", "on", "a", "mat", ",", "unbelievably", "embeddings", "[MASK]", "tokyo", "!", "2026"),
    "encyclopaedia",
]
QUICK = quick(100)
# Long texts as often as short ones, which plain lists are not.
SENTENCES = st.integers(0, 70).flatmap(lambda size: st.lists(st.sampled_from(WORDS), min_size=size, max_size=size))


@functools.cache
def files() -> TokenizerFiles:
    return read_tokenizer(builtin_folder())


def tokenizer(max_length: int = 512) -> Tokenizer:
    """The built-in vocabulary in a model of that many positions."""
    return Tokenizer(files(), tiny_config(vocab_size=ROWS, positions=Absolute(max_length)))


def words_of(tokens: list[str]) -> list[int]:
    """The number of each token's word, by the ## of those that continue."""
    numbers: list[int] = []
    for token in tokens:
        numbers.append(numbers[-1] if token.startswith("##") else (numbers[-1] if numbers else -1) + 1)
    return numbers


def body(encoding: Encoding, sequence: int = 0) -> list[int]:
    return [place for place, found in enumerate(encoding.sequence_ids) if found == sequence]


@together(
    "text,ids",
    [
        *(("Hello World!", [7592, 2088, 999]), ("", []), (" \t\n", []), ("cafe\u0301 CAFÉ", [7668, 7668])),
        *(("don't", [2123, 1005, 1056]), ("z" * 100, [1062, *[13213] * 49, 2480]), ("x" * 101, [UNK])),
        *(("\u4e2d\u56fd", [1746, 1799]), ("a\x00b\ufffdc\u200d", [5925]), ("\U0001f642", [UNK])),
        *(("the [MASK] sat", [1996, MASK, 2938]), ("a [SEP] b [CLS]", [1037, SEP, 1038, CLS])),
    ],
)
def test_known_texts_give_known_ids(text: str, ids: list[int]) -> None:
    found = tokenizer().encode(text)
    assert found.ids == [CLS, *ids, SEP]
    assert tokenizer().pieces(text) == ids
    assert len(found) == len(ids) + 2 and not found.truncated


def test_offsets_count_code_points() -> None:
    found = tokenizer().encode("\U0001f642 nai\u0308ve \u4e2d [MASK]")
    assert found.offsets == [(0, 0), (0, 1), (2, 8), (9, 10), (11, 17), (0, 0)]
    assert found.sequence_ids == [None, 0, 0, 0, 0, None]
    assert found.word_ids == [None, 0, 1, 2, 3, None]


@QUICK
@given(st.text(max_size=60))
def test_offsets_lie_inside_the_text_and_in_order(text: str) -> None:
    found = tokenizer().encode(text)
    spans = found.offsets[1:-1]
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert spans == sorted(spans) and [end for _, end in spans] == sorted(end for _, end in spans)
    assert found.positions == list(range(len(found))) and not any(found.token_type_ids)


@QUICK
@given(st.text(string.ascii_lowercase + string.digits + string.punctuation + " ", max_size=80))
def test_the_text_between_the_offsets_is_the_token(text: str) -> None:
    found, reader = tokenizer().encode(text), tokenizer()
    tokens = [reader.token(number) for number in found.ids[1:-1]]
    assert [text[start:end] for start, end in found.offsets[1:-1]] == [token.removeprefix("##") for token in tokens]
    assert "".join(token.removeprefix("##") for token in tokens) == text.replace(" ", "")
    assert found.word_ids == [None, *words_of(tokens), None]


def test_a_pair_has_segments_and_both_separators() -> None:
    found = tokenizer().encode("the cat", "unbelievably !")
    assert found.ids == [CLS, 1996, 4937, SEP, *tokenizer().pieces("unbelievably !"), SEP]
    second = len(found) - 5
    assert found.token_type_ids == [0] * 4 + [1] * (second + 1)
    assert found.sequence_ids == [None, 0, 0, None, *[1] * second, None]
    assert found.offsets[4][0] == 0 and found.offsets[-2] == (13, 14)
    assert found.word_ids[4:-1] == [*[0] * (second - 1), 1]
    empty = tokenizer().encode("the", "")  # still a pair
    assert (empty.ids, empty.token_type_ids) == ([CLS, 1996, SEP, SEP], [0, 0, 0, 1])


def test_a_text_of_exactly_the_longest_length_fits_and_one_token_more_does_not() -> None:
    assert len(tokenizer(16).encode("the " * 14)) == 16
    with pytest.raises(InputError, match=r"17 tokens.*at most 16"):
        tokenizer(16).encode("the " * 15)
    with pytest.raises(InputError, match=r"17 tokens.*at most 16"):
        tokenizer(16).encode("the " * 7, "cat " * 7)


def test_a_text_is_truncated_at_its_end() -> None:
    found = tokenizer(8).encode("the cat sat on a mat in tokyo", overflow="truncate")
    assert found.ids == [CLS, *tokenizer().pieces("the cat sat on a mat"), SEP]
    assert found.truncated and found.offsets[-2] == (17, 20)
    assert not tokenizer(8).encode("the cat", overflow="truncate").truncated
    for text in ("a", "a " * 2000):
        with pytest.raises(ArgumentError, match="`overflow` is 'cut'"):
            tokenizer(8).encode(text, overflow="cut")
        with pytest.raises(ArgumentError, match="`overflow` is 'cut'"):
            tokenizer(8).encode_each(text, ["b"], overflow="cut")


def test_of_a_pair_the_longer_text_is_cut_first() -> None:
    short, long = "the cat", "sat on a mat in tokyo and paris"
    for texts, kept in (((short, long), (2, 5)), ((long, short), (5, 2)), ((long, long), (3, 4))):
        found = tokenizer(10).encode(*texts, overflow="truncate")
        assert (len(body(found, 0)), len(body(found, 1))) == kept
        assert found.truncated and len(found) == 10
        whole = tokenizer().encode(*texts)
        for text, count in enumerate(kept):
            positions = [whole.positions[place] for place in body(whole, text)]
            assert [found.positions[place] for place in body(found, text)] == positions[:count]


@QUICK
@given(SENTENCES, st.none() | st.lists(st.sampled_from(WORDS), max_size=4), st.integers(20, 30), st.integers(0, 3))
def test_windows_cover_every_token_and_overlap_by_the_stride(
    words: list[str], first: list[str] | None, max_length: int, stride: int
) -> None:
    small, texts = tokenizer(max_length), [" ".join(words)] if first is None else [" ".join(first), " ".join(words)]
    whole, windows = tokenizer().encode(*texts), []
    covered = len(texts) - 1
    try:
        windows = small.windows(*texts, stride=stride)
    except InputError:
        assert first is not None and max_length - 3 - len(body(whole, 0)) <= stride
        return
    want = [whole.positions[place] for place in body(whole, covered)]
    got = [[window.positions[place] for place in body(window, covered)] for window in windows]
    assert got[0] + [place for run in got[1:] for place in run[stride:]] == want
    for before, after in pairwise(got):
        assert after[:stride] == before[len(before) - stride :] and len(after) > stride
    for window in windows:
        assert len(window) <= max_length and window.truncated == (window is not windows[-1])
        for place in body(window, covered):
            there = window.positions[place]
            assert window.ids[place] == whole.ids[there] and window.offsets[place] == whole.offsets[there]
            assert window.word_ids[place] == whole.word_ids[there] and window.token_type_ids[place] == covered
        if first is not None:
            assert [window.ids[place] for place in body(window)] == [whole.ids[place] for place in body(whole)]
    assert all(len(window) == max_length for window in windows[:-1])


def test_windows_refuse_a_stride_that_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match="`stride` is -1"):
        tokenizer().windows("the", stride=-1)
    with pytest.raises(InputError, match=r"6 tokens.*6"):
        tokenizer(8).windows("the cat", stride=6)
    with pytest.raises(InputError, match="leaves no room"):
        tokenizer(8).windows("the cat sat on a mat in tokyo", "the", stride=0)


@QUICK
@given(SENTENCES, st.integers(6, 40))
def test_every_mask_has_a_quarter_of_a_window_or_the_end_of_the_text_on_both_sides(
    words: list[str], max_length: int
) -> None:
    text, small = " ".join(words), tokenizer(max_length)
    whole, room = tokenizer().encode(text), max_length - 2
    masks = [place for place, number in enumerate(whole.ids) if number == MASK]
    inputs, where = small.around(text, MASK)
    assert [inputs[window].positions[place] for window, place in where] == masks
    assert all(inputs[window].ids[place] == MASK for window, place in where)
    for window in inputs:
        assert len(window) == min(max_length, len(whole)) and window.truncated == (len(whole) > max_length)
        assert window.ids[0] == CLS and window.ids[-1] == SEP
        assert [whole.ids[window.positions[place]] for place in body(window)] == window.ids[1:-1]
        assert [whole.offsets[window.positions[place]] for place in body(window)] == window.offsets[1:-1]
    for number, place in where:
        positions = inputs[number].positions
        assert place - 1 >= room // 2 or positions[1] == 1
        assert room - place >= room // 4 or positions[-2] == len(whole) - 2
    for number, place in dict(reversed(where)).items():
        if inputs[number].positions[1] > 1 and inputs[number].positions[-2] < len(whole) - 2:
            assert place - 1 == room // 2  # the mask that the window was made for stands in its middle
    if len(whole) > max_length:
        assert len(inputs) <= 1 + len(whole) // max(1, room // 4)
    if len(whole) <= max_length or not masks:
        assert len(inputs) == 1


@together("text", ["\ud800", "the \udfff cat", "\ude42\ud83d"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    for texts in ((text,), ("the", text)):
        with pytest.raises(InputError, match="surrogate"):
            tokenizer().encode(*texts)
    with pytest.raises(InputError, match="surrogate"):
        tokenizer().windows(text, stride=0)


def test_a_vocabulary_or_an_id_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"30522 tokens.*30521 word"):
        Tokenizer(files(), tiny_config(vocab_size=ROWS - 1))
    with pytest.raises(TokenizerError, match=r"input.*5 tokens"):
        tokenizer(5)
    assert tokenizer().token(MASK) == tokenizer().mask_token == "[MASK]"
    assert tokenizer().token_id("nosuchtoken") is None
    with pytest.raises(ArgumentError, match="token id is 30522"):
        tokenizer().token(ROWS)


def _some_text(generator: random.Random) -> str:
    pools = [WORDS, list(string.printable), [chr(number) for number in range(0xA0, 0x250)], list("中文字日本語한국어")]
    pools += [list("\U0001f642\U0001f468\u200d\U0001f469\ufe0f"), [chr(number) for number in range(0x300, 0x330)]]
    pools += [["[MASK]", "[SEP]", "[mask]", "[UNK]", "İ", "ß", "ﬁ", "\u3000", "\xad", "\ufffd", "\x85", "x" * 101]]
    picks = (generator.choice(generator.choice(pools)) for _ in range(generator.randrange(1, 30)))
    return "".join(pick + generator.choice(("", " ")) for pick in picks)


@pytest.mark.slow
def test_ids_and_offsets_of_texts_and_of_pairs_that_are_cut_are_those_of_transformers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
    reference = transformers.BertTokenizerFast.from_pretrained(builtin_folder(), local_files_only=True)
    generator, ours = random.Random(5), tokenizer()
    for _ in range(300):
        text = _some_text(generator)
        theirs, found = reference(text, return_offsets_mapping=True), ours.encode(text)
        assert (found.ids, found.offsets) == (theirs["input_ids"], theirs["offset_mapping"]), repr(text)
        assert found.word_ids == theirs.word_ids(), repr(text)
        texts, limit = (text, _some_text(generator)), generator.randrange(6, 40)
        theirs = reference(*texts, truncation="longest_first", max_length=limit, return_offsets_mapping=True)
        found = tokenizer(limit).encode(*texts, overflow="truncate")
        assert (found.ids, found.token_type_ids) == (theirs["input_ids"], theirs["token_type_ids"]), (texts, limit)
        assert found.offsets == theirs["offset_mapping"] and found.sequence_ids == theirs.sequence_ids()


@QUICK
@given(st.lists(SENTENCES.map(" ".join) | st.text(max_size=20), min_size=2, max_size=6))
def test_texts_that_are_split_together_are_split_alike(texts: list[str]) -> None:
    one, many = tokenizer(), tokenizer()
    with many.together(texts):
        assert [many.split(text) for text in texts] == [one.split(text) for text in texts]


def test_texts_are_split_together_but_for_those_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tokenizer()
    counting = Mock(wraps=plain._tokenizer)
    monkeypatch.setattr(plain, "_tokenizer", counting)
    with plain.together(["a cat", "a mat", "a cat", "x" * 20_000]):
        assert plain.pieces("a cat") == [1037, 4937] and len(plain.pieces("x" * 20_000)) == 1
    batches = [call.args[0] for call in counting.encode_batch.call_args_list]
    assert batches == [["a cat", "a mat"], ["x" * 20_000]]  # a long text holds up no other thread
    assert not counting.encode.called
    plain.pieces("a mat")
    assert [call.args[0] for call in counting.encode.call_args_list] == ["a mat"]  # nothing is kept
    with plain.together(["a cat", "half \ud800", "a mat"]):
        assert plain.pieces("a cat") == [1037, 4937]
        with pytest.raises(InputError, match="surrogate"):
            plain.pieces("half \ud800")
