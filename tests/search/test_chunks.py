"""Documents in sentences and chunks: nothing is lost, nothing is too long, and places are right."""

import functools
import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from mlxbert.config import Absolute
from mlxbert.errors import ArgumentError, InputError
from mlxbert.search.chunks import Chunk, Splitter, sentences
from mlxbert.search.documents.document import Document, Heading
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers.cases import together
from tests.helpers.cells import quick
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import byte_files, put, trained
from tests.text.test_tokenizer import tokenizer

KINDS = ["words", "bytes", "pieces"]


@functools.cache
def of_kind(kind: str, folder: Path, length: int = 40) -> Tokenizer:
    if kind == "words":
        return tokenizer(length)
    files = byte_files() if kind == "bytes" else {"sentencepiece.bpe.model": trained()}
    return Tokenizer(read_tokenizer(put(folder / kind, files)), tiny_config(vocab_size=200, positions=Absolute(length)))


def document(text: str, title: str = "", *, pages: tuple[int, ...] = (), line: int | None = 1) -> Document:
    """A document whose headings are its lines that begin with `#`."""
    found = re.finditer(r"^(#+) *(.*)", text, re.MULTILINE)
    headings = tuple(Heading(one.start(), len(one[1]), one[2]) for one in found)
    return Document(text, title, headings=headings, pages=pages, first_line=line)


def texts_of(found: Document, chunks: list[Chunk]) -> list[str]:
    return [found.text[chunk.start : chunk.end] for chunk in chunks]


def check(splitter: Splitter, found: Document) -> list[Chunk]:
    """What is true of all chunks of any document."""
    chunks, text, model = splitter(found), found.text, splitter.tokenizer
    assert all(before.end <= after.start for before, after in pairwise(chunks))
    gaps = pairwise([0, *(place for chunk in chunks for place in (chunk.start, chunk.end)), len(text)])
    for start, end in list(gaps)[::2]:
        assert not text[start:end].strip() or not model.pieces(text[start:end].strip())
    for chunk in chunks:
        part = text[chunk.start : chunk.end]
        assert part and part == part.strip()
        ends = [chunk.start, *(place for window in chunk.windows for place in window), chunk.end]
        assert ends == sorted(ends) and chunk.windows
        for start, end in list(pairwise(ends))[::2]:
            assert not text[start:end].strip() or not model.pieces(text[start:end].strip())
        embedded = splitter.embedded(found, chunk)
        for (start, end), whole in zip(chunk.windows, embedded, strict=True):
            assert len(model.encode(splitter.prompt + whole)) <= model.max_length  # refuses more itself
            assert whole.endswith(text[start:end]) and start < end
        if found.first_line is not None:
            assert chunk.first_line == found.first_line + text.count("\n", 0, chunk.start)
            assert chunk.last_line == found.first_line + text.count("\n", 0, chunk.end)
        else:
            assert chunk.first_line is chunk.last_line is None
        page = max(sum(start <= chunk.start for start in found.pages), 1) if found.pages else None
        assert chunk.page == page
    return chunks


PARTS = [
    *("the ", "cat", " dog", "in Paris ", " ", "\n", "\n\n", "\r\n", "\t", "# ", "\n## the city\n", "\n# A\n", ". "),
    *("\u4e2d\u6587", "\u3002", "e\u0301", "\ufdfa", "\U0001f600", "12,345", "it's ", "[MASK]", "<mask>", "\u200b"),
    *("x" * 120, "\u3000", "\xa0", "\x1c", "\x00", "\u2028", "unbelievably ", "? ", "a-b_c(d)"),
]
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=8), max_size=80).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@quick(160)
@given(text=TEXTS, title=st.sampled_from(["", "the cat", "x" * 300]), data=st.data())
def test_nothing_is_lost_and_nothing_is_too_long(
    tmp_path_factory: pytest.TempPathFactory, kind: str, text: str, title: str, data: st.DataObject
) -> None:
    length = data.draw(st.sampled_from([32, 100]), "length")
    model = of_kind(kind, tmp_path_factory.getbasetemp() / f"vocabulary-{length}", length)
    prompt = data.draw(st.sampled_from(["", "query: ", "the"]), "prompt")
    tokens = data.draw(st.none() | st.integers(20, length - 12), "tokens")
    pages = tuple(sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=4), "pages")))
    line = data.draw(st.none() | st.integers(1, 9), "line")
    splitter = Splitter(model, tokens=tokens, prompt=prompt, titles=data.draw(st.booleans(), "titles"))
    check(splitter, document(text, title, pages=pages, line=line))


def sized(tokens: int, model: Tokenizer | None = None) -> Splitter:
    return Splitter(model or tokenizer(512), tokens=tokens)


def words(count: int, word: str = "cat") -> str:
    return " ".join([word] * count)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{words(20)}\n\n{words(8)}\nthe dog. {words(9)}", [words(20), f"{words(8)}\nthe dog. {words(9)}"]),
        (f"{words(20)}\n{words(4)}. The {words(10)}", [words(20), f"{words(4)}. The {words(10)}"]),
        (f"{words(20)}. The {words(8)} e.g. the {words(9)}", [f"{words(20)}.", f"The {words(8)} e.g. the {words(9)}"]),
        (words(40), [words(30), words(10)]),
        ("\u4e2d" * 20 + "\u3002" + "\u6587" * 20, ["\u4e2d" * 20 + "\u3002", "\u6587" * 20]),
        (f"{words(4)}\n\n{words(40)}", [f"{words(4)}\n\n{words(26)}", words(14)]),  # not far too short
        (words(30), [words(30)]),
    ],
)
def test_texts_are_cut_where_it_is_best(text: str, expected: list[str]) -> None:
    splitter = sized(30)
    assert texts_of(document(text), check(splitter, document(text))) == expected


def test_a_chunk_begins_at_a_heading_unless_the_one_before_would_be_small() -> None:
    found = document(f"{words(9)}\n# One\n{words(9)}\n# Two\ncat\n## Three\n{words(9)}\n# Four\n{words(2)}")
    chunks = check(sized(32), found)
    one, two = f"# One\n{words(9)}", f"# Two\ncat\n## Three\n{words(9)}"
    assert texts_of(found, chunks) == [words(9), one, two, f"# Four\n{words(2)}"]
    assert [chunk.titles for chunk in chunks] == [(), ("One",), ("Two",), ("Four",)]


def test_titles_are_those_over_the_start() -> None:
    text = "\n".join(f"{head}\n{words(20)}" for head in ("# Guide", "## A", "#### B", "### C", "## A", "#", "## D"))
    found = document(f"{words(20)}\n{text}", "Guide")
    splitter = sized(40)
    chunks = check(splitter, found)
    guide = ("Guide",)
    assert [chunk.titles for chunk in chunks] == [
        *(guide, guide, (*guide, "A"), (*guide, "A", "B"), (*guide, "A", "C"), (*guide, "A"), guide, (*guide, "D")),
    ]
    assert splitter.embedded(found, chunks[3]) == [f"Guide > A > B\n#### B\n{words(20)}"]
    plain = Splitter(splitter.tokenizer, tokens=40, titles=False)
    assert plain.embedded(found, chunks[3]) == [f"#### B\n{words(20)}"]
    assert [chunk.titles for chunk in check(plain, found)] == [chunk.titles for chunk in chunks]


def test_titles_take_a_quarter_of_the_room_at_most_and_the_innermost_fit_first() -> None:
    splitter = sized(40)
    for title, shown in {
        words(30): words(10), "x" * 1000: "", words(10): words(10), f"cat > {'y' * 1000}": "cat", "": "",
    }.items():  # fmt: skip
        found = document(words(100), title)
        line, _, rest = splitter.embedded(found, check(splitter, found)[0])[0].rpartition("\n")
        assert line == shown and rest == words(len(rest.split()))
    text = f"# {words(6)}\n## dog\n### Paris\n{words(30)}"
    found = document(text, words(9, "mat"))
    chunk = check(splitter, found)[0]
    heading = splitter.embedded(found, replace(chunk, titles=(words(9, "mat"), words(6), "dog", "Paris")))[0]
    assert heading.startswith(f"{words(6)} > dog > Paris\n") or heading.startswith("dog > Paris\n")


def test_windows_are_whole_sentences_and_end_with_a_paragraph_unless_they_would_be_tiny() -> None:
    splitter = sized(256)
    sentence = f"The {words(19)} sat."
    found = document(" ".join([sentence] * 8))
    (chunk,) = check(splitter, found)
    assert splitter.embedded(found, chunk) == [" ".join([sentence] * 2)] * 4  # 44 tokens; three have more than 64
    long = document(f"{sentence} The {words(100)}. The dog sat.")
    shown = splitter.embedded(long, check(splitter, long)[0])
    assert shown[0] == sentence and shown[-1].endswith("The dog sat.")
    assert all(len(splitter.tokenizer.pieces(each)) <= 64 for each in shown)
    parts = [words(10, "dog"), words(9, "cat"), words(3, "mat"), words(12, "milk")]
    found = document("\n\n".join(parts))
    (chunk,) = check(splitter, found)
    assert splitter.embedded(found, chunk) == [parts[0], parts[1], f"{parts[2]}\n\n{parts[3]}"]


def test_nothing_has_no_chunk_and_wrong_sizes_and_halves_of_surrogate_pairs_are_refused() -> None:
    for text in ("", " ", "\n\u3000\t\r\n", "\u200b" * 10, "\x00"):
        assert check(sized(30), document(text)) == []
    model = tokenizer(64)
    assert Splitter(model).tokens == 62 and Splitter(tokenizer(512)).tokens == 256
    assert Splitter(model, prompt="the cat").tokens == 60
    for tokens in (63, 0, -1, 7, True, 2.5):
        with pytest.raises(ArgumentError, match="tokens"):
            Splitter(model, tokens=tokens)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        Splitter(model, prompt=words(60))
    for half in (document("the \ud800 cat"), document("the cat", "\udcff")):
        with pytest.raises(InputError, match="surrogate"):
            sized(30)(half)


def test_what_stands_alone_with_more_tokens_is_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the tokens of the whole text were a third of those of its parts."""
    splitter, starts = sized(30, tokenizer(34)), Splitter._token_starts
    monkeypatch.setattr(Splitter, "_token_starts", lambda self, text: starts(self, text)[::3])
    found = document("\n\n".join([words(50), "# A", words(50, "dog."), "x" * 400]), "the city")
    assert sum(len(chunk.windows) for chunk in check(splitter, found)) > 5


def test_a_character_too_long_for_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Splitter, "_heading", lambda self, titles: words(9))
    with pytest.raises(InputError, match="tokens"):
        sized(8, tokenizer(10))(document("cat"))


MILLION = {
    "words": "the cat sat on the mat. " * 6_000,
    "one word": "a" * 150_000,
    "no spaces": "the,cat,sat," * 12_500,
    "spaces": f"a{' ' * 150_000}a",
    "lines": "a\n" * 50_000,
    "ends": ". " * 50_000,
    "nothing": f"a{chr(0x200B) * 150_000}a",
    "headings": "# a\nb\n" * 5_000,
    "deep headings": "".join(f"{'#' * (number % 90)} {number}\n" for number in range(1_000)),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", MILLION.values(), ids=MILLION)
def test_time_is_linear(text: str) -> None:
    def seconds(times: int) -> float:
        found = document(text * times, "the cat")
        start = time.process_time()
        Splitter(model)(found)
        return time.process_time() - start

    model = tokenizer(512)
    check(Splitter(model), document(text, "the cat"))
    assert seconds(6) < 2.5 * 6 * max(seconds(1), 0.05)


def test_many_headings_a_title_of_any_length_and_many_sentences_take_little_time() -> None:
    count = 10_000
    headings = tuple(Heading(6 * place, place, f"a{place}") for place in range(count))  # each in the one before
    start = time.process_time()
    found = Document("# a\nb\n" * count, "T" * 10**6, headings=headings, first_line=1)
    chunks = Splitter(tokenizer(512))(found)
    assert chunks[-1].last_line == 2 * count and len(chunks[-1].titles) <= 9
    assert time.process_time() - start < 1.25
    start = time.process_time()
    for part in (".", ". ", "\n", " ", ".)", "a"):
        sentences(part * 100_000)
    assert time.process_time() - start < 0.5


@together(
    ("text", "expected"),
    [
        ("", []),
        (" \n ", []),
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("It is 3.5 km, e.g. here.", ["It is 3.5 km, e.g. here."]),
        ("He said \u201cno.\u201d She (too.) Then  e.g.", ["He said \u201cno.\u201d", "She (too.)", "Then  e.g."]),
        ("a line\nand more.\n\n  Another\n \nthird", ["a line\nand more.", "Another", "third"]),
        ("\u4e2d\u6587\u3002\u6587\u4e2d\uff01\u4e2d", ["\u4e2d\u6587\u3002", "\u6587\u4e2d\uff01", "\u4e2d"]),
    ],
)
def test_known_sentences(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in sentences(text)] == expected


@quick(200)
@given(st.text(alphabet=st.sampled_from("aB.!\n \u3002\u201d\u3000\u2026)"), max_size=40))
def test_sentences_have_all_that_is_not_space(text: str) -> None:
    spans = sentences(text)
    assert "".join("".join(text[start:end] for start, end in spans).split()) == "".join(text.split())
    assert spans == sorted(spans)
    for start, end in spans:
        assert text[start:end] == text[start:end].strip() != ""
